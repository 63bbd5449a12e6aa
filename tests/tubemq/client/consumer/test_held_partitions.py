"""Partitions of a member at several Brokers: a silent Broker does not affect others; none is acquired twice or left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError, GapError, LaneRevoked
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions, StartOffset
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.library.balanced_consumer import BalancedConsumer
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatResponseB2C, RegisterRequestC2B
from mqbridge.tubemq.wire.string_formats import Broker, PartitionKey, PartitionRef
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.fakes import MasterScript, committed, pack, refused, registered
from tests.tubemq.client.model import Model
from tests.tubemq.client.quick import shorten_pauses

HEALTHY, FAILING = Broker(1, "10.0.0.5", 8123), Broker(2, "10.0.0.6", 8123)


class AnyBroker:
    """A Broker that responds at once, or not at all while `is_silent`; `counts` are the requests by method."""

    number = 1

    def __init__(self) -> None:
        self.is_silent = self.is_empty = False
        self.counts: dict[int, int] = {}

    async def connect(self) -> None:
        """Do nothing: there is always a connection."""

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        self.counts[method] = self.counts.get(method, 0) + 1
        await asyncio.sleep(0)
        if self.is_silent:
            await asyncio.Event().wait()
        answers: dict[int, Any] = {
            rpc.PARTITION_HEARTBEAT: HeartBeatResponseB2C(success=True, errCode=200, errMsg="OK"),
            rpc.GET: refused(404) if self.is_empty else pack(0),
            rpc.COMMIT: committed(56),
            rpc.PARTITION_REGISTER: registered(),
        }
        return bytes(answers[method].SerializeToString())

    async def call(self, service: int, method: int, body: Any, answer: Any) -> Any:
        return answer.FromString(await self.request(service, method, body.SerializeToString()))


class TwoBrokers:
    """A member with partitions at a healthy Broker and at one that the test makes silent."""

    def __init__(self, budget: ReadBudget) -> None:
        self.healthy, self.failing = AnyBroker(), AnyBroker()
        masters = MasterScript()
        masters.connections = self  # type: ignore[assignment]
        member = MemberIdentity(masters, "g1", ["demo"], {})  # type: ignore[arg-type]
        member.client_id = "c1"
        self.held = HeldPartitions(member, start=StartOffset.EARLIEST, heartbeat_s=0.005, budget=budget, offsets=None)
        self.held.master_seen_at = asyncio.get_running_loop().time() + 1e6
        self.readers: list[asyncio.Task[Any]] = []

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self.healthy if host == HEALTHY.host else self.failing

    async def take(self, broker: Broker, count: int) -> list[HeldPartition]:
        return [await self.held.acquire(PartitionRef(broker, "demo", number)) for number in range(count)]

    def read(self, partition: HeldPartition, *, confirms: bool = True) -> None:
        async def reading() -> None:
            while True:
                await partition.fetch()
                await asyncio.sleep(0)
                if not confirms:
                    return
                partition.confirm()

        self.readers.append(spawn(reading(), "test reading"))

    async def stop(self) -> None:
        self.failing.is_silent = False
        await cancel(*self.readers, *self.held._tasks)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


async def test_a_silent_broker_takes_only_its_own_share_of_the_read_budget() -> None:
    environment = TwoBrokers(ReadBudget(8 * GET_BYTES))
    (one,), others = await environment.take(HEALTHY, 1), await environment.take(FAILING, 20)
    environment.failing.is_silent = True
    for partition in (*others, one):
        environment.read(partition)
    await until(lambda: environment.failing.counts.get(rpc.GET, 0) == 4)
    before = environment.healthy.counts.get(rpc.GET, 0)
    await until(lambda: environment.healthy.counts.get(rpc.GET, 0) >= before + 50)
    assert environment.failing.counts[rpc.GET] == 4, "the Broker's half of the read budget"
    await environment.stop()


async def test_a_silent_broker_does_not_delay_heartbeats_and_commits_of_another() -> None:
    environment = TwoBrokers(ReadBudget(8 * GET_BYTES))
    held = [*await environment.take(HEALTHY, 1), *await environment.take(FAILING, 1)]
    for partition in held:
        await partition.fetch()
        partition.confirm()
    environment.failing.is_silent = True
    environment.held.start_tasks()
    for _ in range(3):
        beats, commits = environment.healthy.counts.get(rpc.PARTITION_HEARTBEAT, 0), environment.healthy.counts.get(rpc.COMMIT, 0)
        await until(lambda beats=beats: environment.healthy.counts.get(rpc.PARTITION_HEARTBEAT, 0) > beats)
        await until(lambda commits=commits: environment.healthy.counts.get(rpc.COMMIT, 0) > commits)
        await held[0].fetch()
        held[0].confirm()
    assert environment.failing.counts[rpc.COMMIT] == 1
    await environment.stop()


async def test_a_pack_counts_against_the_read_budget_until_its_bytes_are_released() -> None:
    """Packs that wait for their reader and gets in flight share the budget, whatever the number of partitions."""
    budget = ReadBudget(GET_BYTES, counts_packs=True)
    environment = TwoBrokers(budget)
    held = await environment.take(HEALTHY, 300)
    for partition in held:
        environment.read(partition, confirms=False)
    for number in range(1, 301):
        await until(lambda number=number: environment.healthy.counts.get(rpc.GET, 0) == number and budget.used < GET_BYTES)
        (with_pack,) = [partition for partition in held if partition._held_bytes]
        assert budget.used == with_pack._held_bytes == with_pack.pack.held_bytes
        with_pack.release_pack_bytes()
    await until(lambda: not budget.used)
    await environment.stop()


async def test_a_lost_or_released_partition_returns_its_read_budget() -> None:
    budget = ReadBudget(GET_BYTES, counts_packs=True)
    environment = TwoBrokers(budget)
    first, second = await environment.take(HEALTHY, 2)
    await first.fetch()
    assert budget.used
    await first.release()
    assert not budget.used
    await second.fetch()
    assert budget.used
    second.on_heartbeat_failure(412, second.state.generation)
    assert not budget.used
    await environment.stop()


async def test_a_cancelled_or_failed_get_returns_its_read_budget() -> None:
    budget = ReadBudget(GET_BYTES, counts_packs=True)
    environment = TwoBrokers(budget)
    first, second = await environment.take(FAILING, 2)
    environment.failing.is_silent = True
    asking = asyncio.ensure_future(first.poll_once())
    await until(lambda: environment.failing.counts.get(rpc.GET) == 1)
    waiting = [asyncio.ensure_future(second.poll_once()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    asking.cancel()
    waiting[1].cancel()  # in the same loop iteration in which the budget is granted to it
    await asyncio.gather(asking, *waiting, return_exceptions=True)
    assert not budget.used
    environment.failing.is_silent, environment.failing.is_empty = False, True
    assert await second.poll_once() is None
    assert not budget.used
    await environment.stop()


async def _lose(environment: TwoBrokers, partition: HeldPartition) -> None:
    partition.on_heartbeat_failure(412, partition.state.generation)


async def _revoke(environment: TwoBrokers, partition: HeldPartition) -> None:
    await partition.revoke()


async def _release(environment: TwoBrokers, partition: HeldPartition) -> None:
    await partition.release()


async def _close(environment: TwoBrokers, partition: HeldPartition) -> None:
    await environment.held.close()


@pytest.mark.parametrize("end", [_lose, _revoke, _release, _close])
async def test_a_get_that_waits_for_read_budget_ends_with_its_partition(
    end: Callable[[TwoBrokers, HeldPartition], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another partition may occupy the budget for any time; an ended partition leaves the queue for it."""
    shorten_pauses(monkeypatch)
    budget = ReadBudget(GET_BYTES)
    environment = TwoBrokers(budget)
    first, second = await environment.take(HEALTHY, 2)
    await budget.reserve(HEALTHY)
    waiting = [asyncio.ensure_future(partition.fetch()) for partition in (first, first, second)]
    await until(lambda: len(budget._shares[HEALTHY].waiting) == 3)
    await end(environment, first)
    for ended in waiting[:2]:
        with pytest.raises(LaneRevoked):
            await asyncio.wait_for(ended, PATIENCE_S)
    if second.revoked.is_set():
        with pytest.raises(LaneRevoked):
            await asyncio.wait_for(waiting[2], PATIENCE_S)
        assert not budget._shares[HEALTHY].waiting
    else:
        assert len(budget._shares[HEALTHY].waiting) == 1
        budget.release(HEALTHY, GET_BYTES)
        assert (await asyncio.wait_for(waiting[2], PATIENCE_S)).offset == 0
    await environment.stop()


