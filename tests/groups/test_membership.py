"""A membership joins again after every failure, and leaves nothing behind when it is closed at any moment."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.errors import ClusterError
from mqbridge.groups import membership as membership_module
from mqbridge.groups.membership import MembershipState, SharedMembership
from mqbridge.net.tasks import cancel, spawn
from mqbridge.testing.memory.adapter.inbound import MemoryInbound
from tests.listener.faulty import Listened, until
from tests.patience import PATIENCE_S

SPEC = InboundSpec(("t",), "g")


class JoinBench(Listened):
    def __init__(self) -> None:
        super().__init__("membership")
        self.lanes: list[InboundLane] = []
        """The lanes that run."""
        self.gate = asyncio.Event()
        """Lanes end after this is set."""
        self.gate.set()
        self.membership = SharedMembership(self.cluster, SPEC, self.run_lane)

    async def run_lane(self, lane: InboundLane, inbound: Inbound) -> None:
        self.lanes.append(lane)
        try:
            await lane.revoked.wait()
        finally:
            try:
                await self.gate.wait()
            finally:
                self.lanes.remove(lane)

    def check_nothing_is_left(self) -> None:
        assert self.membership.state is MembershipState.CLOSED
        assert self.cluster.members("g") == 0
        assert not self.lanes


@pytest_asyncio.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JoinBench]:
    monkeypatch.setattr(membership_module, "Backoff", FastBackoff)
    made = JoinBench()
    await made.topic(2)
    yield made
    made.gate.set()
    made.requests.release()
    async with asyncio.timeout(PATIENCE_S):
        await made.membership.close()
    await until(lambda: made.cluster.members("g") == 0 and not made.lanes)
    await made.close()


class FastBackoff:
    def delay(self) -> float:
        return 0.001

    def reset(self) -> None:
        pass


async def test_lanes_run_until_the_membership_is_closed(bench: JoinBench) -> None:
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    assert (bench.membership.state, bench.membership.problem) == (MembershipState.JOINED, None)
    await bench.membership.close()
    bench.check_nothing_is_left()


async def test_a_failed_membership_is_joined_until_that_succeeds(bench: JoinBench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    bench.requests.errors["inbound"] = ClusterError("not yet")
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: bench.membership.problem == "not yet")
    assert bench.membership.state is MembershipState.JOINING
    assert not bench.lanes
    bench.requests.errors["inbound"] = ZeroDivisionError("a bug")
    await until(lambda: "a bug" in (bench.membership.problem or ""))
    bench.requests.release()
    await until(lambda: len(bench.lanes) == 2)
    assert (bench.membership.state, bench.membership.problem) == (MembershipState.JOINED, None)
    assert bench.membership.rejoins == 1
    assert "ZeroDivisionError" in caplog.text


async def test_an_inbound_that_cannot_be_closed_is_replaced(bench: JoinBench, monkeypatch: pytest.MonkeyPatch) -> None:
    close = MemoryInbound.close

    async def fail(self: MemoryInbound, deadline: float | None = None) -> None:
        await close(self, deadline)
        raise ClusterError("it cannot be closed")

    await bench.membership.join()
    monkeypatch.setattr(MemoryInbound, "close", fail)
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: bench.membership.rejoins == 1 and len(bench.lanes) == 2)
    await bench.membership.close()
    bench.check_nothing_is_left()


async def test_joining_again_on_demand_gives_new_lanes(bench: JoinBench) -> None:
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    before = list(bench.lanes)
    bench.membership.join_again("a lane has failed")
    bench.membership.join_again("another one, too")
    await until(lambda: bench.membership.rejoins >= 1 and len(bench.lanes) == 2)
    assert not set(map(id, before)) & set(map(id, bench.lanes))
    assert bench.cluster.members("g") == 1


async def test_it_is_closed_while_it_joins(bench: JoinBench) -> None:
    gate = bench.requests.hang("inbound")
    joining = spawn(bench.membership.join(), "join", log_errors=False)
    await bench.requests.until_waiting("inbound")
    await bench.membership.close()
    gate.set()
    with pytest.raises(ClusterError, match="was left"):
        await joining
    bench.check_nothing_is_left()


@pytest.mark.parametrize("moment", ["lanes end", "joining", "pausing"])
async def test_it_is_closed_while_it_joins_again(bench: JoinBench, moment: str) -> None:
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    if moment == "lanes end":
        bench.gate.clear()
    elif moment == "joining":
        bench.requests.hang("inbound")
    else:
        bench.requests.errors["inbound"] = ClusterError("not yet")
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: bench.membership.state is MembershipState.JOINING)
    if moment == "joining":
        await bench.requests.until_waiting("inbound")
    closing = spawn(bench.membership.close(), "close")
    await asyncio.sleep(0)
    bench.gate.set()
    await closing
    await until(lambda: not bench.lanes)
    bench.check_nothing_is_left()


async def test_it_is_closed_while_an_inbound_that_failed_is_closed(bench: JoinBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some inbounds are not closed by a second call, if the first one was cancelled."""
    gate, close, calls = asyncio.Event(), MemoryInbound.close, 0

    async def close_once(self: MemoryInbound, deadline: float | None = None) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await gate.wait()
            await close(self, deadline)

    monkeypatch.setattr(MemoryInbound, "close", close_once)
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    bench.cluster.broker.fail("g", ClusterError("broken"))
    await until(lambda: calls == 1)
    closing = spawn(bench.membership.close(), "close")
    await asyncio.sleep(0.01)
    gate.set()
    await closing
    bench.check_nothing_is_left()


async def test_a_lane_that_ends_by_a_bug_is_released(bench: JoinBench, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[InboundLane] = []

    async def fail(lane: InboundLane, inbound: Inbound) -> None:
        seen.append(lane)
        raise ZeroDivisionError("a bug")

    bench.membership = SharedMembership(bench.cluster, SPEC, fail)
    await bench.membership.join()
    await until(lambda: len(seen) == 2 and all(lane.revoked.is_set() for lane in seen))
    await until(lambda: "ZeroDivisionError" in caplog.text)


async def test_closing_ends_although_a_lane_does_not(bench: JoinBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "GRACE_S", 0.01)
    await bench.membership.join()
    await until(lambda: len(bench.lanes) == 2)
    gate = asyncio.Event()

    async def hang(self: MemoryInbound, deadline: float | None = None) -> None:
        await gate.wait()

    close = MemoryInbound.close
    monkeypatch.setattr(MemoryInbound, "close", hang)
    async with asyncio.timeout(PATIENCE_S):
        await bench.membership.close(asyncio.get_running_loop().time() + 0.01)
    monkeypatch.setattr(MemoryInbound, "close", close)
    gate.set()
    for member in list(bench.cluster.broker._members["g"]):
        await member.close()  # type: ignore[attr-defined]


async def test_a_join_that_never_ends_is_given_up(bench: JoinBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "JOIN_TIMEOUT_S", 0.01)
    bench.requests.hang("inbound")
    with pytest.raises(ClusterError, match="did not finish"):
        await bench.membership.join()
    joining = spawn(bench.membership.join(), "join", log_errors=False)
    await bench.requests.until_waiting("inbound")
    await cancel(joining)
