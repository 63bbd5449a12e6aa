"""The membership of a gateway in a group of the cluster."""

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.listener.groups import GroupStart
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.server import group_membership as module
from mqbridge.rocketmq.server.group_membership import BackingMembership, BackingMembershipState, is_young
from mqbridge.rocketmq.wire.bodies.groups import FROM_FIRST, FROM_LAST, FROM_TIMESTAMP
from tests.listener.scripted_lane import QueueBench
from tests.rocketmq.server.serving import PULL_HELD, bodies_of, rounds, serving, until

OUT, WORKING, IN, LEAVING = BackingMembershipState
NAMES = ("a", "b", "%RETRY%g")


class ModelBacking:
    """Topics, and what is joined: the owner of groups and the finder of topics in one."""

    def __init__(self) -> None:
        self.existing: dict[str, tuple[int, int]] = {}
        """The bounds of each topic's one queue."""
        self.joined: list[frozenset[str]] = []
        """The topics of each membership that is joined now."""
        self.used: list[frozenset[str]] = []
        """Those that the owner has not released."""
        self.joins: list[Mapping[str, GroupStart]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.changes = 0
        self.feeds: list[QueueBench] = []
        """The queues of all memberships: none of them gets a lane."""
        services = SimpleNamespace(topics=self, partitions=self, numbering=self)
        self.membership = BackingMembership("g", services, self, self._make_feed, self._on_change)  # type: ignore[arg-type]

    def _make_feed(self, *_: Any) -> QueueFeed:
        self.feeds.append(QueueBench())
        return self.feeds[-1].feed

    def _on_change(self) -> None:
        self.changes += 1

    async def find(self, name: str) -> Any:
        await self._pass()
        return SimpleNamespace(name=name, backing=f"stored-{name}", partitions={0: "0"}) if name in self.existing else None

    async def bounds(self, topic: Any, _: int) -> Any:
        first, next_ = self.existing[topic.name]
        return SimpleNamespace(first=first, next=next_)

    def number(self, position: int) -> int:
        return position

    async def _pass(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error

    async def join(self, topics: Any, group: str, starts: Mapping[str, GroupStart], sharing: Sharing, make_feed: Any) -> Any:
        names = frozenset(topic.name for topic in topics)
        for topic in topics:
            make_feed(topic, 0)
        assert (group, sharing) == ("g", Sharing.FAILOVER)
        assert names
        await self._pass()
        assert not self.joined, "there is one membership at a time"
        self.joins.append(starts)
        self.joined.append(names)
        self.used.append(names)

        async def leave() -> None:
            await asyncio.sleep(0)
            self.joined.remove(names)

        return SimpleNamespace(release=lambda: self.used.remove(names), leave=leave, feed=lambda *_: None, is_over=False)

    async def settled(self) -> None:
        await until(lambda: self.membership.state is not WORKING)

    def pass_time(self) -> None:
        """Let LINGER_S pass, or the pause before topics are joined that were created."""
        assert self.membership._timer is not None
        self.membership._may_grow_at = 0.0
        self.membership._work()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Backoff", lambda: SimpleNamespace(delay=lambda: 0.0))


# --- the state table ------------------------------------------------------------------------------------------------------


async def test_the_state_table() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0), "b": (0, 0)}
    membership = model.membership
    assert membership.state is OUT
    membership.want([], FROM_LAST)
    assert membership.state is OUT
    membership.want(["a"], FROM_LAST)
    assert membership.state is WORKING
    await model.settled()
    assert (membership.state, model.joined) == (IN, [{"a"}])
    membership.want([], FROM_LAST)
    assert (membership.state, model.joined, model.used) == (LEAVING, [{"a"}], [{"a"}])
    membership.want([], FROM_LAST)
    assert membership.state is LEAVING
    membership.want(["a"], FROM_LAST)
    await model.settled()
    assert (membership.state, len(model.joins)) == (IN, 1), "the clients came back"
    membership.want(["a", "b"], FROM_LAST)
    await model.settled()
    assert (membership.state, model.joined, len(model.joins)) == (IN, [{"a", "b"}], 2)
    membership.want([], FROM_LAST)
    model.pass_time()
    assert membership.state is WORKING
    await model.settled()
    assert (membership.state, model.joined, model.used) == (OUT, [], [])
    membership.want(["b"], FROM_LAST)
    await model.settled()
    assert (membership.state, model.joined) == (IN, [{"b"}])
    await membership.close()


