"""Positions of the partitions that a route holds, beyond a membership, and with `state` beyond the process."""

from mqbridge.delivery.checkpoint import CheckpointKey, Checkpoints, Held, Trace
from mqbridge.message import Partition, Position


class RoutePositions:
    """The `HeldPositions` of one route (see `mqbridge.adapter.inbound`); without `checkpoints` they live in memory."""

    def __init__(self, route: str, group: str, cluster: str, checkpoints: Checkpoints | None) -> None:
        self._route, self._group = route, group
        self._cluster, self._checkpoints = cluster, checkpoints
        self._in_memory: dict[CheckpointKey, Held] = {}
        self._traces_in_memory: dict[CheckpointKey, Trace] = {}
        self._confirmed: dict[CheckpointKey, Position] = {}
        """The last confirmed position of each held partition."""

    def unsettled(self, topic: str, partition: str) -> Held | None:
        """Return the positions of a partition that was held and not released."""
        key = self._key(topic, partition)
        return self._in_memory.get(key) if self._checkpoints is None else self._checkpoints.held(key)

    def trace(self, topic: str, partition: str) -> Trace:
        """Return what was read of a partition last."""
        key = self._key(topic, partition)
        return self._traces_in_memory.get(key, ()) if self._checkpoints is None else self._checkpoints.trace(key)

    def record(self, topic: str, partition: str, confirmed: Position, limit: Position, trace: Trace = ()) -> None:
        """Record the positions of a held partition, and what was read of it last.

        A confirmed position that has moved on is also a checkpoint: an idle partition moves on without messages. The first
        position after an assignment is not, because the source may start after messages that nobody has read.
        """
        key = self._key(topic, partition)
        before = self._confirmed.get(key)
        self._confirmed[key] = confirmed
        if self._checkpoints is None:
            self._in_memory[key], self._traces_in_memory[key] = (confirmed, limit), trace
            return
        self._checkpoints.record_held(key, (confirmed, limit))
        self._checkpoints.record_trace(key, trace)
        if before is not None and confirmed > before:
            held = Partition(self._cluster, topic, partition, 0)
            self._checkpoints.record(self._route, self._group, held, confirmed, may_go_back=False)

    def released(self, topic: str, partition: str) -> None:
        """Forget the positions of a released partition; its checkpoint and its trace stay."""
        key = self._key(topic, partition)
        self._confirmed.pop(key, None)
        if self._checkpoints is None:
            self._in_memory.pop(key, None)
        else:
            self._checkpoints.record_held(key, None)

    def _key(self, topic: str, partition: str) -> CheckpointKey:
        return CheckpointKey(self._route, self._group, self._cluster, topic, partition)
