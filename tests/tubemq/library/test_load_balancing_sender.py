"""The sender to any partition: round robin, avoided Brokers, limits, closing."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.client.producer.routes import TopicRoute
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.library import broker_blocklist, load_balancing_sender
from mqbridge.tubemq.library.load_balancing_sender import LoadBalancingSender
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.string_formats import Broker, TopicInfo
from tests.patience import PATIENCE_S
from tests.tubemq.client.quick import shorten_pauses

BROKERS = [Broker(number, f"10.0.0.{number}", 8123) for number in range(1, 11)]
LOST, LATE, AWAY = ConnectionLost("cut"), RequestTimeout("late"), Unreachable("away")


class FakeSession:
    """Connection to a Broker that stores messages, or responds with `outcome`; with `away` it accepts no connection."""

    is_writable = True

    def __init__(self, broker: Broker) -> None:
        self.broker, self.address = broker, f"{broker.host}:{broker.port}"
        self.outcome: int | Exception = 200
        self.away = False
        self.stored: list[bytes] = []
        self.asked = 0

    @property
    def alive(self) -> bool:
        return not self.away

    async def connect(self) -> None:
        if self.away:
            raise AWAY

    def post(self, service: int, method: int, body: bytes, on_response: Callable[[Any], None]) -> None:
        if self.away:
            raise LOST
        request = SendMessageRequestP2B.FromString(body)
        self.asked += 1
        answer: Any = self.outcome
        if isinstance(answer, int):
            if answer == 200:
                self.stored.append(request.data)
            answer = SendMessageResponseB2P(success=answer == 200, errCode=answer, errMsg="refused").SerializePartialToString()
        asyncio.get_running_loop().call_soon(on_response, answer)


class Cluster:
    """`count` Brokers, each with two partitions of the topic."""

    def __init__(self, count: int) -> None:
        self.brokers = {broker.id: FakeSession(broker) for broker in BROKERS[:count]}
        self.masters = self
        self.client_id, self.host, self.broker_auth = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)
        self.connectivity = Connectivity("fake")
        self.route = TopicRoute("demo")
        deployments = tuple((broker.id, 2, 1) for broker in BROKERS[:count])
        self.route.update(TopicInfo("demo", deployments, 1 << 20), {broker.id: broker for broker in BROKERS})

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return next(connection for connection in self.brokers.values() if connection.broker.host == host)

    async def refresh(self) -> None:
        """Do nothing: the routes of this cluster do not change."""

    def open_sender(self, *, max_elapsed_s: float | None = None) -> LoadBalancingSender:
        sender = PartitionSender(self, self, self.route, max_in_flight=1000, max_elapsed_s=0.0)  # type: ignore[arg-type]
        return LoadBalancingSender(sender, max_elapsed_s=max_elapsed_s)

    @property
    def stored(self) -> Counter[bytes]:
        return Counter(body for connection in self.brokers.values() for body in connection.stored)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


async def test_partitions_are_used_round_robin() -> None:
    cluster = Cluster(3)
    sender = cluster.open_sender()
    await asyncio.gather(*(sender.send(b"%d" % number) for number in range(60)))
    assert [len(connection.stored) for connection in cluster.brokers.values()] == [20, 20, 20]
    await sender.close(1.0)


@pytest.mark.parametrize("outcome", [503, LOST, LATE, AWAY], ids=str)
async def test_a_broker_with_failures_is_avoided(outcome: int | Exception) -> None:
    cluster = Cluster(3)
    bad = cluster.brokers[2]
    if outcome is AWAY:
        bad.away = True
    else:
        bad.outcome = outcome
    sender = cluster.open_sender()
    for number in range(100):
        assert isinstance(await sender.send(b"%d" % number), SendResult)
    assert cluster.stored == Counter(b"%d" % number for number in range(100))
    assert bad.asked <= broker_blocklist.MAX_LOST_IN_A_ROW + 1
    assert sender.blocklist.avoided_brokers(asyncio.get_running_loop().time()) == [bad.broker]
    await sender.close(1.0)


async def test_an_avoided_broker_is_tried_when_all_are_avoided() -> None:
    cluster = Cluster(2)
    for connection in cluster.brokers.values():
        connection.outcome = 503
    sender = cluster.open_sender()
    result = sender.send(b"x")
    await asyncio.sleep(0.02)
    assert not result.done()
    for connection in cluster.brokers.values():
        connection.outcome = 200
    assert isinstance(await result, SendResult)
    await sender.close(1.0)


async def test_a_message_that_no_broker_accepts_fails() -> None:
    cluster = Cluster(2)
    for connection in cluster.brokers.values():
        connection.outcome = 400
    sender = cluster.open_sender()
    with pytest.raises(ServerRefused) as caught:
        await sender.send(b"x")
    assert caught.value.failure is Failure.REFUSED
    assert sum(connection.asked for connection in cluster.brokers.values()) == 1
    for connection in cluster.brokers.values():
        connection.outcome = 503
    limited = cluster.open_sender(max_elapsed_s=0.02)
    with pytest.raises(ServerRefused) as caught:
        await limited.send(b"x")
    assert caught.value.code == 503


async def test_pending_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_balancing_sender, "MAX_PENDING", 3)
    sender = Cluster(1).open_sender()
    sent = [sender.send(b"x") for _ in range(3)]
    with pytest.raises(ClusterError, match="are pending") as caught:
        sender.send(b"x")
    assert caught.value.failure is Failure.RETRY
    await asyncio.gather(*sent)
    await sender.send(b"x")
    monkeypatch.setattr(load_balancing_sender, "MAX_PENDING_BYTES", 10)
    first = sender.send(b"x" * 20)
    with pytest.raises(ClusterError):
        sender.send(b"x")
    await first
    assert sender.pending == sender.pending_bytes == 0


async def test_close_fails_messages_that_cannot_be_sent() -> None:
    cluster = Cluster(2)
    for connection in cluster.brokers.values():
        connection.away = True
    sender = cluster.open_sender()
    sent = [sender.send(b"%d" % number) for number in range(5)]
    await sender.close(0.02)
    results = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), PATIENCE_S)
    assert all(isinstance(result, ClusterError) for result in results)


async def test_a_broker_that_the_master_no_longer_lists_is_not_chosen() -> None:
    cluster = Cluster(3)
    sender = cluster.open_sender()
    cluster.route.update(TopicInfo("demo", ((1, 2, 1), (3, 2, 1)), None), {broker.id: broker for broker in BROKERS})
    await asyncio.gather(*(sender.send(b"%d" % number) for number in range(20)))
    assert [connection.asked for connection in cluster.brokers.values()] == [10, 0, 10]
    assert len(cluster.route.partitions) == 6, "keys keep their partitions"
    cluster.route.update(TopicInfo("demo", ((4, 1, 1),), None), {broker.id: broker for broker in BROKERS})
    assert [ref.name for ref in cluster.route.listed] == ["4:0"]


async def test_a_message_after_an_orderly_close_fails() -> None:
    sender = Cluster(1).open_sender()
    await sender.send(b"x")
    await sender.close()
    assert sender.closed
    with pytest.raises(ConnectionLost, match="closed before this message was stored"):
        await asyncio.wait_for(sender.send(b"y"), PATIENCE_S)
