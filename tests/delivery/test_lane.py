"""Delivery of a lane apart from the normal path: revocation, parts of batches, failures, decoding and budget."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from mqbridge.adapter.inbound import Inbound
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.config.options.edit import EditRules
from mqbridge.config.options.filter import FilterRules
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.lane import LEG_BYTES, LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.delivery.target import Target
from mqbridge.delivery.tickets import WAITING_TICKET_BYTES
from mqbridge.errors import ClusterError, DeliveryError, Failure
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import spawn
from mqbridge.routing.edits import Edit
from mqbridge.routing.filters import Filter
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryLane
from tests.gateway.world import World, committed, end, everything, fill, named, put, route, running, until
from tests.patience import PATIENCE_S
from tests.routing.test_partitions import rule

PARTITION = Partition("a", "t", "0", 0)


class FakeLane:
    """A lane that returns the given batches, then waits; it records the calls that it gets."""

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
    """An outbound whose sends wait until the test sets their receipts."""

    def __init__(self, partitions: int = 1, *, native: bool = False) -> None:
        self.partitions, self.formats = partitions, ("messages",) if native else ()
        self.sent: list[tuple[int, Share, asyncio.Future[Receipt]]] = []

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Do nothing: every send is on the wire at once."""

    def partition_of(self, key: bytes) -> int:
        return int(key) % self.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.sent.append((partition, share, future))
        return future


class HoldingOutbound(FakeOutbound):
    """An outbound that reports `held_bytes` for every share."""

    def __init__(self, held_bytes: int) -> None:
        super().__init__()
        self._held_bytes = held_bytes

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        share.held_bytes = self._held_bytes
        return super().send(partition, share)


def keyed_batch(first: int, count: int, decoded: list[int] | None = None) -> Batch:
    """Make a batch of 10 bytes with numbered keys; decoding it appends `first` to `decoded`."""

    def decode() -> list[Message]:
        if decoded is not None:
            decoded.append(first)
        return [Message(b"x", key=str(first + n), position=(first + n,)) for n in range(count)]

    return Batch(PARTITION, decode, count=count, size=10, first=(first,), next=(first + count,), may_contain=lambda _: False)


def make_delivery(
    lane: FakeLane,
    outbound: FakeOutbound,
    *,
    by: str = "modulo",
    individual: bool = False,
    budget: int = 10 * LEG_BYTES,
    **more: Any,
) -> LaneDelivery:
    guard = LoopGuard("b", ["t"], 8, lambda _: None)
    target = Target("b/t", outbound, Partitioner(rule(by), outbound), guard=guard)  # type: ignore[arg-type]
    settings = LaneSettings(Budget(budget), Counters(), **more)
    return LaneDelivery(lane, [target], settings, individual_ack=individual)


async def finished(task: "asyncio.Task[None]") -> BaseException | None:
    """Wait until the task has ended; return its exception."""
    await asyncio.wait([task], timeout=PATIENCE_S)
    assert task.done()
    return task.exception()


async def test_messages_are_decoded_only_on_demand() -> None:
    decoded: list[int] = []
    lane, outbound = FakeLane(keyed_batch(0, 5, decoded), keyed_batch(5, 5, decoded)), FakeOutbound(native=True)
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: len(outbound.sent) == 2)
    for _, share, future in outbound.sent:
        future.set_result(Receipt([(n,) for n in range(share.count)]))
    await until(lambda: len(lane.acknowledged) == 2)
    assert decoded == []
    lane_delivery.stop()
    assert await finished(task) is None


async def test_messages_are_released_once_they_are_encoded() -> None:
    decoded: list[int] = []
    lane, outbound = FakeLane(batch := keyed_batch(0, 5, decoded)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, filter=Filter(frozenset(), FilterRules(), [].append))
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: outbound.sent)
    assert decoded == [0]
    assert not batch.is_decoded
    outbound.sent[0][2].set_result(Receipt())
    lane_delivery.stop()
    assert await finished(task) is None


async def test_edited_messages_are_released_once_they_are_encoded() -> None:
    lane, outbound = FakeLane(batch := keyed_batch(0, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound)
    lane_delivery._targets[0]._edit = Edit(EditRules.model_validate({"set": {"seen": "yes"}}), {})
    encoded: list[int] = []
    original = outbound.send

    def send(partition: int, share: Share) -> "asyncio.Future[Receipt]":
        encoded.extend(len(message.properties) for message in share.messages)
        return original(partition, share)

    outbound.send = send  # type: ignore[method-assign]
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: outbound.sent)
    [(_, share, future)] = outbound.sent
    assert encoded == [1] * 5
    assert share.is_edited
    assert share._edited is None
    assert not batch.is_decoded
    future.set_result(Receipt())
    lane_delivery.stop()
    assert await finished(task) is None


