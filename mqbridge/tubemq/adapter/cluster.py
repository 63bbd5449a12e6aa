"""TubeMQ as the gateway sees it.

Producing and consuming need only the Masters. Whatever the protocol has no call for (listing and creating topics, groups,
offsets) goes through the administrators' web API, when `admin_url` is set.
"""

from collections.abc import AsyncGenerator, Mapping
from zoneinfo import ZoneInfo

from mqbridge.adapter import (
    Adapter,
    Bounds,
    Capabilities,
    Inbound,
    InboundSpec,
    Member,
    Operations,
    Outbound,
    OutboundSpec,
    Start,
    Topic,
)
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.message import Batch, Position
from mqbridge.net.dial import split_address
from mqbridge.tubemq.adapter.config import TubeMQCluster, TubeMQInboundOptions, TubeMQOutboundOptions
from mqbridge.tubemq.adapter.inbound import TubeMQInbound
from mqbridge.tubemq.adapter.operations import Operator, counted_back, entries_between
from mqbridge.tubemq.adapter.outbound import TubeMQOutbound
from mqbridge.tubemq.adapter.temporary import PREFIX, TemporaryConsumer
from mqbridge.tubemq.client.consumer import Consumer, From
from mqbridge.tubemq.client.master import DEFAULT_PORT, MAX_TOPICS, Masters
from mqbridge.tubemq.client.producer import Producer
from mqbridge.tubemq.client.routes import Routes
from mqbridge.tubemq.client.session import Sessions
from mqbridge.tubemq.mapping.preview import preview
from mqbridge.tubemq.mapping.table import TABLE

PACK_BYTES = 1 << 20
"""A get returns half a MiB, or one message that may have a little over 1 MiB."""


