"""A gap is exactly the messages that no member of the group has read and that the source no longer holds."""

import asyncio
import gc
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.topics import Bounds
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Partition, Position
from mqbridge.routes.gap_check import GapCheck
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.inbound import MemoryLane
from tests.gateway.world import ADAPTERS, World, committed, everything, fill, named, put, route, run, running, until
from tests.patience import PATIENCE_S

PARTITION = Partition("a", "t", "0", 0)


class Source:
    """Returns the given bounds and committed position."""

    def __init__(self, first: int, following: int, committed: int | None = None) -> None:
        self.held, self.position = Bounds((first,), (following,)), committed
        self.failure: Failure | None = None
        self.committed_failure = Failure.FATAL
        self.asked = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        self.asked += 1
        await self.answer.wait()
        if self.failure is not None:
            raise ClusterError("busy", self.failure)
        return {"0": self.held, "1": self.held}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        if self.position is None:
            raise ClusterError("nobody can tell", self.committed_failure)
        return {"0": (self.position,)}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Any:
    made = Checkpoints(tmp_path / "state.db")
    made.record("r", "g", PARTITION, (20,))
    made.record("r", "g", Partition("a", "t", "1", 1), (20,))
    yield made
    made._close_database()


async def test_bounds_are_fresh_at_each_assignment(checkpoints: Checkpoints) -> None:
    source = Source(0, 100)
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    await check.check(PARTITION)
    source.held = Bounds((60,), (100,))
    with pytest.raises(GapError, match="begins at 60, but this route had delivered only up to 20"):
        await check.check(PARTITION)


async def test_a_check_succeeds_after_a_failed_one(checkpoints: Checkpoints) -> None:
    source = Source(60, 100)
    source.failure = Failure.RETRY
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    await check.check(PARTITION)
    source.failure = None
    with pytest.raises(GapError):
        await check.check(PARTITION)


@pytest.mark.parametrize(("committed", "is_gap"), [(None, True), (10, True), (59, True), (60, False), (100, False)])
async def test_a_gap_begins_after_the_greater_of_checkpoint_and_committed(
    checkpoints: Checkpoints, committed: int | None, is_gap: bool
) -> None:
    check = GapCheck("r", "g", Source(60, 100, committed), checkpoints)  # type: ignore[arg-type]
    if is_gap:
        with pytest.raises(GapError):
            await check.check(PARTITION)
    else:
        await check.check(PARTITION)


