"""The embedded log as the gateway sees it."""

from collections.abc import Mapping, Sequence

from mqbridge.adapter import (
    Adapter,
    Bounds,
    Capabilities,
    Inbound,
    InboundSpec,
    Member,
    Outbound,
    OutboundSpec,
    Topic,
    dense_backlog,
    dense_newest,
)
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.log.adapter import operations as operate
from mqbridge.log.adapter.config import LogInboundOptions, LogOutboundOptions
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.store import topics
from mqbridge.log.store.append import Appender
from mqbridge.log.store.database import Store, now_ms
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.topics import PartitionRow
from mqbridge.message import Position

MAX_PARTITIONS = 10_000


class LogCluster:
    """One log file. Other processes, and other clusters of this one, may have it open too."""

    capabilities = Capabilities(seek=True, move_groups=True, find_times=True)

    def __init__(self, name: str, config: LogSettings) -> None:
        self.name = name
        self.store = Store(config)
        self._appender = Appender(self.store)

    async def connect(self) -> None:
        """Open or create the file."""
        await self.store.open()

    async def close(self) -> None:
        """Let the file go."""
        await self.store.close()

    async def topics(self) -> list[str]:
        """All topics."""
        return await self.store.read(topics.names)

    async def describe(self, topic: str) -> Topic | None:
        """The topic, or None."""
        rows = await self.store.read(topics.partitions, topic)
        return Topic(topic, tuple(str(row.number) for row in rows)) if rows else None

    async def create(self, topic: str, partitions: int) -> None:
        """Create or grow; a topic is never made smaller."""
        if not topic or not 1 <= partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"topic {topic!r} with {partitions} partitions cannot be made in log {self.name!r}",
                hint=f"Give it a name and 1 to {MAX_PARTITIONS} partitions",
            )
        await self.store.write(topics.create(topic, partitions))

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset by partition."""
        return {str(row.number): Bounds((row.first,), (row.next,)) for row in await self._existing(topic)}

    async def groups(self, topic: str) -> list[str]:
        """The groups that ever joined."""
        await self._existing(topic)
        return await self.store.read(topics.groups, topic)

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The group's offsets, as far as they are written: an acknowledgement shows after ACK_FLUSH_S."""
        await self._existing(topic)
        offsets = await self.store.read(topics.committed, topic, group)
        return {str(number): (offset,) for number, offset in offsets.items()}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages from the group's offsets to the ends."""
        return dense_backlog(await self.committed(topic, group), await self.bounds(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """The living members, of this process and others, with their leases."""
        await self._existing(topic)
        return await self.store.read(operate.members, topic, group, now_ms())

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's offsets."""
        await self._existing(topic)
        offsets = {name: position[0] for name, position in positions.items()}
        await self.store.write(operate.move, topic, group, offsets, now_ms())

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """By the time of appending."""
        await self._existing(topic)
        found = await self.store.read(operate.offsets_at, topic, time_ms)
        return {name: (offset,) for name, offset in found.items()}

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many before the end."""
        return dense_newest(await self.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """The limits of the log, which hold for every topic of it."""
        await self._existing(topic)
        return operate.settings(self.store.config)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group."""
        for topic in spec.topics:
            await self._existing(topic)
        inbound = LogInbound(self.store, self.name, spec)
        await inbound.join()
        return inbound

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        return LogOutbound(self.store, self._appender, spec, await self._existing(spec.topic))

    async def _existing(self, topic: str) -> Sequence[PartitionRow]:
        rows = await self.store.read(topics.partitions, topic)
        if not rows:
            raise ClusterError(
                f"there is no topic {topic!r} in log {self.name!r} ({self.store.config.path}); create it", Failure.FATAL
            )
        return rows


ADAPTER = Adapter("log", LogSettings, LogInboundOptions, LogOutboundOptions, LogCluster)
