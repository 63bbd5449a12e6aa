"""The state of a stream's planner, alone and against a model of a cluster."""

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position
from mqbridge.spark.source.data_loss import LossKind
from mqbridge.spark.source.offsets import PartitionKey
from mqbridge.spark.source.state import SourceState
from tests.example_counts import examples

A, B = ("orders", "0"), ("orders", "1")
PARTITIONS = st.tuples(st.sampled_from(["orders", "orders_eu", "returns"]), st.sampled_from("012"))


def state_of(stored: Mapping[PartitionKey, tuple[int, int]], now: float = 0.0) -> SourceState:
    """Return a state that knows the first and the next offset of these partitions."""
    state = SourceState(lambda topic: topic.startswith("orders"), 1.0, 30.0)
    state.set_topics(tuple(sorted({topic for topic, _ in stored})), now)
    state.set_bounds({key: Bounds((first,), (following,)) for key, (first, following) in stored.items()}, now)
    return state


def test_topics_and_bounds_are_requested_again_after_their_interval() -> None:
    """Spark calls the planner every 10 ms, but the cluster gets one request per interval."""
    state = SourceState(lambda _: True, 1.0, 30.0)
    assert state.needs_topics(0.0)
    assert state.needs_bounds(0.0)
    state.set_topics(("orders",), 0.0)
    state.set_bounds({}, 0.0)
    assert not any(state.needs_bounds(tick / 100) or state.needs_topics(tick / 100) for tick in range(100))
    assert state.needs_bounds(1.0)
    assert not state.needs_topics(29.9)
    assert state.needs_topics(30.0)


def test_a_partition_that_the_cluster_does_not_list_keeps_its_offset() -> None:
    state = state_of({A: (0, 9)})
    start = {A: (5,), B: (7,)}
    assert state.end_offsets(start, {A: (9,)}) == {A: (9,), B: (7,)}
    assert [(loss.key, loss.kind) for loss in state.losses(start)] == [(B, LossKind.MISSING)]


def test_the_next_batch_reads_a_new_partition_from_its_first_message() -> None:
    state = state_of({A: (0, 9), B: (3, 8)})
    start = {A: (9,)}
    assert state.backlog(start) == {}
    end = state.end_offsets(start, {})
    assert end == {A: (9,), B: (3,)}
    assert state.backlog(end) == {B: ((3,), (8,))}


def test_a_frozen_target_is_not_exceeded_and_gets_no_new_partitions() -> None:
    state = state_of({A: (0, 9)})
    state.freeze_target()
    state.set_bounds({A: Bounds((0,), (20,)), B: Bounds((0,), (5,))}, 1.0)
    assert state.backlog({A: (4,)}) == {A: ((4,), (9,))}
    assert state.end_offsets({A: (4,)}, {A: (9,)}) == {A: (9,)}
    assert state.backlog({A: (9,)}) == {}
    assert not state.needs_topics(10**6)


def test_only_the_first_batch_is_empty() -> None:
    state = state_of({A: (0, 9)})
    state.begin({A: (9,)}, with_empty_batch=True)
    assert state.take_empty_batch({A: (9,)})
    assert not state.take_empty_batch({A: (9,)})
    state.begin({A: (9,)}, with_empty_batch=True)
    assert not state.take_empty_batch({A: (3,)}), "after a restart, the checkpoint has the initial offsets"
    state.begin({A: (0,)}, with_empty_batch=False)
    assert not state.take_empty_batch({A: (0,)})


def test_a_recreated_partition_is_read_from_its_first_message() -> None:
    state = state_of({A: (0, 2)})
    assert [loss.kind for loss in state.losses({A: (9,)})] == [LossKind.RECREATED]
    end = state.end_offsets({A: (9,)}, {})
    assert end == {A: (0,)}
    assert state.backlog(end) == {A: ((0,), (2,))}


def test_the_backlog_does_not_include_deleted_messages() -> None:
    state = state_of({A: (6, 9)})
    assert [loss.kind for loss in state.losses({A: (2,)})] == [LossKind.EXPIRED]
    assert state.backlog({A: (2,)}) == {A: ((6,), (9,))}


def test_an_empty_pulsar_partition_is_no_loss() -> None:
    """All ledgers of the topic were deleted after they were read, so its bounds are before the offset."""
    state = SourceState(lambda _: True, 1.0, 30.0)
    state.set_topics(("orders",), 0.0)
    state.set_bounds({A: Bounds((-1, -1, 0), (-1, -1, 0))}, 0.0)
    assert state.losses({A: (5, 100, 0)}) == []
    assert state.end_offsets({A: (5, 100, 0)}, {}) == {A: (5, 100, 0)}


