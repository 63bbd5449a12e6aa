"""Topics of a cluster, from a notebook."""

from mqbridge.spark.chosen import chosen_cluster
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import Where, parse_options
from mqbridge.spark.portal import portal

CREATE_S = 60.0


def create_topic(topic: str, partitions: int = 1, **options: str) -> None:
    """Create the topic or grow it to that many partitions; nothing happens when it is already so.

    `options` are those of the data source that name a cluster: `url`, or `config` and `cluster`.

    Raises ConfigError, ClusterError.
    """
    cluster = chosen_cluster(parse_options(options, Where.EVERYWHERE))
    portal().run(_create(cluster, topic, partitions), CREATE_S)


async def _create(ref: ClusterRef, topic: str, partitions: int) -> None:
    async with portal().cluster(ref) as cluster:
        await cluster.check_create(topic, partitions)
        await cluster.create(topic, partitions)