async def test_a_group_is_left_some_time_after_its_last_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    model.membership.want([], FROM_LAST)
    assert model.membership.state is LEAVING
    await until(lambda: model.membership.state is OUT)
    assert model.joined == []


async def test_what_is_wanted_while_it_works_is_reached_too() -> None:
    model = ModelBacking()
    model.existing, model.gate = {"a": (0, 0), "b": (0, 0)}, asyncio.Event()
    model.membership.want(["a"], FROM_LAST)
    await rounds()
    model.membership.want(["b"], FROM_LAST)
    model.gate.set()
    await model.settled()
    assert model.joined == [{"b"}]
    model.gate.clear()
    model.membership.want(["a"], FROM_LAST)
    model.membership.want([], FROM_LAST)
    model.gate.set()
    await model.settled()
    assert (model.membership.state, model.joined) == (OUT, [])


async def test_a_failure_is_told_and_tried_again() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    for error, problem in ((ClusterError("not now"), "not now"), (ZeroDivisionError("a bug"), "ZeroDivisionError('a bug')")):
        model.error = error
        model.membership.want(["a"], FROM_LAST)
        await until(lambda text=problem: model.membership.problem == text)
        assert (model.membership.state, model.joined) == (WORKING, [])
        model.error = None
        await model.settled()
        assert (model.membership.state, model.membership.problem, model.joined) == (IN, None, [{"a"}])
        model.membership.want([], FROM_LAST)
        model.pass_time()
        await model.settled()


async def test_a_topic_is_joined_once_it_exists() -> None:
    model = ModelBacking()
    model.membership.want(["a", "b"], FROM_LAST)
    await model.settled()
    assert (model.membership.state, model.joins, model.membership.problem) == (OUT, [], None)
    model.existing["a"] = (0, 0)
    model.membership.want(["a", "b"], FROM_LAST)
    await model.settled()
    assert model.joined == [{"a"}]
    model.existing["b"] = (0, 0)
    model.membership.want(["a", "b"], FROM_LAST)
    model.pass_time()
    await model.settled()
    assert model.joined == [{"a", "b"}]


async def test_topics_that_are_created_one_by_one_are_joined_together() -> None:
    """The group gets nothing while it is joined anew."""
    model = ModelBacking()
    names = [f"t{index}" for index in range(10)]
    model.existing["t0"] = (0, 0)
    for name in names:
        model.existing[name] = (0, 0)
        model.membership.want(names, FROM_LAST)
        await model.settled()
    assert model.joined == [{"t0"}]
    model.pass_time()
    await model.settled()
    assert model.joined == [set(names)]
    assert len(model.joins) == 2


async def test_a_topic_that_is_wanted_later_is_joined_at_once() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0), "b": (0, 0)}
    for wanted in (["a"], ["a", "b"], ["b"]):
        model.membership.want(wanted, FROM_LAST)
        await model.settled()
        assert model.joined == [set(wanted)]


async def test_a_membership_that_is_over_is_begun_anew_at_once() -> None:
    model = ModelBacking()
    model.existing["a"] = (0, 0)
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    assert model.membership._joined is not None
    model.membership._joined.is_over = True  # type: ignore[misc]
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    assert len(model.joins) == 2


async def test_pulls_that_wait_for_a_queue_look_again_when_the_group_is_joined_anew() -> None:
    """Another gateway has the queue, and when this one gets it, that is another lane."""
    model = ModelBacking()
    model.existing = {"a": (0, 0), "b": (0, 0)}
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    reading = spawn(model.feeds[0].read(0), "pull", log_errors=False)
    await rounds()
    assert not reading.done()
    model.membership.want(["a", "b"], FROM_LAST)
    with pytest.raises(LaneRevoked):
        await reading


async def test_a_membership_that_is_closed_does_nothing_any_more() -> None:
    model = ModelBacking()
    model.existing, model.gate = {"a": (0, 0)}, asyncio.Event()
    model.membership.want(["a"], FROM_LAST)
    await rounds()
    await model.membership.close()
    model.gate.set()
    model.membership.want(["a"], FROM_LAST)
    await rounds()
    assert (model.joins, model.joined) == ([], [])


ACTIONS = st.one_of(
    st.tuples(st.just("want"), st.frozensets(st.sampled_from(NAMES))),
    st.tuples(st.just("create"), st.sampled_from(NAMES)),
    st.tuples(st.just("pass time"), st.none()),
    st.tuples(st.just("run"), st.integers(0, 6)),
    st.tuples(st.just("fail"), st.booleans()),
)


