"""No promise rests on the wall clock, and clocks of different domains are never compared."""

import dataclasses
import time

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import clocks
from mqbridge.log.store.clocks import EARLIEST_WALL_MS, SETTLE_MS, AgeClock, ClockReading, clock_domain
from mqbridge.log.store.groups import MemberRow, Observer
from mqbridge.message import Batch, Message, Share
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S

DAY_MS = 86_400_000
WALL_MS = EARLIEST_WALL_MS + 1000 * DAY_MS


@dataclasses.dataclass
class Clocks:
    """The clocks of a machine, set by the test."""

    wall_ms: int = WALL_MS
    boot_ms: int = 50_000
    domain: str = "first boot"

    def run(self, ms: int) -> None:
        self.wall_ms += ms
        self.boot_ms += ms

    def restart(self, off_ms: int, wall_ms: int | None = None) -> None:
        """Restart the machine after it was off; its wall clock may start at another time."""
        self.wall_ms = self.wall_ms + off_ms if wall_ms is None else wall_ms
        self.boot_ms, self.domain = 10_000, f"boot after {self.domain}"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    machine = Clocks()
    monkeypatch.setattr(clocks, "now_ms", lambda: machine.wall_ms)
    monkeypatch.setattr(clocks, "boot_ms", lambda: machine.boot_ms)
    monkeypatch.setattr(clocks, "clock_domain", lambda: machine.domain)
    return machine


@pytest.fixture
def stored(machine: Clocks) -> ClockReading:
    return clocks.first_reading()


def test_ages_grow_while_the_machine_runs_whatever_the_wall_clock_does(machine: Clocks, stored: ClockReading) -> None:
    clock = AgeClock(stored)
    machine.run(1000)
    machine.wall_ms += 8 * DAY_MS
    machine.run(1000)
    machine.wall_ms -= 30 * DAY_MS
    assert clock.read().age_ms == stored.age_ms + 2000


def test_ages_grow_by_the_time_between_two_processes(machine: Clocks, stored: ClockReading) -> None:
    machine.run(5000)
    machine.wall_ms += DAY_MS
    assert AgeClock(stored).read().age_ms == stored.age_ms + 5000


def test_the_time_for_which_the_machine_was_off_counts_later(machine: Clocks, stored: ClockReading) -> None:
    machine.restart(3 * DAY_MS)
    clock = AgeClock(stored)
    machine.run(SETTLE_MS - 1)
    assert (clock.read().age_ms, clock.is_settled) == (stored.age_ms + SETTLE_MS - 1, False)
    machine.run(1)
    assert (clock.read().age_ms, clock.is_settled) == (stored.age_ms + 3 * DAY_MS + SETTLE_MS, True)


@pytest.mark.parametrize("wall_ms", [0, WALL_MS - DAY_MS])
def test_a_wall_clock_that_went_back_adds_nothing(machine: Clocks, stored: ClockReading, wall_ms: int) -> None:
    machine.restart(0, wall_ms)
    clock = AgeClock(stored)
    machine.run(SETTLE_MS)
    assert clock.read().age_ms == stored.age_ms + SETTLE_MS


def test_a_machine_that_starts_in_1970_is_corrected_in_time(machine: Clocks, stored: ClockReading) -> None:
    machine.restart(0, 60_000)
    clock = AgeClock(stored)
    machine.run(30_000)
    machine.wall_ms = WALL_MS + DAY_MS + 30_000  # NTP
    machine.run(SETTLE_MS)
    assert clock.read().age_ms == stored.age_ms + DAY_MS + SETTLE_MS + 30_000


def test_a_log_that_began_in_1970_counts_no_half_century(machine: Clocks) -> None:
    machine.wall_ms = 60_000
    stored = AgeClock(clocks.first_reading()).read()
    machine.restart(0, WALL_MS)
    clock = AgeClock(stored)
    machine.run(SETTLE_MS)
    assert clock.read().age_ms == stored.age_ms + SETTLE_MS


async def trim_all(cluster: LogCluster) -> tuple[int, ...]:
    """Trim, and return the offset of the oldest message that is left."""
    await cluster.store.trim()
    return (await cluster.bounds("t"))["0"].first


