"""Since when, and why, the sends of one queue fail and are retried, until one is stored."""

import asyncio
from collections.abc import Iterable


class FailingSends:
    """The failures of one send queue since a message was stored last.

    failing_since  loop time of the first failure; None while sends are stored
    reason         text of the last failure
    failures       number of failures
    """

    __slots__ = ("failing_since", "failures", "reason")

    def __init__(self) -> None:
        self.failing_since: float | None = None
        self.reason = ""
        self.failures = 0

    def record(self, error: Exception) -> None:
        """Record a failure after which the queue tries again."""
        if self.failing_since is None:
            self.failing_since, self.failures = asyncio.get_running_loop().time(), 0
        self.reason = str(error)
        self.failures += 1

    def clear(self) -> None:
        """Record that a send was stored."""
        self.failing_since = None


def longest_failing(queues: Iterable[FailingSends]) -> tuple[float, str, int] | None:
    """Return `failing_since`, `reason` and `failures` of the queue that has failed for the longest time; None if none fails."""
    failing = ((each.failing_since, each.reason, each.failures) for each in queues if each.failing_since is not None)
    return min(failing, default=None)
