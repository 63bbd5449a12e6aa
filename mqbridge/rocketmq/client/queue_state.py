"""State machine of one assigned queue: its state (see `queue_transitions`) and its offsets; no IO, no clock.

Invariant: acknowledged <= handed_out <= position; records that wait to be handed out lie between the last two. `position` is the
offset of the next pull. `acknowledged` becomes the group's offset: everything below it is consumed, or was removed by a filter.
It decreases only by `move` and `reset`.

A run begins with `start` and ends when reading continues elsewhere (`move`, `rewind`), or will for the next member (`reset`). A
pull carries its run; the response to a pull of an older run has no effect. An acknowledgement of an older run counts up to the
offset of the latest rewind, as everything behind is handed out again; after a move or a reset it does not count.
"""

from collections import deque
from typing import NamedTuple

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.client.queue_transitions import ACKNOWLEDGING, HANDING_OUT, TRANSITIONS, Event, State
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES

LOCK_VALID_S = 30.0
"""How long a lock is trusted, as in the Java clients; at the broker it expires 60 s after it was last taken."""


class Pull(NamedTuple):
    """A pull to send: from `offset`, committing `commit` as well; `hold`: the broker may hold it."""

    run: int
    offset: int
    hold: bool
    commit: int | None


class QueueState:
    """State and offsets of a queue; see the module. Times are loop times."""

    def __init__(self) -> None:
        self.state = State.ASSIGNED
        self.run = 0
        self.position = self.handed_out = self.acknowledged = 0
        self.first_start = False
        """We chose the start and have read nothing yet: missing messages there are no gap."""
        self.at_end = False
        """The last response reached the end of the queue."""
        self.gap_at: int | None = None
        """The offset of the gap that ended the queue."""
        self.taken_away = False
        """Another member gets the queue, and may wait for our last commit."""
        self.locked_at: float | None = None
        """Time of the last lock request that succeeded; None if no lock is needed."""
        self.waiting: deque[PulledRecords] = deque()
        self.waiting_bytes = 0
        self._reported: int | None = None
        """The offset sent to the store last; None if that failed."""
        self._saved: int | None = None
        """The offset that the store has confirmed."""
        self._pull: Pull | None = None
        self._limits: dict[int, int] = {}
        """Up to which offset acknowledgements of each older run count."""

    def may(self, event: Event) -> bool:
        """Return True if this event is allowed now."""
        return (self.state, event) in TRANSITIONS

    def _transition(self, event: Event) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise LocalProtocolError(f"a queue that is {self.state.value} cannot {event.value}")
        self.state = after

    # --- reading ----------------------------------------------------------------------------------------------------

    def start(self, offset: int, *, first_start: bool, locked_at: float | None = None) -> None:
        """Begin to read. `first_start`: the group had no offset; the start that we chose is committed."""
        self._transition(Event.START)
        self.locked_at, self.first_start = locked_at, first_start
        if not first_start:
            self._reported = self._saved = offset
        self._begin_run(offset)
        self.acknowledged = offset

    def reads(self, run: int) -> bool:
        """Return True if pulls of this run are to be sent."""
        return self.state is State.READING and run == self.run

    def pull(self, now: float, *, with_commit: bool, may_hold: bool = True) -> Pull:
        """Return the next pull; one is in flight at a time. `may_hold`: the broker may hold it if there is nothing."""
        if self.state is not State.READING or self._pull is not None:
            raise LocalProtocolError(f"a queue that is {self.state.value} cannot be pulled, or is being pulled already")
        commit = self.acknowledged if with_commit and self.lock_holds(now) else None
        if commit is not None:
            self._reported = commit
        self._pull = Pull(self.run, self.position, self.at_end and may_hold, commit)
        return self._pull

    def is_current(self, pull: Pull) -> bool:
        """Return True if the response to this pull still counts."""
        return self._pull is pull and self.reads(pull.run)

    def answered(self, pull: Pull, next_: int, end: int, pulled: PulledRecords | None = None) -> bool:
        """Apply the response to a pull: its records, the offset to continue at, the end of the queue. Return True after progress.

        A response that no longer counts has no effect.
        """
        if not self.is_current(pull):
            return False
        if next_ < self.position:
            raise LocalProtocolError(f"a response continues at {next_}, before {self.position}")
        self._transition(Event.ANSWER)
        self._pull, self.first_start = None, False
        at_end, before = next_ >= end, (self.position, self.at_end)
        self.position, self.at_end = next_, at_end
        if pulled is not None:
            self.waiting.extend(pulled.split(MAX_UNPACKED_BYTES))
            self.waiting_bytes += pulled.size
        self._acknowledge_filtered()
        return (self.position, self.at_end) != before

    def abandon_pull(self, pull: Pull, *, failed: bool) -> None:
        """Give up a pull; its offset is pulled again. `failed`: its commit may or may not have arrived."""
        if failed:
            self._reported = None
        if self._pull is pull:
            self._pull = None

    # --- handing out ------------------------------------------------------------------------------------------------

    def can_take(self, now: float) -> bool:
        """Return True if `take` has records."""
        return bool(self.waiting) and self.state in HANDING_OUT and self.lock_holds(now)

    def take(self, now: float) -> PulledRecords | None:
        """Hand out the records of one pull, if some wait and no other member may have the queue."""
        if not self.can_take(now):
            return None
        pulled = self.waiting.popleft()
        self.waiting_bytes -= pulled.size
        self.handed_out = pulled.next
        return pulled

    def acknowledge(self, offset: int, run: int | None = None) -> bool:
        """Everything below `offset` is consumed, as handed out in `run` (None: the current run).

        No effect for messages that were not handed out, will be handed out again, or are acknowledged.
        """
        if self.state not in ACKNOWLEDGING or not self.acknowledged < offset <= self._limit(run):
            return False
        self.acknowledged = offset
        self._acknowledge_filtered()
        return True

    def _limit(self, run: int | None) -> int:
        return self.handed_out if run is None or run == self.run else self._limits.get(run, -1)

    def _acknowledge_filtered(self) -> None:
        """If nothing is in flight or waits, acknowledge the filtered messages up to `position`."""
        if self.nothing_in_flight and not self.waiting:
            self.acknowledged = self.handed_out = self.position

    @property
    def nothing_in_flight(self) -> bool:
        """True if everything handed out is acknowledged."""
        return self.acknowledged == self.handed_out

    # --- moving -----------------------------------------------------------------------------------------------------

    def rewind(self, offset: int, run: int | None = None) -> bool:
        """Hand out again from `offset`. False without effect if `run` did not hand it out, or it is acknowledged."""
        if not self.may(Event.MOVE) or not self.acknowledged <= offset <= self._limit(run):
            return False
        self._transition(Event.MOVE)
        self._limits[self.run] = self.handed_out
        self._limits = {run: min(limit, offset) for run, limit in self._limits.items() if limit > self.acknowledged}
        self._begin_run(offset)
        return True

    def move(self, offset: int, *, own_start: bool = False) -> bool:
        """Continue elsewhere with new offsets. `own_start`: the start that we chose is deleted, this is the next.

        False without effect if the queue is no longer ours.
        """
        if not self.may(Event.MOVE):
            return False
        self._transition(Event.MOVE)
        self._begin_run(offset)
        self.acknowledged, self.first_start = offset, own_start
        self._reported = self._saved = None
        self._limits = {}
        return True

    def _begin_run(self, offset: int) -> None:
        self.run += 1
        self._pull = self.gap_at = None
        self.at_end = False
        self._drop_waiting()
        self.position = self.handed_out = offset

    def _drop_waiting(self) -> None:
        self.waiting.clear()
        self.waiting_bytes = 0
        self.position = self.handed_out

    # --- ending -----------------------------------------------------------------------------------------------------

    def end(self, event: Event) -> bool:
        """GAP or REFUSE: reading failed; waiting records can be taken, the queue stays ours. False if it did not read."""
        if not self.may(event):
            return False
        self._transition(event)
        self.gap_at = self.position if event is Event.GAP else None
        return True

    def leave(self, event: Event) -> bool:
        """REVOKE, RELEASE or LOSE_LOCK: stop pulling and handing out. False if it had stopped already."""
        if not self.may(event):
            return False
        self._transition(event)
        self.taken_away = event is Event.REVOKE
        self._drop_waiting()
        return True

    def reset(self, offset: int) -> bool:
        """An administrator set the group's offset during the release: messages in flight no longer count."""
        if not self.may(Event.RESET):
            return False
        self._transition(Event.RESET)
        self.run += 1
        self.position = self.handed_out = self.acknowledged = offset
        self._reported = self._saved = None
        self._limits = {}
        return True

    def settle(self) -> None:
        """Messages in flight are acknowledged, or their time is up."""
        self._transition(Event.SETTLE)

    def given_back(self) -> None:
        """The last offset is committed and the queue unlocked, as far as possible."""
        self._transition(Event.GIVEN_BACK)

    @property
    def is_ours(self) -> bool:
        """True unless it was revoked, lost or released."""
        return self.state in HANDING_OUT or self.state is State.ASSIGNED

    @property
    def rests_at_gap(self) -> bool:
        """True if it is at a gap, and everything handed out is acknowledged and saved."""
        return self.state is State.AT_GAP and not self.waiting and self.nothing_in_flight and self._saved == self.acknowledged

    # --- committing -------------------------------------------------------------------------------------------------

    def unreported(self, now: float) -> int | None:
        """Return the offset to commit; None if it was already sent to the store."""
        return self.acknowledged if self.acknowledged != self._reported and self._may_commit(now, ACKNOWLEDGING) else None

    def unsaved(self, now: float) -> int | None:
        """Return the offset that the store has not confirmed, None if it has; also the last commit of a release."""
        may = self._may_commit(now, ACKNOWLEDGING | {State.RELEASING})
        return self.acknowledged if self.acknowledged != self._saved and may else None

    def mark_reported(self, offset: int | None) -> None:
        """`offset` is being sent to the store; None if that failed."""
        self._reported = offset

    def mark_saved(self, offset: int) -> None:
        """The store has confirmed `offset`."""
        self._reported = self._saved = offset

    def _may_commit(self, now: float, states: frozenset[State]) -> bool:
        return self.state in states and self.lock_holds(now)

    # --- the lock ---------------------------------------------------------------------------------------------------

    def lock_holds(self, now: float) -> bool:
        """Return True if no other member can have the queue; always if no lock is needed."""
        return self.locked_at is None or now - self.locked_at < LOCK_VALID_S

    def lock_renewed(self, at: float) -> None:
        """The lock was renewed at this time."""
        self.locked_at = at
