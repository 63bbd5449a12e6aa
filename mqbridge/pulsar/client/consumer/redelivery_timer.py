"""Times at which entries are to be redelivered: after a negative acknowledgement, or after the subscription's ack timeout.

Times are rounded up to ticks, so that thousands of entries need one timer, and only the ticks are sorted, not the entries.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

TICK_S = 0.1
"""Length of a tick: an entry may be redelivered this much later than requested."""


class RedeliveryTimer:
    """The entries to redeliver, by redelivery time. All times are loop times. The caller runs the asyncio timer."""

    __slots__ = ("_by_tick", "_ticks")

    def __init__(self) -> None:
        self._ticks: dict[EntryId, int] = {}
        """Entry -> tick of its redelivery: the number of the first tick after its redelivery time, counted from loop time 0."""
        self._by_tick: dict[int, dict[EntryId, None]] = {}
        """Tick -> entries to redeliver at this tick, in the order of `add`."""

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, entry: EntryId, at: float) -> None:
        """Set the redelivery time of an entry to `at` (loop time), replacing its previous one."""
        self.discard(entry)
        tick = int(at / TICK_S) + 1
        self._ticks[entry] = tick
        self._by_tick.setdefault(tick, {})[entry] = None

    def discard(self, entry: EntryId) -> None:
        """Remove an entry; do nothing if it has no redelivery time."""
        tick = self._ticks.pop(entry, None)
        if tick is not None:
            entries = self._by_tick[tick]
            del entries[entry]
            if not entries:
                del self._by_tick[tick]

    def discard_up_to(self, entry: EntryId) -> None:
        """Remove this entry and all entries with smaller ids."""
        self._discard_all([each for each in self._ticks if each <= entry])

    def _discard_all(self, entries: Iterable[EntryId]) -> None:
        for entry in entries:
            self.discard(entry)

    def clear(self) -> None:
        """Remove all entries."""
        self._ticks.clear()
        self._by_tick.clear()

    def pop(self, now: float) -> list[EntryId]:
        """Remove and return the entries whose redelivery time has come, in order of time."""
        ticks = sorted(tick for tick in self._by_tick if tick * TICK_S <= now)
        entries = [entry for tick in ticks for entry in self._by_tick[tick]]
        self._discard_all(entries)
        return entries

    def next_at(self) -> float | None:
        """Return the earliest redelivery time, rounded up to a tick; None without entries."""
        return min(self._by_tick) * TICK_S if self._by_tick else None
