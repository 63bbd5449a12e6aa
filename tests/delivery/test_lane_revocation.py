"""Revocation of a partition: unsent messages are withdrawn, whatever its lane waits for, and other lanes are not disturbed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.rate import RateLimit
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import Partition
from mqbridge.net.tasks import spawn
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from tests.delivery.test_lane import FakeLane, FakeOutbound, finished, keyed_batch, make_delivery
from tests.gateway.world import World, committed, everything, fill, named, put, route, running, until

WITHDRAWN = "the send was withdrawn"


class SlowOutbound(FakeOutbound):
    """Only the first `on_the_wire` sends are on the wire; the others can be withdrawn."""

    def __init__(self, on_the_wire: int) -> None:
        super().__init__()
        self.on_the_wire = on_the_wire

    def withdraw(self, sends: Any) -> None:
        for _, share, future in self.sent[self.on_the_wire :]:
            if future in sends and not future.done():
                future.set_result(Receipt(failures=[MessageFailure(n, Failure.RETRY, WITHDRAWN) for n in range(share.count)]))


async def test_a_late_receipt_does_not_set_a_checkpoint_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revoked lane gets its receipt when the next lane has progressed further already."""
    monkeypatch.setattr("mqbridge.delivery.lane.REVOKED_DRAIN_S", 3600.0)
    fill(world.a, "t", 1, 20)
    world.b.create("t", 1)
    world.b.faults.hold_receipts = True
    async with running(world.config(route("r", "a/t", "b/t"), state=str(tmp_path / "state.db"))) as gateway:
        found, partition = named(gateway, "r"), Partition("a", "t", "0", 0)
        checkpoints = gateway._checkpoints
        assert checkpoints is not None
        await until(lambda: len(world.b.withheld_receipts) == 1)
        world.a.revoke("t", 0)
        put(world.a, "t", 0, *[b"%d" % number for number in range(20, 40)])
        await until(lambda: len(world.b.withheld_receipts) == 3)
        late, *others = world.b.withheld_receipts
        world.b.withheld_receipts.clear()
        for answer in others:
            answer()
        await until(lambda: checkpoints.load("r", "g-r", partition) == (40,))
        late()
        await until(lambda: found.state.counters.stored == 60)
        assert checkpoints.load("r", "g-r", partition) == (40,)
        world.b.release_receipts()


async def test_a_revoked_lane_withdraws_sends_that_are_not_on_the_wire() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5), keyed_batch(10, 5)), SlowOutbound(1)
    lane_delivery = make_delivery(lane, outbound)
    budget = lane_delivery._settings.budget
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: len(outbound.sent) == 3)
    everything_of = budget.used
    lane.revoked.set()
    await until(lambda: [future.done() for _, _, future in outbound.sent] == [False, True, True])
    await until(lambda: budget.used == everything_of // 3)
    assert not task.done(), "it waits for what is on the wire"
    outbound.sent[0][2].set_result(Receipt())
    assert await finished(task) is None, "a withdrawn send is no failure"
    assert [first for first, _, _ in lane.acknowledged] == [0]
    assert [first for first, _ in lane.rejected] == [5, 10]
    assert budget.used == 0
    assert lane.released


@pytest.mark.parametrize("why", ["a failure", "a deadline"])
async def test_an_aborted_lane_withdraws_sends_that_are_not_on_the_wire(why: str) -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5), keyed_batch(10, 5)), SlowOutbound(1)
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: len(outbound.sent) == 3)
    if why == "a failure":
        outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(0, Failure.RETRY, "no room")]))
        assert "no room" in str(await finished(task))
    else:
        lane_delivery.stop(asyncio.get_running_loop().time())
        assert await finished(task) is None
        assert not outbound.sent[0][2].done()
        outbound.sent[0][2].set_result(Receipt())
    assert [future.done() for _, _, future in outbound.sent] == [True, True, True]
    await until(lambda: lane_delivery._settings.budget.used == 0)
    assert lane_delivery.error is None or isinstance(lane_delivery.error, DeliveryError)


