"""The membership of a gateway in a group of the cluster."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.listener import group_membership as module
from mqbridge.listener.group_membership import BackingMembership, BackingMembershipState
from mqbridge.listener.groups import GroupStart
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import spawn
from tests.listener.scripted_lane import QueueBench
from tests.rocketmq.server.serving import rounds, until


async def at_begin(_: ListenedTopic) -> GroupStart:
    return Start.EARLIEST


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
    membership.want([], at_begin)
    assert membership.state is OUT
    membership.want(["a"], at_begin)
    assert membership.state is WORKING
    await model.settled()
    assert (membership.state, model.joined) == (IN, [{"a"}])
    membership.want([], at_begin)
    assert (membership.state, model.joined, model.used) == (LEAVING, [{"a"}], [{"a"}])
    membership.want([], at_begin)
    assert membership.state is LEAVING
    membership.want(["a"], at_begin)
    await model.settled()
    assert (membership.state, len(model.joins)) == (IN, 1), "the clients came back"
    membership.want(["a", "b"], at_begin)
    await model.settled()
    assert (membership.state, model.joined, len(model.joins)) == (IN, [{"a", "b"}], 2)
    membership.want([], at_begin)
    model.pass_time()
    assert membership.state is WORKING
    await model.settled()
    assert (membership.state, model.joined, model.used) == (OUT, [], [])
    membership.want(["b"], at_begin)
    await model.settled()
    assert (membership.state, model.joined) == (IN, [{"b"}])
    await membership.close()


async def test_a_group_is_left_some_time_after_its_last_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    model.membership.want(["a"], at_begin)
    await model.settled()
    model.membership.want([], at_begin)
    assert model.membership.state is LEAVING
    await until(lambda: model.membership.state is OUT)
    assert model.joined == []


async def test_what_is_wanted_while_it_works_is_reached_too() -> None:
    model = ModelBacking()
    model.existing, model.gate = {"a": (0, 0), "b": (0, 0)}, asyncio.Event()
    model.membership.want(["a"], at_begin)
    await rounds()
    model.membership.want(["b"], at_begin)
    model.gate.set()
    await model.settled()
    assert model.joined == [{"b"}]
    model.gate.clear()
    model.membership.want(["a"], at_begin)
    model.membership.want([], at_begin)
    model.gate.set()
    await model.settled()
    assert (model.membership.state, model.joined) == (OUT, [])


async def test_a_failure_is_told_and_tried_again() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    for error, problem in ((ClusterError("not now"), "not now"), (ZeroDivisionError("a bug"), "ZeroDivisionError('a bug')")):
        model.error = error
        model.membership.want(["a"], at_begin)
        await until(lambda text=problem: model.membership.problem == text)
        assert (model.membership.state, model.joined) == (WORKING, [])
        model.error = None
        await model.settled()
        assert (model.membership.state, model.membership.problem, model.joined) == (IN, None, [{"a"}])
        model.membership.want([], at_begin)
        model.pass_time()
        await model.settled()


async def test_a_topic_is_joined_once_it_exists() -> None:
    model = ModelBacking()
    model.membership.want(["a", "b"], at_begin)
    await model.settled()
    assert (model.membership.state, model.joins, model.membership.problem) == (OUT, [], None)
    model.existing["a"] = (0, 0)
    model.membership.want(["a", "b"], at_begin)
    await model.settled()
    assert model.joined == [{"a"}]
    model.existing["b"] = (0, 0)
    model.membership.want(["a", "b"], at_begin)
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
        model.membership.want(names, at_begin)
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
        model.membership.want(wanted, at_begin)
        await model.settled()
        assert model.joined == [set(wanted)]


async def test_a_membership_that_is_over_is_begun_anew_at_once() -> None:
    model = ModelBacking()
    model.existing["a"] = (0, 0)
    model.membership.want(["a"], at_begin)
    await model.settled()
    assert model.membership._joined is not None
    model.membership._joined.is_over = True  # type: ignore[misc]
    model.membership.want(["a"], at_begin)
    await model.settled()
    assert len(model.joins) == 2


async def test_pulls_that_wait_for_a_queue_look_again_when_the_group_is_joined_anew() -> None:
    """Another gateway has the queue, and when this one gets it, that is another lane."""
    model = ModelBacking()
    model.existing = {"a": (0, 0), "b": (0, 0)}
    model.membership.want(["a"], at_begin)
    await model.settled()
    reading = spawn(model.feeds[0].read(0), "pull", log_errors=False)
    await rounds()
    assert not reading.done()
    model.membership.want(["a", "b"], at_begin)
    with pytest.raises(LaneRevoked):
        await reading


async def test_a_membership_that_is_closed_does_nothing_any_more() -> None:
    model = ModelBacking()
    model.existing, model.gate = {"a": (0, 0)}, asyncio.Event()
    model.membership.want(["a"], at_begin)
    await rounds()
    await model.membership.close()
    model.gate.set()
    model.membership.want(["a"], at_begin)
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
                membership.want(value, at_begin)
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
            membership.want(wanted, at_begin)
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


async def test_a_group_that_was_left_because_its_topic_was_deleted_is_joined_anew() -> None:
    model = ModelBacking()
    model.existing = {"a": (0, 0)}
    model.membership.want(["a"], at_begin)
    await model.settled()
    joined = model.membership._joined
    model.membership.want(["a"], at_begin)
    await model.settled()
    assert model.membership._joined is joined
    joined.is_over = True
    model.membership.want(["a"], at_begin)
    await model.settled()
    assert model.membership._joined is not joined
    assert model.joined == [frozenset({"a"})]
