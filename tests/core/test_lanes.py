"""What a lane's delivery promises beside the main path: revocation, parts of batches, failures, and what is never decoded."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.config.options.filter import FilterRules
from mqbridge.delivery.budget import Budget
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery, LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, DeliveryError, Failure
from mqbridge.memory.adapter.inbound import MemoryLane
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.tasks import spawn
from mqbridge.routing.filters import Filter
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner
from tests.core.test_partition_rules import rule
from tests.core.world import World, committed, end, everything, fill, named, put, route, running, until

PARTITION = Partition("a", "t", "0", 0)


class FakeLane:
    """Hands out what it was given, then waits; notes what it is told."""

    def __init__(self, *batches: Batch) -> None:
        self.partition = PARTITION
        self.revoked = asyncio.Event()
        self.caught_up = False
        self.acknowledged: list[tuple[int, Sequence[int] | None, Receipt | None]] = []
        self.rejected: list[tuple[int, list[tuple[int, str]]]] = []
        self.released = False
        self._batches = list(batches)

    async def receive(self) -> Batch:
        if not self._batches:
            await asyncio.Event().wait()
        return self._batches.pop(0)

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        self.acknowledged.append((batch.first[0], indexes, receipt))

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        self.rejected.append((batch.first[0], [(one.index, one.reason) for one in failures]))

    async def seek(self, position: tuple[int, ...]) -> None:
        raise AssertionError("nobody seeks")

    async def release(self, deadline: float | None = None) -> None:
        self.released = True


class FakeOutbound:
    """Keeps what it is sent until the test answers."""

    def __init__(self, partitions: int = 1, *, native: bool = False) -> None:
        self.partitions, self._native = partitions, native
        self.sent: list[tuple[int, Share, asyncio.Future[Receipt]]] = []

    def encodes(self, format: str) -> bool:
        return self._native

    def partition_of(self, key: bytes) -> int:
        return int(key) % self.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.sent.append((partition, share, future))
        return future


def keyed(first: int, count: int, decoded: list[int] | None = None) -> Batch:
    def decode() -> list[Message]:
        if decoded is not None:
            decoded.append(first)
        return [Message(b"x", key=str(first + n), position=(first + n,)) for n in range(count)]

    return Batch(PARTITION, decode, count=count, size=10, first=(first,), next=(first + count,), mentions=lambda _: False)


def delivery(
    lane: FakeLane, outbound: FakeOutbound, *, by: str = "modulo", individual: bool = False, budget: int = 1000, **more: Any
) -> LaneDelivery:
    guard = LoopGuard("b", ["t"], 8, lambda _: None)
    target = Target("b/t", outbound, Partitioner(rule(by), outbound), guard=guard)  # type: ignore[arg-type]
    settings = LaneSettings(Budget(budget), Counters(), **more)
    return LaneDelivery(lane, [target], settings, individual_ack=individual)


async def ended(task: "asyncio.Task[None]") -> BaseException | None:
    await asyncio.wait([task], timeout=15)
    assert task.done()
    return task.exception()


async def test_nothing_is_decoded_that_nobody_asks_for() -> None:
    decoded: list[int] = []
    lane, outbound = FakeLane(keyed(0, 5, decoded), keyed(5, 5, decoded)), FakeOutbound(native=True)
    made = delivery(lane, outbound)
    task = spawn(made.run(), "delivery")
    await until(lambda: len(outbound.sent) == 2)
    for _, share, future in outbound.sent:
        future.set_result(Receipt([(n,) for n in range(len(share))]))
    await until(lambda: len(lane.acknowledged) == 2)
    assert decoded == []
    made.stop()
    assert await ended(task) is None


async def test_messages_are_let_go_once_they_are_encoded() -> None:
    decoded: list[int] = []
    lane, outbound = FakeLane(batch := keyed(0, 5, decoded)), FakeOutbound()
    made = delivery(lane, outbound, filter=Filter(frozenset(), FilterRules()))
    task = spawn(made.run(), "delivery")
    await until(lambda: outbound.sent)
    assert decoded == [0]
    assert not batch.is_decoded
    outbound.sent[0][2].set_result(Receipt())
    made.stop()
    assert await ended(task) is None


async def test_a_lane_that_is_revoked_ends_at_once_while_it_waits_for_bytes() -> None:
    lane, outbound = FakeLane(keyed(0, 5), keyed(5, 5)), FakeOutbound()
    made = delivery(lane, outbound, budget=10)
    task = spawn(made.run(), "delivery")
    await until(lambda: outbound.sent)
    assert len(outbound.sent) == 1, "the second batch waits for the bytes of the first"
    lane.revoked.set()
    outbound.sent[0][2].set_result(Receipt())
    assert await ended(task) is None
    assert len(outbound.sent) == 1
    assert [first for first, _, _ in lane.acknowledged] == [0]
    assert lane.released


async def test_bytes_come_back_when_a_send_has_ended_and_not_before() -> None:
    lane, outbound = FakeLane(keyed(0, 5)), FakeOutbound()
    made = delivery(lane, outbound)
    budget = made._settings.budget
    task = spawn(made.run(), "delivery")
    await until(lambda: outbound.sent)
    made.stop(asyncio.get_running_loop().time())
    assert await ended(task) is None
    assert lane.rejected == [(0, [])]
    assert budget.used == 10, "the outbound may still hold them"
    outbound.sent[0][2].set_result(Receipt())
    await until(lambda: budget.used == 0)
    assert lane.acknowledged == []


async def test_a_part_of_a_batch_is_acknowledged_when_it_is_stored() -> None:
    lane, outbound = FakeLane(keyed(0, 6)), FakeOutbound(2)
    made = delivery(lane, outbound, by="key", individual=True)
    task = spawn(made.run(), "delivery")
    await until(lambda: len(outbound.sent) == 2)
    parts = {partition: (share, future) for partition, share, future in outbound.sent}
    share, future = parts[1]
    future.set_result(Receipt([(90 + n,) for n in range(len(share))]))
    await until(lambda: lane.acknowledged)
    [(_, indexes, receipt)] = lane.acknowledged
    assert list(indexes or ()) == [1, 3, 5]
    assert receipt is not None
    assert receipt.positions == [(90,), (91,), (92,)]
    parts[0][1].set_result(Receipt(failures=[MessageFailure(1, Failure.RETRY, "no room")]))
    error = await ended(task)
    assert isinstance(error, DeliveryError)
    assert lane.rejected == [(0, [(2, "no room")])]


async def test_what_fails_in_an_acknowledgement_ends_the_lane() -> None:
    lane, outbound = FakeLane(keyed(0, 5)), FakeOutbound()

    def broken(*_: Any) -> None:
        raise RuntimeError("the disk is gone")

    lane.acknowledge = broken  # type: ignore[method-assign]
    made = delivery(lane, outbound)
    task = spawn(made.run(), "delivery", quiet=True)
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt())
    assert "the disk is gone" in str(await ended(task))


# --- through a route --------------------------------------------------------------------------------------------------


async def test_individual_acknowledgement_goes_message_by_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    real = MemoryLane.acknowledge

    def noted(self: MemoryLane, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        parts.append(batch.count if indexes is None else len(indexes))
        real(self, batch, indexes, receipt)

    monkeypatch.setattr(MemoryLane, "acknowledge", noted)
    world.a.create("t", 1)
    put(world.a, "t", 0, *(Message(b"%d" % n, key=f"k{n % 7}") for n in range(100)))
    world.b.create("t", 3)
    by_key = end("b/t", partitions={"by": "key"})
    async with running(world.config(route("r", "a/t", by_key), a={"individual_ack": True})):
        await until(lambda: committed(world.a, "g-r") == 100)
    assert everything(world.b, "t") == list(range(100))
    assert sum(parts) == 100
    assert max(parts) < 20, "a batch was acknowledged as a whole though its messages went to several partitions"


async def test_a_session_that_may_succeed_later_is_begun_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.route.REJOIN_FIRST_S", 0.01)
    fill(world.a, "t", 2, 50)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 50)
        found = named(gateway, "r")
        world.a.fail("g-r", ClusterError("the coordinator moves"))
        await until(lambda: found.sessions == 2)
        put(world.a, "t", 0, b"50")
        await until(lambda: committed(world.a, "g-r") == 51)
        assert found.error is None
        assert found.trouble is None


async def test_why_a_session_is_begun_again_is_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.route.REJOIN_FIRST_S", 30.0)
    fill(world.a, "t", 2, 50)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 50)
        found = named(gateway, "r")
        world.a.fail("g-r", ClusterError("the coordinator moves"))
        await until(lambda: found.trouble is not None)
        assert "the coordinator moves" in str(found.trouble)
        world.a.fail("g-r", ClusterError("no rights", Failure.FATAL))  # nobody is there to hear it
        assert found.error is None