async def test_a_revoked_lane_ends_at_once_while_it_waits_for_budget() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, budget=LEG_BYTES + 10)
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: outbound.sent)
    assert len(outbound.sent) == 1, "the second batch waits for the bytes of the first"
    lane.revoked.set()
    outbound.sent[0][2].set_result(Receipt())
    assert await finished(task) is None
    assert len(outbound.sent) == 1
    assert [first for first, _, _ in lane.acknowledged] == [0]
    assert lane.released


async def test_budget_is_released_only_when_a_send_has_ended() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound)
    budget = lane_delivery._settings.budget
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: outbound.sent)
    lane_delivery.stop(asyncio.get_running_loop().time())
    assert await finished(task) is None
    assert lane.rejected == [(0, [])]
    assert budget.used == LEG_BYTES + 10, "the outbound may still hold the bytes"
    outbound.sent[0][2].set_result(Receipt())
    await until(lambda: budget.used == 0)
    assert lane.acknowledged == []


async def test_a_part_of_a_batch_is_acknowledged_when_it_is_stored() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 6)), FakeOutbound(2)
    lane_delivery = make_delivery(lane, outbound, by="key", individual=True)
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: len(outbound.sent) == 2)
    parts = {partition: (share, future) for partition, share, future in outbound.sent}
    share, future = parts[1]
    future.set_result(Receipt([(90 + n,) for n in range(share.count)]))
    await until(lambda: lane.acknowledged)
    [(_, indexes, receipt)] = lane.acknowledged
    assert list(indexes or ()) == [1, 3, 5]
    assert receipt is not None
    assert receipt.positions == [(90,), (91,), (92,)]
    parts[0][1].set_result(Receipt(failures=[MessageFailure(1, Failure.RETRY, "no room")]))
    error = await finished(task)
    assert isinstance(error, DeliveryError)
    assert lane.rejected == [(0, [(2, "no room")])]


async def test_a_failing_acknowledgement_ends_the_lane() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5)), FakeOutbound()

    def fail(*_: Any) -> None:
        raise RuntimeError("the disk is gone")

    lane.acknowledge = fail  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt())
    assert "the disk is gone" in str(await finished(task))


async def test_a_failing_progress_callback_ends_the_lane_and_releases_its_budget() -> None:
    def fail(_: Batch, __: bool) -> None:
        raise RuntimeError("the disk is gone")

    lane, outbound = FakeLane(keyed_batch(0, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, on_progress=fail)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt())
    assert "the disk is gone" in str(await finished(task))
    assert (lane_delivery.in_flight_batches, lane_delivery._settings.budget.used) == (0, 0)


async def test_a_batch_that_cannot_be_decoded_is_not_acknowledged() -> None:
    def fail() -> list[Message]:
        raise RuntimeError("a bug in decoding")

    bad = Batch(PARTITION, fail, count=5, size=10, first=(0,), next=(5,))
    lane, outbound = FakeLane(bad), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, filter=Filter(frozenset(), FilterRules(), [].append))
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    assert "a bug in decoding" in str(await finished(task))
    assert lane.acknowledged == []
    assert [first for first, _ in lane.rejected] == [0]
    assert lane_delivery._settings.budget.used == 0


async def test_a_batch_that_an_outbound_cannot_encode_is_not_acknowledged() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 4)), FakeOutbound(2)
    original, calls = outbound.send, 0

    def once(partition: int, share: Share) -> "asyncio.Future[Receipt]":
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("a bug in encoding")
        return original(partition, share)

    outbound.send = once  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound, by="key")
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    assert "a bug in encoding" in str(await finished(task))
    assert lane.acknowledged == []
    assert [first for first, _ in lane.rejected] == [0]
    outbound.sent[0][2].set_result(Receipt())
    await until(lambda: lane_delivery._settings.budget.used == 0)


