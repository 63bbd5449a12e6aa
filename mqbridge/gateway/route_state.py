"""The current state of a route, which health checks, metrics, `--until-idle` and the summary line read."""

import asyncio
from collections.abc import Mapping

from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.target import TargetProgress
from mqbridge.gateway.endpoints import RouteEndpoints
from mqbridge.gateway.membership import GroupMembership
from mqbridge.message import Partition
from mqbridge.net.budget import Budget

ASSIGNMENT_PATIENCE_S = 60.0
"""Partitions that are unassigned for this long count as assigned to other members; until then the route is not idle.

Groups need at most a third of this time for an assignment.
"""


class RouteState:
    """The state of a route; the subclass `Route` changes it."""

    _endpoints: RouteEndpoints

    def __init__(self, config: RouteConfig, counters: Counters) -> None:
        self.name = config.name
        self.config = config
        self.counters = counters
        self.budget = Budget(config.delivery.sending_bytes)
        self.error: Exception | None = None
        """The error that stopped the route; None while it runs."""
        self.retry_reason: Exception | None = None
        """The transient error because of which the route will open its targets or join its group again; None if none."""
        self.memberships = 0
        """Number of memberships started so far."""
        self._membership: GroupMembership | None = None
        self._stop_requested = asyncio.Event()

    @property
    def deliveries(self) -> Mapping[Partition, LaneDelivery]:
        """The deliveries of the partitions that are assigned and read."""
        return {} if self._membership is None else self._membership.deliveries

    @property
    def stopped(self) -> Mapping[Partition, str]:
        """Partitions that are not read, with the reason."""
        return {} if self._membership is None else self._membership.stopped

    @property
    def is_pending(self) -> bool:
        """True if the route is not open yet: the topics that it creates may still be missing."""
        return not (self._endpoints.is_open or self._stop_requested.is_set())

    @property
    def targets(self) -> dict[str, dict[str, int]]:
        """Number of partitions of each target, by source topic and label."""
        return {
            topic: {target.label: target.outbound.partitions for target in targets}
            for topic, targets in self._endpoints.targets.items()
        }

    @property
    def progress(self) -> Mapping[str, list[TargetProgress]]:
        """Progress of the targets by label; targets of several source topics may have the same label."""
        found: dict[str, list[TargetProgress]] = {}
        for targets in self._endpoints.targets.values():
            for target in targets:
                found.setdefault(target.label, []).append(target.progress)
        return found

    @property
    def in_flight_messages(self) -> int:
        """Messages received and not yet stored."""
        return sum(delivery.in_flight_messages for delivery in self.deliveries.values())

    @property
    def in_flight_batches(self) -> int:
        """Batches received and not yet stored."""
        return sum(delivery.in_flight_batches for delivery in self.deliveries.values())

    def oldest_age(self, now: float) -> float:
        """Return the age of the oldest batch in flight, in seconds; 0 if there is none."""
        return max((now - d.oldest_opened_at for d in self.deliveries.values() if d.oldest_opened_at is not None), default=0.0)

    def idle_for(self, now: float) -> float:
        """Return the seconds since the last message; infinite for a stopped route.

        It is 0 while the route joins its group, has messages in flight or to read, or waits for partitions.
        """
        if self.error is not None:
            return float("inf")
        membership = self._membership
        if membership is None or not membership.has_joined:
            return 0.0
        busy = self.in_flight_batches or not all(delivery.lane.caught_up for delivery in membership.deliveries.values())
        waiting = (
            membership.partition_count < self._endpoints.source_partitions and now - membership.changed_at < ASSIGNMENT_PATIENCE_S
        )
        if busy or waiting:
            return 0.0
        return now - max(self.counters.last_batch_at, membership.changed_at)

    def unassigned_for(self, now: float) -> float:
        """Return for how many seconds the route has been a member of its group without a partition; else 0."""
        membership = self._membership
        if membership is None or not membership.has_joined or membership.partition_count or self.retry_reason is not None:
            return 0.0
        return now - membership.changed_at
