"""RocketMQ as the gateway sees it: queues are partitions, offsets are positions.

Every inbound is a client of its own, because Brokers know the members of a group by their client's id.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

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
    dense_backlog,
    dense_newest,
)
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.message import Batch, Position
from mqbridge.rocketmq.adapter.config import RocketMQCluster, RocketMQInboundOptions, RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.inbound import RocketMQInbound
from mqbridge.rocketmq.adapter.operations import RocketMQOperations, name_of
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.client import RocketmqClient, Timing
from mqbridge.rocketmq.client.compat_v4 import delay_levels
from mqbridge.rocketmq.client.consumer import join
from mqbridge.rocketmq.client.groupadmin import GroupAdmin
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.rebalance import STRATEGIES
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.sendback import SendBack
from mqbridge.rocketmq.client.spec import GroupSpec, Model, StartOffset
from mqbridge.rocketmq.client.subscription import Subscription, everything, sql92, tagged
from mqbridge.rocketmq.mapping.preview import preview
from mqbridge.rocketmq.mapping.stored import decode
from mqbridge.rocketmq.mapping.table import TABLE
from mqbridge.rocketmq.wire.bodies import Queue

log = logging.getLogger(__name__)


class RocketMQ:
    """One configured cluster."""

    capabilities = Capabilities(seek=True, delay=True, growing_outbound=True)
    backlog_unit = "messages"

    def __init__(self, name: str, config: RocketMQCluster) -> None:
        self.name = name
        self._config = config
        self._connected: RocketmqClient | None = None
        self._levels: dict[str, Sequence[int]] = {}
        """Delay levels by the address of a Broker."""

    @property
    def operations(self) -> Operations | None:
        """What people may ask."""
        return self

    async def connect(self) -> None:
        """Reach a name server, and learn of a Broker."""
        self._connected = client = self._make_client()
        try:
            await client.connect()
            await Admin(client).masters()
        except BaseException:
            await self.close()
            raise

    async def close(self, deadline: float | None = None) -> None:
        """Close what was opened."""
        client, self._connected = self._connected, None
        if client is not None:
            await client.close()

    def _make_client(self) -> RocketmqClient:
        config = self._config
        timing = Timing(request=config.request_timeout, route=config.refresh, heartbeat=config.heartbeat)
        return RocketmqClient(config.name_servers, timing=timing)

    @property
    def _client(self) -> RocketmqClient:
        if self._connected is None:
            raise ClusterError(f"cluster {self.name!r} is not connected", Failure.FATAL)
        return self._connected

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """All topics but the system's own and those of groups."""
        return await Admin(self._client).user_topics()

    async def describe(self, topic: str) -> Topic | None:
        """The topic, its queues sorted by Broker and number."""
        route = await self._client.routes.get(topic, fresh=True)
        return None if route is None else Topic(topic, tuple(map(name_of, route.read_queues())))

    async def create(self, topic: str, partitions: int) -> None:
        """Create it or grow it; every master gets the same number of queues, so there may be a few more than asked for."""
        if partitions < 1:
            raise ConfigError(f"topic {topic!r} cannot have {partitions} queues", hint="Give it one at least")
        admin = Admin(self._client)
        route = await self._client.routes.get(topic, fresh=True)
        if route is None or len(route.write_queues()) < partitions:
            masters = await admin.masters()
            await admin.create_topic(topic, -(-partitions // len(masters)))

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next offset of every queue."""
        stats = await Admin(self._client).topic_stats(topic)
        return {name_of(queue): Bounds((found.min_offset,), (found.max_offset,)) for queue, found in stats.items()}

    async def groups(self, topic: str) -> list[str]:
        """Groups that consume the topic, or have offsets of it."""
        return await self._group_admin.groups_of(topic)

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The committed offsets of a group."""
        positions = Positions(self._client)
        queues = (await self._route(topic)).read_queues()
        found = await asyncio.gather(*(positions.committed(queue, group) for queue in queues))
        return {name_of(queue): (offset,) for queue, offset in zip(queues, found, strict=True) if offset is not None}

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages from the group's offsets to the ends."""
        return dense_backlog(*await asyncio.gather(self.committed(topic, group), self.bounds(topic)))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who is connected as the group."""
        return await RocketMQOperations(self._client).members(topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Commit these offsets as the group."""
        await RocketMQOperations(self._client).move(topic, group, positions, list((await self._route(topic)).read_queues()))

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """By the time of storing."""
        return await RocketMQOperations(self._client).position_at(list((await self._route(topic)).read_queues()), time_ms)

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """So many before the end."""
        return dense_newest(await self.bounds(topic), count)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """As its Brokers have it."""
        return await RocketMQOperations(self._client).settings(topic)

    @property
    def _group_admin(self) -> GroupAdmin:
        client = self._client
        return GroupAdmin(client, Admin(client), Positions(client))

    async def _route(self, topic: str) -> TopicRoute:
        route = await self._client.routes.get(topic)
        if route is None:
            raise ClusterError(f"there is no topic {topic!r} in cluster {self.name!r}", Failure.FATAL)
        return route

    # --- ends -------------------------------------------------------------------------------------------------------

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Not yet."""
        raise ClusterError(f"ranges of {topic} {partition} cannot be read yet: {begin} to {end}", Failure.FATAL)
        yield

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group; or, temporary, read the queues that there are now and leave no trace."""
        options = spec.options if isinstance(spec.options, RocketMQInboundOptions) else RocketMQInboundOptions()
        routes = [await self._route(topic) for topic in spec.topics]
        group = GroupSpec(
            group="" if spec.temporary else spec.group,
            subscriptions=tuple(_subscription(topic, spec, options) for topic in spec.topics),
            model=Model.ASSIGNED if spec.temporary else Model.CLUSTERING,
            start=StartOffset.EARLIEST if spec.start is Start.EARLIEST else StartOffset.LATEST,
            orderly=options.orderly and not spec.temporary,
            retries=options.retries,
            strategy=STRATEGIES[options.strategy],
            queues=tuple(queue for route in routes for queue in route.read_queues()) if spec.temporary else (),
            offsets=_offsets(spec, routes) if spec.temporary else {},
            max_bytes=spec.max_bytes,
            max_msgs=options.pull_messages,
        )
        client = self._make_client()
        try:
            await client.connect()
            consumer = await join(client, group)
        except BaseException:
            await client.close()
            raise
        return RocketMQInbound(self.name, client, consumer, spec.topics, SendBack(client, spec.group))

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into a topic."""
        options = spec.options if isinstance(spec.options, RocketMQOutboundOptions) else RocketMQOutboundOptions()
        client, most = self._client, self._config.max_message_size
        route = await self._route(spec.topic)
        if not route.write_queues():
            raise ClusterError(f"no queue of {spec.topic!r} in cluster {self.name!r} may be written to", Failure.FATAL)
        levels = await self._delay_levels(route)
        producer = client.producer(
            options.producer_group,
            spec.topic,
            in_flight_per_queue=1 if spec.ordered else options.in_flight,
            max_elapsed_s=spec.max_elapsed_s,
            max_message_bytes=most,
        )
        outbound = RocketMQOutbound(
            producer, spec, route.write_queues(), self._newest_origin, max_message_bytes=most, delay_levels=levels
        )
        outbound.on_close(client.routes.watch(spec.topic, outbound.follow))
        return outbound

    async def _delay_levels(self, route: TopicRoute) -> Sequence[int]:
        """Those of the first Broker that knows no other delays; none when all do. Each Broker is asked until it has answered."""
        for address in route.masters():
            if address not in self._levels:
                try:
                    self._levels[address] = await delay_levels(self._client, address)
                except ClusterError as error:
                    log.warning("%s is taken to hold messages until any time, as it cannot be asked now: %s", address, error)
        return next((levels for address in route.masters() if (levels := self._levels.get(address))), ())

    async def _newest_origin(self, queue: Queue) -> str | None:
        """The origin of the newest message of a queue."""
        positions = Positions(self._client)
        end = await positions.next(queue)
        if end <= await positions.first(queue):
            return None
        reader = await join(
            self._client,
            GroupSpec("", (everything(queue.topic),), Model.ASSIGNED, queues=(queue,), offsets={queue: end - 1}),
        )
        try:
            async with asyncio.timeout(self._config.request_timeout):
                async for stream in reader.streams():
                    messages = decode((await stream.receive()).records)
                    return messages[-1].origin
        except TimeoutError as error:
            raise ClusterError(f"the newest message of {queue} did not come") from error
        finally:
            await reader.close()
        return None


def _offsets(spec: InboundSpec, routes: list[TopicRoute]) -> dict[Queue, int]:
    return {
        queue: spec.positions[name_of(queue)][0]
        for route in routes
        for queue in route.read_queues()
        if name_of(queue) in spec.positions
    }


def _subscription(topic: str, spec: InboundSpec, options: RocketMQInboundOptions) -> Subscription:
    if options.sql is not None:
        if spec.msg_types:
            raise ConfigError("a RocketMQ subscription filters by tags or by SQL92", hint="Give `msg_types` or `options.sql`")
        return sql92(topic, options.sql)
    return tagged(topic, spec.msg_types) if spec.msg_types else everything(topic)


ADAPTER = Adapter(
    system="rocketmq",
    cluster_model=RocketMQCluster,
    inbound_options=RocketMQInboundOptions,
    outbound_options=RocketMQOutboundOptions,
    make_cluster=RocketMQ,
    table=TABLE,
    preview=preview,
)