async def test_a_draining_lane_reacts_to_revocation() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), SlowOutbound(0)
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: len(outbound.sent) == 2)
    lane_delivery.stop(asyncio.get_running_loop().time() + 3600)
    await until(lambda: lane_delivery._drain_timeout is not None)
    lane.revoked.set()
    assert await finished(task) is None
    assert [first for first, _ in lane.rejected] == [0, 5]


async def test_a_lane_waiting_for_its_rate_reacts_to_revocation() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), SlowOutbound(0)
    rate = RateLimit(0.0001)
    lane_delivery = make_delivery(lane, outbound, rates=[("count", rate)])
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent and lane_delivery._awaiting_budget)
    assert lane_delivery.in_flight_batches == 2, "one was sent, and one waits"
    free_at = rate._free_at
    lane.revoked.set()
    assert await finished(task) is None
    assert len(outbound.sent) == 1
    assert rate._free_at < free_at, "what did not go uses up nobody's rate"


async def test_dead_letters_are_withdrawn_on_revocation() -> None:
    lane, outbound, letters = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), SlowOutbound(9), SlowOutbound(0)
    lane_delivery = make_delivery(lane, outbound, dead_letters=DeadLetters("r", letters, "c/dead"))  # type: ignore[arg-type]
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: len(outbound.sent) == 2)
    refused = [MessageFailure(2, Failure.REFUSED, "too large")]
    outbound.sent[0][2].set_result(Receipt(failures=refused))
    await until(lambda: letters.sent)
    lane.revoked.set()
    await until(letters.sent[0][2].done)
    outbound.sent[1][2].set_result(Receipt(failures=refused))
    assert await finished(task) is None
    assert len(letters.sent) == 1
    assert [first for first, _ in lane.rejected] == [0, 5]
    assert lane_delivery._settings.budget.used == 0
    assert lane_delivery._settings.counters.dead == 0


# --- through a route --------------------------------------------------------------------------------------------------


async def test_revocations_during_an_outage_add_no_sends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each revocation used to leave its sends in the outbound: 1,260 were stored for 60, 1.24 MB queued at a limit of 64 KiB."""
    world.a.create("t", 1)
    queued: list[int] = []
    real = MemoryOutbound.send

    def noted(self: MemoryOutbound, partition: int, share: Any) -> Any:
        future = real(self, partition, share)
        queued.append(sum(1000 * send.count for send in self._queue))
        return future

    monkeypatch.setattr(MemoryOutbound, "send", noted)
    config = world.config(route("r", "a/t", "b/t", delivery={"in_flight_bytes": "64KiB"}))
    async with running(config) as gateway:
        found = named(gateway, "r")
        world.b.connected.clear()
        put(world.a, "t", 0, *[bytes(1000) for _ in range(60)])
        for _ in range(20):
            await until(lambda: found.state.in_flight_batches >= 2)
            before = set(found.state.deliveries.values())
            world.a.revoke("t", 0)
            await until(lambda before=before: found.state.deliveries and before.isdisjoint(found.state.deliveries.values()))
        assert max(queued) <= 64 << 10
        assert found.state.budget.used <= 64 << 10
        world.b.reconnect()
        await until(lambda: committed(world.a, "g-r") == 60)
    assert len(world.b.topics["t"][0].messages) == 60


async def test_a_partition_that_moves_to_another_gateway_is_stored_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.a, "t", 2, 0)
    config = world.config(route("r", "a/t", "b/t", delivery={"in_flight_bytes": "64KiB"}))
    async with running(config, alone=False) as one:
        [target] = named(one, "r").state.endpoints.targets["t"]
        way, real = asyncio.Event(), MemoryOutbound._wait_storable

        async def cut(self: MemoryOutbound, send: Any) -> bool:
            if self is target.outbound:
                while not way.is_set() and not send.future.done():
                    await asyncio.sleep(0.001)
            return await real(self, send)

        monkeypatch.setattr(MemoryOutbound, "_wait_storable", cut)
        put(world.a, "t", 1, *[b"%d" % n for n in range(200)])
        await until(lambda: named(one, "r").state.in_flight_batches > 2)
        async with running(config, alone=False):
            await until(lambda: committed(world.a, "g-r") == 200)
            way.set()
            put(world.a, "t", 0, b"200")
            await until(lambda: committed(world.a, "g-r") == 201)
    assert everything(world.b, "t") == list(range(201))
