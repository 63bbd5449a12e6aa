"""Exact offsets: starting where the application's results end, so that each message has its effect once; gaps; bound groups."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import GapError, LaneRevoked, MqbridgeError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.membership import BoundSubscription
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto, HeartResponseM2C, RegisterResponseM2C
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S
from tests.tubemq.client.fakes import REF, Context, MasterScript, Script, pack, registered
from tests.tubemq.client.model import STEP, Model
from tests.tubemq.client.quick import shorten_pauses

COUNT = 100
KEYS = [PartitionKey(1, "demo", number) for number in range(2)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


def filled_model() -> Model:
    model = Model({"demo": 2})
    for number in range(2):
        for n in range(COUNT):
            body = b"%03d" % n
            message = TransferedMessage(messageId=n, checkSum=checksum(body), payLoadData=body, flag=0)
            model.broker.stored["demo", number].append(message)
    return model


class Ledger:
    """The application's results and offsets, which change together or not at all."""

    def __init__(self) -> None:
        self.results: dict[PartitionKey, list[bytes]] = {key: [] for key in KEYS}
        self.offsets: dict[PartitionKey, int] = {}

    async def offset(self, ref: PartitionRef) -> int | None:
        return self.offsets.get(ref.key)

    def store(self, key: PartitionKey, bodies: list[bytes], end: int) -> None:
        self.results[key] += bodies
        self.offsets[key] = end

    @property
    def complete(self) -> bool:
        return all(len(bodies) >= COUNT for bodies in self.results.values())


class ConsumerRun:
    """One run of a consumer that may be killed between any two steps."""

    def __init__(self, model: Model, ledger: Ledger) -> None:
        self.ledger = ledger
        self.member = PackConsumer(model.masters(), "g", ["demo"], offsets=ledger.offset, heartbeat_s=0.003)
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.member.start()
        self.tasks.append(spawn(self._assigned(), "test assignments"))

    async def _assigned(self) -> None:
        async for partition in self.member.assignments():
            self.tasks.append(spawn(self._read(partition), f"test reading {partition}"))

    async def _read(self, partition: HeldPartition) -> None:
        try:
            while True:
                found = await partition.fetch()
                bodies = [message.payLoadData for message in found.messages]
                try:
                    end = await partition.commit(consumed=True)
                except MqbridgeError:
                    continue  # the end of the pack is unknown: nothing is stored, and the pack is delivered again
                self.ledger.store(partition.ref.key, bodies, end)
        except LaneRevoked:
            return

    async def kill(self) -> None:
        """Stop all tasks without any request to Master or Broker."""
        await cancel(*self.tasks, *self.member._tasks, *self.member.held_partitions._tasks)


async def test_each_message_has_one_result_although_consumers_are_killed_and_requests_cut() -> None:
    model, ledger = filled_model(), Ledger()
    chance = random.Random(7)
    for method in (rpc.GET, rpc.COMMIT, rpc.PARTITION_REGISTER):
        for number in range(5, 3000, 5):
            model.faults.plan[method, number] = chance.choice(["before", "after"])
    runs = 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not ledger.complete:
            run = ConsumerRun(model, ledger)
            await run.start()
            await asyncio.sleep(0.02)
            await run.kill()
            runs += 1
            # As if the leases at Master and Broker had ended.
            model.master.members.clear()
            model.master.outstanding.clear()
            model.broker.owners.clear()
    assert runs > 1
    for bodies in ledger.results.values():
        assert bodies == [b"%03d" % n for n in range(COUNT)]


async def test_the_callers_offsets_take_precedence_over_the_brokers() -> None:
    model, ledger = filled_model(), Ledger()
    ledger.offsets = {KEYS[0]: 10 * STEP, KEYS[1]: 99 * STEP}
    model.broker.confirmed = {("g", "demo", 0): 90 * STEP, ("g", "demo", 1): 0}
    run = ConsumerRun(model, ledger)
    await run.start()
    async with asyncio.timeout(PATIENCE_S):
        while ledger.offsets != dict.fromkeys(KEYS, COUNT * STEP):
            await asyncio.sleep(0.002)
    await run.kill()
    assert [len(ledger.results[key]) for key in KEYS] == [90, 1]


async def test_a_failed_query_of_the_callers_offset_is_repeated() -> None:
    model, ledger = filled_model(), Ledger()
    calls = 0

    async def fail_three_times(ref: PartitionRef) -> int | None:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise OSError("the database is unreachable")
        return COUNT * STEP - STEP

    ledger.offset = fail_three_times  # type: ignore[method-assign]
    run = ConsumerRun(model, ledger)
    await run.start()
    async with asyncio.timeout(PATIENCE_S):
        while any(len(bodies) != 1 for bodies in ledger.results.values()):
            await asyncio.sleep(0.002)
    await run.kill()
    assert calls == 5


