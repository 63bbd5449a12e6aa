"""Waits for effects of Spark's processes."""

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""A JVM and its Python workers start within 5 s on two idle cores, and within a minute if four others start at the same time.
With three test processes on two cores (load 12), the first batches of a mirror on real servers took longer than 240 s."""
POLL_S = 0.05


def wait_for(condition: Callable[[], bool], event: str = "it", patience_s: float = PATIENCE_S) -> None:
    """Wait until the condition is true. Raises AssertionError, which names the event, after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{event} did not happen within {patience_s:g} s"
        time.sleep(POLL_S)