async def test_a_failing_acknowledgement_releases_the_budget() -> None:
    for individual in (False, True):
        for by in ("modulo", "key"):
            lane, outbound = FakeLane(keyed_batch(0, 5)), FakeOutbound(2)

            def fail(*_: Any) -> None:
                raise RuntimeError("the disk is gone")

            lane.acknowledge = fail  # type: ignore[method-assign]
            lane_delivery = make_delivery(lane, outbound, by=by, individual=individual)
            task = spawn(lane_delivery.run(), "delivery", log_errors=False)
            await until(lambda sent=outbound.sent, by=by: len(sent) == (2 if by == "key" else 1))  # type: ignore[misc]
            for _, _, future in outbound.sent:
                future.set_result(Receipt())
            assert "the disk is gone" in str(await finished(task))
            assert lane_delivery._settings.budget.used == 0, (individual, by)
            assert [first for first, _ in lane.rejected] == [0], (individual, by)


async def test_messages_of_dead_letters_are_released() -> None:
    first, second = keyed_batch(0, 5), keyed_batch(5, 5)
    lane, outbound, letters = FakeLane(first, second), FakeOutbound(), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, dead_letters=DeadLetters("r", letters, "c/dead"))  # type: ignore[arg-type]
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: len(outbound.sent) == 2)
    outbound.sent[1][2].set_result(Receipt(failures=[MessageFailure(2, Failure.REFUSED, "too large")]))
    await until(lambda: letters.sent)
    [(_, share, stored)] = letters.sent
    assert [message.position for message in share.messages] == [(7,)]
    stored.set_result(Receipt())
    await until(lambda: lane_delivery._settings.counters.dead == 1)
    assert not second.is_decoded, "the second batch waits for the first one"
    outbound.sent[0][2].set_result(Receipt())
    await until(lambda: len(lane.acknowledged) == 2)
    lane_delivery.stop()
    assert await finished(task) is None


@pytest.mark.parametrize("individual", [False, True])
async def test_a_batch_with_dead_letters_that_cannot_be_acknowledged_releases_the_budget(individual: bool) -> None:
    """The leg has ended before the acknowledgement fails: failing it again would count it twice, and the batch never ends."""

    def unable(batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        raise RuntimeError("a bug in acknowledging")

    lane, outbound, letters = FakeLane(keyed_batch(0, 5)), FakeOutbound(), FakeOutbound()
    lane.acknowledge = unable  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound, individual=individual, dead_letters=DeadLetters("r", letters, "c/dead"))  # type: ignore[arg-type]
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(2, Failure.REFUSED, "too large")]))
    await until(lambda: letters.sent)
    letters.sent[0][2].set_result(Receipt())
    assert "a bug in acknowledging" in str(await finished(task))
    assert lane_delivery._settings.budget.used == 0
    assert [first for first, _ in lane.rejected] == [0]


async def test_dead_letters_that_cannot_be_sent_releases_the_budget() -> None:
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: len(outbound.sent) == 2)
    lane_delivery.stop()
    await until(lambda: lane_delivery._receiver is not None and lane_delivery._receiver.done())
    for _ in range(10):
        await asyncio.sleep(0)  # it drains
    outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(0, Failure.RETRY, "no room")]))
    outbound.sent[1][2].set_result(Receipt(failures=[MessageFailure(0, Failure.REFUSED, "too large")]))
    assert isinstance(await finished(task), DeliveryError)
    assert lane_delivery._settings.budget.used == 0
    assert [first for first, _ in lane.rejected] == [0, 5]


async def test_a_deadline_reaches_a_lane_that_drains_after_revocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.delivery.lane.REVOKED_DRAIN_S", 3600.0)
    lane, outbound = FakeLane(keyed_batch(0, 5)), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent)
    lane.revoked.set()
    await until(lambda: lane_delivery._receiver is not None and lane_delivery._receiver.done())
    for _ in range(10):
        await asyncio.sleep(0)
    lane_delivery.stop(asyncio.get_running_loop().time())
    assert await finished(task) is None
    assert lane.rejected == [(0, [])]


@pytest.mark.parametrize("failed", [True, False])
async def test_no_batch_overtakes_a_failure_whose_callback_has_not_run(failed: bool) -> None:
    """A batch that arrives in the loop iteration of a receipt is sent only if the receipt reports no failure."""
    lane, outbound, arrivals = FakeLane(), FakeOutbound(), asyncio.Queue[Batch]()
    lane.receive = arrivals.get  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    arrivals.put_nowait(keyed_batch(0, 5))
    await until(lambda: outbound.sent)
    arrivals.put_nowait(keyed_batch(5, 5))
    failures = [MessageFailure(0, Failure.RETRY, "no room")] if failed else []
    outbound.sent[0][2].set_result(Receipt(failures=failures))
    if failed:
        assert "no room" in str(await finished(task))
        assert len(outbound.sent) == 1
        assert [first for first, _ in lane.rejected] == [0, 5]
        assert lane_delivery._settings.budget.used == 0
    else:
        await until(lambda: len(outbound.sent) == 2)
        outbound.sent[1][2].set_result(Receipt())
        lane_delivery.stop()
        assert await finished(task) is None
        assert [first for first, _, _ in lane.acknowledged] == [0, 5]