async def test_read_budget_granted_while_the_partition_lose_is_returned() -> None:
    budget = ReadBudget(GET_BYTES)
    environment = TwoBrokers(budget)
    (partition,) = await environment.take(HEALTHY, 1)
    await budget.reserve(HEALTHY)
    waiting = asyncio.ensure_future(partition.fetch())
    await until(lambda: bool(budget._shares[HEALTHY].waiting))
    budget.release(HEALTHY, GET_BYTES)
    partition.on_heartbeat_failure(412, partition.state.generation)
    with pytest.raises(LaneRevoked):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert not budget.used
    await environment.stop()


async def test_a_fetch_cancelled_while_it_waits_for_read_budget_stays_cancelled() -> None:
    """Even if its partition is lost in the same loop iteration: the canceller waits for CancelledError."""
    budget = ReadBudget(GET_BYTES)
    environment = TwoBrokers(budget)
    (partition,) = await environment.take(HEALTHY, 1)
    await budget.reserve(HEALTHY)
    waiting = asyncio.ensure_future(partition.fetch())
    await until(lambda: bool(budget._shares[HEALTHY].waiting))
    waiting.cancel()
    partition.on_heartbeat_failure(412, partition.state.generation)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert not budget._shares[HEALTHY].waiting
    await environment.stop()


