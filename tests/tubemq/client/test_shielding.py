"""Which Brokers are avoided, by a clock that is an argument; and a spread that goes around them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client import shielding, spread
from mqbridge.tubemq.client.producer import Sender
from mqbridge.tubemq.client.routes import TopicRoute
from mqbridge.tubemq.client.send_result import SendResult
from mqbridge.tubemq.client.shielding import Shield
from mqbridge.tubemq.client.spread import Spread
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.text import Broker, TopicInfo
from tests.patience import PATIENCE_S
from tests.tubemq.client.quick import hurry

BROKERS = [Broker(number, f"10.0.0.{number}", 8123) for number in range(1, 11)]
LOST, LATE, AWAY = ConnectionLost("cut"), RequestTimeout("late"), Unreachable("away")
STOPPING = codes.refused("a message", codes.UNAVAILABLE, "stopping")


def shield(count: int = 10, *, sent: int = 1) -> Shield:
    made = Shield()
    for broker in BROKERS[:count]:
        for _ in range(sent):
            made.sent(broker, 0.0)
            made.stored(broker)
    return made


def test_a_503_for_50_s() -> None:
    of = shield()
    of.failed(BROKERS[0], STOPPING, 0.0)
    assert of.avoided(49.9) == [BROKERS[0]]
    assert of.avoided(50.0) == []


@pytest.mark.parametrize("code", [419, 500, 400, 403])
def test_other_refusals_are_no_reason(code: int) -> None:
    of = shield()
    for _ in range(20):
        of.failed(BROKERS[0], codes.refused("a message", code, ""), 0.0)
    assert of.avoided(0.1) == []


@pytest.mark.parametrize("error", [LOST, LATE, AWAY], ids=lambda error: type(error).__name__)
def test_lost_answers_in_a_row(error: ClusterError) -> None:
    of = shield()
    for _ in range(3):
        of.failed(BROKERS[0], error, 0.0)
    assert of.avoided(0.1) == []
    of.stored(BROKERS[0])
    for _ in range(3):
        of.failed(BROKERS[0], error, 0.0)
    assert of.avoided(0.1) == []
    of.failed(BROKERS[0], error, 1.0)
    assert of.avoided(3.9) == [BROKERS[0]]
    assert of.avoided(4.0) == []


def test_connects_that_fail_ban_a_share_of_the_addresses() -> None:
    of = shield(10)
    for broker in BROKERS[:5]:
        for _ in range(6):
            of.failed(broker, AWAY, 1.0)
    assert of.avoided(100.0) == BROKERS[:3], "0.3 of ten"
    of.stored(BROKERS[0])
    assert of.avoided(100.0) == BROKERS[1:3]
    assert of.avoided(1801.0) == []


def test_connects_that_fail_now_and_then_ban_nobody() -> None:
    of = shield(10)
    for turn in range(20):
        of.failed(BROKERS[0], AWAY, turn * 15.0)
    assert of.avoided(19 * 15.0 + 10) == []


@pytest.mark.parametrize(("count", "banned"), [(1, 0), (2, 1), (4, 1)])
def test_small_clusters(count: int, banned: int) -> None:
    of = shield(count)
    for broker in BROKERS[:count]:
        for _ in range(6):
            of.failed(broker, AWAY, 0.0)
    assert len(of.avoided(60.0)) == banned


def compared(good: list[int], sent: list[int]) -> Shield:
    """A shield that was told these numbers and has compared the Brokers at 30 s."""
    of = Shield()
    for broker, stored, count in zip(BROKERS, good, sent, strict=False):
        for _ in range(count):
            of.sent(broker, 0.0)
        for _ in range(stored):
            of.stored(broker)
    of.sent(BROKERS[0], 30.0)
    return of


def test_far_fewer_answers_than_the_others() -> None:
    of = compared([100] * 9 + [3], [100] * 10)
    assert of.avoided(59.9) == [BROKERS[9]]
    assert of.avoided(60.0) == []


@pytest.mark.parametrize(
    ("good", "sent"),
    [([100] * 9 + [15], [100] * 10), ([100] * 9 + [1], [100] * 9 + [25]), ([100, 100, 0], [100] * 3), ([0], [100])],
    ids=["not so few", "too little to judge", "too few Brokers", "the only one"],
)
def test_who_is_not_judged(good: list[int], sent: list[int]) -> None:
    assert compared(good, sent).avoided(31.0) == []


def test_at_most_a_share_is_avoided_for_its_quality() -> None:
    of = compared([100] * 6 + [0] * 4, [100] * 10)
    assert len(of.avoided(31.0)) == round(10 * shielding.QUALITY_SHARE) == 2


# --- spread -----------------------------------------------------------------------------------------------------------


class FakeSession:
    """A Broker that stores, or answers with `outcome`; `away` is one that takes no connection."""

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

    async def connected(self) -> None:
        if self.away:
            raise AWAY

    def post(self, service: int, method: int, body: bytes, on_answer: Callable[[Any], None]) -> None:
        if self.away:
            raise LOST
        request = SendMessageRequestP2B.FromString(body)
        self.asked += 1
        answer: Any = self.outcome
        if isinstance(answer, int):
            if answer == 200:
                self.stored.append(request.data)
            answer = SendMessageResponseB2P(success=answer == 200, errCode=answer, errMsg="said").SerializePartialToString()
        asyncio.get_running_loop().call_soon(on_answer, answer)


class Cluster:
    """As many Brokers as asked for, with two partitions of the topic each."""

    def __init__(self, count: int) -> None:
        self.found = {broker.id: FakeSession(broker) for broker in BROKERS[:count]}
        self.sessions = self.routes = self.masters = self
        self.client_id, self.host, self.authorized = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)
        self.connectivity = Connectivity("fake")
        self.route = TopicRoute("demo")
        deployments = tuple((broker.id, 2, 1) for broker in BROKERS[:count])
        self.route.learn(TopicInfo("demo", deployments, 1 << 20), {broker.id: broker for broker in BROKERS})

    def to(self, host: str, port: int, partition: str = "") -> Any:
        return next(session for session in self.found.values() if session.broker.host == host)

    async def refresh(self) -> None:
        """Nothing changes."""

    def spread(self, *, max_elapsed_s: float | None = None) -> Spread:
        sender = Sender(self, self.route, window=1000, max_elapsed_s=0.0)  # type: ignore[arg-type]
        return Spread(sender, max_elapsed_s=max_elapsed_s)

    @property
    def stored(self) -> Counter[bytes]:
        return Counter(body for session in self.found.values() for body in session.stored)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def test_partitions_take_turns() -> None:
    cluster = Cluster(3)
    way = cluster.spread()
    await asyncio.gather(*(way.send(b"%d" % number) for number in range(60)))
    assert [len(session.stored) for session in cluster.found.values()] == [20, 20, 20]
    await way.close(1.0)


@pytest.mark.parametrize("outcome", [503, LOST, LATE, AWAY], ids=str)
async def test_a_broker_in_trouble_is_left_alone(outcome: int | Exception) -> None:
    cluster = Cluster(3)
    bad = cluster.found[2]
    if outcome is AWAY:
        bad.away = True
    else:
        bad.outcome = outcome
    way = cluster.spread()
    for number in range(100):
        assert isinstance(await way.send(b"%d" % number), SendResult)
    assert cluster.stored == Counter(b"%d" % number for number in range(100))
    assert bad.asked <= shielding.LOST_IN_A_ROW + 1
    assert way.shield.avoided(asyncio.get_running_loop().time()) == [bad.broker]
    await way.close(1.0)


async def test_when_all_are_avoided_one_is_tried_all_the_same() -> None:
    cluster = Cluster(2)
    for session in cluster.found.values():
        session.outcome = 503
    way = cluster.spread()
    sending = way.send(b"x")
    await asyncio.sleep(0.02)
    assert not sending.done()
    for session in cluster.found.values():
        session.outcome = 200
    assert isinstance(await sending, SendResult)
    await way.close(1.0)


async def test_what_no_broker_will_take() -> None:
    cluster = Cluster(2)
    for session in cluster.found.values():
        session.outcome = 400
    way = cluster.spread()
    with pytest.raises(ServerRefused) as caught:
        await way.send(b"x")
    assert caught.value.failure is Failure.REFUSED
    assert sum(session.asked for session in cluster.found.values()) == 1
    for session in cluster.found.values():
        session.outcome = 503
    limited = cluster.spread(max_elapsed_s=0.02)
    with pytest.raises(ServerRefused) as caught:
        await limited.send(b"x")
    assert caught.value.code == 503


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "MAX_UNDECIDED", 3)
    way = Cluster(1).spread()
    sent = [way.send(b"x") for _ in range(3)]
    with pytest.raises(ClusterError, match="wait for answers") as caught:
        way.send(b"x")
    assert caught.value.failure is Failure.RETRY
    await asyncio.gather(*sent)
    await way.send(b"x")
    monkeypatch.setattr(spread, "MAX_UNDECIDED_BYTES", 10)
    first = way.send(b"x" * 20)
    with pytest.raises(ClusterError):
        way.send(b"x")
    await first
    assert way.undecided == way.undecided_bytes == 0


async def test_closing_fails_what_cannot_be_sent() -> None:
    cluster = Cluster(2)
    for session in cluster.found.values():
        session.away = True
    way = cluster.spread()
    sent = [way.send(b"%d" % number) for number in range(5)]
    await way.close(0.02)
    results = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), PATIENCE_S)
    assert all(isinstance(result, ClusterError) for result in results)


async def test_a_broker_that_the_master_no_longer_lists_is_not_chosen() -> None:
    cluster = Cluster(3)
    way = cluster.spread()
    cluster.route.learn(TopicInfo("demo", ((1, 2, 1), (3, 2, 1)), None), {broker.id: broker for broker in BROKERS})
    await asyncio.gather(*(way.send(b"%d" % number) for number in range(20)))
    assert [session.asked for session in cluster.found.values()] == [10, 0, 10]
    assert len(cluster.route.partitions) == 6, "for keys the places stay"
    cluster.route.learn(TopicInfo("demo", ((4, 1, 1),), None), {broker.id: broker for broker in BROKERS})
    assert [ref.name for ref in cluster.route.listed] == ["4:0"]
