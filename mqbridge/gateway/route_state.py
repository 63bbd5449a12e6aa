"""What a route does just now, as health, metrics, `--until-idle` and the closing line see it. Changes nothing."""

import asyncio
from collections.abc import Mapping

from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.target import TargetProgress
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.session import Session
from mqbridge.message import Partition
from mqbridge.net.budget import Budget

ASSIGNMENT_PATIENCE_S = 60.0
"""Partitions that a route was not given for so long are with others; until then it is not idle. Groups settle in a third."""


class RouteState:
    """The state of a route; its life is in `Route`."""

    _ends: Ends

    def __init__(self, config: RouteConfig, counters: Counters) -> None:
        self.name = config.name
        self.config = config
        self.counters = counters
        self.budget = Budget(config.delivery.sending_bytes)
        self.error: Exception | None = None
        """Why it stopped."""
        self.trouble: Exception | None = None
        """Why it has no session just now; it is going to begin another one."""
        self.sessions = 0
        """How many were begun."""
        self._session: Session | None = None
        self._ended = asyncio.Event()

    @property
    def deliveries(self) -> Mapping[Partition, LaneDelivery]:
        """The partitions that are assigned and read."""
        return {} if self._session is None else self._session.deliveries

    @property
    def stopped(self) -> Mapping[Partition, str]:
        """Partitions that are not read, and why."""
        return {} if self._session is None else self._session.stopped

    @property
    def is_late(self) -> bool:
        """Not open yet: what it is to make may be missing."""
        return not (self._ends.is_open or self._ended.is_set())

    @property
    def targets(self) -> dict[str, dict[str, int]]:
        """How many partitions each target has, by source topic and label."""
        return {
            topic: {target.label: target.outbound.partitions for target in targets}
            for topic, targets in self._ends.targets.items()
        }

    @property
    def progress(self) -> Mapping[str, list[TargetProgress]]:
        """What each target owes receipts for, by label; a label may stand for the same target of several source topics."""
        found: dict[str, list[TargetProgress]] = {}
        for targets in self._ends.targets.values():
            for target in targets:
                found.setdefault(target.label, []).append(target.progress)
        return found

    @property
    def in_flight_messages(self) -> int:
        """Messages received and not yet stored."""
        return sum(delivery.messages for delivery in self.deliveries.values())

    @property
    def in_flight(self) -> int:
        """Batches received and not yet stored."""
        return sum(delivery.in_flight for delivery in self.deliveries.values())

    def head_age(self, now: float) -> float:
        """Seconds for which the oldest batch has been in flight."""
        return max((now - d.oldest_at for d in self.deliveries.values() if d.oldest_at is not None), default=0.0)

    def idle_for(self, now: float) -> float:
        """Seconds since anything came; 0 while it joins, something is in flight or not caught up, or not all is assigned yet."""
        if self.error is not None:
            return float("inf")
        session = self._session
        if session is None or not session.joined:
            return 0.0
        busy = self.in_flight or not all(delivery.lane.caught_up for delivery in session.deliveries.values())
        waiting = session.held < self._ends.source_partitions and now - session.changed_at < ASSIGNMENT_PATIENCE_S
        if busy or waiting:
            return 0.0
        return now - max(self.counters.last_batch_at, session.changed_at)

    def unassigned_for(self, now: float) -> float:
        """Seconds for which a member of the group has had no partition; 0 when it has one, or when there is no session."""
        session = self._session
        if session is None or not session.joined or session.held or self.trouble is not None:
            return 0.0
        return now - session.changed_at
