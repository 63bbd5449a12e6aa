"""Translates topic and partition names between the gateway and Pulsar.

A partition's name is its number. An unpartitioned topic has the one partition `-1`, as in Pulsar's own message ids: it is the
topic itself, while `0` would be `<topic>-partition-0`.
"""

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.wire.names import PERSISTENT, TopicName, parse_topic

UNPARTITIONED = "-1"
"""Name of the only partition of an unpartitioned topic."""


class Topics:
    """The topics of one cluster. Its methods take topic names as configurations write them.

    `namespace` is the namespace (`tenant/namespace`) of topic names that have none.
    """

    def __init__(self, client: ClusterClient, cluster: str, namespace: str) -> None:
        self._client, self._cluster, self.namespace = client, cluster, namespace

    def parse(self, topic: str) -> TopicName:
        """Return the full name of a topic. Raises ClusterError (FATAL) for an invalid name."""
        try:
            return parse_topic(topic, self.namespace)
        except ValueError as error:
            raise ClusterError(str(error), Failure.FATAL) from error

    async def partition_names(self, topic: str) -> tuple[str, ...] | None:
        """Return the names of the partitions, None if the topic does not exist."""
        count = await self._client.partitions(str(self.parse(topic)))
        if count is None:
            return None
        return tuple(map(str, range(count))) if count else (UNPARTITIONED,)  # Pulsar reports 0 for an unpartitioned topic

    async def require_partition_names(self, topic: str) -> tuple[str, ...]:
        """Return the names of the partitions. Raises ClusterError (FATAL) for a missing topic."""
        names = await self.partition_names(topic)
        if names is None:
            full = self.parse(topic)
            raise ClusterError(f"there is no topic {full} in Pulsar cluster {self._cluster!r}; create it", Failure.FATAL)
        return names

    async def partitions(self, topic: str, *, allow_missing: bool = False) -> list[Partition]:
        """Return the partitions of a topic; `Partition.topic` is the name as given.

        A missing topic has no partitions with `allow_missing`; otherwise it raises ClusterError (FATAL).
        """
        if allow_missing:
            names = await self.partition_names(topic) or ()
        else:
            names = await self.require_partition_names(topic)
        return [Partition(self._cluster, topic, name, index) for index, name in enumerate(names)]

    def is_persistent(self, topic: str) -> bool:
        """Return True for a persistent topic; a non-persistent one exists only while it is in use."""
        return self.parse(topic).domain == PERSISTENT

    def partition_topic_name(self, partition: Partition) -> str:
        """Return the full topic name of this partition for producers and consumers."""
        return self.name_of_partition(partition.topic, partition.name)

    def name_of_partition(self, topic: str, partition: str) -> str:
        """Return the full topic name of the partition with this name."""
        full = self.parse(topic)
        return str(full if partition == UNPARTITIONED else full.partition(int(partition)))
