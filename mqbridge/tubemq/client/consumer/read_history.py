"""What a reader has received lately, to find out whether a Broker still has the data after a restart.

A Broker that is killed loses the messages that it had only in memory (up to 20 s by default), and gives their offsets to new
messages. The group's offset, written more often, may then lie behind messages that nobody has read. So after a restart a reader
compares what the Broker has at offsets that it has read with what it received there: message ids are made from the time.
"""

from collections import deque
from typing import NamedTuple

SPACING_S = 1.0
"""Minimum time between two remembered packs, apart from the last pack."""
MAX_REMEMBERED = 120
"""Number of remembered packs: at least two minutes. Brokers flush their memory after 20 s by default."""


class ReadPack(NamedTuple):
    """A pack that was received: the offset at which it begins, and the ids of its first and last message."""

    offset: int
    first_id: int
    last_id: int


class ReadHistory:
    """The packs of one partition that were received last, at most one per SPACING_S before the last one."""

    def __init__(self) -> None:
        self._last: ReadPack | None = None
        self._earlier: deque[ReadPack] = deque(maxlen=MAX_REMEMBERED)
        self._earlier_at = float("-inf")
        """Event loop time at which the newest of `_earlier` was superseded."""

    def add(self, pack: ReadPack, now: float) -> None:
        """Remember a received pack; `now` is the loop time."""
        last = self._last
        if last is not None and last.offset < pack.offset and now - self._earlier_at >= SPACING_S:
            self._earlier.append(last)
            self._earlier_at = now
        self._last = pack

    def is_last(self, first_id: int) -> bool:
        """Return True if the pack that was received last begins with this message."""
        return self._last is not None and self._last.first_id == first_id

    def newest_first(self, before: int) -> list[ReadPack]:
        """Return the remembered packs that begin at or before the offset `before`, the newest first."""
        packs = [] if self._last is None else [self._last]
        packs += reversed(self._earlier)
        return [pack for pack in packs if pack.offset <= before]

    def clear(self) -> None:
        """Forget everything, after a seek: the packs no longer precede the position."""
        self._last = None
        self._earlier.clear()
