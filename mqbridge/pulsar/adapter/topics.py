"""Topic and partition names between the gateway and Pulsar.

A partition's name is its number. A topic without partitions has the one partition `-1`, which is how Pulsar's own message ids
say the same: it is the topic itself, while `0` would be `<topic>-partition-0`.
"""

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.wire.names import DOMAINS, TopicName, parse_topic

WHOLE = "-1"
"""The name of the only partition of a topic that has none."""


class Topics:
    """The topics of one cluster, by the names that configurations use."""

    def __init__(self, client: PulsarClient, cluster: str, namespace: str) -> None:
        self._client, self._cluster, self.namespace = client, cluster, namespace

    def parse(self, topic: str) -> TopicName:
        """A topic's full name. Raises ClusterError (FATAL)."""
        try:
            return parse_topic(topic, self.namespace)
        except ValueError as error:
            raise ClusterError(str(error), Failure.FATAL) from error

    async def names(self, topic: str) -> tuple[str, ...] | None:
        """The names of the partitions, None when there is no such topic."""
        count = await self._client.partitions(str(self.parse(topic)))
        if count is None:
            return None
        return tuple(map(str, range(count))) if count else (WHOLE,)

    async def existing(self, topic: str) -> tuple[str, ...]:
        """As `names`; raises ClusterError (FATAL) for a missing topic."""
        names = await self.names(topic)
        if names is None:
            full = self.parse(topic)
            raise ClusterError(f"there is no topic {full} in Pulsar cluster {self._cluster!r}; create it", Failure.FATAL)
        return names

    async def partitions(self, topic: str, *, missing: bool = False) -> list[Partition]:
        """The partitions of a topic, which keeps the spelling that it was asked for by; none if it may be `missing`, and is."""
        names = await self.names(topic) or () if missing else await self.existing(topic)
        return [Partition(self._cluster, topic, name, index) for index, name in enumerate(names)]

    def is_kept(self, topic: str) -> bool:
        """Whether the topic exists apart from those who use it; others are there as long as somebody asks for them."""
        return self.parse(topic).domain == DOMAINS[0]

    def concrete(self, partition: Partition) -> str:
        """The full name that producers and consumers of this partition use."""
        topic = self.parse(partition.topic)
        return str(topic if partition.name == WHOLE else topic.partition(int(partition.name)))
