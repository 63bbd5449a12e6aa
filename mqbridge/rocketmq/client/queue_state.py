"""The life of one queue while it is ours: its state (see `queue_table`) and its positions; no IO, and no clock of its own.

The positions are offsets, and never out of order: acknowledged <= handed_out <= position, and what waits to be handed out lies
between the last two. `position` is what the next pull asks for. `acknowledged` is what the group's offset becomes: everything
below it is consumed, or was left out by a filter. It goes back only by `move` and `reset`.

A run begins with `start` and ends when reading goes on elsewhere (`move`, `rewind`), or would for the next owner (`reset`). A
pull carries the run in which it was asked, and an answer of an older run changes nothing. An acknowledgement of what an older run
handed out counts up to where reading was rewound to since, as everything behind that is handed out again; after a move or a reset
it counts nothing.
"""

from collections import deque
from typing import NamedTuple

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.queue_table import ACKNOWLEDGING, HANDING_OUT, TABLE, Event, State
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES

LOCK_VALID_S = 30.0
"""How long a lock is trusted (as the Java clients do); the broker lets it go 60 s after it was last taken."""


class Pull(NamedTuple):
    """A pull to be asked: for `offset`, storing `commit` on the way; `hold`: the broker may let it wait."""

    run: int
    offset: int
    hold: bool
    commit: int | None


