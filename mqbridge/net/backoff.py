"""Retry delays: exponential, capped, with jitter so that clients do not all retry at the same moment."""

import random


class Backoff:
    """Delays in seconds: the ceiling starts at `initial_s` and doubles up to `max_s`; a delay is 50 to 100 % of the ceiling."""

    def __init__(self, initial_s: float = 0.1, max_s: float = 10.0) -> None:
        self._initial_s, self._max_s = initial_s, max_s
        self._ceiling_s = initial_s
        self.has_failed = False
        """True if a delay was drawn since the last reset: the last attempt failed."""

    def delay(self) -> float:
        """Return the delay in seconds before the next attempt."""
        ceiling_s, self.has_failed = self._ceiling_s, True
        self._ceiling_s = min(self._ceiling_s * 2, self._max_s)
        return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Start over with the initial ceiling, after a success."""
        self._ceiling_s, self.has_failed = self._initial_s, False
