"""Checks for gaps: whether the source has deleted messages that no member of the group had read.

The check runs for each partition when it is assigned, with current bounds of the source. Where the positions of a system are not
contiguous, the system itself decides (`JudgesDeletions`), because the end of a deleted storage segment does not differ from the
begin of lost messages. Elsewhere every position between the one up to which the group has read and the first stored one was a
message. A gap that cannot be ruled out is a warning, and the partition is read.

The check also reads the group's committed position: another member may have read further since the checkpoint. Some sources move
a group's committed position past messages that they delete; where the system does not report that, it looks as if another
member had read them. A partition without a checkpoint is not checked.
"""

import asyncio
import logging
from collections.abc import Mapping

from mqbridge.adapter.cluster import Cluster, JudgesDeletions
from mqbridge.adapter.topics import Bounds
from mqbridge.delivery.checkpoint import CheckpointKey, Checkpoints
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Partition, Position, format_position
from mqbridge.net.tasks import mark_error_retrieved, spawn

log = logging.getLogger(__name__)


class GapCheck:
    """The check for one route's group; without `checkpoints` no gap is found."""

    def __init__(self, route: str, group: str, source: Cluster, checkpoints: Checkpoints | None) -> None:
        self._route, self._group = route, group
        self._source, self._checkpoints = source, checkpoints
        self._queued_requests: dict[str, asyncio.Task[_BoundsAndCommitted]] = {}
        """By topic, the request that waits for its lock; partitions that are assigned together share one request."""
        self._topic_locks: dict[str, asyncio.Lock] = {}
        """Allow one request at a time per topic."""
        self._warned_at: dict[Partition, Position] = {}
        """By partition, the delivered position of the last warning that messages may be lost."""

    async def check(self, partition: Partition) -> bool:
        """Raise GapError if the source lost messages that were never read.

        Return False if it cannot be known whether it did; this is a warning, once for each position of a partition. If the source
        ends before the delivered position, log a warning, too.
        """
        await self._check_went_back(partition)
        checkpoint = None if self._checkpoints is None else self._checkpoints.load(self._route, self._group, partition)
        if checkpoint is None:
            return True
        try:
            bounds, committed = await self._request_positions(partition.topic)
            limits = bounds.get(partition.name)
            if limits is None:  # the source does not report this partition
                return True
            delivered = max(checkpoint, committed.get(partition.name, checkpoint))
            lost = await self._deleted_unread(partition, delivered, limits)
        except ClusterError as error:
            log.warning(
                "route %s: partition %s cannot be checked for lost messages, starting without this check: %s",
                self._route,
                partition,
                error,
            )
            return False
        if lost:
            raise GapError(
                f"messages of partition {partition} are lost: the partition begins at {format_position(limits.first)}, but this "
                f"route had delivered only up to {format_position(delivered)}",
                limits.first,
            )
        if limits.is_known and limits.next < delivered:
            log.warning(
                "route %s: partition %s ends at position %s, before the delivered position %s: the topic was created again, or "
                "the broker lost acknowledged messages; the route reads on from the group's position",
                self._route,
                partition,
                format_position(limits.next),
                format_position(delivered),
            )
        if lost is None:
            self._warn_unknown(partition, delivered)
        return lost is not None

    def record_stop(self, partition: Partition, gap: GapError) -> None:
        """Record a gap at which a partition stopped: with `state`, one that ended before its position stays stopped."""
        if self._checkpoints is not None and gap.went_back is not None:
            self._checkpoints.record_went_back(CheckpointKey.of(self._route, self._group, partition), gap.went_back)

    async def _check_went_back(self, partition: Partition) -> None:
        """Raise GapError if the partition stopped because it ended before its position, and the group's is still there.

        Meanwhile it may have grown beyond that position: the messages that it got before it were never read.
        """
        key = CheckpointKey.of(self._route, self._group, partition)
        if self._checkpoints is None or (stop := self._checkpoints.went_back(key)) is None:
            return
        ended, position = stop
        problem = (
            f"partition {partition} stopped earlier, because it ended at {format_position(ended)} and reading was to continue at "
            f"{format_position(position)}: the topic was created again, or the broker lost messages that it had not written to "
            f"disk. Set the group's position to {format_position(ended)} or before, or after {format_position(position)}, to "
            "continue"
        )
        try:
            committed = (await self._source.committed(partition.topic, self._group)).get(partition.name)
        except ClusterError as error:
            raise GapError(f"{problem} (the group's position cannot be read now: {error})", went_back=stop) from error
        if committed is not None and ended < committed <= position:
            raise GapError(problem, went_back=stop)
        self._checkpoints.record_went_back(key, None)

    async def _deleted_unread(self, partition: Partition, delivered: Position, limits: Bounds) -> bool | None:
        """Return whether messages from `delivered` on were deleted unread; None if this cannot be known. Raises ClusterError."""
        if not isinstance(self._source, JudgesDeletions):
            return limits.first > delivered
        if limits.first <= delivered and (limits.is_known or delivered <= limits.next):
            return False  # everything from the delivered position on is still stored
        return await self._source.deleted_unread(partition.topic, partition.name, self._group, delivered, limits.first)

    def _warn_unknown(self, partition: Partition, delivered: Position) -> None:
        """Log that messages may be lost, unless this was logged for the same position before."""
        if self._warned_at.get(partition) != delivered:
            self._warned_at[partition] = delivered
            log.warning(
                "route %s: the source has deleted the part of partition %s that ends at or after position %s, up to which this "
                "route had delivered, and cannot tell whether unread messages were in it: the route reads on",
                self._route,
                partition,
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
            if isinstance(self._source, JudgesDeletions):  # it looks at the group's position itself
                return bounds, {}
            try:
                # Requested after the bounds: if another member reads messages and retention deletes them between the two
                # requests, the newer committed position and the older bounds show no gap.
                return bounds, await self._source.committed(topic, self._group)
            except ClusterError as error:
                if error.failure is not Failure.FATAL:
                    raise  # the group may have read further than this route
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
