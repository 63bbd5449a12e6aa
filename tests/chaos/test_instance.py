"""Problems in the log of an instance are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.instance import Instance
from tests.kit.tcp_proxy import Network

STALLED = (
    "WARNING persistent://t-0: no entry has arrived for 60 s, although the topic has entries up to (3, 7): subscribing again"
)
LOST_MESSAGES = (
    "WARNING t/0 ends at 5, before the delivered position 9: it was created again, or the broker lost acknowledged messages"
)
STOPPED = "ERROR route tubemq-pulsar: partition tube/t/1:2 stopped: tube/t/1:2 lost data: offset 28 was expected"
SKIPPED = "WARNING partition tube/t/1:2 continues at position 56:0 without the lost messages: offset 28 was expected"
FAILED = 'ERROR a bug\nTraceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: 3\n'


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (STALLED, STALLED),
        (LOST_MESSAGES, LOST_MESSAGES),
        (STOPPED, STOPPED),
        (SKIPPED, SKIPPED),
        (FAILED, "a traceback: ValueError: 3"),
    ],
)
def test_problems_in_a_log_are_found_among_other_lines(tmp_path: Path, log: str, found: str) -> None:
    (tmp_path / "gateway.log").write_text(f"INFO it starts\n{log}\nINFO it goes on\n")
    instance = Instance("a", tmp_path, Network([]), lambda _name, _folder: {}, 5)
    assert instance.log_problems() == [found]
    assert instance.stops() == (log == STOPPED)


def test_only_a_killed_source_allows_lost_messages_in_a_log(tmp_path: Path) -> None:
    (tmp_path / "gateway.log").write_text(f"{LOST_MESSAGES}\n{STOPPED}\n")
    instance = Instance("a", tmp_path, Network([]), lambda _name, _folder: {}, 5)
    assert instance.log_problems() == [LOST_MESSAGES, STOPPED]
    assert instance.log_problems(allows_loss=True) == [STOPPED]


def test_an_instance_without_a_log_has_no_problems(tmp_path: Path) -> None:
    assert not Instance("a", tmp_path, Network([]), lambda _name, _folder: {}, 5).log_problems()
