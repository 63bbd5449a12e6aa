"""What a reader has received lately, to find out whether a Broker still has the data after a restart.

A Broker that is killed loses the messages that it had only in memory (up to 20 s by default), and gives their offsets to new
messages. The group's offset, written more often, may then lie behind messages that nobody has read. So after a restart a reader
compares what the Broker has at offsets that it has read with what it received there: message ids are made from the time.

A part of the history, the trace, outlives the partition's assignment: so the next one can compare, too.
"""

from collections import deque
from typing import NamedTuple

SPACING_S = 1.0
"""Minimum time between two remembered packs, apart from the last pack."""
MAX_REMEMBERED = 120
"""Number of remembered packs: at least two minutes. Brokers flush their memory after 20 s by default."""
TRACE_SPACING_S = 15.0
"""Minimum time between two packs of a trace, apart from the last pack."""
MAX_TRACED = 8
"""Number of packs of a trace before the last one: two minutes, too, in a few hundred bytes."""


NO_ID = -1
"""In place of the ids of a pack without messages, which marks where reading began."""


class ReadPack(NamedTuple):
    """A pack that was received: the offset at which it begins, and the ids of its first and last message, or NO_ID.

    There was no message of the partition between the last one and the next pack, or the position.
    """

    offset: int
    first_id: int
    last_id: int


class LastRead(NamedTuple):
    """What a consumer has read of a partition, for the next one.

    All messages before the offset `confirmed` are confirmed, and perhaps more. `types` is a checksum of the message types that
    the Broker was asked for: with others, packs have other messages. `packs` are the newest first.
    """

    confirmed: int
    types: int
    packs: tuple[ReadPack, ...]


class ReadHistory:
    """The packs of one partition that were received last, at most one per SPACING_S before the last one."""

    def __init__(self) -> None:
        self._last: ReadPack | None = None
        self._earlier: deque[ReadPack] = deque(maxlen=MAX_REMEMBERED)
        self._earlier_at = float("-inf")
        """Event loop time at which the newest of `_earlier` was superseded."""
        self._traced: deque[ReadPack] = deque(maxlen=MAX_TRACED)
        """Packs of `_earlier` with TRACE_SPACING_S between them, the newest first."""
        self._traced_at = float("-inf")
        """Like `_earlier_at`, of the newest of `_traced`."""

    def begin(self, offset: int) -> None:
        """Remember where reading began, unless something was read before: a partition may move on without messages."""
        if self._last is None:
            self._last = ReadPack(offset, NO_ID, NO_ID)

    def add(self, pack: ReadPack, now: float) -> None:
        """Remember a received pack; `now` is the loop time."""
        last = self._last
        if last is not None and last.offset < pack.offset and now - self._earlier_at >= SPACING_S:
            self._earlier.append(last)
            self._earlier_at = now
            if now - self._traced_at >= TRACE_SPACING_S:
                self._traced.appendleft(last)
                self._traced_at = now
        self._last = pack

    @property
    def trace(self) -> tuple[ReadPack, ...]:
        """The last pack, which may not be confirmed, and a few earlier ones: the newest first."""
        return () if self._last is None else (self._last, *self._traced)

    def restore(self, trace: tuple[ReadPack, ...], now: float) -> None:
        """Remember the packs of an earlier reader's `trace`, which is not empty; `now` is the loop time."""
        self._last = trace[0]
        self._traced.extend(trace[1:])
        self._earlier.extend(reversed(trace[1:]))
        if len(trace) > 1:
            self._traced_at = now

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
        self._traced.clear()