class TubeMQ:
    """One configured cluster: a producer's view of it, kept current, and the connections that all ends share."""

    def __init__(self, name: str, config: TubeMQCluster) -> None:
        self.name = name
        self.backlog_unit = "messages of the partition's store"
        # A message without a single byte is refused by Brokers; the mapping gives such a one an attribute block.
        has_admin = config.admin_url is not None
        self.capabilities = Capabilities(
            seek=True,
            create_topics=has_admin,
            list_topics=has_admin,
            group_topics=MAX_TOPICS,
        )
        self._config = config
        self._zone = ZoneInfo(config.time_zone)
        self._admin: Operator | None = None
        self._sessions: Sessions | None = None
        self._routes: Routes | None = None

    @property
    def operations(self) -> Operations | None:
        """What people may ask."""
        return None if self._config.admin_url is None else self

    async def connect(self) -> None:
        """Register a producer with the Master."""
        config = self._config
        self._sessions = Sessions(timeout_s=config.request_timeout)
        addresses = [split_address(address, DEFAULT_PORT) for address in config.masters]
        routes = Routes(Masters(addresses, self._sessions), heartbeat_s=config.heartbeat)
        try:
            await routes.start()
        except BaseException:
            await self._sessions.close()
            raise
        self._routes = routes
        if config.admin_url is not None:
            token = config.admin_token
            self._admin = Operator(config.admin_url, None if token is None else token.get_secret_value())

    async def close(self, deadline: float | None = None) -> None:
        """Close what was opened."""
        if self._admin is not None:
            await self._admin.close()
        if self._routes is not None:
            await self._routes.close()
        if self._sessions is not None:
            await self._sessions.close()
        self._admin = self._routes = self._sessions = None

    async def topics(self) -> list[str]:
        """All topics but the system's own."""
        return await self._administrator("list topics").topics()

    async def describe(self, topic: str) -> Topic | None:
        """The topic, its partitions sorted by Broker and number."""
        route = await self._view.look_up(topic)
        return None if route is None else Topic(topic, tuple(route.partitions))

    async def create(self, topic: str, partitions: int) -> None:
        """Create it, spread over the Brokers that are online, or grow it; waits until it accepts messages."""
        if partitions < 1:
            raise ConfigError(f"topic {topic!r} cannot have {partitions} partitions", hint="Give it one at least")
        await self._administrator("create topics").create(topic, partitions)

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset; partitions of one store have the same ones. Empty without `admin_url`."""
        if self._admin is None:
            return {}
        stored = await self._administrator("see offsets").stored(topic)
        empty = Bounds((0, 0), (0, 0))
        known = dict.fromkeys(await self._names(topic), empty)
        return known | {name: Bounds((found.first, 0), (found.next, 0)) for name, found in stored.items()}

    async def groups(self, topic: str) -> list[str]:
        """Groups with an offset on the topic; those of temporary readers are left out."""
        found = await self._administrator("list groups").groups(topic)
        return [group for group in found if not group.startswith(PREFIX)]

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The confirmed offsets of a group."""
        found = await self._administrator("see offsets").committed(topic, group)
        return {name: (offset, 0) for name, offset in found.items()}

    # --- for people -------------------------------------------------------------------------------------------------

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages of the partition's store: one index serves all partitions of a store."""
        admin = self._administrator("see offsets")
        return entries_between(await admin.committed(topic, group), await admin.stored(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who holds partitions at the Brokers."""
        return await self._administrator("list members").members(topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the confirmed offsets at the Brokers; they are listed some seconds later."""
        await self._administrator("move groups").move(topic, group, positions)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """TubeMQ has no call for it."""
        raise ClusterError(f"TubeMQ does not say what it stored when: {time_ms} of {topic!r} cannot be found", Failure.FATAL)

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Counted back in the index that a store's partitions share; empty without `admin_url`."""
        if self._admin is None:
            return {}
        stored = counted_back(await self._admin.stored(topic), count)
        return dict.fromkeys(await self._names(topic), (0, 0)) | stored

    async def settings(self, topic: str) -> Mapping[str, str]:
        """As the Master has it; empty without `admin_url`."""
        return {} if self._admin is None else await self._admin.settings(topic)

    # --- ends -------------------------------------------------------------------------------------------------------

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Not yet."""
        raise ClusterError(f"ranges of {topic} {partition} cannot be read yet: {begin} to {end}", Failure.FATAL)
        yield

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group; or, temporary, read for a moment."""
        for topic in spec.topics:
            await self._view.topic(topic)
        consumer = self._temporary(spec) if spec.temporary else self._member(spec)
        await consumer.start()
        return TubeMQInbound(self.name, consumer, self._zone, self._index_of)

    def _member(self, spec: InboundSpec) -> Consumer:
        return Consumer(
            self._view.masters,
            spec.group,
            spec.topics,
            start=From.EARLIEST if spec.start is Start.EARLIEST else From.LATEST,
            filters=dict.fromkeys(spec.topics, spec.msg_types) if spec.msg_types else None,
            heartbeat_s=self._config.heartbeat,
            max_gets=_gets(spec),
            priority=_priority(spec),
        )

    def _temporary(self, spec: InboundSpec) -> TemporaryConsumer:
        heartbeat_s = self._config.heartbeat
        return TemporaryConsumer(
            self._view.masters, spec, self._admin, heartbeat_s=heartbeat_s, max_gets=_gets(spec), priority=_priority(spec)
        )

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        routes = self._view
        assert self._sessions is not None  # noqa: S101 - connected with the routes
        producer = Producer(routes, self._sessions)
        sender = await producer.sender(spec.topic, ordered=spec.ordered, max_elapsed_s=spec.max_elapsed_s)
        return TubeMQOutbound(sender, spec, self._zone)

    @property
    def _view(self) -> Routes:
        if self._routes is None:
            raise ClusterError(f"cluster {self.name!r} is not connected", Failure.FATAL)
        return self._routes

    def _administrator(self, what: str) -> Operator:
        if self._admin is None:
            raise ClusterError(f"cluster {self.name!r} cannot {what}: set admin_url", Failure.FATAL)
        return self._admin

    async def _names(self, topic: str) -> list[str]:
        return list((await self._view.topic(topic)).partitions)

    async def _index_of(self, topic: str, name: str) -> int:
        """The place of a partition in its topic; one that was added since the last heartbeat is looked up."""
        names = await self._names(topic)
        if name not in names:
            await self._view.refresh()
            names = await self._names(topic)
        return names.index(name)


def _gets(spec: InboundSpec) -> int:
    return max(1, spec.max_bytes // PACK_BYTES)


def _priority(spec: InboundSpec) -> int | None:
    return spec.options.query_priority if isinstance(spec.options, TubeMQInboundOptions) else None


def _make(name: str, config: TubeMQCluster) -> TubeMQ:
    return TubeMQ(name, config)


ADAPTER = Adapter(
    system="tubemq",
    cluster_model=TubeMQCluster,
    inbound_options=TubeMQInboundOptions,
    outbound_options=TubeMQOutboundOptions,
    make_cluster=_make,
    table=TABLE,
    preview=preview,
)