def test_topics_that_are_no_longer_read_keep_their_offsets() -> None:
    state = state_of({A: (0, 9)})
    start: dict[PartitionKey, Position] = {A: (1,), ("returns", "0"): (4,)}
    assert state.topics_for_bounds(start) == {"orders"}
    assert state.losses(start) == []
    assert state.end_offsets(start, {A: (9,)}) == {A: (9,), ("returns", "0"): (4,)}


class Streams(RuleBasedStateMachine):
    """A cluster that appends, deletes and hides partitions, and a query that is planned, restarted and run to its end."""

    @initialize(partitions=st.dictionaries(PARTITIONS, st.integers(0, 20), min_size=1))
    def begin(self, partitions: dict[PartitionKey, int]) -> None:
        self.cluster = {key: Bounds((0,), (count,)) for key, count in partitions.items()}
        self.hidden: set[PartitionKey] = set()
        self.start: dict[PartitionKey, Position] = {}
        self.read: dict[PartitionKey, list[int]] = {}
        self.now = 0.0
        self.restart()
        self.start = {key: bounds.first for key, bounds in self.state.bounds_to_read().items()}
        self.state.begin(self.start, with_empty_batch=False)

    def restart(self) -> None:
        self.state = SourceState(lambda topic: topic.startswith("orders"), 1.0, 30.0)
        self.refresh()

    def refresh(self) -> None:
        visible = {key: bounds for key, bounds in self.cluster.items() if key not in self.hidden}
        if self.state.needs_topics(self.now):
            self.state.set_topics(tuple(sorted({topic for topic, _ in visible if topic.startswith("orders")})), self.now)
        if self.state.needs_bounds(self.now):
            topics = self.state.topics_for_bounds(self.start)
            self.state.set_bounds({key: bounds for key, bounds in visible.items() if key[0] in topics}, self.now)

    @rule(key=PARTITIONS, count=st.integers(0, 9))
    def append(self, key: PartitionKey, count: int) -> None:
        bounds = self.cluster.get(key, Bounds((0,), (0,)))
        self.cluster[key] = Bounds(bounds.first, (bounds.next[0] + count,))

    @rule(key=PARTITIONS)
    def hide_or_show(self, key: PartitionKey) -> None:
        self.hidden.symmetric_difference_update({key})

    @rule(key=PARTITIONS, count=st.integers(1, 9))
    def delete(self, key: PartitionKey, count: int) -> None:
        if key in self.cluster:
            bounds = self.cluster[key]
            first = min(bounds.first[0] + count, bounds.next[0])
            self.cluster[key] = Bounds((first,), bounds.next)

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def kill(self) -> None:
        self.restart()

    @precondition(lambda self: self.state.target is None)
    @rule()
    def freeze(self) -> None:
        self.refresh()
        self.state.freeze_target()

    @rule(fraction=st.floats(0, 1))
    def plan(self, fraction: float) -> None:
        self.refresh()
        start, backlog = self.start, self.state.backlog(self.start)
        read_until = {
            key: (begin[0] + max(1, int((end[0] - begin[0]) * fraction)),) for key, (begin, end) in backlog.items() if begin < end
        }
        read_until |= {key: end for key, (begin, end) in backlog.items() if begin == end}
        end = self.state.end_offsets(start, read_until)
        assert start.keys() <= end.keys()
        assert all(self.state.bounds[key].first == end[key] for key in end.keys() - start.keys())
        for key, until in end.items():
            assert key not in start or until >= start[key]
            assert until <= self.cluster[key].next
            if self.state.target is not None and key in read_until:
                assert until <= self.state.target[key]
            if key in start:
                self.read.setdefault(key, []).extend(range(start[key][0], until[0]))
        self.start = end

    @invariant()
    def every_message_was_read_once_and_in_order(self) -> None:
        for key, offsets in getattr(self, "read", {}).items():
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
            assert self.start[key] == (offsets[-1] + 1,) if offsets else True

    def teardown(self) -> None:
        """Without further changes of the cluster, the query reads all messages and ends."""
        if not hasattr(self, "cluster"):
            return
        self.hidden.clear()
        self.now += 100
        self.restart()
        self.state.freeze_target()
        for _ in range(3):
            before = self.start
            self.plan(1.0)
        assert self.start == before
        assert {key: self.start[key] for key in self.state.bounds_to_read()} == self.state.latest()


Streams.TestCase.settings = settings(deadline=None, max_examples=examples(150), stateful_step_count=30)
TestStreams = Streams.TestCase