async def test_bytes_held_by_an_outbound_are_charged() -> None:
    """Decompressed bodies need more memory than the batch; the next batch waits until they are released."""
    lane, outbound = FakeLane(keyed_batch(0, 5), keyed_batch(5, 5)), HoldingOutbound(20 * LEG_BYTES)
    lane_delivery = make_delivery(lane, outbound)
    budget = lane_delivery._settings.budget
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: lane_delivery._awaiting_budget)
    assert len(outbound.sent) == 1
    assert budget.used == 21 * LEG_BYTES > budget.limit
    outbound.sent[0][2].set_result(Receipt())
    await until(lambda: len(outbound.sent) == 2)
    outbound.sent[1][2].set_result(Receipt())
    lane_delivery.stop()
    assert await finished(task) is None
    assert budget.used == 0


async def test_bytes_of_dead_letters_are_charged() -> None:
    lane, outbound, letters = FakeLane(keyed_batch(0, 5)), FakeOutbound(), HoldingOutbound(20 * LEG_BYTES)
    lane_delivery = make_delivery(lane, outbound, dead_letters=DeadLetters("r", letters, "c/dead"))  # type: ignore[arg-type]
    task = spawn(lane_delivery.run(), "delivery")
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(2, Failure.REFUSED, "too large")]))
    await until(lambda: letters.sent)
    assert lane_delivery._settings.budget.used == 21 * LEG_BYTES
    letters.sent[0][2].set_result(Receipt())
    await until(lambda: lane.acknowledged)
    assert lane_delivery._settings.budget.used == 0
    lane_delivery.stop()
    assert await finished(task) is None


async def test_no_batch_overtakes_one_that_waits_for_a_failed_send() -> None:
    """The next batch is received at once, for another partition: a message would overtake an earlier one with the same key."""
    lane, outbound, arrivals = FakeLane(), FakeOutbound(2), asyncio.Event()
    lane.receive = _receive_without_suspending(lane, arrivals)  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound, by="key", individual=True)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    lane._batches = [keyed_batch(0, 1)]
    arrivals.set()
    await until(lambda: outbound.sent)
    lane._batches = [keyed_batch(2, 2), keyed_batch(3, 1)]
    arrivals.set()
    outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(0, Failure.RETRY, "no room")]))
    assert "no room" in str(await finished(task))
    assert [partition for partition, _, _ in outbound.sent] == [0]
    assert lane.acknowledged == []
    assert lane_delivery._settings.budget.used == 0


def _receive_without_suspending(lane: FakeLane, arrivals: asyncio.Event) -> Callable[[], Awaitable[Batch]]:
    """Return a `receive` that suspends only if no batch is ready."""

    async def receive() -> Batch:
        while not lane._batches:
            arrivals.clear()
            await arrivals.wait()
        return lane._batches.pop(0)

    return receive


# --- through a route --------------------------------------------------------------------------------------------------


async def test_messages_are_acknowledged_individually(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    original = MemoryLane.acknowledge

    def noted(self: MemoryLane, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        parts.append(batch.count if indexes is None else len(indexes))
        original(self, batch, indexes, receipt)

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


async def test_a_membership_that_fails_transiently_is_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 0.01)
    fill(world.a, "t", 2, 50)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 50)
        found = named(gateway, "r")
        world.a.fail("g-r", ClusterError("the coordinator moves"))
        await until(lambda: found.state.memberships == 2)
        put(world.a, "t", 0, b"50")
        await until(lambda: committed(world.a, "g-r") == 51)
        assert found.state.error is None
        assert found.state.retry_reason is None


async def test_the_reason_for_joining_again_is_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.routes.route.MIN_REJOIN_PAUSE_S", 30.0)
    fill(world.a, "t", 2, 50)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == 50)
        found = named(gateway, "r")
        world.a.fail("g-r", ClusterError("the coordinator moves"))
        await until(lambda: found.state.retry_reason is not None)
        assert "the coordinator moves" in str(found.state.retry_reason)
        world.a.fail("g-r", ClusterError("no rights", Failure.FATAL))  # the route has no member now
        assert found.state.error is None


