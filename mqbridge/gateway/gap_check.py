"""Checks for gaps: whether the source still has all messages after the position up to which a route has delivered.

The check runs for each partition when it is assigned, with current bounds of the source. It also reads the group's committed
position: another member may have read further since the checkpoint. Some sources move a group's committed position past messages
that they delete; such a gap is not detected, because it looks as if another member had read them. A partition without a
checkpoint is not checked.
"""

import asyncio
import logging
from collections.abc import Mapping

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.topics import Bounds
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Partition, Position, format_position
from mqbridge.net.tasks import mark_error_retrieved, spawn

log = logging.getLogger(__name__)


class GapCheck:
    """The check for one route's group; without `checkpoints` no gap is found."""

    def __init__(self, route: str, group: str, source: Cluster, checkpoints: Checkpoints | None) -> None:
        self._route, self._group, self._source, self._checkpoints = route, group, source, checkpoints
        self._queued_requests: dict[str, asyncio.Task[_BoundsAndCommitted]] = {}
        """By topic, the request that waits for its lock; partitions that are assigned together share one request."""
        self._topic_locks: dict[str, asyncio.Lock] = {}
        """Allow one request at a time per topic."""

    async def check(self, partition: Partition) -> None:
        """Raise GapError if the source lost messages that were never read.

        If the source ends before the delivered position, or if the request fails, log a warning and return.
        """
        checkpoint = None if self._checkpoints is None else self._checkpoints.load(self._route, self._group, partition)
        if checkpoint is None:
            return
        try:
            bounds, committed = await self._request_positions(partition.topic)
        except ClusterError as error:
            log.warning(
                "route %s: partition %s cannot be checked for lost messages, starting without this check: %s",
                self._route,
                partition,
                error,
            )
            return
        limits = bounds.get(partition.name)
        if limits is None:  # the source does not report this partition
            return
        delivered = max(checkpoint, committed.get(partition.name, checkpoint))
        if limits.first > delivered:
            raise GapError(
                f"messages of partition {partition} are lost: the partition begins at {format_position(limits.first)}, but this "
                f"route had delivered only up to {format_position(delivered)}",
                limits.first,
            )
        if limits.next < delivered:
            log.warning(
                "route %s: partition %s ends at position %s, before the delivered position %s: the topic was created again, or "
                "the broker lost acknowledged messages; the route reads on from the group's position",
                self._route,
                partition,
                format_position(limits.next),
                format_position(delivered),
            )

    async def _request_positions(self, topic: str) -> "_BoundsAndCommitted":
        """Return the current positions of a topic, from a request that starts after this call."""
        task = self._queued_requests.get(topic)
        if task is None:
            task = self._queued_requests[topic] = spawn(self._fetch(topic), f"bounds of {topic}", log_errors=False)
            task.add_done_callback(mark_error_retrieved)
        return await asyncio.shield(task)

    async def _fetch(self, topic: str) -> "_BoundsAndCommitted":
        """Request the positions of a topic, after the request that is in progress."""
        async with self._topic_locks.setdefault(topic, asyncio.Lock()):
            del self._queued_requests[topic]  # later callers need a new request
            bounds = await self._source.bounds(topic)
            try:
                # Requested after the bounds: if another member reads messages and retention deletes them between the two
                # requests, the newer committed position and the older bounds show no gap.
                return bounds, await self._source.committed(topic, self._group)
            except ClusterError as error:
                log.debug(
                    "route %s: the positions of group %s in topic %s cannot be read, so lost messages are found only with "
                    "the gateway's checkpoints: %s",
                    self._route,
                    self._group,
                    topic,
                    error,
                )
                return bounds, {}


_BoundsAndCommitted = tuple[Mapping[str, Bounds], Mapping[str, Position]]
"""The bounds and the group's committed position, by partition name."""