async def test_a_group_whose_position_cannot_be_read_for_now_has_no_gap(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    """Another member may have read the deleted messages."""
    source = Source(60, 100)
    source.committed_failure = Failure.RETRY
    assert not await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
    assert ["cannot be checked" in record.message for record in caplog.records] == [True]


async def test_a_checkpoint_applies_to_its_group_only(checkpoints: Checkpoints) -> None:
    await GapCheck("r", "another", Source(60, 100, 0), checkpoints).check(PARTITION)  # type: ignore[arg-type]


async def test_partitions_assigned_together_share_one_request_made_afterwards(checkpoints: Checkpoints) -> None:
    source = Source(0, 100)
    source.answer.clear()
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    other = Partition("a", "t", "1", 1)
    first = [asyncio.ensure_future(check.check(one)) for one in (PARTITION, other)]
    await until(lambda: source.asked)
    late = asyncio.ensure_future(check.check(other))
    await asyncio.sleep(0)
    source.held = Bounds((60,), (100,))
    source.answer.set()
    await asyncio.gather(*first, late, return_exceptions=True)
    assert source.asked == 2
    assert isinstance(late.exception(), GapError)


async def test_a_request_that_fails_without_waiters_logs_nothing(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(0, 100)
    source.answer.clear()
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(check.check(PARTITION))
    await until(lambda: source.asked)
    asking.cancel()
    await asyncio.wait([asking])
    source.failure = Failure.FATAL
    source.answer.set()
    await until(lambda: all(not task.get_name().startswith("bounds of") for task in asyncio.all_tasks()))
    del asking  # and with it the traceback that holds the look
    gc.collect()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- positions that are not contiguous --------------------------------------------------------------------------------


class JudgingSource(Source):
    """Also decides whether deleted messages were read, with the given result."""

    def __init__(self, held: Bounds, verdict: bool | None) -> None:
        super().__init__(0, 0, committed=0)
        self.held, self.verdict = held, verdict
        self.questions: list[tuple[str, str, str, Position, Position]] = []

    async def deleted_unread(self, topic: str, partition: str, group: str, begin: Position, first: Position) -> bool | None:
        self.questions.append((topic, partition, group, begin, first))
        return self.verdict


@pytest.mark.parametrize("verdict", [True, False, None])
async def test_a_source_with_segments_decides_about_deleted_ones(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture, verdict: bool | None
) -> None:
    checkpoints.record("r", "g", PARTITION, (5, 10))
    source = JudgingSource(Bounds((7, 0), (7, 3)), verdict)
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    for _ in range(2):
        if verdict:
            with pytest.raises(GapError, match="begins at 7:0, but this route had delivered only up to 5:10"):
                await check.check(PARTITION)
        else:
            assert await check.check(PARTITION) is (verdict is False)
    assert source.questions == [("t", "0", "g", (5, 10), (7, 0))] * 2
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == (verdict is None), "one for each position"
    checkpoints.record("r", "g", PARTITION, (6, 10))
    if verdict is None:
        await check.check(PARTITION)
        assert len([record for record in caplog.records if "cannot tell" in record.message]) == 2


@pytest.mark.parametrize("held", [Bounds((5, 0), (5, 10)), Bounds((5, 10), (7, 3)), Bounds((5, 0), (7, 3))])
async def test_a_source_with_segments_is_not_asked_if_nothing_was_deleted(checkpoints: Checkpoints, held: Bounds) -> None:
    checkpoints.record("r", "g", PARTITION, (5, 10))
    source = JudgingSource(held, True)
    assert await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
    assert source.questions == []


@pytest.mark.parametrize("held", [Bounds((-1, -1), (-1, -1)), Bounds((5, 4), (5, 4)), Bounds((9, 0), (9, 0))])
async def test_an_emptied_partition_of_segments_is_judged_and_not_taken_for_a_new_topic(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture, held: Bounds
) -> None:
    checkpoints.record("r", "g", PARTITION, (5, 10))
    source = JudgingSource(held, False)
    assert await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
    assert len(source.questions) == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


WENT_BACK = GapError("partition a/t/0 ends at 12", went_back=((12,), (20,)))


async def restarted(checkpoints: Checkpoints, tmp_path: Path) -> Checkpoints:
    await checkpoints.close()
    return Checkpoints(tmp_path / "state.db")


@pytest.mark.parametrize(("committed", "stops"), [(0, False), (12, False), (13, True), (20, True), (21, False)])
async def test_a_partition_that_went_back_stays_stopped_until_the_group_leaves_its_position(
    checkpoints: Checkpoints, tmp_path: Path, committed: int, stops: bool
) -> None:
    """Also after restarts, and after it has grown beyond this position."""
    GapCheck("r", "g", Source(0, 12), checkpoints).record_stop(PARTITION, WENT_BACK)  # type: ignore[arg-type]
    checkpoints = await restarted(checkpoints, tmp_path)
    source = Source(0, 100, committed)
    if stops:
        for _ in range(2):
            with pytest.raises(GapError, match="ended at 12 and reading was to continue at 20") as gap:
                await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
            assert gap.value.resume is None
    else:
        assert await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
    checkpoints = await restarted(checkpoints, tmp_path)
    source.position = 15
    if not stops:  # the group has read on from where it was set to
        assert await GapCheck("r", "g", source, checkpoints).check(PARTITION)  # type: ignore[arg-type]
    await checkpoints.close()


async def test_a_partition_that_went_back_stays_stopped_while_the_group_position_is_unknown(
    checkpoints: Checkpoints,
) -> None:
    source = Source(0, 100)
    source.committed_failure = Failure.RETRY
    check = GapCheck("r", "g", source, checkpoints)  # type: ignore[arg-type]
    check.record_stop(PARTITION, WENT_BACK)
    with pytest.raises(GapError, match="cannot be read now"):
        await check.check(PARTITION)
    source.position = 20
    with pytest.raises(GapError, match="Set the group's position to 12 or before"):
        await check.check(PARTITION)


async def test_a_topic_that_was_created_again_is_a_warning(checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    assert await GapCheck("r", "g", Source(0, 3), checkpoints).check(PARTITION)  # type: ignore[arg-type]
    assert await GapCheck("r", "g", Source(0, 0), checkpoints).check(PARTITION)  # type: ignore[arg-type]
    assert [record.message.partition(",")[0] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "route r: partition a/t/0 ends at position 3",
        "route r: partition a/t/0 ends at position 0",
    ]


# --- through a route --------------------------------------------------------------------------------------------------


async def test_a_healthy_rebalance_is_no_gap(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), state=str(tmp_path / "state.db"))
    await run(config)
    async with running(config) as gateway:
        fill(world.a, "t", 1, 500, 20)
        await until(lambda: committed(world.a, "g-r") == 520)
        world.a.delete_below("t", 0, 400)
        caplog.clear()
        world.a.revoke("t", 0)
        put(world.a, "t", 0, b"520")
        await until(lambda: committed(world.a, "g-r") == 521)
        assert named(gateway, "r").state.stopped == {}
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_messages_read_by_another_instance_are_no_gap(world: World, tmp_path: Path) -> None:
    config = {n: world.config(route("r", "a/t", "b/t"), state=str(tmp_path / n)) for n in ("one", "two")}
    fill(world.a, "t", 1, 20)
    await run(config["one"])
    fill(world.a, "t", 1, 80, 20)
    await run(config["two"])
    world.a.delete_below("t", 0, 60)
    fill(world.a, "t", 1, 5, 100)
    assert (await run(config["one"])).clean
    assert everything(world.b, "t") == list(range(105))


async def test_a_reset_of_the_group_or_a_new_group_clears_a_gap(world: World, tmp_path: Path) -> None:
    config = world.config(route("r", "a/t", "b/t"), state=str(tmp_path / "state.db"))
    fill(world.a, "t", 1, 20)
    await run(config)
    fill(world.a, "t", 1, 80, 20)
    world.a.delete_below("t", 0, 60)
    assert list((await run(config)).routes[0].stopped) == ["a/t/0"]
    cluster = MemoryCluster("a", ADAPTERS["memory"].cluster_model(broker=f"{world.name}-a"))  # type: ignore[call-arg]
    await cluster.operations.move("t", "g-r", {"0": (60,)})
    assert (await run(config)).clean
    config["routes"][0]["from"]["group"] = "fresh"
    assert (await run(config)).clean
    assert everything(world.b, "t") == sorted([*range(20), *range(60, 100), *range(60, 100)])


async def test_the_checkpoint_is_the_low_water_mark_where_acknowledgement_is_individual(world: World, tmp_path: Path) -> None:
    world.a.create("t", 1)
    put(world.a, "t", 0, *[b"bad" if n < 20 else b"%d" % n for n in range(100)])
    world.b.faults.refuse = lambda message: "no" if message.payload == b"bad" else None
    letters = {"dead_letter": {"cluster": "c", "topic": "dead"}}
    config = world.config(route("r", "a/t", "b/t", delivery=letters), a={"individual_ack": True}, state=str(tmp_path / "state"))
    async with running(config | {"shutdown_timeout": "100ms"}) as gateway:
        checkpoints = gateway._checkpoints
        assert checkpoints is not None
        world.c.connected.clear()
        await until(lambda: named(gateway, "r").state.counters.acknowledged == 80)
        assert checkpoints.load("r", "g-r", Partition("a", "t", "0", 0)) is None
        assert named(gateway, "r").state.deliveries[PARTITION].position is None
        world.c.reconnect()
        await until(lambda: committed(world.a, "g-r") == 100)
        assert checkpoints.load("r", "g-r", PARTITION) == (100,)


async def test_a_lane_that_stops_at_a_gap_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[MemoryLane] = []
    real = MemoryLane.release

    async def noted(self: MemoryLane, deadline: float | None = None) -> None:
        released.append(self)
        await real(self, deadline)

    monkeypatch.setattr(MemoryLane, "release", noted)
    fill(world.a, "t", 2, 100)
    world.b.create("t", 2)
    world.b.faults.hold_receipts = True
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        found = named(gateway, "r")
        await until(lambda: len(world.b.withheld_receipts) == 6)
        fill(world.a, "t", 2, 200, 100)
        world.a.delete_below("t", 0, 120)
        await until(lambda: found.state.stopped or found.state.deliveries[PARTITION]._drain_timeout)
        world.b.release_receipts()
        await until(lambda: found.state.stopped)
        assert list(map(str, found.state.stopped)) == ["a/t/0"]
        await until(lambda: world.a.progress["g-r", "t", 1].committed == 150)
        assert world.a.progress["g-r", "t", 0].committed == 50, "what was in flight before the gap is acknowledged"
        assert released == []
        assert sum("stopped:" in record.message for record in caplog.records) == 1
        for _ in range(5):
            world.a.rebalance("g-r")
        idle_s = found.state.idle_for(asyncio.get_running_loop().time() + 3600)
        assert idle_s > 0, "it does not keep a gateway up that ends when idle"
        world.a.revoke("t", 0)  # it comes back, and stops again
        await until(lambda: sum("stopped:" in record.message for record in caplog.records) == 2)
    assert len(released) >= 2


async def test_a_lane_that_stops_because_its_partition_went_back_stays_stopped_after_a_restart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stops(self: MemoryLane) -> None:
        raise GapError(f"{self.partition} ends at 12", went_back=((12,), (20,)))

    fill(world.a, "t", 1, 20)
    world.b.create("t", 1)
    config = world.config(route("r", "a/t", "b/t")) | {"state": str(tmp_path / "state.db")}
    async with running(config) as gateway:
        await until(lambda: committed(world.a, "g-r") == 20)
        monkeypatch.setattr(MemoryLane, "receive", stops)
        world.a.revoke("t", 0)
        await until(lambda: named(gateway, "r").state.stopped)
    monkeypatch.undo()
    fill(world.a, "t", 1, 30, 20)
    async with running(config) as gateway:
        await until(lambda: named(gateway, "r").state.stopped)
        assert "ended at 12" in named(gateway, "r").state.stopped[PARTITION]
    assert committed(world.a, "g-r") == 20


async def test_a_stopped_partition_that_is_revoked_is_no_longer_shown(world: World) -> None:
    fill(world.a, "t", 2, 100)
    config = world.config(route("r", "a/t", "b/t"))
    await run(config)
    fill(world.a, "t", 2, 100, 100)
    world.a.delete_below("t", 0, 70)
    async with running(config, alone=False) as gateway:
        found = named(gateway, "r")
        await until(lambda: found.state.stopped)
        world.a.unassign("g-r", "t", 0)
        for member in world.a._members["g-r"]:
            member.revoke("t", 0)
        await until(lambda: not found.state.stopped)


async def test_a_gap_check_ends_when_its_partition_is_revoked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), state=str(tmp_path / "state.db"), shutdown_timeout="3600s")
    await run(config)
    asking = asyncio.Event()

    async def silent(self: MemoryCluster, topic: str) -> Any:
        asking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(MemoryCluster, "bounds", silent)
    async with running(config, alone=False) as gateway:
        await asyncio.wait_for(asking.wait(), PATIENCE_S)
        [lane] = [one.lane for one in named(gateway, "r").state.deliveries.values()]
        for member in world.a._members["g-r"]:
            member.revoke("t", 0)
        await until(lambda: lane.revoked.is_set() and not named(gateway, "r").state.deliveries)
        world.a.unassign("g-r", "t", 0)
        world.a.rebalance("g-r")
        await until(lambda: named(gateway, "r").state.deliveries)
    assert named(gateway, "r").state.error is None, "nor does the end of the membership wait for it"
