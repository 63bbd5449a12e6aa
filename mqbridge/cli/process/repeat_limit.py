"""Limits log lines that repeat, so that a lasting trouble neither fills a disk nor hides the lines about other things."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_LINES = 10
"""Maximum number of lines of one kind about one thing in REPEAT_WINDOW_S."""
REPEAT_WINDOW_S = 60.0
MAX_KINDS = 4096
"""Number of kinds and things that are known; the one whose line is oldest is forgotten first."""
MAX_SUBJECT_LENGTH = 200
"""Characters of the name of a thing that tell it from others."""


@dataclass(slots=True)
class _Repeats:
    """Lines of one kind about one thing: when their window began, how many were written in it, and how many were left out."""

    began_at: float
    written: int = 0
    left_out: int = 0


class RepeatLimit(logging.Filter):
    """Leaves out what a statement logs more than MAX_LINES times in REPEAT_WINDOW_S about the same thing.

    The thing is the first argument of the statement: a route, a topic, a partition, a cluster. The next line that is written says
    how many were left out. Lines of the level DEBUG are not limited.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._repeats: OrderedDict[tuple[str, int, str], _Repeats] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a record that is left out."""
        if record.levelno <= logging.DEBUG:
            return True
        now = self._clock()
        repeats = self._of(record, now)
        if now - repeats.began_at >= REPEAT_WINDOW_S:
            if repeats.left_out:
                record.msg = f"{record.getMessage()} ({repeats.left_out} lines like this were left out before)"
                record.args = ()
            repeats.began_at, repeats.written, repeats.left_out = now, 0, 0
        if repeats.written >= MAX_LINES:
            repeats.left_out += 1
            return False
        repeats.written += 1
        return True

    def _of(self, record: logging.LogRecord, now: float) -> _Repeats:
        subject = str(record.args[0])[:MAX_SUBJECT_LENGTH] if isinstance(record.args, tuple) and record.args else ""
        key = (record.pathname, record.lineno, subject)
        repeats = self._repeats.setdefault(key, _Repeats(now))
        self._repeats.move_to_end(key)
        if len(self._repeats) > MAX_KINDS:
            self._repeats.popitem(last=False)
        return repeats
