"""State machine of one assigned queue: its state (see `queue_transitions`) and its offsets; no IO, no clock.

The store keeps the committed offset: usually it is the queue's broker; `offset_store` has the others. A commit is "reported" when
it is sent to the store, and "saved" when the store has confirmed it.

Invariant: acknowledged <= handed_out <= position. All three are exclusive ends: messages below them are acknowledged, handed out,
or pulled. So `position` is also the offset of the next pull. Records between `handed_out` and `position` are buffered.
`acknowledged` is committed as the group's offset: messages below it are consumed, or were removed by a filter. Only `move` and
`reset` can decrease it.

Runs are numbered periods of reading without a jump. `start` begins the first run; `move`, `rewind` and `reset` begin a new one.
Each pull contains the number of its run, and the response to a pull of an older run has no effect. A message may be handed out in
one run and acknowledged in a later one. After `rewind` to an offset, such an acknowledgement counts only for messages below that
offset, because all others are handed out again. After `move` or `reset` it does not count at all.
"""

from collections import deque
from typing import NamedTuple

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_transitions import ACKNOWLEDGING, HANDING_OUT, OURS, TRANSITIONS, Event, State
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES

LOCK_VALID_S = 30.0
"""How long after its last successful request a lock is trusted, as in the Java clients. At the broker it expires after 60 s."""


class Pull(NamedTuple):
    """A pull to send in the run `run`: from `offset` on; it also commits the offset `commit`, if any.

    `hold`: the broker may hold it until there are messages (long polling).
    """

    run: int
    offset: int
    hold: bool
    commit: int | None


