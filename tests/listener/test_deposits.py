"""Messages that wait until they are due in levels of the parking: each comes to its topic in time, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import InboundLane
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.adapter.topics import Topic
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener import parking
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.deposits import STORED_AT_ONCE, TargetGone, check_target
from mqbridge.listener.limits import InFlightBytes
from mqbridge.listener.parked import LEVELS_S, Parked, wrap
from mqbridge.listener.parking import Parking
from mqbridge.listener.topics import ListenedTopic
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share, Unit
from mqbridge.rocketmq.mapping.unit_format import FORMATS
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S

HOUR_MS = 3_600_000
DAY_S = 86_400


class Clock:
    """The wall clock, which stands still unless a test moves it on, or messages wait while it is `automatic`."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self.automatic = True

    def time(self) -> float:
        return self.now_s

    def in_ms(self, delay_s: float) -> int:
        return round((self.now_s + delay_s) * 1000)

    @property
    def now_ms(self) -> int:
        return round(self.now_s * 1000)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let the time pass at once for which a level waits."""
    clock = Clock()

    async def sleep(lane: InboundLane, time_s: float) -> None:
        await asyncio.sleep(0.005)
        if clock.automatic:
            clock.now_s += time_s
        parking._check_kept(lane)

    monkeypatch.setattr(parking, "time", clock)
    monkeypatch.setattr(parking, "_sleep", sleep)
    monkeypatch.setattr(parking, "LOOK_S", 0.05)
    return clock


class Gateway:
    """A parking over the log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.cluster = LogCluster("store", LogSettings(path=str(folder / "log.db")))
        self.answers: list[tuple[bytes, ClusterError | None]] = []
        self.dead_letters_problem: ClusterError | None = None
        self._letters: DeadLetters | None = None

    async def start(self) -> None:
        await self.cluster.connect()
        moves = Definitions(self.cluster, topic="mqbridge-app-moves")
        self.in_flight = InFlightBytes(1 << 20)
        open_dead_letters, in_flight = self._open_dead_letters, self.in_flight
        self.parking = Parking(
            self.cluster, "mqbridge-app", FORMATS[0], Mock(), Mock(), moves, open_dead_letters, "me", in_flight
        )
        await self.parking.start()

    async def _open_dead_letters(self) -> DeadLetters:
        if self.dead_letters_problem is not None:
            raise self.dead_letters_problem
        if self._letters is None:
            await self.cluster.create("dead", 1)
            outbound = await self.cluster.outbound(OutboundSpec("dead", stamp_origin=False))
            self._letters = DeadLetters("app", outbound, "store/dead")
        return self._letters

    async def close(self) -> None:
        await self.parking.close(asyncio.get_running_loop().time() + 5)
        assert self.in_flight.used == 0
        if self._letters is not None:
            await self._letters.outbound.close()
        await self.cluster.close()

    async def topic(self, partitions: int = 1, name: str = "t") -> ListenedTopic:
        await self.cluster.create(name, partitions)
        return ListenedTopic(f"for-clients/{name}", name, {index: str(index) for index in range(partitions)}, True)

    def deposit(self, topic: ListenedTopic, due_ms: int, *payloads: bytes, partition: int = 0) -> None:
        for payload in payloads:
            self.parking.deposit(
                topic,
                partition,
                unit_of(payload),
                due_ms,
                lambda problem, payload=payload: self.answers.append((payload, problem)),
            )

    async def answered(self, count: int) -> list[ClusterError | None]:
        await until(lambda: len(self.answers) >= count)
        assert len(self.answers) == count
        return [problem for _, problem in self.answers]

    async def stored(self, count: int, topic: str = "t", partition: int = 0) -> Sequence[Message]:
        """Wait until a partition has this many messages, and return them."""
        async with asyncio.timeout(PATIENCE_S):
            while (bounds := (await self.cluster.bounds(topic))[str(partition)]).message_count != count:
                await asyncio.sleep(0.005)
        batches = [batch async for batch in read(self.cluster, topic, str(partition), bounds.first, bounds.next)]
        assert topic == "dead" or all(batch.format == FORMATS[0].name and batch.has_units for batch in batches)
        return [message for batch in batches for message in batch.messages]

    async def dead_letter(self, count: int = 1) -> Message:
        """Wait for a dead letter, the last one of this many."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.cluster.describe("dead") is None:
                await asyncio.sleep(0.005)
        return (await self.stored(count, "dead"))[-1]

    async def levels(self) -> set[str]:
        """Return the levels that exist."""
        names = await self.cluster.topics()
        return {level for level in LEVELS_S if f"mqbridge-app-{level}" in names}


def unit_of(payload: bytes) -> Unit:
    return Unit(encode_record(Record("", payload, b"TAGS\x01a\x02")), 1, None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path)
    await gateway.start()
    yield gateway
    await gateway.close()


def fails(topics: set[str], *, refused: bool, times: int = 1 << 30) -> Callable[..., object]:
    """Return what to send with instead: it stores nothing in these topics."""
    left = times

    async def sent(self: Parking, topic: str, outbound: Outbound, partition: int, share: Share) -> Sequence[MessageFailure]:
        nonlocal left
        if topic in topics and left:
            left -= 1
            kind = Failure.REFUSED if refused else Failure.RETRY
            return [MessageFailure(index, kind, "not here") for index in range(share.count)]
        return await real(self, topic, outbound, partition, share)

    real = Parking._sent
    return sent


@pytest.mark.parametrize("delay_s", [*LEVELS_S.values(), -5, 0, 0.001, 0.4, 1.5, 29.999, 59.9, 61.25, 7199.5])
async def test_a_message_comes_when_it_is_due(clock: Clock, gateway: Gateway, delay_s: float) -> None:
    topic, due_ms = await gateway.topic(), clock.in_ms(delay_s)
    gateway.deposit(topic, due_ms, b"x")
    assert gateway.answers == []
    assert await gateway.answered(1) == [None]
    (message,) = await gateway.stored(1)
    assert message.payload == b"x"
    assert max(due_ms, 1_800_000_000_000) <= clock.now_ms <= max(due_ms, 1_800_000_000_000) + 1
    await until(lambda: gateway.parking.brought_back == 1)
    if delay_s in LEVELS_S.values():
        assert len(await gateway.levels()) == 1


async def test_timers_of_days_roll(clock: Clock, gateway: Gateway) -> None:
    topic, due_ms = await gateway.topic(), clock.in_ms(3 * DAY_S + 2 * 3600 - 0.25)
    gateway.deposit(topic, due_ms, b"x")
    await gateway.stored(1)
    assert 0 <= clock.now_ms - due_ms <= 1
    assert await gateway.levels() == {"2h", "1h", "30m", "20m", "9m", "30s", "10s", "5s", "1s"}
    bounds = await gateway.cluster.bounds("mqbridge-app-2h")
    assert bounds["0"].message_count == 36


async def test_deposits_of_one_iteration_are_one_request_for_each_level_and_keep_their_order(
    clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[str, int]] = []
    real = Parking._sent

    async def sent(self: Parking, topic: str, outbound: Outbound, partition: int, share: Share) -> Sequence[MessageFailure]:
        sizes.append((topic, share.count))
        return await real(self, topic, outbound, partition, share)

    monkeypatch.setattr(Parking, "_sent", sent)
    clock.automatic = False
    topic = await gateway.topic(2)
    wanted = [b"%d" % number for number in range(STORED_AT_ONCE + 100)]
    gateway.deposit(topic, clock.in_ms(30), *wanted, partition=1)
    gateway.deposit(topic, clock.in_ms(3600), b"later")
    assert await gateway.answered(len(wanted) + 1) == [None] * (len(wanted) + 1)
    assert sorted(sizes) == [("mqbridge-app-1h", 1), ("mqbridge-app-30s", 100), ("mqbridge-app-30s", STORED_AT_ONCE)]
    clock.now_s += 30
    assert [message.payload for message in await gateway.stored(len(wanted), partition=1)] == wanted
    await gateway.stored(0)
    clock.now_s += 3570
    assert [message.payload for message in await gateway.stored(1)] == [b"later"]


async def test_a_message_that_is_stored_and_not_acknowledged_comes_twice(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway ends between the two, and another one goes on."""
    real, is_stored = Parking._store_again, asyncio.Event()

    async def store_again(self: Parking, level: str, lane: InboundLane, messages: Sequence[Message]) -> None:
        await real(self, level, lane, messages)
        is_stored.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Parking, "_store_again", store_again)
    gateway = Gateway(tmp_path)
    await gateway.start()
    gateway.deposit(await gateway.topic(), clock.in_ms(5), b"x")
    async with asyncio.timeout(PATIENCE_S):
        await is_stored.wait()
    await gateway.close()
    monkeypatch.setattr(Parking, "_store_again", real)
    other = Gateway(tmp_path)
    await other.start()
    assert [message.payload for message in await other.stored(2)] == [b"x", b"x"]
    await other.close()