@given(st.lists(ACTIONS, max_size=14))
def test_the_membership_is_at_last_as_it_is_wanted(actions: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        model = ModelBacking()
        model.existing["a"] = (0, 0)
        membership = model.membership
        for action, value in actions:
            before = membership.state
            if action == "want":
                membership.want(value, FROM_LAST)
                joined = {WORKING, IN} if value else {LEAVING}
                allowed = {OUT: {WORKING} if value else {OUT}, WORKING: {WORKING}, LEAVING: joined, IN: joined}
                assert membership.state in allowed[before]
            elif action == "create":
                model.existing[value] = (0, 0)
            elif action == "pass time" and membership._timer is not None:
                model.pass_time()
            elif action == "run":
                await rounds(value)
            elif action == "fail":
                model.error = ClusterError("not now") if value else None
            assert len(model.joined) <= 1
            assert membership._timer is None or membership.state in {LEAVING, IN}
            assert membership._timer is not None or membership.state is not LEAVING
        model.error = None
        wanted = membership._wanted
        for _ in range(2):
            membership.want(wanted, FROM_LAST)
            await model.settled()
            if membership._timer is not None:
                model.pass_time()
                await model.settled()
        expected = wanted & model.existing.keys()
        assert model.joined == ([expected] if expected else [])
        assert model.used == model.joined
        assert membership.state is (IN if expected else OUT)
        assert membership.problem is None
        await membership.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Backoff", lambda: SimpleNamespace(delay=lambda: 0.0))
        patch.setattr(module, "LINGER_S", 1e6)
        patch.setattr(module, "GROW_PAUSE_S", 1e6)
        asyncio.run(run())


# --- where a group begins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bounds", "consume_from", "start"),
    [
        ("a", (0, 5), FROM_LAST, Start.EARLIEST),
        ("a", (0, module.YOUNG_MESSAGES), FROM_LAST, Start.EARLIEST),
        ("a", (0, module.YOUNG_MESSAGES + 1), FROM_LAST, Start.LATEST),
        ("a", (1, 5), FROM_LAST, Start.LATEST),
        ("a", (1, 5), FROM_FIRST, Start.EARLIEST),
        ("a", (1, 5), "CONSUME_FROM_MIN_OFFSET", Start.EARLIEST),
        ("a", (1, 5), "CONSUME_FROM_MAX_OFFSET", Start.LATEST),
        ("a", (1, 5), FROM_TIMESTAMP, None),
        ("a", (0, 5), FROM_TIMESTAMP, Start.EARLIEST),
        ("%RETRY%g", (1, 5), FROM_LAST, Start.EARLIEST),
    ],
)
async def test_where_a_new_group_begins(name: str, bounds: tuple[int, int], consume_from: str, start: Start | None) -> None:
    model = ModelBacking()
    model.existing[name] = bounds
    model.membership.want([name], consume_from)
    await model.settled()
    ((topic, found),) = model.joins[0].items()
    assert topic == f"stored-{name}"
    if start is None:
        assert isinstance(found, int)
        assert abs(time.time() - module.TIMESTAMP_S - found / 1000) < 60
    else:
        assert found is start
    await model.membership.close()


async def test_a_topic_is_young_as_long_as_all_its_queues_are() -> None:
    async with serving() as served:
        client = await served.connect()
        topic = await served.create(queues=2)
        assert await is_young(served.broker.services, topic)
        await client.store(b"a", b"b", queue=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "YOUNG_MESSAGES", 2)
            assert await is_young(served.broker.services, topic)
            await client.store(b"c")
            assert not await is_young(served.broker.services, topic)


async def test_a_new_group_that_wants_the_newest_messages_begins_at_the_end_of_an_old_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "YOUNG_MESSAGES", 1)
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"old", b"old")
        await client.join("t", consume_from=FROM_LAST)
        topic = await served.broker.readable_topic("t")
        await until(lambda: (feed := served.broker.feed_of("g", topic, 0)) is not None and feed.is_held)
        assert await client.committed() == 2
        waiting = client.start_pull(2, sys_flag=PULL_HELD)
        await client.store(b"new")
        answer = await client.answer(waiting)
        from mqbridge.rocketmq.wire.record import decode_records

        assert bodies_of(decode_records(answer.body)) == [b"new"]


async def test_a_group_that_was_left_because_its_topic_was_deleted_is_joined_anew() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    joined = model.membership._joined
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    assert model.membership._joined is joined
    joined.is_over = True
    model.membership.want(["a"], FROM_LAST)
    await model.settled()
    assert model.membership._joined is not joined
    assert model.joined == [frozenset({"a"})]
