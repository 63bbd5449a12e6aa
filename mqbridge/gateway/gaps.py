"""Checks for gaps: whether a source still holds the messages after the position up to which a route had delivered.

The check runs for each partition when it is assigned, with current bounds of the source. It also reads the group's committed
position: another member may have read further since the checkpoint. A source that moves the group past messages that it deletes
looks the same, so such a gap is not detected. Without a checkpoint there is no check.
"""

import asyncio
import logging
from collections.abc import Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Bounds
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Partition, Position, format_position
from mqbridge.net.tasks import collect_error, spawn

log = logging.getLogger(__name__)


class GapCheck:
    """The check for one route's group; without `checkpoints` no gap is found."""

    def __init__(self, route: str, group: str, source: Cluster, checkpoints: Checkpoints | None) -> None:
        self._route, self._group, self._source, self._checkpoints = route, group, source, checkpoints
        self._next: dict[str, asyncio.Task[_Positions]] = {}
        """By topic, the request that has not started yet; partitions that are assigned together share one request."""
        self._one_at_a_time: dict[str, asyncio.Lock] = {}

    async def check(self, partition: Partition) -> None:
        """Raise GapError if the source lost messages that were never read. If the cluster does not respond, log it and return."""
        checkpoint = None if self._checkpoints is None else self._checkpoints.load(self._route, self._group, partition)
        if checkpoint is None:
            return
        try:
            bounds, committed = await self._positions(partition.topic)
        except ClusterError as error:
            log.warning("%s cannot be checked for a gap: %s", partition, error)
            return
        held = bounds.get(partition.name)
        if held is None:
            return
        delivered = max(checkpoint, committed.get(partition.name, checkpoint))
        if held.first > delivered:
            raise GapError(
                f"{partition} begins at {format_position(held.first)}, but this route had delivered only up to "
                f"{format_position(delivered)}: the messages between are lost",
                held.first,
            )
        if held.next < delivered:
            log.warning(
                "%s ends at %s, before the delivered position %s: it was created anew, or its broker lost acknowledged messages",
                partition,
                format_position(held.next),
                format_position(delivered),
            )

    async def _positions(self, topic: str) -> "_Positions":
        task = self._next.get(topic)
        if task is None:
            task = self._next[topic] = spawn(self._fetch(topic), f"bounds of {topic}", quiet=True)
            task.add_done_callback(collect_error)
        return await asyncio.shield(task)

    async def _fetch(self, topic: str) -> "_Positions":
        async with self._one_at_a_time.setdefault(topic, asyncio.Lock()):
            del self._next[topic]  # later callers need a new request
            bounds = await self._source.bounds(topic)
            try:
                # After the bounds: if another member reads messages and retention deletes them between the two requests, the
                # order shows no gap.
                return bounds, await self._source.committed(topic, self._group)
            except ClusterError as error:
                log.debug("the positions of group %s on %s are not known: %s", self._group, topic, error)
                return bounds, {}


_Positions = tuple[Mapping[str, Bounds], Mapping[str, Position]]
"""The bounds and the group's committed position, by partition name."""
