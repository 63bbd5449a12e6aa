"""The embedded log as the gateway sees it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.registry import Adapter
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.adapter.unit_ranges import unit_ranges_from_offsets
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.adapter.config import LogInboundOptions, LogOutboundOptions
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.lane import RECEIVE_BYTES, RECEIVE_MESSAGES, make_batch
from mqbridge.log.adapter.operations import LogOperations
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.mapping.preview import preview
from mqbridge.log.mapping.table import TABLE
from mqbridge.log.store import topics
from mqbridge.log.store.append import Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Batch, Partition, Position

MAX_PARTITIONS = 10_000


class LogCluster:
    """One log file. Other processes, and other clusters of this one, may have it open too."""

    capabilities = Capabilities(seek=True)

    def __init__(self, name: str, config: LogSettings) -> None:
        self.name = name
        self.store = Store(config)
        self._appender = Appender(self.store)

    @property
    def operations(self) -> Operations:
        """What people may ask."""
        return LogOperations(self.store, self)

    async def connect(self) -> None:
        """Open or create the file."""
        await self.store.open()

    async def close(self, deadline: float | None = None) -> None:
        """Let the file go."""
        await self.store.close(deadline)

    async def topics(self) -> list[str]:
        """All topics."""
        return await self.store.read(topics.names)

    async def describe(self, topic: str) -> Topic | None:
        """The topic, or None."""
        rows = await self.store.read(topics.partitions, topic)
        return Topic(topic, tuple(str(row.number) for row in rows)) if rows else None

    async def create(self, topic: str, partitions: int) -> None:
        """Create or grow; a topic is never made smaller."""
        await self.check_create(topic, partitions)
        await self.store.write(topics.create(topic, partitions))

    async def check_create(self, topic: str, partitions: int) -> None:
        """Only a name, or a number of partitions, can be wrong."""
        if not topic or not 1 <= partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"topic {topic!r} with {partitions} partitions cannot be made in log {self.name!r}",
                hint=f"Give it a name and 1 to {MAX_PARTITIONS} partitions",
            )

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset by partition."""
        return {str(row.number): Bounds((row.first,), (row.next,)) for row in await self.existing(topic)}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The group's offsets, as far as they are written: an acknowledgement shows after ACK_FLUSH_S."""
        await self.existing(topic)
        offsets = await self.store.read(topics.committed, topic, group)
        return {str(number): (offset,) for number, offset in offsets.items()}

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Rows as they lie in the file, cut at both ends."""
        row = next((row for row in await self.existing(topic) if str(row.number) == partition), None)
        if row is None:
            raise ClusterError(f"topic {topic!r} of log {self.name!r} has no partition {partition}", Failure.FATAL)
        source, wake = Partition(self.name, topic, partition, row.number), asyncio.Event()
        (at,), last = begin, None if end is None else end[0]
        self.store.watch(row.id, wake)
        try:
            while last is None or at < last:
                wake.clear()
                rows, tail = await self.store.rows(row.id, at, RECEIVE_BYTES, RECEIVE_MESSAGES)
                if rows:
                    base, count, _ = rows[-1]
                    until = base + count if last is None else min(last, base + count)
                    yield make_batch(source, rows, at, until)
                    at = until
                elif last is not None:
                    return
                elif self.store.tails.get(row.id, 0) <= tail:
                    await wake.wait()
        finally:
            self.store.unwatch(row.id, wake)

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """By offsets: a unit is a message."""
        return unit_ranges_from_offsets(begin, end)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group."""
        await self.check_inbound(spec)
        inbound = LogInbound(self.store, self.name, spec)
        await inbound.join()
        return inbound

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Whether the topics are there."""
        for topic in spec.topics:
            await self.existing(topic)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        return LogOutbound(self, self.store, self._appender, spec, await self.existing(spec.topic))

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Whether the topic is there."""
        await self.existing(spec.topic)

    async def existing(self, topic: str) -> Sequence[PartitionRow]:
        """The partitions of a topic. Raises ClusterError."""
        rows = await self.store.read(topics.partitions, topic)
        if not rows:
            raise ClusterError(
                f"there is no topic {topic!r} in log {self.name!r} ({self.store.config.path}); create it", Failure.FATAL
            )
        return rows


ADAPTER = Adapter(
    system="log",
    cluster_model=LogSettings,
    inbound_options=LogInboundOptions,
    outbound_options=LogOutboundOptions,
    make_cluster=LogCluster,
    table=TABLE,
    preview=preview,
)
