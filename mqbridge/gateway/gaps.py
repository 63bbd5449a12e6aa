"""Whether a source still holds what follows the place where a route left off.

Compared once for each partition that is assigned. Without a checkpoint there is nothing to compare.
"""

import asyncio
import logging
from collections.abc import Mapping

from mqbridge.adapter import Bounds, Cluster
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Partition, format_position
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)


class GapCheck:
    """The check of one route; without `checkpoints` nothing is noticed."""

    def __init__(self, route: str, source: Cluster, checkpoints: Checkpoints | None) -> None:
        self._route, self._source, self._checkpoints = route, source, checkpoints
        self._bounds: dict[str, asyncio.Task[Mapping[str, Bounds]]] = {}
        """What each source topic held when its first partition was assigned."""

    async def check(self, partition: Partition) -> None:
        """Raises GapError when what was never read is gone. A cluster that cannot tell just now is no reason to stop."""
        left_off = None if self._checkpoints is None else self._checkpoints.load(self._route, partition)
        if left_off is None:
            return
        topic = partition.topic
        if topic not in self._bounds:
            self._bounds[topic] = spawn(self._source.bounds(topic), f"bounds of {topic}", quiet=True)
        try:
            held = (await asyncio.shield(self._bounds[topic])).get(partition.name)
        except ClusterError as error:
            log.warning("%s cannot be checked for a gap: %s", partition, error)
            return
        if held is None:
            return
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
