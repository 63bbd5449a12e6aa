"""Topic requests of a producer to the Master: never more topics than it accepts, one request at a time."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RemoteProtocolError, ServerRefused
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client.connection import master as master_module
from mqbridge.tubemq.client.connection.master import MAX_TOPICS, format_topics
from mqbridge.tubemq.client.producer import broker_reconnector
from mqbridge.tubemq.client.producer.partition_sender import open_partition_sender
from mqbridge.tubemq.client.producer.routes import Routes, TopicRoute
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo
from mqbridge.tubemq.wire.pb.master_pb2 import CloseResponseM2P, HeartResponseM2P, RegisterResponseM2P
from mqbridge.tubemq.wire.string_formats import Broker, TopicInfo
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import WithoutCredentials
from tests.tubemq.client.producer.test_partition_sender import FakeBroker
from tests.tubemq.client.quick import shorten_pauses

BROKERS = ["1:10.0.0.5:8123"]


class Master(WithoutCredentials):
    """Like the real Master: the topics of a heartbeat replace the earlier ones, and the response covers these topics only."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.topic_counts: list[int] = []
        self.named: set[str] = set()
        self.is_registered = False
        self.silent: asyncio.Event | None = None
        """If not None, a heartbeat sets this event and gets no response."""
        self.broker_auth = AuthorizedInfo(visitAuthorizedToken=1)

    async def local_host(self) -> str:
        return "10.0.0.1"

    async def call(self, method: int, request: Any, answer: type) -> Any:
        if method == rpc.PRODUCER_REGISTER:
            self.is_registered = True
            self.named = set(request.topicList)
            return RegisterResponseM2P(success=True, errCode=200, errMsg="", brokerCheckSum=1, brokerInfos=BROKERS)
        if method == rpc.PRODUCER_CLOSE:
            return CloseResponseM2P(success=True, errCode=200, errMsg="")
        if not self.is_registered:
            return HeartResponseM2P(success=False, errCode=411, errMsg="who", brokerCheckSum=-1)
        if self.silent is not None:
            self.silent.set()
            await asyncio.Event().wait()
        self.topic_counts.append(len(request.topicList))
        if len(request.topicList) > 1024:
            text = "Booked topic's count over max value, required max count is 1024"
            return HeartResponseM2P(success=False, errCode=400, errMsg=text, brokerCheckSum=-1)
        self.named = set(request.topicList)
        await asyncio.sleep(0)
        infos = [f"{topic}#1:{self.topics[topic]}:1#1048576" for topic in sorted(self.named) if topic in self.topics]
        return HeartResponseM2P(success=True, errCode=200, errMsg="", brokerCheckSum=1, topicInfos=infos)


def test_a_route_keeps_its_partitions_if_the_master_announces_too_many() -> None:
    """The route also keeps the partitions that an earlier response listed, so those of new Brokers are added to them."""
    route = TopicRoute("demo")
    brokers = {number: Broker(number, "10.0.0.5", 8123) for number in range(1, 20)}
    route.update(TopicInfo("demo", ((1, 9000, 1),), None), brokers)
    for number in range(2, 12):
        route.update(TopicInfo("demo", ((number, 9000, 1),), None), brokers)
    with pytest.raises(RemoteProtocolError, match="at most 100000 are supported"):
        route.update(TopicInfo("demo", ((12, 9000, 1),), None), brokers)
    assert len(route.partitions) == 99_000


@pytest.fixture
def master() -> Master:
    return Master()


@pytest_asyncio.fixture
async def routes(master: Master) -> AsyncIterator[Routes]:
    routes = Routes(master, heartbeat_s=3600)  # type: ignore[arg-type]
    await routes.start()
    yield routes
    await routes.close()


async def test_concurrent_lookups_get_the_routes_of_their_own_topics(master: Master, routes: Routes) -> None:
    master.topics = {f"t{number}": number + 1 for number in range(5)}
    found = await asyncio.gather(*(routes.topic(topic) for topic in master.topics), routes.refresh())
    assert [len(route.partitions) for route in found[:-1] if route is not None] == [1, 2, 3, 4, 5]
    assert max(master.topic_counts) == 1, "a lookup asks for its own topic only"