class QueueState:
    """See the module. Times are those of the event loop."""

    def __init__(self) -> None:
        self.state = State.ASSIGNED
        self.run = 0
        self.position = self.handed_out = self.acknowledged = 0
        self.first_start = False
        """We chose the start, and nothing has been read yet: messages that are missing there are not missed."""
        self.at_end = False
        """The last answer said that nothing comes after it."""
        self.gap_at: int | None = None
        """The offset at which it ended with a gap."""
        self.taken_away = False
        """Another member gets the queue, and may be waiting for our last commit."""
        self.locked_at: float | None = None
        """Time before the last lock; None where no lock is needed."""
        self.waiting: deque[Pulled] = deque()
        self.waiting_bytes = 0
        self._told: int | None = None
        """The offset that the store was told last, if it was told."""
        self._saved: int | None = None
        """The offset that the store is known to have."""
        self._pull: Pull | None = None
        self._limits: dict[int, int] = {}
        """How far acknowledgements of each older run count."""

    def may(self, event: Event) -> bool:
        """Whether this may happen now."""
        return (self.state, event) in TABLE

    def _go(self, event: Event) -> None:
        after = TABLE.get((self.state, event))
        if after is None:
            raise LocalProtocolError(f"a queue that is {self.state.value} cannot {event.value}")
        self.state = after

    # --- reading ----------------------------------------------------------------------------------------------------

    def start(self, offset: int, *, first_start: bool, locked_at: float | None = None) -> None:
        """Begin to read. `first_start`: there was no offset to go on from; the start that we chose is committed."""
        self._go(Event.START)
        self.locked_at, self.first_start = locked_at, first_start
        if not first_start:
            self._told = self._saved = offset
        self._begin_run(offset)
        self.acknowledged = offset

    def reads(self, run: int) -> bool:
        """Whether pulls of this run are to be asked."""
        return self.state is State.READING and run == self.run

    def pull(self, now: float, *, with_commit: bool, may_hold: bool = True) -> Pull:
        """The next pull; one is on its way at a time. `may_hold`: it may wait at the broker, if nothing is there."""
        if self.state is not State.READING or self._pull is not None:
            raise LocalProtocolError(f"a queue that is {self.state.value} cannot be pulled, or is being pulled already")
        commit = self.acknowledged if with_commit and self.lock_holds(now) else None
        if commit is not None:
            self._told = commit
        self._pull = Pull(self.run, self.position, self.at_end and may_hold, commit)
        return self._pull

    def is_current(self, pull: Pull) -> bool:
        """Whether its answer still counts."""
        return self._pull is pull and self.reads(pull.run)

    def answered(self, pull: Pull, next_: int, end: int, pulled: Pulled | None = None) -> bool:
        """The answer to a pull: what it brought, the offset to go on with, the end of the queue. Whether anything moved.

        One that does not count any more changes nothing.
        """
        if not self.is_current(pull):
            return False
        if next_ < self.position:
            raise LocalProtocolError(f"an answer goes on at {next_}, before {self.position}")
        self._go(Event.ANSWER)
        self._pull, self.first_start = None, False
        at_end, before = next_ >= end, (self.position, self.at_end)
        self.position, self.at_end = next_, at_end
        if pulled is not None:
            self.waiting.extend(pulled.split(MAX_UNPACKED_BYTES))
            self.waiting_bytes += pulled.size
        self._follow()
        return (self.position, self.at_end) != before

    def asked_in_vain(self, pull: Pull, *, failed: bool) -> None:
        """The same offset is asked for again. `failed`: nobody knows whether its commit arrived."""
        if failed:
            self._told = None
        if self._pull is pull:
            self._pull = None

    # --- handing out ------------------------------------------------------------------------------------------------

    def can_take(self, now: float) -> bool:
        """Whether `take` has something."""
        return bool(self.waiting) and self.state in HANDING_OUT and self.lock_holds(now)

    def take(self, now: float) -> Pulled | None:
        """Hand out what one pull brought, if something waits and nobody else may have the queue."""
        if not self.can_take(now):
            return None
        pulled = self.waiting.popleft()
        self.waiting_bytes -= pulled.size
        self.handed_out = pulled.next
        return pulled

    def acknowledge(self, offset: int, run: int | None = None) -> bool:
        """Everything below `offset` is consumed, as it was handed out in `run` (None: this one).

        What was not handed out, will be handed out again, or is acknowledged, changes nothing.
        """
        if self.state not in ACKNOWLEDGING or not self.acknowledged < offset <= self._limit(run):
            return False
        self.acknowledged = offset
        self._follow()
        return True

    def _limit(self, run: int | None) -> int:
        return self.handed_out if run is None or run == self.run else self._limits.get(run, -1)

    def _follow(self) -> None:
        """When nothing is out, what a filter left out is done with as well."""
        if self.is_quiet and not self.waiting:
            self.acknowledged = self.handed_out = self.position

    @property
    def is_quiet(self) -> bool:
        """Whether all that was handed out is acknowledged."""
        return self.acknowledged == self.handed_out

    # --- moving -----------------------------------------------------------------------------------------------------

    def rewind(self, offset: int, run: int | None = None) -> bool:
        """Hand out again from `offset` on. False, and nothing happens, if `run` did not hand that out, or it is acknowledged."""
        if not self.may(Event.MOVE) or not self.acknowledged <= offset <= self._limit(run):
            return False
        self._go(Event.MOVE)
        self._limits[self.run] = self.handed_out
        self._limits = {run: min(limit, offset) for run, limit in self._limits.items() if limit > self.acknowledged}
        self._begin_run(offset)
        return True

    def move(self, offset: int, *, own_start: bool = False) -> bool:
        """Go on elsewhere: all positions lose their meaning. `own_start`: the start that we chose is gone, and this is the next.

        False, and nothing happens, when the queue is not ours any more.
        """
        if not self.may(Event.MOVE):
            return False
        self._go(Event.MOVE)
        self._begin_run(offset)
        self.acknowledged, self.first_start = offset, own_start
        self._told = self._saved = None
        self._limits = {}
        return True

    def _begin_run(self, offset: int) -> None:
        self.run += 1
        self._pull = self.gap_at = None
        self.at_end = False
        self._forget_what_waits()
        self.position = self.handed_out = offset

    def _forget_what_waits(self) -> None:
        self.waiting.clear()
        self.waiting_bytes = 0
        self.position = self.handed_out

    # --- ending -----------------------------------------------------------------------------------------------------

    def end(self, event: Event) -> bool:
        """GAP or REFUSE: reading ended by itself; what waits can be taken, the queue stays ours. False if it was not reading."""
        if not self.may(event):
            return False
        self._go(event)
        self.gap_at = self.position if event is Event.GAP else None
        return True

    def leave(self, event: Event) -> bool:
        """REVOKE, RELEASE or LOSE_LOCK: pull and hand out no more. False when that is so already."""
        if not self.may(event):
            return False
        self._go(event)
        self.taken_away = event is Event.REVOKE
        self._forget_what_waits()
        return True

    def reset(self, offset: int) -> bool:
        """An administrator set the group's offset while the queue is being given back: what is out counts no longer."""
        if not self.may(Event.RESET):
            return False
        self._go(Event.RESET)
        self.run += 1
        self.position = self.handed_out = self.acknowledged = offset
        self._told = self._saved = None
        self._limits = {}
        return True

    def settle(self) -> None:
        """What is out has been acknowledged, or was waited for long enough."""
        self._go(Event.SETTLE)

    def given_back(self) -> None:
        """The last offset is committed and the lock given back, as far as that could be done."""
        self._go(Event.GIVEN_BACK)

    @property
    def is_ours(self) -> bool:
        """Whether it was neither taken away nor given back."""
        return self.state in HANDING_OUT or self.state is State.ASSIGNED

    @property
    def rests_at_gap(self) -> bool:
        """Whether it stands at a gap and the group's offset is ours: all that was handed out is acknowledged, and saved."""
        return self.state is State.AT_GAP and not self.waiting and self.is_quiet and self._saved == self.acknowledged

    # --- committing -------------------------------------------------------------------------------------------------

    def due(self, now: float) -> int | None:
        """The offset to tell the store, if it has not been told."""
        return self.acknowledged if self.acknowledged != self._told and self._may_commit(now, ACKNOWLEDGING) else None

    def unsaved(self, now: float) -> int | None:
        """The offset that the store is not known to have; also what is to be said last, when the queue is given back."""
        may = self._may_commit(now, ACKNOWLEDGING | {State.RELEASING})
        return self.acknowledged if self.acknowledged != self._saved and may else None

    def told(self, offset: int | None) -> None:
        """The store is being told this one; None: it could not be told."""
        self._told = offset

    def saved(self, offset: int) -> None:
        """The store has it."""
        self._told = self._saved = offset

    def _may_commit(self, now: float, states: frozenset[State]) -> bool:
        return self.state in states and self.lock_holds(now)

    # --- the lock ---------------------------------------------------------------------------------------------------

    def lock_holds(self, now: float) -> bool:
        """Whether nobody else can have the queue; true where no lock is needed."""
        return self.locked_at is None or now - self.locked_at < LOCK_VALID_S

    def lock_renewed(self, at: float) -> None:
        """The lock was taken again, at this time."""
        self.locked_at = at
