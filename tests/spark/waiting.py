"""Waiting for what processes of Spark bring about."""

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""A JVM and its Python workers are up in 5 s on two idle cores, and in a minute where four others want them."""
POLL_S = 0.05


def wait_for(holds: Callable[[], bool], what: str = "it", patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {patience_s:g} s"
        time.sleep(POLL_S)
