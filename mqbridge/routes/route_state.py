"""The state of a route: its endpoints and its group membership, and why it waits or has stopped.

`Route` makes the transitions. Health checks, metrics, HTTP, `--until-idle` and the status line read the state.
"""

import asyncio
from collections.abc import Mapping

from mqbridge.adapter.outbound import ReportsSendFailure, SendFailure
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.target import TargetProgress
from mqbridge.message import Partition
from mqbridge.net.budget import Budget
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.routes.membership import GroupMembership

ASSIGNMENT_PATIENCE_S = 60.0
"""Seconds since the last change of the assignment after which the missing partitions count as assigned to other members.

Until then the route is not idle. Groups need at most a third of this time for an assignment. A route with unprotected targets is
not idle for as long, so that other routes can subscribe to them.
"""


class RouteState:
    """The state of one route, from its creation to its end.

    A route opens its endpoints, and then has one membership after the other. After a transient failure it waits, with the failure
    as `retry_reason`, until it opens its endpoints again, or begins the next membership. Any other failure ends it, as `error`.
    """

    def __init__(self, config: RouteConfig, counters: Counters, endpoints: RouteEndpoints) -> None:
        self.counters = counters
        self.budget = Budget(config.delivery.sending_bytes)
        """Limits the bytes of the batches in flight; the source is not read while it is full."""
        self.endpoints = endpoints
        """The source topics and targets of the current membership, or of the next one."""
        self.membership: GroupMembership | None = None
        """The current or last membership; None before the first."""
        self.memberships = 0
        """Number of memberships started so far."""
        self.error: Exception | None = None
        """The error that stopped the route; None while it runs."""
        self.retry_reason: Exception | None = None
        """The transient error because of which the route will open its targets, or join its group, again; None without one."""
        self._previous_reason: Exception | None = None
        """The `retry_reason` before the current membership; it still holds until that membership has joined its group."""
        self._source_cluster = config.source.cluster
        self._created_at = asyncio.get_running_loop().time()

    # --- transitions --------------------------------------------------------------------------------------------------

    def begin_membership(self, membership: GroupMembership) -> None:
        """Begin a membership, which ends the wait after a transient failure."""
        self.membership = membership
        self.memberships += 1
        self._previous_reason, self.retry_reason = self.retry_reason, None

    def replace_endpoints(self, endpoints: RouteEndpoints) -> RouteEndpoints:
        """Use these endpoints from the next membership on; return those that were used before."""
        before, self.endpoints = self.endpoints, endpoints
        return before

    def wait_after(self, error: Exception) -> None:
        """Wait after this transient failure until the next attempt."""
        self.retry_reason = error

    def stop_with(self, error: Exception) -> bool:
        """Stop the route with this error. The first error is kept; return True if this is the first."""
        is_first = self.error is None
        self.error = self.error or error
        return is_first

    @property
    def waits_because(self) -> Exception | None:
        """Why the route reads nothing now: its `retry_reason`, also during the next attempt to join; None if it has joined."""
        is_joining = self.membership is not None and not self.membership.has_joined and not self.membership.is_ending
        return self.retry_reason or (self._previous_reason if is_joining else None)

    # --- partitions and targets -----------------------------------------------------------------------------------------

    @property
    def deliveries(self) -> Mapping[Partition, LaneDelivery]:
        """The deliveries of the partitions that are assigned and read."""
        return {} if self.membership is None else self.membership.deliveries

    @property
    def stopped(self) -> Mapping[Partition, str]:
        """Partitions that are not read, with the reason."""
        return {} if self.membership is None else self.membership.stopped

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why the source refuses to let the route read, by `CLUSTER/TOPIC/PARTITION` or `CLUSTER/TOPIC`; the route waits."""
        pauses = {} if self.membership is None else self.membership.pauses
        return {f"{self._source_cluster}/{name}": why for name, why in pauses.items()}

    @property
    def missing_partitions(self) -> list[Partition]:
        """Partitions of the source topics that are not assigned: a server is away, or other members have them.

        Their `index` is 0, because it is unknown.
        """
        assigned = {(partition.topic, partition.name) for partition in (*self.deliveries, *self.stopped)}
        return [
            Partition(self._source_cluster, topic, name, index=0)
            for topic, names in self.endpoints.source_partition_names.items()
            for name in sorted(names)
            if (topic, name) not in assigned
        ]

    @property
    def target_partitions(self) -> dict[str, dict[str, int]]:
        """Number of partitions of each target, by source topic and label."""
        return {
            topic: {target.label: target.outbound.partitions for target in targets}
            for topic, targets in self.endpoints.targets.items()
        }

    @property
    def unprotected(self) -> Mapping[str, str]:
        """Why targets are unprotected, by `CLUSTER/TOPIC`: what is written there is deleted before anybody has read it."""
        return self.endpoints.unprotected

    @property
    def failed_topics(self) -> Mapping[str, str]:
        """Why source topics that a pattern selects are not read, by `CLUSTER/TOPIC`; a person must change something."""
        return {f"{self._source_cluster}/{topic}": str(error) for topic, error in self.endpoints.failed_topics.items()}

    @property
    def send_failures(self) -> dict[str, SendFailure]:
        """Why sends to targets, and to the dead-letter topic, fail and are retried, by label; those that succeed are left out.

        Targets of several source topics may have the same label; the one that has failed for the longest time counts.
        """
        outbounds = [(target.label, target.outbound) for targets in self.endpoints.targets.values() for target in targets]
        if (letters := self.endpoints.dead_letters) is not None:
            outbounds.append((letters.label, letters.outbound))
        failures: dict[str, SendFailure] = {}
        for label, outbound in outbounds:
            if isinstance(outbound, ReportsSendFailure) and (failure := outbound.send_failure) is not None:
                failures[label] = min(failure, failures.get(label, failure))
        return failures

    @property
    def progress(self) -> Mapping[str, list[TargetProgress]]:
        """Progress of the targets by label; targets of several source topics may have the same label."""
        progress_by_label: dict[str, list[TargetProgress]] = {}
        for targets in self.endpoints.targets.values():
            for target in targets:
                progress_by_label.setdefault(target.label, []).append(target.progress)
        return progress_by_label

    # --- messages in flight -----------------------------------------------------------------------------------------------

    @property
    def in_flight_messages(self) -> int:
        """Number of messages received and not yet stored, without those that wait for the rate limit or for `budget`."""
        return sum(delivery.in_flight_messages for delivery in self.deliveries.values())

    @property
    def in_flight_batches(self) -> int:
        """Number of batches received and not yet stored, including those that wait for the rate limit or for `budget`."""
        return sum(delivery.in_flight_batches for delivery in self.deliveries.values())

    def oldest_age(self, now: float) -> float:
        """Return the seconds since delivery of the oldest batch in flight began; 0 if there is none. `now` is the loop time."""
        return max(
            (now - opened_at for delivery in self.deliveries.values() if (opened_at := delivery.oldest_opened_at) is not None),
            default=0.0,
        )

    # --- membership and rest ----------------------------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """True while the route is a member of its group, and will stay it."""
        membership = self.membership
        has_joined = membership is not None and membership.has_joined and not membership.is_ending
        return has_joined and self.retry_reason is None

    def unassigned_for(self, now: float) -> float:
        """Return for how many seconds the route has been a member of its group without a partition; 0 in any other state."""
        membership = self.membership
        if membership is None or not membership.has_joined or membership.partition_count or self.retry_reason is not None:
            return 0.0
        return now - membership.changed_at

    def quiet_for(self, now: float) -> float:
        """Return the seconds since the last message, or since the creation of the route; 0 while messages are in flight."""
        if self.error is not None:
            return float("inf")
        return 0.0 if self.in_flight_batches else now - max(self.counters.last_batch_at, self._created_at)

    def idle_for(self, now: float) -> float:
        """Return the seconds since the last message or the last change of the assignment; infinite for a stopped route.

        It is 0 while the route joins its group, waits for partitions, or has messages in flight or still to read.
        """
        if self.error is not None:
            return float("inf")
        membership = self.membership
        if membership is None or not self.is_joined:
            return 0.0
        is_busy = self.in_flight_batches or not all(delivery.lane.caught_up for delivery in membership.deliveries.values())
        # Another route may be about to subscribe to an unprotected target.
        is_incomplete = bool(self.missing_partitions or self.unprotected)
        if is_busy or (is_incomplete and now - membership.changed_at < ASSIGNMENT_PATIENCE_S):
            return 0.0
        return now - max(self.counters.last_batch_at, membership.changed_at)
