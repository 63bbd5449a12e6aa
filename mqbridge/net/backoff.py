"""Retry delays: exponential, capped, with jitter so that clients do not all retry at the same moment."""

import random


class Backoff:
    """Delays in seconds: the ceiling starts at `first` and doubles up to `most`; a delay is 50 to 100 % of the ceiling."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first, self._most = first, most
        self._next = first
        self.begun = False
        """True if a delay was drawn since the last reset."""

    def delay(self) -> float:
        """Return the next delay."""
        ceiling, self.begun = self._next, True
        self._next = min(self._next * 2, self._most)
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Start over after a success."""
        self._next, self.begun = self._first, False
