"""The memory as the gateway sees it."""

from collections.abc import Mapping

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
from mqbridge.errors import ClusterError, ConfigError, Failure, Unreachable
from mqbridge.memory.adapter.config import MemoryConfig, MemoryOptions
from mqbridge.memory.adapter.inbound import MemoryInbound
from mqbridge.memory.adapter.outbound import MemoryOutbound
from mqbridge.memory.broker import Progress, StoredPartition, broker
from mqbridge.message import Position


class MemoryCluster:
    """One client of a broker in this process."""

    def __init__(self, name: str, config: MemoryConfig) -> None:
        self.name = name
        self.capabilities = Capabilities(
            individual_ack=config.individual_ack,
            seek=True,
            empty_payload=config.empty_payload,
            growing_outbound=config.growing_outbound,
            move_groups=True,
        )
        self._config = config
        self.broker = broker(config.broker or name)

    async def connect(self) -> None:
        """Nothing to open. Raises Unreachable while the broker is told to be disconnected."""
        self._reach()

    async def close(self) -> None:
        """Nothing to close."""

    async def topics(self) -> list[str]:
        """All topics."""
        self._reach()
        return sorted(self.broker.topics)

    async def describe(self, topic: str) -> Topic | None:
        """The topic, or None."""
        self._reach()
        stored = self.broker.topics.get(topic)
        return None if stored is None else Topic(topic, tuple(map(str, range(len(stored)))))

    async def create(self, topic: str, partitions: int) -> None:
        """Create or grow."""
        self._reach()
        if not topic or partitions < 1:
            raise ConfigError(
                f"topic {topic!r} with {partitions} partitions cannot be made", hint="Give it a name and a partition"
            )
        self.broker.create(topic, partitions)

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset by partition."""
        return {str(number): Bounds((stored.first,), (stored.next,)) for number, stored in enumerate(self._existing(topic))}

    async def groups(self, topic: str) -> list[str]:
        """The groups that ever joined."""
        self._existing(topic)
        return sorted({group for group, of, _ in self.broker.progress if of == topic})

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The offset below which the group has acknowledged everything."""
        self._existing(topic)
        progress = self.broker.progress.items()
        return {str(number): (state.committed,) for (who, of, number), state in progress if (who, of) == (group, topic)}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages from the group's offsets to the ends."""
        return dense_backlog(await self.committed(topic, group), await self.bounds(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """The members that want the topic."""
        self._existing(topic)
        held = self.broker.holders(group, topic)
        return [Member(name, "", tuple(map(str, numbers))) for name, numbers in held.items()]

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's offsets. Raises ClusterError while it has members."""
        self._existing(topic)
        if self.broker.holders(group, topic):
            raise ClusterError(f"group {group!r} is being consumed: stop it, then move it", Failure.FATAL)
        if unknown := positions.keys() - (await self.bounds(topic)).keys():
            raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        for name, (offset,) in positions.items():
            self.broker.progress[group, topic, int(name)] = Progress(offset)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Times are not kept."""
        raise ClusterError(f"memory cluster {self.name!r} keeps no times: {time_ms} of {topic!r} is nowhere", Failure.FATAL)

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many before the end."""
        return dense_newest(await self.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Nothing can be set."""
        self._existing(topic)
        return {}

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group."""
        for topic in spec.topics:
            self._existing(topic)
        inbound = MemoryInbound(self.broker, self.name, self._config, spec)
        self.broker.join(spec.group, inbound)
        return inbound

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        self._existing(spec.topic)
        return MemoryOutbound(self.broker, self._config, spec)

    def _reach(self) -> None:
        if not self.broker.connected.is_set():
            raise Unreachable(f"memory cluster {self.name!r} is disconnected")

    def _existing(self, topic: str) -> list[StoredPartition]:
        self._reach()
        if topic not in self.broker.topics:
            raise ClusterError(f"there is no topic {topic!r} in memory cluster {self.name!r}; create it", Failure.FATAL)
        return self.broker.topics[topic]


ADAPTER = Adapter("memory", MemoryConfig, MemoryOptions, MemoryOptions, MemoryCluster)
