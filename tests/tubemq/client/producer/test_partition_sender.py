"""Sending: order across refusals and lost connections, the window, and messages given up."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    Failure,
    LocalProtocolError,
    MqbridgeError,
    RequestTimeout,
    ServerRefused,
    TopicChanged,
    Unreachable,
)
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client.producer import broker_reconnector, partition_send_queue, partition_sender
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.client.producer.routes import TopicRoute
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.string_formats import Broker, TopicInfo
from tests.kit.conversation import until
from tests.patience import PATIENCE_S


class FakeBroker:
    """Stores messages in the order of the requests; `plan` gives each request's code or exception, 200 when it is used up."""

    def __init__(self, *plan: int | Exception) -> None:
        self.plan = list(plan)
        self.stored: list[bytes] = []
        self.requests: list[SendMessageRequestP2B] = []
        self.max_open = self.open = 0
        self.held: list[Callable[[], None]] | None = None
        self.unreachable = 0

    alive = is_writable = True
    address = "10.0.0.5:8123"

    async def connect(self) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise Unreachable("nobody there")

    def post(self, service: int, method: int, body: bytes, on_answer: Callable[[Any], None]) -> None:
        if self.unreachable:
            raise ConnectionLost("not connected")
        request = SendMessageRequestP2B.FromString(body)
        self.requests.append(request)
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        outcome = self.plan.pop(0) if self.plan else 200
        answer: Any = outcome
        if isinstance(outcome, int):
            answer = SendMessageResponseB2P(
                success=outcome == 200, errCode=outcome, errMsg="scripted refusal"
            ).SerializePartialToString()
        if outcome == 200:
            self.stored.append(request.data)

        def respond() -> None:
            self.open -= 1
            on_answer(answer)

        if self.held is None:
            asyncio.get_running_loop().call_soon(respond)
        else:
            self.held.append(respond)


