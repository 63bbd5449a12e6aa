"""The embedded log as a cluster: implements `mqbridge.adapter.cluster.Cluster` on one log file."""

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
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.operations import LogOperations
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.adapter.reader import LogReader
from mqbridge.log.adapter.unit_formats import prepare_formats
from mqbridge.log.store import jumps, topics
from mqbridge.log.store.append import Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.names import NAME_RULE, check_name, name_problem
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Partition, Position

MAX_SENDER_BYTES = 64 << 10
"""Maximum length of a sender's name in UTF-8: it stands beside each row that the sender has stored."""
MAX_PARTITIONS = 10_000
"""Maximum number of partitions of a topic; each poll for new messages reads a row per partition."""


class LogCluster:
    """One log file. Other processes, and other clusters of this process, may have the same file open."""

    numbering = OffsetNumbering()

    def __init__(self, name: str, config: LogSettings) -> None:
        self.capabilities = Capabilities(
            acknowledges_dropped=True,
            seek=True,
            delete_topics=True,
            topic_name=NAME_RULE,
            group_name=NAME_RULE,
            max_message_bytes=config.max_message_bytes,
        )
        self.name, self.identity = name, config.identity
        self.store = Store(config)
        self._appender = Appender(self.store)

    @property
    def operations(self) -> Operations:
        """Operations on topics and groups, for commands and pages."""
        return LogOperations(self.store, self)

    async def connect(self) -> None:
        """Open the file, or create it; load what decodes the units in it."""
        await self.store.open()

    async def close(self, deadline: float | None = None) -> None:
        """Close the file; do not wait beyond the deadline (loop time; None: no limit) for a running transaction."""
        await self.store.close(deadline)

    async def topics(self) -> list[str]:
        """Return all topic names."""
        return await self.store.read(topics.names)

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic, or None if it does not exist."""
        rows = [] if name_problem(topic) else await self.store.read(topics.partitions, topic)
        return Topic(topic, tuple(str(row.number) for row in rows)) if rows else None

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic or grow it; a topic never shrinks."""
        await self.check_create(topic, partitions)
        await self.store.write(topics.create(topic, partitions))

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise ConfigError if the name or the number of partitions is invalid."""
        check_name("topic", topic)
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"cannot create topic {topic!r} with {partitions} partitions in log {self.name!r}",
                hint=f"Give it 1 to {MAX_PARTITIONS} partitions",
            )

    async def delete(self, topic: str) -> None:
        """Delete the topic with its messages and all that groups have of it. Raises ClusterError while a group has members.

        Open readers and outbounds of the topic fail. What this could not delete, because of an error or a cancellation, is
        deleted by the next pass of the retention, by another call, or when the log is opened again.
        """
        if not name_problem(topic):
            await self.store.delete_topic(topic)

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return, by partition, the offset of the oldest message, the one of the next message, and that of the last one."""
        if partition is not None:
            return {partition: _bounds(await self._existing_partition(topic, partition))}
        return {str(row.number): _bounds(row) for row in await self.existing_partitions(topic)}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the group's committed offsets; an acknowledgement appears here within 0.1 s (ACK_FLUSH_S)."""
        await self.existing_partitions(topic)
        check_name("group", group)
        offsets = await self.store.read(topics.committed, topic, group)
        return {str(number): (offset,) for number, offset in offsets.items()}

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Open a reader. It reads no more than one batch at a time, of `max_bytes` at most, and holds nothing in between."""
        row = await self._existing_partition(topic, partition)
        return LogReader(self.store, row.id, Partition(self.name, topic, partition, row.number), begin, end, max_bytes)

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range from `begin` to `end` in which each message is a unit; nothing if it is empty.

        The jumps of a restored file divide it.
        """
        row = next((row for row in await self.existing_partitions(topic) if str(row.number) == partition), None)
        parts = jumps.parts_between([] if row is None else row.jumps, begin[0], end[0])
        return [units for part in parts for units in unit_ranges_from_offsets(part[:1], part[1:])]

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join the group of the spec, and return its new member."""
        await self.check_inbound(spec)
        inbound = LogInbound(self.store, self.name, spec)
        try:
            await inbound.join()
        except BaseException:
            await inbound.close()  # it may have joined: without this, its partitions would wait for the end of its lease
            raise
        return inbound

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise ClusterError if a topic does not exist, ConfigError for a group's name, or a way to share, that is invalid."""
        check_name("group", spec.group)
        check_sharing(self, spec)
        for topic in spec.topics:
            await self.existing_partitions(topic)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a producer into one topic."""
        _check_sender(spec)
        if spec.keep_units:
            await prepare_formats()
        return LogOutbound(self, self.store, self._appender, spec, await self.existing_partitions(spec.topic))

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise ClusterError if the topic does not exist, ConfigError for an invalid name of a sender."""
        _check_sender(spec)
        await self.existing_partitions(spec.topic)

    async def existing_partitions(self, topic: str) -> Sequence[PartitionRow]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""
        rows = [] if name_problem(topic) else await self.store.read(topics.partitions, topic)
        if not rows:
            raise ClusterError(
                f"topic {topic!r} does not exist in log {self.name!r} ({self.store.config.path}); create it", Failure.FATAL
            )
        return rows

    async def _existing_partition(self, topic: str, partition: str) -> PartitionRow:
        """Return a partition. Raises ClusterError if it does not exist."""
        number = int(partition) if partition.isascii() and partition.isdigit() else -1
        row = None if name_problem(topic) else await self.store.read(topics.partition, topic, number)
        if row is None or str(number) != partition:
            await self.existing_partitions(topic)  # raises if there is no such topic
            raise ClusterError(f"topic {topic!r} of log {self.name!r} has no partition {partition}", Failure.FATAL)
        return row


def _check_sender(spec: OutboundSpec) -> None:
    """Raise ConfigError for a sender's name that cannot be stored."""
    if spec.sender is None:
        return
    try:
        size = len(spec.sender.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_SENDER_BYTES:
        raise ConfigError(
            f"{spec.sender[:80]!a} cannot be the name of a sender into the log",
            hint=f"Give it 1 to {MAX_SENDER_BYTES} bytes of text",
        )


def _bounds(row: PartitionRow) -> Bounds:
    left_out = tuple((jump.first, jump.next) for jump in row.jumps)
    end = row.next
    for first, after in reversed(left_out):
        if after == end:
            end = first
    return Bounds((row.first,), (row.next,), left_out, (end - 1,) if end > row.first else None)
