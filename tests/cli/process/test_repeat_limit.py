"""Log lines that repeat."""

import logging

from mqbridge.cli.process.repeat_limit import MAX_KINDS, MAX_LINES, REPEAT_WINDOW_S, RepeatLimit


class Log:
    """A limit with a clock, and the texts that it lets through."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.limit = RepeatLimit(lambda: self.now)
        self.lines: list[str] = []

    def write(self, *args: object, line: int = 1, level: int = logging.INFO) -> None:
        record = logging.LogRecord("mqbridge", level, "file.py", line, "%s failed: %s", args, None)
        if self.limit.filter(record):
            self.lines.append(record.getMessage())


def test_lines_about_one_thing_are_limited_and_counted() -> None:
    log = Log()
    for number in range(MAX_LINES + 5):
        log.write("p1", number)
    assert len(log.lines) == MAX_LINES
    log.now += REPEAT_WINDOW_S
    log.write("p1", "again")
    log.write("p1", "and again")
    assert log.lines[MAX_LINES:] == ["p1 failed: again (5 lines like this were left out before)", "p1 failed: and again"]


def test_lines_about_other_things_and_of_other_statements_are_not_limited() -> None:
    log = Log()
    for number in range(MAX_LINES * 2):
        log.write(f"p{number}", "x")
        log.write("p", "x", line=number)
        log.write("q", "x", level=logging.DEBUG)
    assert len(log.lines) == MAX_LINES * 6


def test_only_so_many_kinds_are_kept_in_memory() -> None:
    log = Log()
    for number in range(MAX_KINDS * 2):
        log.write(f"p{number}", "x")
    assert len(log.limit._repeats) == MAX_KINDS