class FakeCluster:
    """The connections and routes of a sender whose only Broker is `broker`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.masters = self
        self.client_id, self.host, self.broker_auth = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)
        self.refreshed = 0
        self.is_deleted = False
        self.connectivity = Connectivity("fake")

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self.broker

    async def refresh(self) -> None:
        self.refreshed += 1

    async def check_exists(self, route: TopicRoute) -> None:
        if self.is_deleted:
            raise TopicChanged("the topic was deleted")


def sender_to(
    broker: FakeBroker, *, ordered: bool = True, in_flight: int | None = None, max_elapsed_s: float | None = None
) -> PartitionSender:
    route = TopicRoute("demo")
    route.update(TopicInfo("demo", ((1, 2, 1),), 1 << 20), {1: Broker(1, "10.0.0.5", 8123)})
    window = in_flight or (1 if ordered else partition_sender.MAX_UNORDERED_REQUESTS)
    cluster: Any = FakeCluster(broker)
    return PartitionSender(cluster, cluster, route, max_in_flight=window, max_elapsed_s=max_elapsed_s)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reconnector, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(broker_reconnector, "MAX_RETRY_S", 0.002)


def bodies(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


@pytest.mark.parametrize("outcome", [419, 503, 500, 403, 415, ConnectionLost("gone")], ids=str)
async def test_order_is_kept_across_retries(outcome: int | Exception) -> None:
    broker = FakeBroker(200, outcome, outcome, 200, outcome)
    sender = sender_to(broker)
    results = await asyncio.gather(*(sender.send("1:0", body) for body in bodies(6)))
    assert broker.stored == bodies(6)
    assert all(isinstance(result, SendResult) for result in results)
    assert broker.max_open == 1
    await sender.close()


async def test_retries_are_counted_and_not_logged_by_the_sender(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    broker = FakeBroker(200, ConnectionLost("gone"), ConnectionLost("gone"), 200)
    sender = sender_to(broker)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(3)))
    assert sender.connectivity.retries == 2
    assert caplog.records == []
    await sender.close()


@pytest.mark.parametrize("outcome", [419, 503], ids=str)
async def test_the_cause_of_retries_is_known_until_a_message_is_stored(outcome: int) -> None:
    broker = FakeBroker(*[outcome] * 50, 200)
    sender = sender_to(broker)
    sending = asyncio.ensure_future(sender.send("1:0", b"x"))
    async with asyncio.timeout(PATIENCE_S):
        while not any(queue.failures > 2 for queue in sender.failing):
            await asyncio.sleep(0.001)
    (failing,) = sender.failing
    assert failing.failing_since is not None
    assert str(outcome) in failing.reason
    assert isinstance(await sending, SendResult)
    assert failing.failing_since is None
    await sender.close()


@pytest.mark.parametrize("in_flight", [0, -1])
async def test_a_sender_without_requests_in_flight_is_refused(in_flight: int) -> None:
    cluster: Any = FakeCluster(FakeBroker())
    with pytest.raises(LocalProtocolError, match=f"in_flight is {in_flight}"):
        await partition_sender.open_partition_sender(cluster, cluster, "demo", in_flight=in_flight)


@pytest.mark.parametrize("outcome", [ConnectionLost("gone"), RequestTimeout("silent")], ids=str)
async def test_order_is_kept_when_all_requests_in_flight_fail(outcome: Exception) -> None:
    """As with a lost connection: only a first part of the requests in flight may be stored."""
    broker = FakeBroker(200, 200, outcome, outcome, outcome, 200)
    sender = sender_to(broker, in_flight=3)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(12)))
    assert broker.max_open == 3
    assert broker.stored == bodies(12)
    assert sender.counters.overtaken == 0
    assert sender.counters.retried == 3
    await sender.close()


async def test_messages_stored_before_an_earlier_one_are_counted() -> None:
    """A refusal concerns one request; it is repeated after the responses to all requests in flight."""
    broker = FakeBroker(200, 419, 200, 419, 200)
    sender = sender_to(broker, in_flight=5)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(10)))
    # 005 was sent at the response to 000, before the response to 001.
    assert broker.stored == [b"000", b"002", b"004", b"005", b"001", b"003", *bodies(10)[6:]]
    counters = sender.counters.snapshot()
    assert counters == {
        "failed": 0,
        "overtaken": 3,
        "retried": 2,
        "stored": 10,
        "stored_bytes": 30,
    }
    assert (sender.queued_messages, sender.queued_bytes) == (0, 0)


async def test_a_permanent_refusal_does_not_delay_other_messages() -> None:
    broker = FakeBroker(200, 400, 419, 200)
    sender = sender_to(broker, in_flight=4)
    results = await asyncio.gather(*(sender.send("1:0", body) for body in bodies(5)), return_exceptions=True)
    assert [isinstance(result, SendResult) for result in results] == [True, False, True, True, True]
    assert broker.stored == [b"000", b"003", b"004", b"002"]
    assert (sender.counters.failed, sender.counters.overtaken) == (1, 2)


async def test_room_waits_until_few_bytes_are_queued() -> None:
    broker = FakeBroker()
    sender = sender_to(broker)
    await sender.room(0)
    sent = [sender.send("1:0", b"x" * 10) for _ in range(10)]
    assert sender.queued_bytes == 100
    await sender.room(50)
    assert sender.queued_bytes == 50
    await sender.flush()
    assert all(future.done() for future in sent)
    with pytest.raises(KeyError):
        sender.submit("1:7", b"x", 0, None, None, done=lambda _: None)


async def test_a_send_after_close_is_refused() -> None:
    sender = sender_to(FakeBroker())
    await sender.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await sender.send("1:0", b"x")


async def test_a_server_that_closes_every_connection_is_dialled_with_pauses() -> None:
    broker = FakeBroker()
    broker.alive = False
    broker.unreachable = 1
    connects = 0
    connect = broker.connect

    async def count_connects() -> None:
        nonlocal connects
        connects += 1
        await connect()

    broker.connect = count_connects  # type: ignore[method-assign]
    sender = sender_to(broker, max_elapsed_s=0.05)
    with pytest.raises(MqbridgeError):
        await sender.send("1:0", b"x")
    assert 1 < connects < 100


async def test_partitions_do_not_wait_for_each_other() -> None:
    broker = FakeBroker()
    broker.held = []
    sender = sender_to(broker)
    first = [sender.send("1:0", b"a"), sender.send("1:1", b"b"), sender.send("1:0", b"c")]
    assert [(r.partitionId, r.data) for r in broker.requests] == [(0, b"a"), (1, b"b")]
    for answer in broker.held:
        answer()
    broker.held, held = None, broker.held
    held[-1]()
    await asyncio.gather(*first)


async def test_a_send_request_contains_client_topic_type_and_token() -> None:
    broker = FakeBroker()
    sender = sender_to(broker)
    await sender.send("1:1", b"data", 1, "t1", "202611202350")
    await sender.send("1:1", b"data")
    typed, plain = broker.requests
    assert (typed.clientId, typed.topicName, typed.partitionId, typed.flag) == ("p1", "demo", 1, 1)
    assert (typed.msgType, typed.msgTime, typed.checkSum, typed.sentAddr) == ("t1", "202611202350", -1, -1073741310)
    assert typed.authInfo.visitAuthorizedToken == 7
    assert not plain.HasField("msgType")
    assert not plain.HasField("msgTime")


async def test_the_window_bounds_the_requests_and_bytes_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_sender, "MAX_UNORDERED_REQUESTS", 5)
    monkeypatch.setattr(partition_send_queue, "MAX_IN_FLIGHT_BYTES", 40)
    for body, max_open in ((b"x", 5), (b"x" * 15, 2), (b"x" * 50, 1)):
        broker = FakeBroker()
        sender = sender_to(broker, ordered=False)
        await asyncio.gather(*(sender.send("1:0", body) for _ in range(20)))
        assert broker.max_open == max_open


@pytest.mark.parametrize("code", [400, 422])
async def test_a_refused_message_fails_alone(code: int) -> None:
    sender = sender_to(FakeBroker(200, code))
    results = await asyncio.gather(*(sender.send("1:0", body) for body in bodies(3)), return_exceptions=True)
    assert isinstance(results[1], ServerRefused)
    assert results[1].code == code
    assert isinstance(results[2], SendResult)


async def test_a_message_too_large_for_any_broker_is_refused_before_sending() -> None:
    broker = FakeBroker()
    with pytest.raises(ServerRefused) as caught:
        await sender_to(broker).send("1:0", bytes(partition_sender.MAX_MESSAGE_BYTES + 1))
    assert caught.value.failure is Failure.REFUSED
    assert not broker.requests


async def test_retries_end_after_the_time_limit() -> None:
    sender = sender_to(FakeBroker(*[419] * 1000), max_elapsed_s=0.01)
    with pytest.raises(ServerRefused) as caught:
        await sender.send("1:0", b"x")
    assert caught.value.failure is Failure.RETRY
    broker = FakeBroker()
    broker.unreachable = 1000
    sender = sender_to(broker, max_elapsed_s=0.01)
    with pytest.raises(Unreachable):
        await sender.send("1:0", b"x")


@pytest.mark.parametrize("is_unreachable", [False, True], ids=["refused", "unreachable"])
async def test_nothing_is_stored_behind_an_abandoned_ordered_message(is_unreachable: bool) -> None:
    broker = FakeBroker() if is_unreachable else FakeBroker(*[419] * 1000)
    broker.unreachable = 1000 if is_unreachable else 0
    sender = sender_to(broker, max_elapsed_s=0.01)
    sender.ordered = True
    sent = [sender.send("1:0", body) for body in bodies(5)]
    with pytest.raises((ServerRefused, Unreachable)):
        await sent[0]
    broker.unreachable, broker.plan = 0, []
    for later in sent[1:]:
        with pytest.raises(ClusterError, match="an earlier message was not stored") as caught:
            await later
        assert caught.value.failure is Failure.RETRY
    assert broker.stored == []
    await sender.send("1:0", b"sent after all receipts")
    assert broker.stored == [b"sent after all receipts"]


async def test_messages_are_stored_in_order_after_a_broker_was_unreachable() -> None:
    broker = FakeBroker()
    broker.unreachable = 3
    sender = sender_to(broker)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(4)))
    assert broker.stored == bodies(4)


async def test_close_waits_for_sends_and_fails_those_left_after_its_timeout() -> None:
    broker = FakeBroker()
    sender = sender_to(broker)
    sent = [sender.send("1:0", body) for body in bodies(5)]
    await sender.close()
    assert all(future.done() and not future.exception() for future in sent)
    broker = FakeBroker()
    broker.unreachable = 10_000
    sender = sender_to(broker)
    sent = [sender.send("1:0", body) for body in bodies(3)]
    await sender.close(timeout=0.01)
    for future in sent:
        with pytest.raises(MqbridgeError):
            await future


async def test_a_route_keeps_the_partitions_of_an_unlisted_broker() -> None:
    """Otherwise the index of every later partition would change."""
    brokers = {1: Broker(1, "a", 1), 2: Broker(2, "b", 1), 10: Broker(10, "c", 1)}
    route = TopicRoute("demo")
    route.update(TopicInfo("demo", ((10, 1, 1), (2, 2, 2), (1, 1, 1)), None), brokers)
    names = ["1:0", "2:0", "2:1", "2:10000", "2:10001", "10:0"]
    assert list(route.partitions) == names
    route.update(TopicInfo("demo", ((1, 1, 1), (10, 2, 1)), None), brokers | {1: Broker(1, "moved", 2)})
    assert list(route.partitions) == [*names, "10:1"]
    assert route.partitions["1:0"].broker.host == "moved"


async def test_nothing_is_sent_to_a_partition_that_the_master_does_not_list() -> None:
    """A Broker stores messages of a topic that is closed for producers, so the sender itself has to wait."""
    broker = FakeBroker()
    sender = sender_to(broker)
    sender.route.on_unlisted()
    sent = sender.send("1:0", b"000")
    await until(lambda: sender.routes.refreshed > 2)
    assert not sent.done()
    (failing,) = [each for each in sender.failing if each.failing_since is not None]
    assert "closed for producers" in failing.reason
    sender.route.update(TopicInfo("demo", ((1, 2, 1),), 1 << 20), {1: Broker(1, "10.0.0.5", 8123)})
    assert isinstance(await asyncio.wait_for(sent, PATIENCE_S), SendResult)
    await sender.close()


async def test_a_deleted_topic_fails_every_message_that_waits() -> None:
    sender = sender_to(FakeBroker(403))
    sender.routes.is_deleted = True
    sent = [sender.send("1:0", b"%03d" % number) for number in range(3)]
    results = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), PATIENCE_S)
    assert isinstance(results[0], TopicChanged)
    assert all(isinstance(result, ClusterError) and result.failure is Failure.FATAL for result in results)
    await sender.close()
