"""The embedded log as a cluster: implements `mqbridge.adapter.cluster.Cluster` on one log file."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.tools.unit_ranges import unit_ranges_from_offsets
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.lane import RECEIVE_BYTES, RECEIVE_MESSAGES, make_batch
from mqbridge.log.adapter.operations import LogOperations
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.store import jumps, topics
from mqbridge.log.store.append import Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.names import check_name, name_problem
from mqbridge.log.store.read import check_offset
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Batch, Partition, Position

MAX_PARTITIONS = 10_000
"""Maximum number of partitions of a topic; each poll for new messages reads a row per partition."""


class LogCluster:
    """One log file. Other processes, and other clusters of this process, may have the same file open."""

    capabilities = Capabilities(seek=True)

    def __init__(self, name: str, config: LogSettings) -> None:
        self.name, self.identity = name, config.identity
        self.store = Store(config)
        self._appender = Appender(self.store)

    @property
    def operations(self) -> Operations:
        """Operations on topics and groups, for commands and pages."""
        return LogOperations(self.store, self)

    async def connect(self) -> None:
        """Open the file, or create it."""
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

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return, by partition, the offset of the oldest message and the offset that the next appended message will get."""
        return {str(row.number): _bounds(row) for row in await self.existing_partitions(topic)}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the group's committed offsets; an acknowledgement appears here within 0.1 s (ACK_FLUSH_S)."""
        await self.existing_partitions(topic)
        check_name("group", group)
        offsets = await self.store.read(topics.committed, topic, group)
        return {str(number): (offset,) for number, offset in offsets.items()}

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the messages from `begin` to before `end` as batches; without `end`, wait for new messages after the last one.

        Raises ClusterError, and GapError if messages of the range were dropped or are damaged.
        """
        row = next((row for row in await self.existing_partitions(topic) if str(row.number) == partition), None)
        if row is None:
            raise ClusterError(f"topic {topic!r} of log {self.name!r} has no partition {partition}", Failure.FATAL)
        source, wake = Partition(self.name, topic, partition, row.number), asyncio.Event()
        (offset,) = begin
        check_offset(offset)
        end_offset = None if end is None else end[0]
        self.store.tails.watch(row.id, wake)
        try:
            while end_offset is None or offset < end_offset:
                wake.clear()
                rows, offset, _ = await self.store.rows(row.id, offset, RECEIVE_BYTES, RECEIVE_MESSAGES)
                if end_offset is not None and (not rows or offset >= end_offset):
                    return  # the range ends beyond the last message, or in the jump of a restored file
                if rows:
                    base, count, _ = rows[-1]  # the offset of its first message, and the number of its messages
                    next_offset = base + count if end_offset is None else min(end_offset, base + count)
                    yield make_batch(source, rows, offset, next_offset)
                    offset = next_offset
                else:
                    await wake.wait()  # set if the partition has grown since the read
        finally:
            self.store.tails.unwatch(row.id, wake)

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
        """Raise ClusterError if a topic does not exist, ConfigError if a group cannot have this name."""
        check_name("group", spec.group)
        for topic in spec.topics:
            await self.existing_partitions(topic)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a producer into one topic."""
        return LogOutbound(self, self.store, self._appender, spec, await self.existing_partitions(spec.topic))

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise ClusterError if the topic does not exist."""
        await self.existing_partitions(spec.topic)

    async def existing_partitions(self, topic: str) -> Sequence[PartitionRow]:
        """Return the partitions of a topic. Raises ClusterError if it does not exist."""
        rows = [] if name_problem(topic) else await self.store.read(topics.partitions, topic)
        if not rows:
            raise ClusterError(
                f"topic {topic!r} does not exist in log {self.name!r} ({self.store.config.path}); create it", Failure.FATAL
            )
        return rows


def _bounds(row: PartitionRow) -> Bounds:
    return Bounds((row.first,), (row.next,), tuple((jump.first, jump.next) for jump in row.jumps))
