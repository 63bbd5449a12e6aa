"""Entries by the time at which something is due for them: redelivery after a negative acknowledgement, or after none at all.

Times are counted in ticks, so that thousands of entries need one timer and no sorting.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

TICK_S = 0.1
"""How much later than asked something may happen."""


class RedeliveryTimer:
    """The caller brings the clock."""

    __slots__ = ("_by_tick", "_ticks")

    def __init__(self) -> None:
        self._ticks: dict[EntryId, int] = {}
        self._by_tick: dict[int, dict[EntryId, None]] = {}

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, entry: EntryId, at: float) -> None:
        """Due at this time; an earlier one is forgotten."""
        self.discard(entry)
        tick = int(at / TICK_S) + 1
        self._ticks[entry] = tick
        self._by_tick.setdefault(tick, {})[entry] = None

    def discard(self, entry: EntryId) -> None:
        """Nothing is due for it any more."""
        tick = self._ticks.pop(entry, None)
        if tick is not None:
            entries = self._by_tick[tick]
            del entries[entry]
            if not entries:
                del self._by_tick[tick]

    def discard_up_to(self, entry: EntryId) -> None:
        """Nothing is due for it and for all before it."""
        self._discard_all([each for each in self._ticks if each <= entry])

    def _discard_all(self, entries: Iterable[EntryId]) -> None:
        for entry in entries:
            self.discard(entry)

    def clear(self) -> None:
        """Nothing is due."""
        self._ticks.clear()
        self._by_tick.clear()

    def pop(self, now: float) -> list[EntryId]:
        """What is due by now, in order of time."""
        late = sorted(tick for tick in self._by_tick if tick * TICK_S <= now)
        entries = [entry for tick in late for entry in self._by_tick[tick]]
        self._discard_all(entries)
        return entries

    def next_at(self) -> float | None:
        """When something is due next."""
        return min(self._by_tick) * TICK_S if self._by_tick else None
