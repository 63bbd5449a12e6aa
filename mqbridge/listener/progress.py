"""How far a group has come in a partition, as it is recorded: a mark, and what is acknowledged behind it.

The source keeps the group's position itself, and may know it some seconds later than it was acknowledged. If it resumes a little
before the recorded mark, what lies between was acknowledged. If it resumes before a mark that it must have known
(`Acknowledged.confirmed`), somebody has moved the group back, and the record does not count: what was acknowledged CONFIRM_S ago,
and everything when it was released in order. Whoever makes a topic anew while its listener is stopped has to delete the record.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from mqbridge.groups.acknowledged import Acknowledged, ranges_of
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.delivered import Delivered, State
from mqbridge.message import Position

CONFIRM_S = 15.0
"""After this time, a source has stored a position that was acknowledged: adapters commit at least every 5 s."""


class GroupProgress:
    """The progress of one attached source. `end` it when the source is given up or moved."""

    def __init__(self, key: GroupKey, store: GroupStore | None) -> None:
        """`store` is None if nothing is recorded, as for groups whose messages are acknowledged one by one."""
        self.mark: Position | None = None
        """Position before which everything is acknowledged; None while it is not known."""
        self._key, self._store = key, store
        self._known = None if store is None else store.load(key)
        """What was recorded before, as long as units that it knows may come."""
        self._confirmed: Position = ()
        """A mark that the source has stored by now."""
        self._batch_end: Position = ()
        """The end of the last batch of which everything is acknowledged: some sources store only such positions."""
        self._confirm_timer: asyncio.TimerHandle | None = None
        """The timer that makes the batch end of its start the confirmed mark; None while they are equal."""
        self._ended: Acknowledged | None = None
        """The state that was recorded last, at the end."""

    def begin_at(self, first: Position) -> None:
        """Begin at the position of the first message: what is recorded counts unless the group was moved back."""
        known = self._known
        if known is None or first < known.confirmed:
            self.move_to(first)
        else:
            self.mark, self._confirmed = min(first, known.mark), known.confirmed
            self._batch_end = self._confirmed

    def move_to(self, position: Position) -> None:
        """Begin at this position, whatever is recorded."""
        self._known = None
        self.mark = self._confirmed = self._batch_end = position

    def continue_with(self, state: Acknowledged) -> None:
        """Take this state for what was recorded before."""
        self._known = state

    def acknowledged_before(self, delivered: Delivered) -> int:
        """Return the bits of the messages of a new unit that were acknowledged before the source was attached."""
        known = self._known
        if known is None:
            return 0
        if delivered.end <= known.mark:
            return (1 << delivered.count) - 1
        if delivered.number >= known.last:
            self._known = None  # it says nothing about later units
        return known.acknowledged_bits(delivered.number, delivered.count)

    def advance_past(self, delivered: Delivered) -> None:
        """Move the mark behind a unit that is acknowledged, as everything before it is."""
        self.mark = delivered.end
        if delivered.end_index == delivered.held.batch.count:
            self._batch_end = delivered.end

    def state(self, units: Iterable[Delivered], last: int) -> Acknowledged | None:
        """Return what is to be recorded; None while the begin is not known.

        `units` are those behind the mark, in order, and `last` is the number of the newest one that the source has delivered.
        """
        mark, known = self.mark, self._known
        if mark is None:
            return None
        units = list(units)
        ranges = ranges_of((each.number, each.state is State.DONE) for each in units)
        partial = {each.number: each.acknowledged for each in units if each.state is not State.DONE and each.acknowledged}
        if known is not None:  # of the units that were not read yet
            later_ranges, later_partial = known.behind(last)
            ranges, partial = ranges + later_ranges, partial | later_partial
            if not units:
                mark = max(mark, known.mark)
        return Acknowledged(mark, self._confirmed, ranges, partial)

    def record(self, make_state: Callable[[], Acknowledged | None]) -> None:
        """Record the state that this function returns, with the next flush of the store, and again when it is confirmed."""
        if self._store is None or self.mark is None:
            return
        self._store.record(self._key, lambda: _known_state(make_state))
        if self._confirm_timer is None and self._batch_end > self._confirmed:
            loop = asyncio.get_running_loop()
            self._confirm_timer = loop.call_later(CONFIRM_S, self._confirm, self._batch_end, make_state)

    def _confirm(self, mark: Position, make_state: Callable[[], Acknowledged | None]) -> None:
        """Take a mark for confirmed; record that, and go on until the newest one is."""
        self._confirm_timer, self._confirmed = None, mark
        self.record(make_state)

    def end(self, state: Acknowledged | None) -> None:
        """Record a last state, if there is one, instead of what follows from the units."""
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None
        if self._store is not None and state is not None:
            self._store.record(self._key, lambda: state)
        self._ended = state

    def released(self) -> None:
        """Take note that the source has stored the position: if it resumes before it next time, the group was moved back."""
        state = self._ended
        if self._store is None or state is None or self._store.load(self._key) is not state:
            return
        confirmed = replace(state, confirmed=max(state.confirmed, min(self._batch_end, state.mark)))
        self._store.record(self._key, lambda: confirmed)


def _known_state(make_state: Callable[[], Acknowledged | None]) -> Acknowledged:
    state = make_state()
    assert state is not None  # noqa: S101 - it is recorded only once its begin is known, and `end` records another one
    return state
