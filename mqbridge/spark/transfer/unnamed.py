"""Messages whose origins name no writer: an earlier version of mqbridge stored them, or a route of the gateway did.

It is unknown whether they are those of the job that looks for its own messages. They do not count as stored: if they are of
another writer, the job's own messages would be missing. If they are its own, the job stores them again, and says so.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.message import Partition, Position, format_position
from mqbridge.spark.transfer.resume import by_index

log = logging.getLogger(__name__)


async def warn_of_unnamed(
    cluster: Cluster, topic: str, source: Partition, first: Position, since: Mapping[str, Position] | None
) -> None:
    """Log a warning if the target stores messages of a source, from `first` on, that name no writer. Raises ClusterError.

    `since` limits the search, as in `last_stored`.
    """
    described = await cluster.describe(topic)
    if described is None:
        return
    partitions = dict(enumerate(described.partitions))
    stored = await last_stored(cluster, topic, partitions, _as_earlier_versions(source), await by_index(cluster, topic, since))
    if (last := max(stored.values(), default=())) >= first:
        log.warning(
            "%s: %s/%s stores messages of this source up to position %s whose origins name no writer. A route of the gateway "
            "wrote them, or this job with an earlier version of mqbridge. They do not count as stored, so this job stores its "
            "messages again",
            source,
            cluster.name,
            topic,
            format_position(last),
        )


def _as_earlier_versions(source: Partition) -> Partition:
    """Return the partition as origins without a writer name it: a cluster given by URL was called after its system."""
    return replace(source, cluster=source.cluster.partition("://")[0])
