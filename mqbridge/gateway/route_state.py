"""The current state of a route, as health, metrics, `--until-idle` and the closing line see it. Read-only."""

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
"""Partitions not assigned to a route for so long are with other members; until then it is not idle. Groups settle in a third."""


class RouteState:
    """The state of a route; its lifecycle is in `Route`."""

    _endpoints: RouteEndpoints

    def __init__(self, config: RouteConfig, counters: Counters) -> None:
        self.name = config.name
        self.config = config
        self.counters = counters
        self.budget = Budget(config.delivery.sending_bytes)
        self.error: Exception | None = None
        """Why it stopped; None while it runs."""
        self.retry_reason: Exception | None = None
        """Why it has no membership now; it is going to join again."""
        self.memberships = 0
        """Number of memberships that were started."""
        self._membership: GroupMembership | None = None
        self._ended = asyncio.Event()

    @property
    def deliveries(self) -> Mapping[Partition, LaneDelivery]:
        """The partitions that are assigned and read."""
        return {} if self._membership is None else self._membership.deliveries

    @property
    def stopped(self) -> Mapping[Partition, str]:
        """Partitions that are not read, with the reason."""
        return {} if self._membership is None else self._membership.stopped

    @property
    def is_pending(self) -> bool:
        """True if it is not open yet: topics that it creates may be missing."""
        return not (self._endpoints.is_open or self._ended.is_set())

    @property
    def targets(self) -> dict[str, dict[str, int]]:
        """Number of partitions of each target, by source topic and label."""
        return {
            topic: {target.label: target.outbound.partitions for target in targets}
            for topic, targets in self._endpoints.targets.items()
        }

    @property
    def progress(self) -> Mapping[str, list[TargetProgress]]:
        """Progress of each target by label; several source topics may share a label."""
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
        """Age of the oldest batch in flight, in seconds."""
        return max((now - d.oldest_at for d in self.deliveries.values() if d.oldest_at is not None), default=0.0)

    def idle_for(self, now: float) -> float:
        """Seconds since the last message; 0 while it joins, has messages in flight or to read, or waits for partitions."""
        if self.error is not None:
            return float("inf")
        membership = self._membership
        if membership is None or not membership.joined:
            return 0.0
        busy = self.in_flight_batches or not all(delivery.lane.caught_up for delivery in membership.deliveries.values())
        waiting = membership.held < self._endpoints.source_partitions and now - membership.changed_at < ASSIGNMENT_PATIENCE_S
        if busy or waiting:
            return 0.0
        return now - max(self.counters.last_batch_at, membership.changed_at)

    def unassigned_for(self, now: float) -> float:
        """Seconds for which a member of the group has had no partition; 0 if it has one, or without a membership."""
        membership = self._membership
        if membership is None or not membership.joined or membership.held or self.retry_reason is not None:
            return 0.0
        return now - membership.changed_at