async def test_what_waits_survives_the_gateway(clock: Clock, tmp_path: Path) -> None:
    clock.automatic = False
    gateway = Gateway(tmp_path)
    await gateway.start()
    gateway.deposit(await gateway.topic(), clock.in_ms(DAY_S), b"x")
    assert await gateway.answered(1) == [None]
    await gateway.close()
    clock.automatic = True
    other = Gateway(tmp_path)
    await other.start()
    assert [message.payload for message in await other.stored(1)] == [b"x"]
    await other.close()


async def test_gateways_share_the_levels(clock: Clock, tmp_path: Path) -> None:
    """Each level is read by one of them, whoever has stored there; when it ends, the other one goes on."""
    clock.automatic = False
    async with AsyncExitStack() as stack:
        gateways = [Gateway(tmp_path) for _ in range(2)]
        for gateway in gateways:
            await gateway.start()
        stack.push_async_callback(gateways[1].close)
        topic = await gateways[0].topic()
        for number, gateway in enumerate(gateways):
            gateway.deposit(topic, clock.in_ms(10), *[b"%d" % each for each in range(number, 40, 2)])
        for gateway in gateways:
            assert await gateway.answered(20) == [None] * 20
        await until(lambda: all("10s" in gateway.parking._memberships for gateway in gateways))
        clock.now_s += 10
        first = await gateways[0].stored(40)
        assert {message.payload for message in first} == {b"%d" % each for each in range(40)}
        await until(lambda: sum(gateway.parking.brought_back for gateway in gateways) == 40)
        assert {gateway.parking.brought_back for gateway in gateways} == {0, 40}
        gateways[0].deposit(topic, clock.in_ms(10), b"last")
        await gateways[0].answered(21)
        await gateways[0].close()
        clock.now_s += 10
        assert (await gateways[1].stored(41))[-1].payload == b"last"


