"""The memory system as a cluster: implements `mqbridge.adapter.cluster.Cluster` on a broker inside the process."""

from collections.abc import Mapping, Sequence

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.tools.sharing import check_sharing
from mqbridge.adapter.tools.unit_ranges import unit_ranges_from_offsets
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure, Unreachable
from mqbridge.message import Partition, Position
from mqbridge.net.connectivity import Connectivity
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.adapter.inbound import MemoryInbound
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from mqbridge.testing.memory.adapter.reader import MemoryReader
from mqbridge.testing.memory.broker import ADDRESS, StoredPartition, get_broker


class MemoryCluster:
    """A client of a broker in this process; several clusters can share one broker."""

    numbering = OffsetNumbering()

    def __init__(self, name: str, config: MemoryConfig) -> None:
        self.name, self.identity = name, config.identity
        self.capabilities = Capabilities(
            acknowledges_dropped=True,
            seek=True,
            delete_topics=True,
            max_message_bytes=config.max_message_bytes,
            empty_payload=config.empty_payload,
            growing_outbound=config.growing_outbound,
        )
        self._config = config
        self.broker = get_broker(config.broker or name)
        self.connectivity = Connectivity(name)

    @property
    def operations(self) -> Operations:
        """Operations on groups and offsets."""
        return MemoryOperations(self)

    async def connect(self) -> None:
        """Register with the broker, also during a simulated outage, in which this raises Unreachable."""
        self.connectivity.open()
        if self.connectivity not in self.broker.connectivities:
            self.broker.connectivities.append(self.connectivity)
        try:
            self._require_connected()
        except Unreachable as error:
            self.connectivity.record_failure(ADDRESS, error)
            raise
        # Reported as a connection that was opened and closed: the broker responded, and there is no connection to lose later.
        self.connectivity.record_response(ADDRESS)
        self.connectivity.record_end(ADDRESS)

    async def close(self, deadline: float | None = None) -> None:
        """Unregister from the broker. This does not wait, so `deadline` has no effect."""
        self.connectivity.close()
        if self.connectivity in self.broker.connectivities:
            self.broker.connectivities.remove(self.connectivity)

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        self._require_connected()
        return sorted(self.broker.topics)

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic, or None if it does not exist."""
        self._require_connected()
        stored = self.broker.topics.get(topic)
        return None if stored is None else Topic(topic, tuple(map(str, range(len(stored)))))

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or grow it to this number of partitions; it never shrinks. Raises the errors of `check_create`."""
        await self.check_create(topic, partitions)
        self.broker.create(topic, partitions)

    async def check_create(self, topic: str, partitions: int) -> None:
        """Check the name and the number of partitions. Raises ConfigError, or ClusterError for an injected fault."""
        self._require_connected()
        if not topic or partitions < 1:
            raise ConfigError(
                f"topic {topic!r} with {partitions} partitions cannot be created",
                hint="Give it a name and at least one partition",
            )
        if self.broker.faults.create_error is not None:
            raise ClusterError(self.broker.faults.create_error, Failure.FATAL)

    async def delete(self, topic: str) -> None:
        """Delete the topic with its messages and the progress of its groups."""
        self._require_connected()
        if topic in self.broker.topics:
            self.broker.delete(topic)

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return the first, the next and the last offset by partition, or of one partition."""
        if partition is not None:
            return {partition: _bounds_of(self._existing_partition(topic, partition))}
        return {str(number): _bounds_of(stored) for number, stored in enumerate(self.existing_partitions(topic))}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return by partition the offset below which the group has acknowledged everything; none without progress."""
        self.existing_partitions(topic)
        progress = self.broker.progress.items()
        return {
            str(number): (state.committed,)
            for (progress_group, progress_topic, number), state in progress
            if (progress_group, progress_topic) == (group, topic)
        }

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Open a reader. It holds no messages besides those that the broker stores, so `max_bytes` has no effect."""
        stored = self._existing_partition(topic, partition)
        source = Partition(self.name, topic, partition, int(partition))
        return MemoryReader(stored, source, begin, end, self._config.batch_messages)

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return one unit range for these offsets: each unit, the smallest amount to split by, is one message."""
        return unit_ranges_from_offsets(begin, end)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group and return its new member."""
        await self.check_inbound(spec)
        inbound = MemoryInbound(self.broker, self.name, self._config, spec)
        self.broker.join(spec.group, inbound)
        return inbound

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise ClusterError if a topic is missing, if the injected fault `join_error` is set, or for another way to share."""
        check_sharing(self, spec)
        for topic in spec.topics:
            self.existing_partitions(topic)
        if self.broker.faults.join_error is not None:
            raise ClusterError(self.broker.faults.join_error, Failure.FATAL)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open an outbound into one topic."""
        await self.check_outbound(spec)
        return MemoryOutbound(self.broker, self._config, spec, self.connectivity)

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise ClusterError if the topic is missing."""
        self.existing_partitions(spec.topic)

    def _require_connected(self) -> None:
        """Raise Unreachable while the broker simulates an outage."""
        if not self.broker.connected.is_set():
            raise Unreachable(f"memory cluster {self.name!r} is disconnected")

    def existing_partitions(self, topic: str) -> list[StoredPartition]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""
        self._require_connected()
        if topic not in self.broker.topics:
            raise ClusterError(f"there is no topic {topic!r} in memory cluster {self.name!r}; create it", Failure.FATAL)
        return self.broker.topics[topic]

    def _existing_partition(self, topic: str, partition: str) -> StoredPartition:
        """Return a partition. Raises ClusterError if it does not exist."""
        partitions = self.existing_partitions(topic)
        if partition not in map(str, range(len(partitions))):
            raise ClusterError(f"topic {topic!r} has no partition {partition}", Failure.FATAL)
        return partitions[int(partition)]


def _bounds_of(stored: StoredPartition) -> Bounds:
    last = (stored.next - 1,) if stored.messages else None
    return Bounds((stored.first,), (stored.next,), last=last)
