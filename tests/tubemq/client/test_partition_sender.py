"""Sending: order across refusals and lost connections, the window, and messages given up."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client import broker_reconnector, partition_send_queue, partition_sender
from mqbridge.tubemq.client.partition_sender import PartitionSender
from mqbridge.tubemq.client.routes import TopicRoute
from mqbridge.tubemq.client.send_result import SendResult
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.string_formats import Broker, TopicInfo


class FakeBroker:
    """Stores messages in the order of the requests; `plan` gives each request's code or exception, 200 when it is used up."""

    def __init__(self, *plan: int | Exception) -> None:
        self.plan = list(plan)
        self.stored: list[bytes] = []
        self.asked: list[SendMessageRequestP2B] = []
        self.most = self.open = 0
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
        self.asked.append(request)
        self.open += 1
        self.most = max(self.most, self.open)
        outcome = self.plan.pop(0) if self.plan else 200
        answer: Any = outcome
        if isinstance(outcome, int):
            answer = SendMessageResponseB2P(success=outcome == 200, errCode=outcome, errMsg="said").SerializePartialToString()
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
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.masters = self
        self.client_id, self.host, self.broker_auth = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)
        self.refreshed = 0
        self.connectivity = Connectivity("fake")

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self.broker

    async def refresh(self) -> None:
        self.refreshed += 1


def sender_to(
    broker: FakeBroker, *, ordered: bool = True, in_flight: int | None = None, max_elapsed_s: float | None = None
) -> PartitionSender:
    route = TopicRoute("demo")
    route.update(TopicInfo("demo", ((1, 2, 1),), 1 << 20), {1: Broker(1, "10.0.0.5", 8123)})
    window = in_flight or (1 if ordered else partition_sender.MAX_UNORDERED_REQUESTS)
    cluster: Any = FakeCluster(broker)
    return PartitionSender(cluster, cluster, route, max_in_flight=window, max_elapsed_s=max_elapsed_s)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert broker.most == 1
    await sender.close()


async def test_what_is_sent_again_is_counted_and_an_outage_is_told_by_its_cluster_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    broker = FakeBroker(200, ConnectionLost("gone"), ConnectionLost("gone"), 200)
    sender = sender_to(broker)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(3)))
    assert sender.connectivity.retries == 2
    assert caplog.records == []
    await sender.close()


@pytest.mark.parametrize("outcome", [ConnectionLost("gone"), RequestTimeout("silent")], ids=str)
async def test_many_in_flight_keep_order_when_all_of_them_fail(outcome: Exception) -> None:
    """As with a lost connection: of those in flight a first part may be stored, which then comes twice, and no other."""
    broker = FakeBroker(200, 200, outcome, outcome, outcome, 200)
    sender = sender_to(broker, in_flight=3)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(12)))
    assert broker.most == 3
    assert broker.stored == bodies(12)
    assert sender.counters.overtaken == 0
    assert sender.counters.retried == 3
    await sender.close()


async def test_what_was_stored_ahead_of_its_turn_is_counted() -> None:
    """A refusal concerns one request only; nothing is sent again before the answers of those behind it are in."""
    broker = FakeBroker(200, 419, 200, 419, 200)
    sender = sender_to(broker, in_flight=5)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(10)))
    # 005 had gone out with the answer to 000, before there was any news of 001.
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


async def test_refusals_for_good_do_not_hold_up_the_others() -> None:
    broker = FakeBroker(200, 400, 419, 200)
    sender = sender_to(broker, in_flight=4)
    results = await asyncio.gather(*(sender.send("1:0", body) for body in bodies(5)), return_exceptions=True)
    assert [isinstance(result, SendResult) for result in results] == [True, False, True, True, True]
    assert broker.stored == [b"000", b"003", b"004", b"002"]
    assert (sender.counters.failed, sender.counters.overtaken) == (1, 2)


async def test_waiting_for_room() -> None:
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


async def test_nothing_is_taken_after_close() -> None:
    sender = sender_to(FakeBroker())
    await sender.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await sender.send("1:0", b"x")


async def test_a_server_that_closes_every_connection_is_not_dialled_without_pause() -> None:
    broker = FakeBroker()
    broker.alive = False
    broker.unreachable = 1
    connects = 0
    connect = broker.connect

    async def counted() -> None:
        nonlocal connects
        connects += 1
        await connect()

    broker.connect = counted  # type: ignore[method-assign]
    sender = sender_to(broker, max_elapsed_s=0.05)
    with pytest.raises(MqbridgeError):
        await sender.send("1:0", b"x")
    assert 1 < connects < 100


