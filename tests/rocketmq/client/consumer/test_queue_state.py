"""The state table of a queue, and its positions compared with a model of the broker, for events in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_state import LOCK_VALID_S, Pull, QueueState
from mqbridge.rocketmq.client.consumer.queue_transitions import TRANSITIONS, Event, State
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.example_counts import examples

QUEUE = Queue("T", "broker-a", 0)
LUCK = st.sampled_from([3, 2, 1, 0])
"""Events that end a run happen only if this is 0: otherwise runs would end before anything could go wrong."""
BODY = encode_record(Record("T", b"x"))


def block(first: int, next_: int) -> PulledRecords:
    return PulledRecords(QUEUE, BODY, first, next_)


# --- the table ------------------------------------------------------------------------------------------------------------


def test_every_state_is_reachable_and_only_released_and_lost_are_final() -> None:
    assert set(TRANSITIONS.values()) | {State.ASSIGNED} == set(State)
    assert set(State) - {before for before, _ in TRANSITIONS} == {State.RELEASED, State.LOST}


@pytest.mark.parametrize("event", [Event.FINISH_RELEASE, Event.SETTLE])
def test_a_transition_that_is_not_in_the_table_raises(event: Event) -> None:
    state = QueueState()
    state.start(0, first_start=False)
    with pytest.raises(LocalProtocolError, match="reading"):
        state.settle() if event is Event.SETTLE else state.finish_release()
    with pytest.raises(LocalProtocolError, match="reading"):
        state.start(0, first_start=False)


def test_only_one_pull_is_in_flight_at_a_time() -> None:
    state = QueueState()
    state.start(0, first_start=False)
    state.pull(0.0, with_commit=True)
    with pytest.raises(LocalProtocolError):
        state.pull(0.0, with_commit=True)


def test_undelivered_pulls_are_not_acknowledged_when_the_queue_is_revoked() -> None:
    """Waiting pulls are dropped, so the acknowledged offset must not advance past them."""
    state = QueueState()
    state.start(0, first_start=False, locked_at=0.0)
    for first in (0, 3):
        state.apply_response(state.pull(0.0, with_commit=True), first + 3, 9, block(first, first + 3))
    assert state.take(0.0) is not None
    state.leave(Event.REVOKE)
    state.acknowledge(3)
    assert state.unsaved(0.0) == 3


# --- the model ------------------------------------------------------------------------------------------------------------


class Broker:
    """One queue and the committed offset of its group."""

    def __init__(self) -> None:
        self.first = self.end = 0
        self.committed: int | None = None
        self.filtered: set[int] = set()
        self.done: set[int] = set()
        """Offsets that a commit may pass: acknowledged since the last move of the group, or skipped by a move."""


class QueueLife(RuleBasedStateMachine):
    """One group on one queue: members come and go, each with a `QueueState` of its own; requests arrive late or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.now = 0.0
        self.state = QueueState()
        self.in_flight: list[Pull] = []
        """Pulls without a response yet."""
        self.out: list[list[int]] = []
        """Run, first and next offset of each unacknowledged pull, and the offset up to which it can still be acknowledged."""
        self.handed: dict[int, int] = {}
        """By run, the end of the delivered messages."""

    @initialize(messages=st.integers(0, 12), locked=st.booleans())
    def join(self, messages: int, locked: bool) -> None:
        self.locked = locked
        self.broker.end = messages
        self.take_queue()

    def take_queue(self) -> None:
        """A member (the same or another one) starts at the group's offset."""
        self.state = QueueState()
        self.in_flight, self.out, self.handed = [], [], {}
        chosen = self.broker.committed is None
        start = self.broker.first if chosen else self.broker.committed
        assert start is not None
        self.group_goes_to(start)
        self.state.start(start, first_start=chosen, locked_at=self.now if self.locked else None)

    def group_goes_to(self, offset: int) -> None:
        """Note a start, seek, reset or gap: messages below the offset need not be consumed, those from it on must be (again)."""
        self.broker.done = set(range(offset))

    def not_done_below(self, offset: int) -> list[int]:
        return [at for at in range(offset) if at not in self.broker.done and at not in self.broker.filtered]

    def commit(self, offset: int) -> None:
        """Store the group's offset; all messages below it must be consumed, filtered out or skipped by a move."""
        missing = self.not_done_below(offset)
        assert not missing, f"offset {offset} is committed, and {missing} were never consumed"
        self.broker.committed = offset

    @property
    def reading(self) -> bool:
        return self.state.state is State.READING

    @property
    def ours(self) -> bool:
        return self.state.is_ours

    @property
    def handing_out(self) -> bool:
        """A queue that announces its release is ours, but hands out nothing more."""
        return self.ours and self.state.state is not State.LEAVING

    # --- the broker ---------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), filtered=st.booleans())
    def store(self, count: int, filtered: bool) -> None:
        if filtered:
            self.broker.filtered.update(range(self.broker.end, self.broker.end + count))
        self.broker.end += count

    @rule(share=st.floats(0, 1), luck=LUCK)
    def delete_oldest(self, share: float, luck: int) -> None:
        if luck == 0:
            self.broker.first += int((self.broker.end - self.broker.first) * share)

    @rule(seconds=st.sampled_from([1.0, 20.0, LOCK_VALID_S]), renewed=st.booleans())
    def time_passes(self, seconds: float, renewed: bool) -> None:
        self.now += seconds
        if renewed or seconds == 1.0:
            self.lock_is_renewed()

    # --- pulling ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.reading and self.state._pull is None)
    @rule(with_commit=st.booleans())
    def ask(self, with_commit: bool) -> None:
        pull = self.state.pull(self.now, with_commit=with_commit)
        if pull.commit is not None:
            self.commit(pull.commit)
        self.in_flight.append(pull)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), limit=st.integers(1, 4))
    def answer(self, data: st.DataObject, limit: int) -> None:
        """Answer any pull in flight, also an abandoned one."""
        self.answer_to(self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1))), limit)

    def answer_to(self, pull: Pull, limit: int) -> None:
        before = (self.state.position, self.state.buffered_bytes, self.state.run)
        current = self.state.is_current(pull)
        if pull.offset < self.broker.first or pull.offset > self.broker.end:
            self.moved(pull, current)
            return
        next_ = min(pull.offset + limit, self.broker.end)
        wanted = [at for at in range(pull.offset, next_) if at not in self.broker.filtered]
        self.state.apply_response(pull, next_, self.broker.end, block(pull.offset, next_) if wanted else None)
        if not current:
            assert before == (self.state.position, self.state.buffered_bytes, self.state.run), "a late answer moved something"

    def moved(self, pull: Pull, current: bool) -> None:
        if not current:
            self.state.end_pull(pull, failed=False)
        elif self.state.first_start:
            self.group_goes_to(self.broker.first)
            self.state.move(self.broker.first, first_start=True)
            self.rewound(-1)
        else:
            assert self.state.stop_pulling(Event.GAP)
            self.state.end_pull(pull, failed=False)

    @precondition(lambda self: self.reading)
    @rule(pulls=st.integers(1, 2), limit=st.integers(1, 4), taken=st.integers(1, 2))
    def read_and_acknowledge(self, pulls: int, limit: int, taken: int) -> None:
        """Read and acknowledge; without this combined rule, few runs would make progress."""
        self.read_on(pulls, limit, taken)
        self.acknowledge(1)

    @precondition(lambda self: self.reading)
    @rule(pulls=st.integers(1, 2), limit=st.integers(1, 4), taken=st.integers(0, 2))
    def read_ahead(self, pulls: int, limit: int, taken: int) -> None:
        """Read ahead of the acknowledgements."""
        self.read_on(pulls + 1, limit, taken)

    @precondition(lambda self: self.reading)
    @rule(pulls=st.integers(1, 4), limit=st.integers(1, 4), taken=st.integers(0, 4))
    def read_on(self, pulls: int, limit: int, taken: int) -> None:
        """Pull, receive and take messages without any fault."""
        for _ in range(pulls):
            asked = [pull for pull in self.in_flight if self.state.is_current(pull)]
            if asked:
                self.in_flight.remove(asked[0])
                self.answer_to(asked[0], limit)
            elif self.reading:
                self.answer_to(self.state.pull(self.now, with_commit=False), limit)
        for _ in range(taken):
            self.take_one()

    @precondition(lambda self: self.in_flight)
    @rule()
    def connection_is_lost(self) -> None:
        for pull in self.in_flight:
            self.state.end_pull(pull, failed=True)
        self.in_flight.clear()

    # --- the application ----------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        for _ in range(count):
            self.take_one()

    def take_one(self) -> None:
        may = self.handing_out and self.state.lock_holds(self.now)
        pulled = self.state.take(self.now)
        if pulled is None:
            return
        assert may, "delivered messages that another member may read"
        run = self.state.run
        start = self.handed.get(run)
        if start is not None:
            skipped = [at for at in range(start, pulled.first) if at not in self.broker.filtered]
            assert pulled.first >= start, "delivered twice in one run"
            assert not skipped, f"{skipped} were skipped"
        self.handed[run] = pulled.next
        self.out.append([run, pulled.first, pulled.next, pulled.next])

    @precondition(lambda self: self.out)
    @rule(count=st.integers(1, 4))
    def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest `count` pulls in order, as lanes do."""
        living = sorted((one for one in self.out if one[2] <= one[3]), key=lambda one: one[1])
        for one in living[:count]:
            self.out.remove(one)
            run, first, next_, _ = one
            if self.state.acknowledge(next_, run):
                self.broker.done.update(range(first, next_))
            else:
                assert self.state.acknowledged >= next_ or not self.ours, "a valid acknowledgement was ignored"

    @precondition(lambda self: any(one[2] > one[3] for one in self.out))
    @rule()
    def acknowledge_late(self) -> None:
        """Acknowledge a pull from before a rewind or move, which must be ignored: it will be delivered again."""
        dead = next(one for one in self.out if one[2] > one[3])
        self.out.remove(dead)
        before = self.state.acknowledged
        assert not self.state.acknowledge(dead[2], dead[0])
        assert self.state.acknowledged == before

    def rewound(self, offset: int) -> None:
        for one in self.out:
            one[3] = min(one[3], offset)

    @rule(offset=st.integers(0, 60))
    def acknowledge_what_was_not_handed_out(self, offset: int) -> None:
        before = self.state.acknowledged
        assert not self.state.acknowledge(self.state.handed_out + 1 + offset)
        assert self.state.acknowledged == before

    @precondition(lambda self: self.ours)
    @rule(distance=st.integers(1, 9), before=st.booleans())
    def reject_elsewhere(self, distance: int, before: bool) -> None:
        """A rewind to undelivered or acknowledged messages is refused."""
        offset = self.state.acknowledged - distance if before else self.state.handed_out + distance
        unchanged = (self.state.run, self.state.position, self.state.acknowledged)
        assert not self.state.rewind(offset)
        assert unchanged == (self.state.run, self.state.position, self.state.acknowledged)

    @precondition(lambda self: self.handing_out)
    @rule(data=st.data(), luck=LUCK)
    def reject(self, data: st.DataObject, luck: int) -> None:
        """Rewind to the first message of an unacknowledged pull."""
        out = [first for _, first, next_, limit in self.out if next_ <= limit and first >= self.state.acknowledged]
        if luck > 1 or not out:
            return
        offset = data.draw(st.sampled_from(out))
        assert self.state.rewind(offset)
        self.rewound(offset)
        assert self.state.position == offset

    @rule(share=st.floats(0, 1), luck=LUCK)
    def seek(self, share: float, luck: int) -> None:
        if luck == 0 or self.state.state in (State.AT_GAP, State.REFUSED):
            self.go_on_at(int(self.broker.end * share))

    @rule(share=st.floats(0, 1), luck=LUCK)
    def reset_from_outside(self, share: float, luck: int) -> None:
        """The broker reports a reset once; during a release, the last commit repeats the reset offset."""
        if luck != 0:
            return
        offset = self.broker.first + int((self.broker.end - self.broker.first) * share)
        if self.state.reset(offset):
            assert self.state.state in (State.LEAVING, State.SETTLING, State.RELEASING)
            self.group_goes_to(offset)
            self.broker.committed = offset
            self.rewound(-1)
            assert not self.state.acknowledge(self.broker.end), "pulls from before the reset cannot be acknowledged"
        else:
            self.go_on_at(offset)

    def go_on_at(self, offset: int) -> None:
        before = (self.state.state, self.state.acknowledged)
        if self.state.move(offset):
            self.group_goes_to(offset)
            self.rewound(-1)
        else:
            assert before == (self.state.state, self.state.acknowledged)

    @precondition(lambda self: self.reading)
    @rule(luck=LUCK)
    def the_broker_refuses(self, luck: int) -> None:
        if luck == 0:
            assert self.state.stop_pulling(Event.REFUSE)

    # --- committing ---------------------------------------------------------------------------------------------------

    @rule(stored=st.booleans())
    def commit_timer(self, stored: bool) -> None:
        offset = self.state.unreported(self.now)
        if offset is not None:
            self.state.mark_reported(offset)
            if stored:
                self.commit(offset)
            else:
                self.state.mark_reported(None)

    @rule()
    def save(self) -> None:
        offset = self.state.unsaved(self.now)
        if offset is not None:
            self.commit(offset)
            self.state.mark_saved(offset)
            assert self.state.unsaved(self.now) is None

    # --- the group ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.locked)
    @rule()
    def lock_is_renewed(self) -> None:
        if self.locked and self.ours:
            self.state.record_lock_renewal(self.now)

    @precondition(lambda self: self.locked)
    @rule(luck=LUCK)
    def lock_is_lost(self, luck: int) -> None:
        """Another member may have read and committed meanwhile, so this member may commit nothing."""
        if luck == 0 and self.state.leave(Event.LOSE_LOCK):
            assert self.state.unreported(self.now) is None
            assert self.state.unsaved(self.now) is None

    @rule(event=st.sampled_from([Event.REVOKE, Event.RELEASE]), luck=LUCK)
    def leave(self, event: Event, luck: int) -> None:
        if luck > 1:
            return
        may = self.handing_out or (self.ours and event is Event.RELEASE)
        assert self.state.leave(event) == may
        assert not self.ours or not may
        if self.out and event is Event.REVOKE:
            self.acknowledge(4)

    @rule(luck=LUCK)
    def the_group_wants_the_queue(self, luck: int) -> None:
        """The member keeps it for messages in flight: those that wait in the buffer are dropped, and none is handed out again."""
        if luck > 1:
            return
        may = self.handing_out
        assert self.state.leave(Event.ANNOUNCE) == may
        assert self.state.state is not State.READING
        if may:
            assert not self.state.rewind(self.state.acknowledged)
            assert not self.state.at_end
            self.acknowledge(4)

    @precondition(lambda self: self.state.state is State.SETTLING)
    @rule(settles=st.booleans())
    def settle(self, settles: bool) -> None:
        if settles:
            self.state.settle()

    @precondition(lambda self: self.state.state is State.RELEASING)
    @rule(reached=st.booleans())
    def give_back(self, reached: bool) -> None:
        if reached:
            self.save()
        self.state.finish_release()

    @precondition(lambda self: self.state.state in (State.RELEASED, State.LOST))
    @rule()
    def the_next_member_gets_the_queue(self) -> None:
        self.take_queue()

    @rule(luck=LUCK)
    def the_process_dies(self, luck: int) -> None:
        """Without any commit, the next member starts at the group's offset."""
        if luck == 0:
            self.take_queue()

    # --- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def positions_are_in_order(self) -> None:
        state = self.state
        assert state.acknowledged <= state.handed_out <= state.position
        reached = state.handed_out
        for pulled in state.buffered:
            assert reached <= pulled.first < pulled.next <= state.position
            reached = pulled.next

    @invariant()
    def nothing_is_acknowledged_that_was_not_consumed(self) -> None:
        missing = self.not_done_below(self.state.acknowledged)
        assert not missing, f"{missing} are acknowledged, and were never consumed"

    @invariant()
    def a_queue_that_is_not_ours_delivers_nothing(self) -> None:
        if not self.handing_out:
            assert not self.state.buffered
            assert self.state.take(self.now) is None
        if self.state.state in (State.RELEASED, State.LOST):
            assert self.state.unreported(self.now) is None
            assert self.state.unsaved(self.now) is None

    @invariant()
    def nothing_is_committed_with_an_expired_lock(self) -> None:
        if not self.state.lock_holds(self.now):
            assert self.state.unreported(self.now) is None
            assert self.state.unsaved(self.now) is None


QueueLife.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=50)
TestQueueLife = QueueLife.TestCase
