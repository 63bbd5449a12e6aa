"""Producers and consumers by group, as their heartbeats tell."""

import asyncio
from typing import Any

import pytest

from mqbridge.rocketmq.server import clients as module
from mqbridge.rocketmq.server.clients import Clients, ConsumerGroup
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.wire.bodies.groups import (
    ACTIVELY,
    BROADCASTING,
    CLUSTERING,
    FROM_FIRST,
    FROM_LAST,
    PASSIVELY,
    ConsumerData,
    Heartbeat,
    SubscriptionData,
)
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from tests.rocketmq.server.serving import GROUP, rounds, serving, until


class FakeLink:
    """A connection that notes what it is told."""

    def __init__(self, name: str = "link", host: str = "10.0.0.1") -> None:
        self.name, self.alive, self.peer = name, True, f"{host}:1234"
        self.told: list[str] = []

    def notify(self, code: int, header: GroupHeader, body: bytes = b"") -> None:
        assert (code, body) == (Code.NOTIFY_CONSUMER_IDS_CHANGED, b"")
        self.told.append(header.consumer_group)

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class Followed:
    """Clients, and what they have called."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.producers: list[tuple[str, bool]] = []
        self.clients = Clients(lambda group: self.groups.append(group.name), lambda *call: self.producers.append(call))

    def beat(
        self, link: FakeLink, client_id: str, *data: ConsumerData, producers: tuple[str, ...] = (), keeps: bool = False
    ) -> None:
        heartbeat = Heartbeat(client_id, producers, data, without_subscriptions=keeps)
        self.clients.heartbeat(link, heartbeat)  # type: ignore[arg-type]

    @property
    def group(self) -> ConsumerGroup:
        return self.clients.consumers[GROUP]


def consumer(*topics: str, group: str = GROUP, expression: str = "*", version: int = 1, **fields: Any) -> ConsumerData:
    return ConsumerData(group, tuple(SubscriptionData(topic, expression, version) for topic in topics), **fields)


async def test_members_are_told_when_the_members_change() -> None:
    followed, first, second = Followed(), FakeLink(), FakeLink()
    followed.beat(first, "1", consumer("t"))
    assert first.take() == [GROUP], "it is told itself: it may have divided the queues already"
    followed.beat(second, "2", consumer("t"))
    assert (first.take(), second.take()) == ([GROUP], [GROUP])
    followed.beat(first, "1", consumer("t"))
    assert (first.take(), second.take()) == ([], [])
    assert followed.groups == [GROUP] * 3, "the owner follows each heartbeat"
    followed.clients.unregister("2", None, GROUP)
    assert (first.take(), second.take()) == ([GROUP], [])
    assert list(followed.group.members) == ["1"]


@pytest.mark.parametrize(
    "changed", [consumer("t", "u"), consumer("u"), consumer("t", expression="A")], ids=["more", "other", "tags"]
)
async def test_members_are_told_when_a_subscription_changes(changed: ConsumerData) -> None:
    followed, first, second = Followed(), FakeLink(), FakeLink()
    followed.beat(first, "1", consumer("t"))
    followed.beat(second, "2", consumer("t"))
    first.take(), second.take()
    followed.beat(second, "2", changed)
    assert (first.take(), second.take()) == ([GROUP], [GROUP])


async def test_clients_with_one_id_are_members_each_and_their_id_is_named_once() -> None:
    """So do processes that have the same host and number, as in containers, or a client whose old connection ends late."""
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    followed.beat(first, "1", consumer("t"))
    first.take()
    followed.beat(second, "1", consumer("u"))
    assert (first.take(), second.take()) == ([GROUP], [GROUP])
    group = followed.group
    for link, topic in ((first, "t"), (second, "u")):
        assert group.shares(link, topic)  # type: ignore[arg-type]
        assert group.is_passive(link)  # type: ignore[arg-type]
        assert not followed.clients.is_expected(link, GROUP)  # type: ignore[arg-type]
    assert group.shared_topics == {"t", "u"}
    assert list(group.members) == ["1"]
    assert group.members["1"].link is second, "the one that was heard last"
    assert len(group.connected) == 2
    for _ in range(2):
        followed.beat(first, "1", consumer("t"))
        followed.beat(second, "1", consumer("u"))
    assert (first.take(), second.take()) == ([], []), "nothing has changed"
    followed.clients.drop(first)  # type: ignore[arg-type]
    assert (first.take(), second.take()) == ([], [GROUP])
    assert (list(group.members), list(group.connected)) == (["1"], [("1", second)])
    assert not group.shares(first, "t")  # type: ignore[arg-type]
    assert group.shares(second, "u")  # type: ignore[arg-type]


async def test_a_client_that_leaves_does_not_take_another_one_with_its_id_along() -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    for link in (first, second):
        followed.beat(link, "1", consumer("t"), producers=("p",))
    followed.clients.unregister("1", "p", GROUP, second)  # type: ignore[arg-type]
    assert followed.group.shares(first, "t")  # type: ignore[arg-type]
    assert not followed.group.shares(second, "t")  # type: ignore[arg-type]
    assert followed.group.members["1"].link is first
    assert followed.clients.producer_links("p") == [first]
    assert followed.clients.link_of("1") is first
    followed.clients.unregister("1", "p", GROUP, second)  # type: ignore[arg-type]
    assert followed.producers == [("p", True)]
    followed.clients.unregister("1", "p", GROUP, first)  # type: ignore[arg-type]
    assert (followed.clients.consumers, followed.clients.producers) == ({}, {})
    assert followed.producers == [("p", True), ("p", False)]


async def test_a_producer_with_the_id_of_another_stays_when_that_is_gone() -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    for link in (first, second):
        followed.beat(link, "1", producers=("p",))
    assert followed.clients.producer_links("p") == [first, second]
    followed.clients.drop(second)  # type: ignore[arg-type]
    assert followed.clients.producer_links("p") == [first]
    assert list(followed.clients.producers["p"]) == ["1"]
    assert followed.producers == [("p", True)]


async def test_a_reply_goes_to_the_connection_of_its_client_that_is_alive() -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    for link in (first, second):
        followed.beat(link, "1", producers=("p",))
    assert followed.clients.link_of("1") is second
    second.alive = False
    assert followed.clients.link_of("1") is first


async def test_two_members_at_one_connection_are_told_once() -> None:
    followed, link = Followed(), FakeLink()
    followed.beat(link, "1", consumer("t"))
    link.take()
    followed.beat(link, "2", consumer("u"))
    assert link.take() == [GROUP]
    assert followed.group.shares(link, "t")  # type: ignore[arg-type]
    assert followed.group.shares(link, "u")  # type: ignore[arg-type]


async def test_a_heartbeat_without_subscriptions_keeps_those_before() -> None:
    followed, link = Followed(), FakeLink()
    followed.beat(link, "1", consumer("t"))
    link.take()
    followed.beat(link, "1", consumer(), keeps=True)
    assert (link.take(), set(followed.group.subscriptions)) == ([], {"t"})
    followed.beat(link, "1", consumer(), keeps=False)
    assert (link.take(), set(followed.group.subscriptions)) == ([GROUP], set())


async def test_what_a_group_says_is_what_its_newest_member_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    followed, first, second = Followed(), FakeLink(), FakeLink()
    followed.beat(first, "1", consumer("t", "u", version=5, consume_from=FROM_FIRST, consume_type=ACTIVELY))
    now = 1.0
    followed.beat(second, "2", consumer("t", version=4, expression="A", message_model=BROADCASTING))
    group = followed.group
    assert group.consume_from == FROM_LAST
    assert group.is_broadcast
    assert group.subscriptions["t"].expression == "*", "of each topic what was subscribed last"
    now = 2.0
    followed.beat(second, "2", consumer("t", version=6, expression="A", message_model=BROADCASTING))
    assert group.subscriptions["t"].expression == "A"
    assert group.shared_topics == {"t", "u"}, "broadcasts do not share"
    assert group.is_active(first)  # type: ignore[arg-type]
    assert not group.is_passive(first)  # type: ignore[arg-type]
    assert group.is_passive(second)  # type: ignore[arg-type]
    assert not group.shares(second, "t")  # type: ignore[arg-type]
    now = 3.0
    followed.beat(first, "1", consumer("t", message_model=CLUSTERING, consume_type=PASSIVELY, consume_from=FROM_FIRST))
    assert group.consume_from == FROM_FIRST
    assert not group.is_broadcast
    assert list(followed.clients.groups_of("t")) == [GROUP]
    assert list(followed.clients.groups_of("x")) == []


def test_a_group_without_members_begins_at_the_end() -> None:
    group = ConsumerGroup("g")
    assert (group.newest, group.consume_from, group.is_broadcast, group.shared_topics) == (None, FROM_LAST, False, frozenset())


async def test_a_producer_group_begins_and_ends_with_its_members() -> None:
    followed, first, second = Followed(), FakeLink(), FakeLink()
    followed.beat(first, "1", producers=("p", "q"))
    followed.beat(second, "2", producers=("p",))
    followed.beat(first, "1", producers=("p", "q"))
    assert followed.producers == [("p", True), ("q", True)]
    assert followed.clients.producer_links("p") == [first, second]
    first.alive = False
    assert followed.clients.producer_links("p") == [second]
    assert followed.clients.producer_links("x") == []
    followed.clients.unregister("1", "p", None)
    followed.clients.unregister("1", "p", None)
    assert followed.producers == [("p", True), ("q", True)]
    followed.clients.drop(second)  # type: ignore[arg-type]
    assert followed.producers[2:] == [("p", False)]
    followed.clients.drop(first)  # type: ignore[arg-type]
    assert followed.producers[3:] == [("q", False)]
    assert followed.clients.producers == {}


async def test_the_end_of_a_connection_ends_its_memberships() -> None:
    followed, first, second = Followed(), FakeLink(), FakeLink()
    followed.beat(first, "1", consumer("t"), consumer("t", group="h"))
    followed.beat(second, "2", consumer("t"))
    first.take(), second.take(), followed.groups.clear()
    followed.clients.drop(first)  # type: ignore[arg-type]
    assert (first.take(), second.take()) == ([], [GROUP])
    assert followed.groups == [GROUP, "h"]
    assert list(followed.clients.consumers) == [GROUP]
    assert not followed.clients.was_member(first, GROUP)  # type: ignore[arg-type]


async def test_a_client_that_has_left_was_a_member_as_long_as_it_is_connected() -> None:
    followed, link = Followed(), FakeLink()
    assert not followed.clients.was_member(link, GROUP)  # type: ignore[arg-type]
    followed.beat(link, "1", consumer("t"))
    followed.clients.unregister("1", None, GROUP)
    followed.clients.unregister("1", None, GROUP)
    followed.clients.unregister("1", None, "unknown")
    assert followed.groups == [GROUP, GROUP]
    assert followed.clients.was_member(link, GROUP)  # type: ignore[arg-type]
    assert not followed.clients.was_member(link, "h")  # type: ignore[arg-type]


async def test_a_member_whose_connection_was_lost_is_expected_at_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    followed, first, second, late = Followed(), FakeLink("1"), FakeLink("2"), FakeLink("3")
    clients: Any = followed.clients

    def is_expected(link: FakeLink, group: str = GROUP) -> bool:
        clients.expect_heartbeat(link, group, has_filter=True)
        assert clients.is_returning(link, group) == clients.is_expected(link, group)
        return clients.is_expected(link, group)

    followed.beat(first, "1", consumer("t"), consumer(group="reader"), consumer("t", group="casts", message_model=BROADCASTING))
    assert not is_expected(second), "it is still there"
    clients.drop(first)
    assert is_expected(second)
    assert not is_expected(FakeLink("4", host="10.0.0.2"))
    assert [is_expected(second, group) for group in ("h", "reader", "casts")] == [False] * 3, "they have shared nothing"
    now += module.RECONNECT_S
    assert is_expected(second), "it has a while to send its heartbeat"
    assert not is_expected(late)
    now += module.HEARTBEAT_S - module.RECONNECT_S
    assert not is_expected(second), "it has none"
    clients._remove_expired()
    assert clients._gone == {}
    clients.stop()


@pytest.mark.parametrize("group", [GROUP, "h"])
async def test_a_client_is_not_expected_any_more_once_it_has_sent_a_heartbeat(group: str) -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    clients: Any = followed.clients
    found: list[str] = []
    clients.on_not_expected = found.append
    followed.beat(first, "1", consumer("t"))
    clients.drop(first)
    clients.expect_heartbeat(second, GROUP, has_filter=True)
    followed.beat(second, "1", consumer("t", group=group))
    assert not clients.is_expected(second, GROUP)
    assert found == [GROUP]
    clients.expect_heartbeat(second, GROUP, has_filter=False)
    assert clients.is_expected(second, GROUP) is False, "it has told all of its groups"
    clients.drop(second)
    assert (clients._expected, clients._heard) == ({}, set())


async def test_who_leaves_its_group_is_not_expected() -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    clients: Any = followed.clients
    followed.beat(first, "1", consumer("t"))
    clients.unregister("1", None, GROUP, first)
    clients.drop(first)
    clients.expect_heartbeat(second, GROUP, has_filter=True)
    assert not clients.is_expected(second, GROUP)


async def test_a_client_whose_pull_has_no_filter_is_expected() -> None:
    """Its filter is that of its heartbeat."""
    followed, link = Followed(), FakeLink()
    clients: Any = followed.clients
    clients.expect_heartbeat(link, "x" * 256, has_filter=False)
    clients.expect_heartbeat(link, GROUP, has_filter=False)
    assert clients.is_expected(link, GROUP)
    assert not clients.is_expected(link, "x" * 256)


async def test_few_lost_members_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GONE", 2)
    followed, link = Followed(), FakeLink("new", host="0")
    clients: Any = followed.clients
    for group in ("a", "b", "a", "c"):
        lost = FakeLink(host="0")
        followed.beat(lost, "1", consumer("t", group=group))
        clients.drop(lost)
    assert [group for group in "abc" if clients.is_returning(link, group)] == ["a", "c"]
    assert len(clients._gone) == 2


async def test_clients_without_heartbeats_are_no_members_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    now = begin
    followed, first, second = Followed(), FakeLink(), FakeLink()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        followed.beat(first, "1", consumer("t"), producers=("p",))
        now = begin + module.EXPIRY_S
        followed.beat(second, "2", consumer("t"), producers=("q",))
        followed.clients._remove_expired()
        assert (list(followed.group.members), list(followed.clients.producers)) == (["1", "2"], ["p", "q"]), "it is not over yet"
        first.take(), second.take()
        now += 1
        followed.clients._remove_expired()
        assert (list(followed.group.members), list(followed.clients.producers)) == (["2"], ["q"])
        assert second.take() == [GROUP]
        now += module.EXPIRY_S
        followed.clients._remove_expired()
        assert (followed.clients.consumers, followed.clients.producers) == ({}, {})
    followed.clients.stop()
    assert followed.clients._sweep is None


async def test_expired_clients_are_looked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.001)
    monkeypatch.setattr(module, "EXPIRY_S", 0.0)
    followed = Followed()
    followed.clients.start()
    for _ in range(2):
        followed.beat(FakeLink(), "1", consumer("t"))
        await until(lambda: not followed.clients.consumers)
    followed.clients.stop()
    followed.clients.stop()


@pytest.mark.parametrize("name", ["", "x" * 256])
async def test_an_invalid_name_of_a_group_is_refused_as_a_whole(name: str) -> None:
    followed = Followed()
    for data, producers in (((consumer("t"), consumer("t", group=name)), ()), ((consumer("t"),), (name,))):
        with pytest.raises(CodedRefusal) as refused:
            followed.beat(FakeLink(), "1", *data, producers=producers)
        assert refused.value.code == Status.SYSTEM_ERROR
    assert (followed.clients.consumers, followed.clients.producers) == ({}, {})
    followed.beat(FakeLink(), "1", consumer("t", group="x" * 255))


async def test_the_number_of_groups_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 3)
    followed = Followed()
    followed.beat(FakeLink(), "1", consumer("t"), consumer("t", group="h"), producers=("p",))
    with pytest.raises(CodedRefusal) as refused:
        followed.beat(FakeLink(), "2", consumer("t"), consumer("t", group="new"))
    assert refused.value.code == Status.SYSTEM_BUSY
    followed.beat(FakeLink(), "2", consumer("t"), consumer("t", group="h"), producers=("p",))
    assert list(followed.group.members) == ["1", "2"], "groups that are there get more members"


async def test_a_client_is_found_by_its_id() -> None:
    followed, first, second = Followed(), FakeLink("1"), FakeLink("2")
    followed.beat(first, "1", producers=("p",))
    followed.beat(second, "2", consumer("t"))
    assert followed.clients.link_of("1") is first
    assert followed.clients.link_of("2") is second
    assert followed.clients.link_of("3") is None


async def test_clients_are_told_over_a_socket() -> None:
    async with serving() as served:
        first, second = await served.connect("1"), await served.connect("2")
        await first.join("t")
        await first.pushed(Code.NOTIFY_CONSUMER_IDS_CHANGED)
        await second.join("t")
        note = await first.pushed(Code.NOTIFY_CONSUMER_IDS_CHANGED)
        assert (note.is_oneway, GroupHeader.decode(note.ext).consumer_group) == (True, GROUP)
        await second.pushed(Code.NOTIFY_CONSUMER_IDS_CHANGED)
        await second.close()
        await first.pushed(Code.NOTIFY_CONSUMER_IDS_CHANGED)
        assert await served.members() == ["1"]
        assert served.server.counts.consumers == 1
        await first.produce("p", "q")
        assert served.server.counts.producers == 2
        await first.leave()
        await rounds()
        assert not first.was_pushed(Code.NOTIFY_CONSUMER_IDS_CHANGED), "nobody is left to be told"