async def test_a_topic_that_is_gone_when_a_message_is_due_is_not_made_again(clock: Clock, gateway: Gateway) -> None:
    clock.automatic = False
    topic, other = await gateway.topic(), await gateway.topic(name="other")
    gateway.deposit(topic, clock.in_ms(5), b"first")
    await gateway.answered(1)
    clock.now_s += 5
    await gateway.stored(1)  # its outbound is open
    gateway.deposit(topic, clock.in_ms(5), b"x")
    gateway.deposit(other, clock.in_ms(5), b"y")
    await gateway.answered(3)
    await gateway.cluster.delete("t")
    clock.now_s += 5
    letter = await gateway.dead_letter()
    assert letter.payload == b"x"
    assert letter.property_values("mqbridge.dead.reason") == ["topic t does not exist any more"]
    assert letter.property_values("mqbridge.dead.target") == ["t"]
    assert await gateway.cluster.describe("t") is None
    assert [message.payload for message in await gateway.stored(1, "other")] == [b"y"]


async def test_a_partition_that_is_gone_when_a_message_is_due_has_a_dead_letter(clock: Clock, gateway: Gateway) -> None:
    clock.automatic = False
    topic = await gateway.topic(3)
    gateway.deposit(topic, clock.in_ms(5), b"x", partition=2)
    gateway.deposit(topic, clock.in_ms(5), b"y", partition=0)
    await gateway.answered(2)
    await gateway.cluster.delete("t")
    await gateway.cluster.create("t", 1)
    clock.now_s += 5
    letter = await gateway.dead_letter()
    assert letter.payload == b"x"
    assert letter.property_values("mqbridge.dead.reason") == ["topic t has no partition 2 any more"]
    assert [message.payload for message in await gateway.stored(1)] == [b"y"]