class QueueState:
    """State and offsets of a queue; see the module. Times are loop times."""

    def __init__(self, name: str = "the queue") -> None:
        """`name` is the queue's name in errors."""
        self._name = name
        self.state = State.ASSIGNED
        self.run = 0
        """Number of the current run; 0 before `start`."""
        self.position = self.handed_out = self.acknowledged = 0
        self.first_start = False
        """True if we chose the start (the group had no offset) and no pull has had a response yet. Then messages missing at the
        start are no gap."""
        self.at_end = False
        """True if the last response of this run reached the end of the queue."""
        self.pull_failed = False
        """True if the last pull had no response, so the end of the queue may have moved unnoticed."""
        self.gap_at: int | None = None
        """The offset of the gap at which reading stopped; None without one."""
        self.anew_first: int | None = None
        """The first offset of the queue if reading stopped because the queue was made anew, else None.

        The acknowledged offset belongs to the queue that it replaces. So this one is committed instead, at once and by the
        release: nothing of the new queue is consumed.
        """
        self.taken_away = False
        """True after REVOKE or ANNOUNCE: another member gets the queue, and needs our last commit soon."""
        self.locked_at: float | None = None
        """Time of the last lock request that succeeded; None if no lock is needed."""
        self.buffered: deque[PulledRecords] = deque()
        """Records that were pulled and not yet handed out."""
        self.buffered_bytes = 0
        """Size of the buffered records as the brokers store them."""
        self._reported: int | None = None
        """The offset sent to the store last, by a commit or in a pull; None if there is none, or sending it failed."""
        self._saved: int | None = None
        """The offset that the store has confirmed; None if there is none."""
        self._pull: Pull | None = None
        """The pull in flight; None without one."""
        self._limits: dict[int, int] = {}
        """Older runs whose acknowledgements still count, and for each run the offset up to which they count."""

    def may(self, event: Event) -> bool:
        """Return True if this event is allowed now."""
        return (self.state, event) in TRANSITIONS

    def _transition(self, event: Event) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise LocalProtocolError(f"{self._name} cannot {event.value}, because it is {self.state.value}")
        self.state = after

    # --- reading ----------------------------------------------------------------------------------------------------

    def start(self, offset: int, *, first_start: bool, locked_at: float | None = None) -> None:
        """Begin to read at `offset`. `first_start`: the group had no offset here, so the start that we chose gets committed."""
        self._transition(Event.START)
        self.locked_at, self.first_start = locked_at, first_start
        if not first_start:  # the store has this offset already
            self._reported = self._saved = offset
        self._begin_run(offset)
        self.acknowledged = offset

    def reads(self, run: int) -> bool:
        """Return True if pulls of this run should still be sent."""
        return self.state is State.READING and run == self.run

    def pull(self, now: float, *, with_commit: bool, may_hold: bool = True) -> Pull:
        """Return the next pull to send. The previous one must be answered or abandoned.

        `with_commit`: the pull also commits the acknowledged offset, unless our lock may have expired. `may_hold`: the broker may
        hold it while there are no messages; it is asked to only at the end of the queue.
        """
        if self.state is not State.READING:
            raise LocalProtocolError(f"{self._name} cannot be pulled, because it is {self.state.value}")
        if self._pull is not None:
            raise LocalProtocolError(f"{self._name} is being pulled already, at offset {self._pull.offset}")
        commit = self.acknowledged if with_commit and self.lock_holds(now) else None
        if commit is not None:
            self._reported = commit
        self._pull = Pull(self.run, self.position, self.at_end and may_hold, commit)
        return self._pull

    def is_current(self, pull: Pull) -> bool:
        """Return True if this pull is in flight and its run is the current one, so that its response counts."""
        return self._pull is pull and self.reads(pull.run)

    def apply_response(self, pull: Pull, next_: int, end: int, pulled: PulledRecords | None = None) -> bool:
        """Apply the response to a pull; return True after progress, False if the response no longer counts or changed nothing.

        `next_` is the offset at which to continue, `end` the offset after the queue's last message, `pulled` the records, if any.
        """
        if not self.is_current(pull):
            return False
        if next_ < self.position:
            raise LocalProtocolError(f"a pull of {self._name} continues at offset {next_}, before its position {self.position}")
        self._transition(Event.RESPONSE)
        self._pull = None
        self.first_start = False
        self.pull_failed = False
        at_end, before = next_ >= end, (self.position, self.at_end)
        self.position, self.at_end = next_, at_end
        if pulled is not None:
            self.buffered.extend(pulled.split(MAX_UNPACKED_BYTES))
            self.buffered_bytes += pulled.size
        self._acknowledge_filtered()
        return (self.position, self.at_end) != before

    def end_pull(self, pull: Pull, *, failed: bool) -> None:
        """Allow the next pull after this one was answered, failed or cancelled; a newer pull in flight stays in flight.

        `failed`: there was no response, so a commit in this pull may not have arrived, and the offset is reported again.
        """
        if failed:
            self._reported = None
        if self._pull is pull:
            self._pull, self.pull_failed = None, failed

    # --- handing out ------------------------------------------------------------------------------------------------

    def can_take(self, now: float) -> bool:
        """Return True if records are buffered and may be handed out: see `take`."""
        return bool(self.buffered) and self.state in HANDING_OUT and self.lock_holds(now)

    def take(self, now: float) -> PulledRecords | None:
        """Hand out the next records: those of one pull, or a part of them if they take much memory when decompressed.

        Returns None if no records are buffered, or if another member may have the queue.
        """
        if not self.can_take(now):
            return None
        pulled = self.buffered.popleft()
        self.buffered_bytes -= pulled.size
        self.handed_out = pulled.next
        return pulled

    def acknowledge(self, offset: int, run: int | None = None) -> bool:
        """Record that all messages below `offset`, which were handed out in `run` (None: the current run), are consumed.

        Returns False without effect if these messages were not all handed out in this run, if some of them were handed out again
        or will be, if they are acknowledged already, or if the queue is in none of the states ACKNOWLEDGING.
        """
        if self.state not in ACKNOWLEDGING or not self.acknowledged < offset <= self._limit(run):
            return False
        self.acknowledged = offset
        self._acknowledge_filtered()
        return True

    def _limit(self, run: int | None) -> int:
        """Return the offset up to which acknowledgements of this run count; -1 if they do not count."""
        return self.handed_out if run is None or run == self.run else self._limits.get(run, -1)

    def _acknowledge_filtered(self) -> None:
        """If no message is in flight or buffered, acknowledge up to `position`: the filter removed what lies between."""
        if self.nothing_in_flight and not self.buffered:
            self.acknowledged = self.handed_out = self.position

    @property
    def nothing_in_flight(self) -> bool:
        """True if everything handed out is acknowledged."""
        return self.acknowledged == self.handed_out

    # --- moving -----------------------------------------------------------------------------------------------------

    def rewind(self, offset: int, run: int | None = None) -> bool:
        """Hand out messages again from `offset` on.

        Returns False without effect if messages from `offset` on are acknowledged, if those below it were not all handed out in
        `run` (None: the current run), before `start`, and if the queue is no longer ours.
        """
        if not self.may(Event.MOVE) or not self.acknowledged <= offset <= self._limit(run):
            return False
        self._transition(Event.MOVE)
        self._limits[self.run] = self.handed_out
        # Messages from `offset` on are handed out again, so acknowledgements of older runs count only below it. Runs whose
        # messages are all acknowledged are dropped.
        self._limits = {older: min(limit, offset) for older, limit in self._limits.items() if limit > self.acknowledged}
        self._begin_run(offset)
        return True

    def move(self, offset: int, *, first_start: bool = False) -> bool:
        """Continue at `offset`, with everything below it counting as acknowledged; acknowledgements of older runs do not count.

        `first_start`: the messages at the start that we chose are deleted, and `offset`, the first one that exists, is the start
        instead. Returns False without effect before `start`, and if the queue is no longer ours.
        """
        if not self.may(Event.MOVE):
            return False
        self._transition(Event.MOVE)
        self._begin_run(offset)
        self.acknowledged, self.first_start = offset, first_start
        self._reported = self._saved = None
        self._limits = {}
        return True

    def _begin_run(self, offset: int) -> None:
        self.run += 1
        self._pull = self.gap_at = self.anew_first = None
        self.at_end = False
        self._drop_buffered()
        self.position = self.handed_out = offset

    def _drop_buffered(self) -> None:
        self.buffered.clear()
        self.buffered_bytes = 0
        self.position = self.handed_out

    # --- ending -----------------------------------------------------------------------------------------------------

    def stop_pulling(self, event: Event, anew_first: int | None = None) -> bool:
        """Stop pulling after GAP or REFUSE, until a `move` or `rewind`; return False if the queue was not being pulled.

        The queue stays ours, and buffered records can still be taken. `anew_first` is the first offset of a queue made anew.
        """
        if not self.may(event):
            return False
        self._transition(event)
        self.anew_first = anew_first
        gap_at = self.position if anew_first is None else anew_first
        self.gap_at = gap_at if event is Event.GAP else None
        return True

    def leave(self, event: Event) -> bool:
        """Stop pulling and handing out after ANNOUNCE, REVOKE, RELEASE or LOSE_LOCK; return False if it is not allowed now."""
        if not self.may(event):
            return False
        self.taken_away = event in (Event.ANNOUNCE, Event.REVOKE) or self.state is State.LEAVING
        self._transition(event)
        self._drop_buffered()
        self.at_end = False
        return True

    def reset(self, offset: int) -> bool:
        """Make an administrator's offset the last commit of a queue that is LEAVING, SETTLING or RELEASING.

        Acknowledgements of messages in flight no longer count. Returns False without effect in other states.
        """
        if not self.may(Event.RESET):
            return False
        self._transition(Event.RESET)
        self.run += 1
        self.position = self.handed_out = self.acknowledged = offset
        self._reported = self._saved = self.anew_first = None
        self._limits = {}
        return True

    def keep_committed(self) -> None:
        """Leave the offset at the store as it is: an administrator has changed it."""
        self.anew_first = None
        self._reported = self._saved = self.acknowledged

    def settle(self) -> None:
        """Stop accepting acknowledgements: all messages in flight are acknowledged, or we no longer wait for them."""
        self._transition(Event.SETTLE)

    def finish_release(self) -> None:
        """End the release: the offset is committed and the queue unlocked, or this failed."""
        self._transition(Event.FINISH_RELEASE)

    @property
    def is_ours(self) -> bool:
        """True until the queue is revoked, lost or released."""
        return self.state in OURS

    @property
    def rests_at_gap(self) -> bool:
        """True if reading stopped at a gap, and all messages before it are handed out, acknowledged and committed."""
        return self.state is State.AT_GAP and not self.buffered and self.nothing_in_flight and self._saved == self.consumed

    # --- committing -------------------------------------------------------------------------------------------------

    @property
    def consumed(self) -> int:
        """The offset to commit: below it, all messages of the queue as it is now are consumed."""
        return self.acknowledged if self.anew_first is None else self.anew_first

    def unreported(self, now: float) -> int | None:
        """Return the offset to send to the store; None if it was sent already, or may not be committed now."""
        return self.consumed if self.consumed != self._reported and self._may_commit(now, ACKNOWLEDGING) else None

    def unsaved(self, now: float) -> int | None:
        """Return the offset to commit with a confirmation; None if the store has confirmed it, or it may not be committed now.

        Unlike `unreported`, this also returns an offset while RELEASING, for the last commit. The beginning of a queue that was
        made anew is committed once more then: a late commit of the old offset may have followed the first one.
        """
        may_commit = self._may_commit(now, ACKNOWLEDGING | {State.RELEASING})
        is_saved = self.consumed == self._saved and (self.anew_first is None or self.state is not State.RELEASING)
        return self.consumed if may_commit and not is_saved else None

    def mark_reported(self, offset: int | None) -> None:
        """Record that `offset` is being sent to the store; None records that this failed."""
        self._reported = offset

    def mark_saved(self, offset: int) -> None:
        """Record that the store has confirmed `offset`."""
        self._reported = self._saved = offset

    def _may_commit(self, now: float, states: frozenset[State]) -> bool:
        return self.state in states and self.lock_holds(now)

    # --- the lock ---------------------------------------------------------------------------------------------------

    def lock_holds(self, now: float) -> bool:
        """Return True if our lock is certainly valid at this time, or no lock is needed."""
        return self.locked_at is None or now - self.locked_at < LOCK_VALID_S

    def record_lock_renewal(self, requested_at: float) -> None:
        """Record that the lock was renewed by a request sent at this loop time."""
        self.locked_at = requested_at
