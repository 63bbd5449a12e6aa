"""Whether a source still holds what follows the position where a route left off.

Asked for each partition when it is assigned, with what the source says then: a partition may have been read by another member
meanwhile, whose progress only the group's own position shows. (A source that moves the group on by itself and drops what it left
out shows the same, and is not noticed.) Without a checkpoint there is nothing to compare.
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
    """The check of one route's group; without `checkpoints` nothing is noticed."""

    def __init__(self, route: str, group: str, source: Cluster, checkpoints: Checkpoints | None) -> None:
        self._route, self._group, self._source, self._checkpoints = route, group, source, checkpoints
        self._next: dict[str, asyncio.Task[_Held]] = {}
        """By topic the look at it that has not begun yet: partitions that are assigned together share one."""
        self._one_at_a_time: dict[str, asyncio.Lock] = {}

    async def check(self, partition: Partition) -> None:
        """Raises GapError when what was never read is gone. A cluster that cannot tell just now is no reason to stop."""
        checkpoint = None if self._checkpoints is None else self._checkpoints.load(self._route, self._group, partition)
        if checkpoint is None:
            return
        try:
            bounds, committed = await self._look(partition.topic)
        except ClusterError as error:
            log.warning("%s cannot be checked for a gap: %s", partition, error)
            return
        held = bounds.get(partition.name)
        if held is None:
            return
        left_off = max(checkpoint, committed.get(partition.name, checkpoint))
        if held.first > left_off:
            raise GapError(
                f"{partition} begins at {format_position(held.first)}, but this route had delivered only up to "
                f"{format_position(left_off)}: what lay between is gone",
                held.first,
            )
        if held.next < left_off:
            log.warning(
                "%s ends at %s, before the %s that was delivered: it was made anew, or its broker lost what it had acknowledged",
                partition,
                format_position(held.next),
                format_position(left_off),
            )

    async def _look(self, topic: str) -> "_Held":
        task = self._next.get(topic)
        if task is None:
            task = self._next[topic] = spawn(self._ask(topic), f"bounds of {topic}", quiet=True)
            task.add_done_callback(collect_error)
        return await asyncio.shield(task)

    async def _ask(self, topic: str) -> "_Held":
        async with self._one_at_a_time.setdefault(topic, asyncio.Lock()):
            del self._next[topic]  # whoever comes from now on needs a later answer
            bounds = await self._source.bounds(topic)
            try:
                # Asked last: what others have read and retention has dropped since is then in both.
                return bounds, await self._source.committed(topic, self._group)
            except ClusterError as error:
                log.debug("the positions of group %s on %s are not known: %s", self._group, topic, error)
                return bounds, {}


_Held = tuple[Mapping[str, Bounds], Mapping[str, Position]]
"""What a topic holds by partition name, and how far the group has read it."""