async def test_a_message_that_its_topic_refuses_has_a_dead_letter(
    clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parking, "_sent", fails({"t"}, refused=True))
    gateway.deposit(await gateway.topic(), clock.in_ms(1), b"x")
    letter = await gateway.dead_letter()
    assert (letter.payload, letter.property_values("mqbridge.dead.reason")) == (b"x", ["not here"])


async def test_a_dead_letter_that_cannot_be_stored_now_is_stored_later(clock: Clock, gateway: Gateway) -> None:
    clock.automatic = False
    gateway.deposit(await gateway.topic(), clock.in_ms(1), b"x")
    await gateway.answered(1)
    await gateway.cluster.delete("t")
    gateway.dead_letters_problem = ClusterError("no dead letters now")
    clock.now_s += 1
    await until(lambda: "5s" in gateway.parking._memberships)
    gateway.dead_letters_problem = None
    clock.automatic = True
    assert (await gateway.dead_letter()).payload == b"x"


@pytest.mark.parametrize("how", ["described", "opened", "stored"])
async def test_a_topic_that_cannot_be_used_when_a_message_is_due_is_tried_again_and_holds_no_other(
    clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    is_broken = True
    describe, outbound = gateway.cluster.describe, gateway.cluster.outbound

    async def fail_describe(name: str) -> Topic | None:
        if is_broken and name == "t":
            raise ClusterError("not now")
        return await describe(name)

    async def fail_outbound(spec: OutboundSpec) -> Outbound:
        if is_broken and spec.topic == "t":
            raise ClusterError("not now")
        return await outbound(spec)

    topic, other = await gateway.topic(), await gateway.topic(name="other")
    if how == "described":
        monkeypatch.setattr(gateway.cluster, "describe", fail_describe)
    elif how == "opened":
        monkeypatch.setattr(gateway.cluster, "outbound", fail_outbound)
    else:
        monkeypatch.setattr(Parking, "_sent", fails({"t"}, refused=False, times=4))
    gateway.deposit(topic, clock.in_ms(1), b"x")
    gateway.deposit(other, clock.in_ms(1), b"y")
    assert [message.payload for message in await gateway.stored(1, "other")] == [b"y"]
    is_broken = False
    assert [message.payload for message in await gateway.stored(1)] == [b"x"]
    assert await gateway.cluster.describe("dead") is None


async def test_a_closed_parking_answers_what_was_deposited(clock: Clock, gateway: Gateway) -> None:
    topic = await gateway.topic()
    gateway.deposit(topic, clock.in_ms(60), b"sent")
    await asyncio.sleep(0)  # its request begins
    gateway.deposit(topic, clock.in_ms(60), b"queued")
    closing = asyncio.create_task(gateway.parking.close(asyncio.get_running_loop().time() + 5))
    await asyncio.sleep(0)
    gateway.deposit(topic, clock.in_ms(60), b"late")
    assert all(isinstance(problem, ClusterError) for problem in await gateway.answered(3))
    await closing
    gateway.deposit(topic, clock.in_ms(60), b"after")
    assert isinstance((await gateway.answered(4))[-1], ClusterError)
    assert sorted(payload for payload, _ in gateway.answers) == [b"after", b"late", b"queued", b"sent"]


async def test_a_level_that_refuses_a_message_answers_so(clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parking, "_sent", fails({"mqbridge-app-1m"}, refused=True))
    topic = await gateway.topic()
    gateway.deposit(topic, clock.in_ms(60), b"x")
    gateway.deposit(topic, clock.in_ms(5), b"y")
    await gateway.answered(2)
    problems = dict(gateway.answers)
    assert problems[b"y"] is None
    assert (str(problems[b"x"]), problems[b"x"].failure) == ("not here", Failure.REFUSED)  # type: ignore[union-attr]
    assert gateway.parking.parked == 1


@pytest.mark.parametrize("error", [ClusterError("not now"), ValueError("a bug")])
async def test_a_level_that_cannot_be_made_answers_so(
    clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    topic, create = await gateway.topic(), gateway.cluster.create

    async def fail(name: str, partitions: int) -> None:
        if name == "mqbridge-app-1m":
            raise error
        await create(name, partitions)

    monkeypatch.setattr(gateway.cluster, "create", fail)
    gateway.deposit(topic, clock.in_ms(60), b"x")
    (problem,) = await gateway.answered(1)
    assert isinstance(problem, ClusterError)
    assert str(error) in str(problem)


async def test_an_error_in_a_callback_keeps_no_other_from_its_answer(clock: Clock, gateway: Gateway) -> None:
    topic, errors = await gateway.topic(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail(_: ClusterError | None) -> None:
        raise ValueError("a bug")

    gateway.parking.deposit(topic, 0, unit_of(b"x"), clock.in_ms(5), fail)
    gateway.deposit(topic, clock.in_ms(5), b"y")
    assert await gateway.answered(1) == [None]
    assert len(errors) == 1
    await gateway.stored(2)


async def test_a_message_that_is_due_does_not_wait_for_its_level(clock: Clock, gateway: Gateway) -> None:
    """A gateway whose clock was ahead has stored it."""
    clock.automatic = False
    await gateway.topic()
    await gateway.cluster.create("mqbridge-app-2h", 1)
    outbound = await gateway.cluster.outbound(OutboundSpec("mqbridge-app-2h", stamp_origin=False))
    now_ms = clock.now_ms
    parked = Parked("t", 0, "", now_ms + 1000, now_ms + HOUR_MS, 0)
    await outbound.send(0, Share(Batch.of([wrap(parked, unit_of(b"x"))])))
    await outbound.close()
    await until(lambda: "2h" in gateway.parking._memberships)
    await gateway.stored(0)
    clock.now_s += 1
    assert [message.payload for message in await gateway.stored(1)] == [b"x"]


async def test_a_lane_that_is_lost_while_a_message_waits_loses_nothing(
    clock: Clock, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "LANE_PAUSE_S", 0.01)
    sleep, is_lost = parking._sleep, False

    async def lose(lane: InboundLane, time_s: float) -> None:
        nonlocal is_lost
        if not is_lost:
            is_lost = True
            raise ClusterError("lost")
        await sleep(lane, time_s)

    monkeypatch.setattr(parking, "_sleep", lose)
    gateway.deposit(await gateway.topic(), clock.in_ms(5), b"x")
    assert [message.payload for message in await gateway.stored(1)] == [b"x"]


@pytest.mark.parametrize(
    ("partition", "topic", "kind"),
    [
        (0, None, TargetGone),
        (2, Topic("t", ("0", "1")), TargetGone),
        (1, Topic("t", ("0", "2"), indexes=(0, 2)), ClusterError),
        (0, Topic("t", (), unreadable="no permission"), ClusterError),
        (1, Topic("t", ("0", "1")), None),
    ],
)
def test_a_partition_that_is_away_is_not_gone(partition: int, topic: Topic | None, kind: type[ClusterError] | None) -> None:
    if kind is None:
        check_target("t", partition, topic)
        return
    with pytest.raises(ClusterError) as raised:
        check_target("t", partition, topic)
    assert type(raised.value) is kind