async def test_partitions_do_not_wait_for_each_other() -> None:
    broker = FakeBroker()
    broker.held = []
    sender = sender_to(broker)
    first = [sender.send("1:0", b"a"), sender.send("1:1", b"b"), sender.send("1:0", b"c")]
    assert [(r.partitionId, r.data) for r in broker.asked] == [(0, b"a"), (1, b"b")]
    for answer in broker.held:
        answer()
    broker.held, held = None, broker.held
    held[-1]()
    await asyncio.gather(*first)


async def test_what_a_request_says() -> None:
    broker = FakeBroker()
    sender = sender_to(broker)
    await sender.send("1:1", b"data", 1, "t1", "202611202350")
    await sender.send("1:1", b"data")
    typed, plain = broker.asked
    assert (typed.clientId, typed.topicName, typed.partitionId, typed.flag) == ("p1", "demo", 1, 1)
    assert (typed.msgType, typed.msgTime, typed.checkSum, typed.sentAddr) == ("t1", "202611202350", -1, -1073741310)
    assert typed.authInfo.visitAuthorizedToken == 7
    assert not plain.HasField("msgType")
    assert not plain.HasField("msgTime")


async def test_the_window_bounds_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_sender, "MAX_UNORDERED_REQUESTS", 5)
    monkeypatch.setattr(partition_send_queue, "MAX_IN_FLIGHT_BYTES", 40)
    for body, most in ((b"x", 5), (b"x" * 15, 2), (b"x" * 50, 1)):
        broker = FakeBroker()
        sender = sender_to(broker, ordered=False)
        await asyncio.gather(*(sender.send("1:0", body) for _ in range(20)))
        assert broker.most == most


@pytest.mark.parametrize("code", [400, 422])
async def test_a_refusal_is_reported_and_the_next_goes_on(code: int) -> None:
    sender = sender_to(FakeBroker(200, code))
    results = await asyncio.gather(*(sender.send("1:0", body) for body in bodies(3)), return_exceptions=True)
    assert isinstance(results[1], ServerRefused)
    assert results[1].code == code
    assert isinstance(results[2], SendResult)


async def test_too_large_for_any_broker() -> None:
    broker = FakeBroker()
    with pytest.raises(ServerRefused) as caught:
        await sender_to(broker).send("1:0", bytes(partition_sender.MAX_MESSAGE_BYTES + 1))
    assert caught.value.failure is Failure.REFUSED
    assert not broker.asked


async def test_retrying_ends_when_it_may() -> None:
    sender = sender_to(FakeBroker(*[419] * 1000), max_elapsed_s=0.01)
    with pytest.raises(ServerRefused) as caught:
        await sender.send("1:0", b"x")
    assert caught.value.failure is Failure.RETRY
    broker = FakeBroker()
    broker.unreachable = 1000
    sender = sender_to(broker, max_elapsed_s=0.01)
    with pytest.raises(Unreachable):
        await sender.send("1:0", b"x")


@pytest.mark.parametrize("is_away", [False, True], ids=["refused", "away"])
async def test_nothing_is_stored_behind_an_ordered_message_that_is_given_up(is_away: bool) -> None:
    broker = FakeBroker() if is_away else FakeBroker(*[419] * 1000)
    broker.unreachable = 1000 if is_away else 0
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
    await sender.send("1:0", b"what is sent after the receipts are out")
    assert broker.stored == [b"what is sent after the receipts are out"]


async def test_a_broker_that_is_away_for_a_while() -> None:
    broker = FakeBroker()
    broker.unreachable = 3
    sender = sender_to(broker)
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies(4)))
    assert broker.stored == bodies(4)


async def test_close_waits_and_then_fails_the_rest() -> None:
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


async def test_routes_keep_partitions_of_a_broker_that_is_away() -> None:
    """Else the index of every later partition would move."""
    brokers = {1: Broker(1, "a", 1), 2: Broker(2, "b", 1), 10: Broker(10, "c", 1)}
    route = TopicRoute("demo")
    route.update(TopicInfo("demo", ((10, 1, 1), (2, 2, 2), (1, 1, 1)), None), brokers)
    names = ["1:0", "2:0", "2:1", "2:10000", "2:10001", "10:0"]
    assert list(route.partitions) == names
    route.update(TopicInfo("demo", ((1, 1, 1), (10, 2, 1)), None), brokers | {1: Broker(1, "moved", 2)})
    assert list(route.partitions) == [*names, "10:1"]
    assert route.partitions["1:0"].broker.host == "moved"