@pytest.mark.parametrize(
    ("first_ns", "then_ns"), [(0, 8 * DAY_MS * 1_000_000), (-time.time_ns() + 60 * 10**9, 0)], ids=["8 days", "1970"]
)
async def test_retention_drops_nothing_after_a_jump_of_the_wall_clock(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, first_ns: int, then_ns: int
) -> None:
    """A jump of 8 days, and a start in 1970 that is corrected."""
    real, shift = time.time_ns, first_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + shift)
    cluster = await open_log(retention="7d")
    outbound = await outbound_of(cluster)
    for _ in range(3):
        await outbound.send(0, Share(Batch.of([Message(b"x")])))
    shift = then_ns
    assert await trim_all(cluster) == (0,)
    await cluster.close()
    assert await trim_all(await open_log(retention="7d")) == (0,)


async def test_a_row_of_the_future_does_not_keep_later_ones(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    real, shift = time.time_ns, 365 * DAY_MS * 1_000_000
    monkeypatch.setattr("time.time_ns", lambda: real() + shift)
    cluster = await open_log(retention="0.001ms")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of([Message(b"from the future")])))
    shift = 0
    for _ in range(5):
        await outbound.send(0, Share(Batch.of([Message(b"x")])))
    deadline = time.monotonic() + PATIENCE_S
    while await trim_all(cluster) != (5,):
        assert time.monotonic() < deadline


def member(beat: int = 1, domain: str = "elsewhere", renewed_ms: int = 0) -> MemberRow:
    return MemberRow("m", beat, domain, renewed_ms, 100)


def test_a_member_of_another_domain_lives_while_its_heartbeats_differ() -> None:
    observer = Observer()
    assert observer.is_alive("g", member(renewed_ms=10**12), 0)
    assert observer.is_alive("g", member(renewed_ms=10**12), 100)
    assert observer.is_alive("g", member(beat=2), 101)
    assert observer.is_alive("g", member(beat=2), 201)
    assert not observer.is_alive("g", member(beat=2), 202)


def test_a_member_of_this_domain_lives_by_the_common_clock() -> None:
    observer = Observer()
    assert observer.is_alive("g", member(domain=clock_domain(), renewed_ms=50), 150)
    assert not observer.is_alive("g", member(domain=clock_domain(), renewed_ms=50), 151)
    assert not observer.is_alive("g", member(domain=clock_domain(), renewed_ms=50), 49)


async def test_members_of_two_time_namespaces_do_not_steal_from_each_other(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await open_log(lease="3600s"), await open_log(lease="3600s")
    await one.create("t", 1)
    inbound, _ = await lane_of(one)
    with monkeypatch.context() as patch:
        real = time.monotonic_ns
        patch.setattr("mqbridge.log.store.groups.clock_domain", lambda: "another namespace")
        patch.setattr("mqbridge.log.store.groups.clock_ms", lambda: real() // 1_000_000 + 100 * DAY_MS)
        second = await other.inbound(InboundSpec(("t",), "g"))
        for _ in range(3):
            await second._rebalance()  # type: ignore[attr-defined]
    for _ in range(3):
        await inbound._rebalance()
    assert len(await one.operations.members("t", "g")) == 2
    await second.close()
    await inbound.close()


async def test_a_member_that_waited_for_the_lock_lets_no_other_expire(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stopped process held the lock, nobody could send a heartbeat."""
    one, other = await open_log(lease="400ms"), await open_log(lease="400ms")
    await one.create("t", 2)
    inbound, _ = await lane_of(one)
    inbound._heartbeat_task.cancel()  # type: ignore[union-attr]
    real = clocks.clock_ms
    monkeypatch.setattr("mqbridge.log.store.groups.clock_ms", lambda: real() + 10_000)

    monkeypatch.setattr("mqbridge.log.store.groups.PATIENT_FRACTION", 1e9)  # so that every wait is a long one
    second = await other.inbound(InboundSpec(("t",), "g"))
    members = await other.store.read(lambda connection: connection.execute("SELECT DISTINCT id FROM member").fetchall())
    assert len(members) == 2
    await second.close()
    await inbound.close()


def test_messages_of_a_time_that_is_not_known_yet_are_not_older_than_they_are(machine: Clocks, stored: ClockReading) -> None:
    """When the time off is added to the clock, they would be as much older."""
    machine.restart(2 * DAY_MS)
    clock = AgeClock(stored)
    machine.run(5000)
    stamp = clock.stamp().age_ms
    machine.run(SETTLE_MS)
    assert clock.read().age_ms - stamp == SETTLE_MS
    assert clock.stamp().age_ms == clock.read().age_ms