async def test_read_budget_granted_to_a_cancelled_get_goes_to_the_next_one() -> None:
    budget = ReadBudget(GET_BYTES)
    await budget.reserve(HEALTHY)
    waiting = [asyncio.ensure_future(budget.reserve(HEALTHY)) for _ in range(2)]
    await asyncio.sleep(0)
    budget.release(HEALTHY, GET_BYTES)
    waiting[0].cancel()
    await asyncio.wait_for(waiting[1], PATIENCE_S)
    budget.release(HEALTHY, GET_BYTES)
    assert not budget.used


async def test_a_partition_keeps_no_messages_of_a_settled_pack() -> None:
    environment = TwoBrokers(ReadBudget(GET_BYTES))
    (partition,) = await environment.take(HEALTHY, 1)
    await partition.fetch()
    partition.confirm()
    assert partition._reader.last_pack is None
    await partition.fetch()
    partition.reject()
    assert partition._reader.last_pack is None
    await environment.stop()


async def test_a_heartbeat_response_about_an_earlier_registration_is_ignored() -> None:
    """Between a heartbeat and its response the partition was fenced, so the response concerns the earlier client id."""
    environment = TwoBrokers(ReadBudget(GET_BYTES))
    (partition,) = await environment.take(HEALTHY, 1)
    answered = asyncio.Event()

    async def lost(*_: Any) -> bytes:
        await answered.wait()
        text = f"412:{partition.ref}"
        answer = HeartBeatResponseB2C(success=True, errCode=200, errMsg="", hasPartFailure=True, failureInfo=[text])
        return bytes(answer.SerializeToString())

    environment.healthy.request = lost  # type: ignore[method-assign]
    environment.held.heartbeats.send()
    partition.state.on_registration_forgotten(partition.state.generation)
    partition.state.on_registered(0, 100, None)  # before the task of the heartbeat has started
    answered.set()
    await until(lambda: not environment.held.heartbeats._pending)
    assert partition.ref.key in environment.held.held
    assert not partition.revoked.is_set()
    await environment.stop()


# --- acquiring ----------------------------------------------------------------------------------------------------------


def owner_ids(model: Model) -> set[str]:
    """Return the client ids that own partitions at the Broker."""
    return set(model.broker.owners.values())


async def test_concurrent_acquisitions_of_a_partition_return_the_same_one() -> None:
    model = Model({"demo": 1})
    member = BalancedConsumer(model.masters(), "g", ["demo"], heartbeat_s=100)
    await member.start()
    first, second = await asyncio.gather(*(member.take(PartitionKey(1, "demo", 0)) for _ in range(2)))
    assert first is second is member.held_partitions.held[PartitionKey(1, "demo", 0)]
    assert model.faults.counts[rpc.PARTITION_REGISTER] == 1
    await member.close()
    assert not model.broker.owners


async def test_a_cancelled_acquisition_does_not_cancel_a_concurrent_one() -> None:
    model = Model({"demo": 1})
    member = BalancedConsumer(model.masters(), "g", ["demo"], heartbeat_s=100)
    await member.start()
    await member.partitions()
    first, second = [asyncio.ensure_future(member.take(PartitionKey(1, "demo", 0))) for _ in range(2)]
    await until(lambda: model.faults.counts[rpc.PARTITION_REGISTER] == 1)
    first.cancel()
    held = await second
    assert owner_ids(model) == {held.client_id}
    await member.close()
    assert not model.broker.owners