async def test_a_route_stops_while_it_waits_to_join(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    joining, cut_short = asyncio.Event(), asyncio.Event()

    async def silent(*_: Any) -> Inbound:
        joining.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut_short.set()
        raise AssertionError

    monkeypatch.setattr(MemoryCluster, "inbound", silent)
    fill(world.a, "t", 1, 10)
    async with running(world.config(route("r", "a/t", "b/t"), shutdown_timeout="100ms")) as gateway:
        await asyncio.wait_for(joining.wait(), PATIENCE_S)
    assert cut_short.is_set()
    assert named(gateway, "r").state.error is None


@pytest.mark.parametrize("has_letters", [False, True])
async def test_a_refused_message_that_cannot_be_named_ends_the_lane_and_releases_its_budget(has_letters: bool) -> None:
    """Decoding fails when the refused message is decoded for the error text."""
    readable = has_letters

    def decode() -> list[Message]:
        if not readable:
            raise RuntimeError("a bug in decoding")
        return [Message(b"x", position=(0,))]

    batch = Batch(PARTITION, decode, count=1, size=10, first=(0,), next=(1,), may_contain=lambda _: False)
    lane, outbound, letters = FakeLane(batch), FakeOutbound(native=True), FakeOutbound()
    dead_letters: Any = DeadLetters("r", letters, "c/dead") if has_letters else None  # type: ignore[arg-type]
    lane_delivery = make_delivery(lane, outbound, dead_letters=dead_letters)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    refusal = MessageFailure(0, Failure.REFUSED, "too large")
    await until(lambda: outbound.sent)
    outbound.sent[0][2].set_result(Receipt(failures=[refusal]))
    if has_letters:
        await until(lambda: letters.sent)
        readable = False
        letters.sent[0][2].set_result(Receipt(failures=[refusal]))
    assert "a bug in decoding" in str(await finished(task))
    assert [first for first, _ in lane.rejected] == [0]
    assert lane_delivery._settings.budget.used == 0


async def test_a_lane_cancelled_while_it_drains_withdraws_its_sends() -> None:
    lane, outbound, withdrawn = FakeLane(keyed_batch(0, 5)), FakeOutbound(), []
    outbound.withdraw = withdrawn.extend  # type: ignore[method-assign]
    lane_delivery = make_delivery(lane, outbound)
    task = spawn(lane_delivery.run(), "delivery", log_errors=False)
    await until(lambda: outbound.sent)
    lane_delivery.stop()
    await until(lambda: lane_delivery._drain_timeout is not None)
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE_S)
    assert task.cancelled()
    assert withdrawn == [outbound.sent[0][2]]
    assert [first for first, _ in lane.rejected] == [0]
    outbound.sent[0][2].set_result(Receipt(failures=[MessageFailure(0, Failure.RETRY, "the send was withdrawn")]))
    await until(lambda: lane_delivery._settings.budget.used == 0)
    assert lane.acknowledged == []


async def test_behind_a_batch_that_is_not_stored_a_budget_bounds_the_stored_ones() -> None:
    """The source acknowledges individually: later batches are stored and acknowledged, and wait for the first one."""
    lane, outbound = FakeLane(*(keyed_batch(5 * n, 5) for n in range(100))), FakeOutbound()
    lane_delivery = make_delivery(lane, outbound, individual=True, budget=20 * LEG_BYTES)
    task = spawn(lane_delivery.run(), "delivery")

    def unsettled() -> "list[asyncio.Future[Receipt]]":
        return [future for _, _, future in outbound.sent[1:] if not future.done()]  # the first send is not answered

    await until(unsettled)
    while futures := unsettled():
        for future in futures:
            future.set_result(Receipt())
        for _ in range(10):
            await asyncio.sleep(0)
    waiting = [ticket for ticket in lane_delivery._tickets._queue if ticket.is_done]
    assert len(waiting) == len(lane.acknowledged) > 20, "it reads on, as far as the budget allows"
    assert len(outbound.sent) < 100
    assert all(ticket.batch._decode is None for ticket in waiting)
    assert len(waiting) * WAITING_TICKET_BYTES <= lane_delivery._settings.budget.used <= 20 * LEG_BYTES
    outbound.sent[0][2].set_result(Receipt())
    while len(lane.acknowledged) < 100:
        await until(unsettled)
        for future in unsettled():
            future.set_result(Receipt())
        await asyncio.sleep(0)
    await until(lambda: not lane_delivery.in_flight_batches)
    lane_delivery.stop()
    assert await finished(task) is None
    assert lane_delivery._settings.budget.used == 0