async def test_deleted_messages_that_were_not_read_are_a_gap() -> None:
    model, ledger = filled_model(), Ledger()
    model.broker.deleted["demo", 0] = 50 * STEP
    ledger.offsets = {KEYS[0]: 10 * STEP, KEYS[1]: 10 * STEP}
    async with AsyncExitStack() as stack:
        member = PackConsumer(model.masters(), "g", ["demo"], offsets=ledger.offset, heartbeat_s=0.003, is_alone=lambda _: True)
        await member.start()
        stack.push_async_callback(member.close)
        partitions: dict[int, Any] = {}
        async for partition in member.assignments():
            partitions[partition.ref.partition] = partition
            if len(partitions) == 2:
                break
        with pytest.raises(GapError, match="offset 280 was expected, but the Broker continued at offset 1400"):
            await partitions[0].fetch()
        assert (await partitions[1].fetch()).offset == 10 * STEP
        with pytest.raises(GapError):
            await partitions[0].fetch()
        await partitions[0].seek(60 * STEP)
        assert (await partitions[0].fetch()).offset == 60 * STEP, "the caller may continue behind the gap"


@pytest_asyncio.fixture
async def partition() -> AsyncIterator[HeldPartition]:
    script = Script(registered(0))
    partition = HeldPartition(Context(script), REF)
    await partition.register(0)
    yield partition


async def test_a_seek_drops_the_unconfirmed_pack(partition: HeldPartition) -> None:
    script = partition._context.script  # type: ignore[attr-defined]
    script.respond_with(pack(0), registered(560), pack(560))
    found = await partition.fetch()
    await partition.seek(560)
    assert partition.pack is None
    partition.confirm()
    assert (await partition.fetch()).offset == 560
    assert script.requests[2].currOffset == 560
    assert not script.requests[3].lastPackConsumed
    assert found.offset == 0


async def test_a_seek_beyond_the_end_starts_at_the_end(partition: HeldPartition, caplog: pytest.LogCaptureFixture) -> None:
    script = partition._context.script  # type: ignore[attr-defined]
    script.respond_with(registered(280), pack(280))
    await partition.seek(56_000)
    assert "starts at offset 280" in caplog.text
    assert (await partition.fetch()).offset == 280


async def test_a_seek_on_a_lost_partition_is_refused(partition: HeldPartition) -> None:
    partition.lose(LaneRevoked("gone"))
    with pytest.raises(LaneRevoked):
        await partition.seek(0)


async def test_a_commit_after_a_cancelled_get_confirms_nothing(partition: HeldPartition) -> None:
    """The Broker may have delivered a pack to the cancelled get; a confirmation would skip that pack."""
    from tests.tubemq.client.fakes import committed

    script = partition._context.script  # type: ignore[attr-defined]
    fetching = asyncio.ensure_future(partition.fetch())
    await script.silent.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    script.respond_with(committed(0))
    await partition.commit(consumed=True)
    assert not script.requests[-1].lastPackConsumed


# --- bound groups -----------------------------------------------------------------------------------------------------


def event(number: int, *partitions: int) -> EventProto:
    held = [f"c@g1#1:10.0.0.5:8123#demo:{partition}" for partition in partitions]
    return EventProto(rebalanceId=number, opType=1, subscribeInfo=held)


def beat(given: EventProto | None = None, *, is_first_round_open: bool) -> HeartResponseM2C:
    return HeartResponseM2C(success=True, errCode=200, errMsg="OK", event=given, notAllocated=is_first_round_open)


@pytest.mark.parametrize("late", [False, True], ids=["first", "after another member"])
async def test_a_bound_group_starts_only_its_first_round_at_its_offsets(late: bool) -> None:
    """Another member may have ended the first round before our first event arrives."""
    bound = BoundSubscription("key1", 2, {KEYS[0]: 2800, KEYS[1]: 56}, select_big=False)
    master, broker = MasterScript(), Script(*[registered(0)] * 9)
    master.connections = broker
    member = PackConsumer(master, "g1", ["demo"], bound=bound, heartbeat_s=0.1)  # type: ignore[arg-type]
    joined = RegisterResponseM2C(success=True, errCode=200, errMsg="OK", notAllocated=True)
    # Partition 2 has no offset in the subscription; 1 is assigned in a later round, after another member has read from it.
    master.respond_with(
        joined,
        beat(event(5, 0, 2), is_first_round_open=not late),
        beat(is_first_round_open=False),
        beat(event(6, 1), is_first_round_open=False),
    )
    await member.start()

    def registrations() -> list[Any]:
        return [request for request in broker.requests if hasattr(request, "partitionId")]

    async with asyncio.timeout(PATIENCE_S):
        while len(registrations()) < 3:
            await asyncio.sleep(0.002)
    join = master.requests[0]
    assert (join.requireBound, join.sessionKey, join.totalCount, join.selectBig) == (True, "key1", 2, False)
    assert join.requiredPartition == "1:demo:0=2800,1:demo:1=56"
    assert join.notAllocated
    assert {r.partitionId: (r.HasField("currOffset"), r.currOffset) for r in registrations()} == {
        0: (True, 2800),
        1: (False, 0),
        2: (False, 0),
    }
    await cancel(*member._tasks, *member.held_partitions._tasks)