async def test_concurrent_lookups_of_a_topic_share_its_route(master: Master, routes: Routes) -> None:
    """Only the cached route is updated: a sender with another object would not learn that a Broker moved."""
    master.topics = {"t": 1}
    found = await asyncio.gather(*(routes.topic("t") for _ in range(3)))
    master.topics = {"t": 2}
    await routes.refresh()
    assert [len(route.partitions) for route in found] == [2, 2, 2]


async def test_a_refresh_of_many_topics_is_divided_into_several_heartbeats(master: Master, routes: Routes) -> None:
    master.topics = {f"t{number:04}": 1 for number in range(2 * MAX_TOPICS + 2)}
    every = [await routes.topic(topic) for topic in master.topics]
    master.topics = dict.fromkeys(master.topics, 3)
    master.topic_counts.clear()
    await routes.refresh()
    assert master.topic_counts == [1024, 1024, 2]
    assert {len(route.partitions) for route in every} == {3}


async def test_a_refresh_succeeds_after_the_master_forgot_the_producer(master: Master, routes: Routes) -> None:
    master.topics = {f"t{number:04}": 1 for number in range(MAX_TOPICS + 1)}
    every = [await routes.topic(topic) for topic in master.topics]
    master.is_registered = False
    master.topics = dict.fromkeys(master.topics, 2)
    await routes.refresh()
    assert {len(route.partitions) for route in every} == {2}


async def test_a_refresh_right_after_the_end_of_another_one_asks_the_master_again(master: Master, routes: Routes) -> None:
    """What has just ended is an older answer, and waiting for it would not let the event loop forget it."""
    master.topics = {"t": 1}
    route = await routes.topic("t")
    before = asyncio.ensure_future(routes.refresh())
    await asyncio.sleep(0)
    task = routes._refresh_task
    assert task is not None
    while not task.done():
        await asyncio.sleep(0)
    master.topics = {"t": 2}
    assert routes._refresh_task is task, "nobody has noticed yet that it has ended"
    await routes.refresh()
    assert len(route.partitions) == 2
    await before


async def test_closing_fails_waiting_refreshes_with_an_error(master: Master, routes: Routes) -> None:
    master.topics = {"t": 1}
    await routes.topic("t")
    master.silent = asyncio.Event()
    asking = [asyncio.ensure_future(routes.refresh()) for _ in range(3)]
    await asyncio.wait_for(master.silent.wait(), PATIENCE_S)
    asking[0].cancel()
    await asyncio.sleep(0)
    assert [task.done() for task in asking] == [True, False, False], "only the cancelled call ends"
    await routes.close()
    for task in asking[1:]:
        with pytest.raises(ClusterError, match="is closed"):
            await asyncio.wait_for(task, PATIENCE_S)
    with pytest.raises(ClusterError, match="is closed"):
        await routes.refresh()


async def test_a_send_is_retried_although_its_route_refresh_is_closed(
    master: Master, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the routes must not cancel the retry that waits for the shared refresh."""
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(broker_reconnector, "ROUTE_REFRESH_TIMEOUT_S", PATIENCE_S)
    master.topics = {"t": 1}
    broker = FakeBroker(ConnectionLost("gone"))
    connections = SimpleNamespace(connectivity=Connectivity("fake"), connection_to=lambda *_: broker)
    sender = await open_partition_sender(routes, connections, "t")  # type: ignore[arg-type]
    master.silent = asyncio.Event()
    sent = sender.send("1:0", b"x")
    await asyncio.wait_for(master.silent.wait(), PATIENCE_S)
    await routes.close()
    await asyncio.wait_for(sent, PATIENCE_S)
    assert broker.stored == [b"x"]
    await sender.close()


async def test_the_error_of_a_refused_refresh_names_a_few_topics(
    master: Master, routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbridge.tubemq.client.producer.routes.MAX_TOPICS", 5000)
    monkeypatch.setattr(master_module, "REGISTER_PAUSE_S", 0.0)
    master.topics = {f"t{number:04}": 1 for number in range(1500)}
    for topic in master.topics:
        await routes.topic(topic)
    with pytest.raises(ServerRefused, match=r"for t0000, t0001, t0002 and 1,497 more was refused") as refused:
        await routes.refresh()
    assert refused.value.failure is Failure.REFUSED


def test_at_most_three_topics_are_named_in_a_sentence() -> None:
    assert format_topics(["b", "a"]) == "a, b"
    assert format_topics({"a", "b", "c", "d"}) == "a, b, c and 1 more"
