"""The state of a route after any sequence of transitions, compared with plain facts about the same sequence."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.config.options.delivery import Delivery
from mqbridge.delivery.counters import Counters
from mqbridge.message import Partition
from mqbridge.routes.route_state import ASSIGNMENT_PATIENCE_S, RouteState
from tests.kit.virtual_time import VirtualTimeLoop

PARTITIONS = [Partition("a", "t", str(number), number) for number in range(2)]
RARELY = st.sampled_from([1, 2, 3, 0])
"""0 rarely: a failure ends the situations that are worth a look."""
CONFIG: Any = SimpleNamespace(delivery=Delivery(), source=SimpleNamespace(cluster="a"))


class FakeMembership:
    """The parts of a membership that the state reads."""

    def __init__(self, now: float) -> None:
        self.has_joined = self.is_ending = False
        self.changed_at = now
        self.deliveries: dict[Partition, Any] = {}
        self.stopped: dict[Partition, str] = {}

    @property
    def partition_count(self) -> int:
        return len(self.deliveries.keys() | self.stopped.keys())


def endpoints() -> Any:
    return SimpleNamespace(
        is_open=True, targets={}, unprotected={}, source_partition_names={"t": frozenset(each.name for each in PARTITIONS)}
    )


class RouteStates(RuleBasedStateMachine):
    """A route whose memberships, batches and failures come in any order; the attributes of the machine are the facts."""

    @initialize(has_begun=st.booleans(), assigned=st.integers(0, len(PARTITIONS)))
    def create(self, has_begun: bool, assigned: int) -> None:
        async def make() -> RouteState:
            return RouteState(CONFIG, Counters(), endpoints())

        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            self.state = runner.run(make())
        self.now = 1.0
        self.begun = 0
        self.joined = False
        self.waits_after: Exception | None = None
        self.first_error: Exception | None = None
        self.last_batch_at = 0.0
        self.in_flight: dict[Partition, int] = {}
        """Batches in flight, by partition that is read."""
        self.unread: set[Partition] = set()
        """Partitions that are read, and whose lane does not say that it is caught up."""
        self.stopped: set[Partition] = set()
        if has_begun:  # most rules are about a member
            self.begin()
            self.join()
            for partition in PARTITIONS[:assigned]:
                self.assign(partition)

    @property
    def membership(self) -> Any:
        return self.state.membership

    def change(self) -> None:
        """Let the membership record a change of its partitions."""
        self.membership.changed_at = self.now

    # --- transitions ------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 10.0, ASSIGNMENT_PATIENCE_S]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.first_error is None and not self.joined)
    @rule()
    def begin(self) -> None:
        self.state.begin_membership(FakeMembership(self.now))  # type: ignore[arg-type]
        self.begun, self.waits_after = self.begun + 1, None
        self.in_flight, self.unread, self.stopped = {}, set(), set()

    @precondition(lambda self: self.begun and self.waits_after is None and not self.membership.is_ending)
    @rule()
    def join(self) -> None:
        self.membership.has_joined = self.joined = True
        self.change()

    @precondition(lambda self: self.joined)
    @rule(partition=st.sampled_from(PARTITIONS))
    def assign(self, partition: Partition) -> None:
        if partition in self.in_flight or partition in self.stopped:
            return
        self.membership.deliveries[partition] = SimpleNamespace(
            in_flight_batches=0, in_flight_messages=0, oldest_opened_at=None, lane=SimpleNamespace(caught_up=False)
        )
        self.in_flight[partition] = 0
        self.unread.add(partition)
        self.change()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        delivery = self.membership.deliveries[partition := data.draw(st.sampled_from(list(self.in_flight)))]
        delivery.in_flight_batches += 1
        delivery.in_flight_messages += 10
        delivery.oldest_opened_at = delivery.oldest_opened_at or self.now
        self.in_flight[partition] += 1
        self.state.counters.last_batch_at = self.last_batch_at = self.now

    @precondition(lambda self: self.in_flight)
    @rule(is_caught_up=st.booleans())
    def store_all(self, is_caught_up: bool) -> None:
        for partition, delivery in self.membership.deliveries.items():
            delivery.in_flight_batches, delivery.in_flight_messages, delivery.oldest_opened_at = 0, 0, None
            delivery.lane.caught_up = is_caught_up
            self.in_flight[partition] = 0
        self.unread = set() if is_caught_up else set(self.in_flight)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), is_gap=st.booleans(), chance=RARELY)
    def lose(self, data: st.DataObject, is_gap: bool, chance: int) -> None:
        """Revoke a partition, or stop it at a gap."""
        if chance:
            return
        partition = data.draw(st.sampled_from(list(self.in_flight)))
        del self.membership.deliveries[partition], self.in_flight[partition]
        self.unread.discard(partition)
        if is_gap:
            self.membership.stopped[partition] = "a gap"
            self.stopped.add(partition)
        self.change()

    @rule(is_unprotected=st.booleans())
    def check_protection(self, is_unprotected: bool) -> None:
        self.state.endpoints.unprotected = {"b/t": "no subscription"} if is_unprotected else {}

    @rule()
    def reopen(self) -> None:
        before = self.state.endpoints
        assert self.state.replace_endpoints(endpoints()) is before

    @rule(is_final=st.booleans(), chance=RARELY)
    def fail(self, is_final: bool, chance: int) -> None:
        if chance:
            return
        if is_final:
            error = ValueError(self.now)
            assert self.state.stop_with(error) == (self.first_error is None)
            self.first_error = self.first_error or error
        else:
            self.waits_after = ConnectionError(self.now)
            self.state.wait_after(self.waits_after)

    @rule(chance=RARELY)
    def end_membership(self, chance: int) -> None:
        if self.begun and not chance:
            self.membership.is_ending, self.joined = True, False

    # --- views of the state -------------------------------------------------------------------------------------------

    @invariant()
    def failures_are_kept(self) -> None:
        assert (self.state.error, self.state.retry_reason) == (self.first_error, self.waits_after)
        assert (self.state.memberships, self.state.is_joined) == (self.begun, self.joined and self.waits_after is None)

    @invariant()
    def every_partition_is_read_stopped_or_missing(self) -> None:
        groups = [set(self.state.deliveries), set(self.state.stopped), {each.name for each in self.state.missing_partitions}]
        assert groups[:2] == [set(self.in_flight), self.stopped]
        assert groups[2] == {each.name for each in PARTITIONS} - {each.name for each in groups[0] | groups[1]}

    @invariant()
    def batches_in_flight_are_counted(self) -> None:
        batches = sum(self.in_flight.values())
        assert (self.state.in_flight_batches, self.state.in_flight_messages) == (batches, 10 * batches)
        assert (self.state.oldest_age(self.now + 1) > 0) == bool(batches)

    @invariant()
    def only_a_stopped_route_and_a_route_without_batches_is_quiet(self) -> None:
        quiet_s = self.state.quiet_for(self.now)
        if self.first_error is not None:
            assert quiet_s == float("inf")
        else:
            assert quiet_s == (0 if any(self.in_flight.values()) else self.now - self.last_batch_at)

    @invariant()
    def only_a_member_that_has_read_everything_is_idle(self) -> None:
        idle_s = self.state.idle_for(self.now)
        if self.first_error is not None:
            assert idle_s == float("inf")
            return
        is_member = self.joined and self.waits_after is None
        if not is_member or any(self.in_flight.values()) or self.unread:
            assert idle_s == 0
            return
        unchanged_s = self.now - self.membership.changed_at
        if (self.state.missing_partitions or self.state.unprotected) and unchanged_s < ASSIGNMENT_PATIENCE_S:
            assert idle_s == 0, "other members may not have reported their partitions yet"
        else:
            assert idle_s == min(unchanged_s, self.now - self.last_batch_at)

    @invariant()
    def only_a_member_without_partition_is_unassigned(self) -> None:
        has_none = self.begun and self.membership.has_joined and not (self.in_flight or self.stopped)
        expected = self.now - self.membership.changed_at if has_none and self.waits_after is None else 0.0
        assert self.state.unassigned_for(self.now) == expected


TestRouteStates = RouteStates.TestCase