async def test_closing_ends_a_registration_in_flight() -> None:
    """Otherwise its response would arrive when no one is left to keep or release the partition."""
    environment = TwoBrokers(ReadBudget(GET_BYTES))
    operations: list[int] = []
    answers = asyncio.Event()

    async def request(service: int, method: int, body: bytes) -> bytes:
        operations.append(RegisterRequestC2B.FromString(body).opType)
        if operations[-1] == rpc.OP_REGISTER:
            await answers.wait()
        return bytes(registered().SerializeToString())

    environment.healthy.request = request  # type: ignore[method-assign]
    taking = asyncio.ensure_future(environment.take(HEALTHY, 1))
    await until(lambda: operations == [rpc.OP_REGISTER])
    await environment.held.close()
    answers.set()
    with pytest.raises(ClusterError, match="closed"):
        await taking
    assert operations == [rpc.OP_REGISTER, rpc.OP_UNREGISTER]
    assert not environment.held.held


@pytest.mark.parametrize("iterations", range(8))
async def test_closing_unregisters_partitions_that_are_being_acquired(iterations: int) -> None:
    model = Model({"demo": 4})
    member = BalancedConsumer(model.masters(), "g", ["demo"], heartbeat_s=100)
    await member.start()
    await member.partitions()
    taking = [asyncio.ensure_future(member.take(PartitionKey(1, "demo", number))) for number in range(4)]
    for _ in range(iterations):
        await asyncio.sleep(0)
    await member.close()
    for result in await asyncio.gather(*taking, return_exceptions=True):
        assert isinstance(result, (HeldPartition, ClusterError))
    assert not model.broker.owners
    with pytest.raises(ClusterError, match="closed"):
        await member.take(PartitionKey(1, "demo", 0))
    assert not model.broker.owners


@pytest.mark.parametrize("iterations", range(0, 40, 3))
async def test_closing_a_member_unregisters_partitions_that_were_just_assigned(iterations: int) -> None:
    model = Model({"demo": 4})
    member = PackConsumer(model.masters(), "g", ["demo"], heartbeat_s=0.001)
    await member.start()
    while not model.faults.counts[rpc.PARTITION_REGISTER]:
        await asyncio.sleep(0)
    for _ in range(iterations):
        await asyncio.sleep(0)
    await member.close()
    assert not model.broker.owners


async def test_a_partition_revoked_after_a_gap_sends_no_more_requests() -> None:
    """Heartbeats keep a partition at a gap alive. After its revocation, no seek or fetch sends a request for it."""
    model = Model({"demo": 2})
    for number in range(2):
        model.broker.deleted["demo", number] = 280
    first = PackConsumer(model.masters(), "g", ["demo"], heartbeat_s=0.003)
    await first.start()
    assignments = first.assignments()
    held = [await asyncio.wait_for(anext(assignments), PATIENCE_S) for _ in range(2)]
    for partition in held:
        partition.state.stop(GapError("lost data", (280, 0)))
    beats = model.faults.counts[rpc.PARTITION_HEARTBEAT]
    await until(lambda: model.faults.counts[rpc.PARTITION_HEARTBEAT] > beats + 2)
    second = PackConsumer(model.masters(), "g", ["demo"], heartbeat_s=0.003)
    await second.start()
    taken = await asyncio.wait_for(anext(second.assignments()), PATIENCE_S)
    (lost,) = [partition for partition in held if partition.ref == taken.ref]
    (kept,) = [partition for partition in held if partition is not lost]
    counts = model.faults.counts[rpc.PARTITION_REGISTER], model.faults.counts[rpc.GET]
    for attempt in (lost.seek(280), lost.fetch(), lost.poll(), lost.poll_once()):
        with pytest.raises(LaneRevoked):
            await attempt
    assert (model.faults.counts[rpc.PARTITION_REGISTER], model.faults.counts[rpc.GET]) == counts
    assert model.broker.owners["g", "demo", lost.ref.partition] == taken.client_id
    assert list(first.held_partitions.held.values()) == [kept]
    with pytest.raises(GapError):
        await kept.fetch()
    await second.close()
    await first.close()
