"""The gateway's `Cluster` for RocketMQ: a partition is a queue, a position is a queue offset.

Every inbound has its own client, because Brokers identify the members of a group by client id. Everything else shares one client.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec, Start
from mqbridge.adapter.known_brokers import KnownBrokers, list_order
from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.target_order import TargetOrders
from mqbridge.adapter.tools.sharing import check_sharing
from mqbridge.adapter.tools.unit_ranges import unit_ranges_from_offsets
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure, Unreachable
from mqbridge.message import Partition, Position
from mqbridge.net.dial import detect_wrong_port
from mqbridge.rocketmq.adapter.config import RocketMQCluster, RocketMQInboundOptions, RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.deadlines import close_by_deadline
from mqbridge.rocketmq.adapter.inbound import RocketMQInbound
from mqbridge.rocketmq.adapter.names import GROUP_NAME, TOPIC_NAME
from mqbridge.rocketmq.adapter.operations import RocketMQOperations, partition_name
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.adapter.preflight import check_admission, check_group_can_be_joined
from mqbridge.rocketmq.adapter.range_reader import RangeReader
from mqbridge.rocketmq.client.admin.compat_v4 import delay_levels
from mqbridge.rocketmq.client.admin.name_rules import check_group, check_topic
from mqbridge.rocketmq.client.admin.read_permission import why_unreadable
from mqbridge.rocketmq.client.admin.topic_growth import TopicGrowth
from mqbridge.rocketmq.client.cluster_client import ClusterClient, Timing
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import connectivity_of, unique_instance
from mqbridge.rocketmq.client.connection.route import MASTER, TopicRoute
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.client.consumer.subscription import Subscription, everything, sql92, tagged
from mqbridge.rocketmq.client.permission_checks import check_may_consume, check_may_produce
from mqbridge.rocketmq.client.producer.queue_producer import MAX_BODY_BYTES
from mqbridge.rocketmq.client.producer.topic_rules import max_message_bytes, requires_keys
from mqbridge.rocketmq.wire.allocation_strategies import STRATEGIES
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.headers.pull import READER_GROUP

log = logging.getLogger(__name__)


class RocketMQ:
    """One configured cluster, with the client that its administration and its outbounds share."""

    numbering = OffsetNumbering()

    def __init__(self, name: str, config: RocketMQCluster) -> None:
        self.capabilities = Capabilities(
            acknowledges_dropped=True,
            seek=True,
            delay=True,
            delete_topics=True,
            growing_outbound=True,
            topic_name=TOPIC_NAME,
            group_name=GROUP_NAME,
            # The Brokers' limit is that of the body alone.
            max_message_bytes=min(config.max_message_size, MAX_BODY_BYTES),
        )
        self.name, self.identity = name, config.identity
        self.connectivity = connectivity_of(name, config.name_servers)
        self.known_brokers = KnownBrokers(config.brokers)
        self._target_orders = TargetOrders(self.known_brokers)
        self._config = config
        self._tls = None if config.tls is None else config.tls.make(name)
        self._credentials = None if config.auth is None else config.auth.make()
        self._shared_client: ClusterClient | None = None
        self._delay_levels_by_broker: dict[str, Sequence[int]] = {}
        """Delays (ms) from level 1 on, by Broker address; () for a Broker that delays until any time."""

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times (s since the epoch) of our certificate and of the servers' certificates, by label; empty without TLS."""
        return {} if self._tls is None else self._tls.expiries

    @property
    def operations(self) -> Operations:
        """Administrative operations on topics and groups."""
        return RocketMQOperations(self._client, self)

    async def connect(self) -> None:
        """Connect to a name server and find the Brokers; with TLS or credentials, check that each Broker accepts this client."""
        self.connectivity.open()
        self._shared_client = client = self._make_client()
        try:
            await client.connect()
            with detect_wrong_port("a RocketMQ name server", ", ".join(self._config.name_servers), Unreachable):
                masters = await client.admin.masters()
            await check_admission(client, masters.values())
        except BaseException:
            await self.close()
            raise

    async def close(self, deadline: float | None = None) -> None:
        """Close the shared client; at the deadline (loop time; None: CLOSE_S from now), abandon requests without a response."""
        self.connectivity.close()
        self._config.addresses.log_unused(self.name)
        client, self._shared_client = self._shared_client, None
        if client is not None:
            await close_by_deadline(client.close(), deadline, f"cluster {self.name!r}")

    def _make_client(self, member: str | None = None) -> ClusterClient:
        """Return a new client; operators see `member` in its id."""
        config = self._config
        timing = Timing(request=config.request_timeout, route=config.refresh, heartbeat=config.heartbeat)
        return ClusterClient(
            config.name_servers,
            timing=timing,
            instance=unique_instance(member),
            tls=self._tls,
            credentials=self._credentials,
            connectivity=self.connectivity,
            addresses=config.addresses,
        )

    @property
    def _client(self) -> ClusterClient:
        """The shared client. Raises ClusterError before `connect`."""
        if self._shared_client is None:
            raise ClusterError(f"cluster {self.name!r} is not connected", Failure.FATAL)
        return self._shared_client

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return all topics except system topics and the retry and dead-letter topics of groups."""
        return await self._client.admin.user_topics()

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic with its readable queues, sorted by number and Broker name; None if it does not exist."""
        route = await self._client.admin.route(topic, fresh=True)
        if route is None:
            return None
        names = sorted(map(partition_name, route.read_queues()), key=list_order)
        unreadable = None if names else await why_unreadable(self._client.admin, topic)
        return Topic(topic, tuple(names), indexes=self.known_brokers.indexes(topic, names), unreadable=unreadable)

    async def why_incomplete(self, topic: str) -> str | None:
        """Return why Brokers may have queues of the topic that its route lacks: they are known, and no master is registered.

        A Broker registers together with all its topics, so one that is registered and missing in the route lacks the topic. After
        this call, the cached route has the queues of every registered Broker.
        """
        route = await self._client.admin.route(topic)
        brokers = {} if route is None else route.brokers
        suspects = {*self.known_brokers.of(topic), *brokers} - {name for name, each in brokers.items() if MASTER in each}
        if not suspects:
            return None
        if not (absent := sorted(suspects - (await self._client.admin.masters()).keys())):
            await self._client.admin.route(topic, fresh=True)  # one may have registered since the last query
            return None
        problem = (
            f"no master of broker {', '.join(absent)} is registered with the name servers, and topic {topic} may have queues"
        )
        return f"{problem} there. {self._advice_if_gone(absent)}"

    async def why_maybe_there(self, topic: str | None) -> str | None:
        """Return why a topic without a route may exist: at a Broker that is known to be down, or that nobody knows of.

        None: why any topic may.
        """
        reason = None if topic is None else await self.why_incomplete(topic)
        if (reason := reason or await self._why_elsewhere()) is not None:
            return reason
        known = self.known_brokers
        if known.is_known_from_before() if topic is None else known.of(topic):  # they run, without it
            return None
        return f"a broker that has it may be down. To be sure, name all Brokers in `brokers` of cluster {self.name!r}"

    async def why_unseen(self, topic: str) -> str | None:
        """Return which Broker is down that may have queues of this topic or of others; None if there is none."""
        return await self.why_incomplete(topic) or await self._why_elsewhere()

    async def _why_elsewhere(self) -> str | None:
        """Return which known Broker is down that may have any topic; None if there is none."""
        if not (absent := sorted(self.known_brokers.all - (await self._client.admin.masters()).keys())):
            return None
        problem = f"no master of broker {', '.join(absent)}, which may have it, is registered with the name servers"
        return f"{problem}. {self._advice_if_gone(absent)}"

    def _advice_if_gone(self, absent: Sequence[str]) -> str:
        return f"If a broker is gone for good, {self.known_brokers.advice_if_gone(self.name, absent)}"

    async def create(self, topic: str, partitions: int) -> None:
        """Create a topic at every master, or grow it at its Brokers, to at least `partitions` writable queues.

        Brokers share the queues evenly, so the topic may get a few more than requested. No Broker loses queues or other settings.
        """
        route, known = await self._check_brokers(topic, partitions), self.known_brokers
        brokers = known.all if route is None else known.of(topic)
        await TopicGrowth(self._client.admin, self._client.routes, topic, partitions, brokers).run()

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise an error if the topic name or the number of queues is invalid, or it may have more queues than the route shows.

        An existing topic may have them at a Broker that is down, unless its Brokers are known from the configuration or from an
        earlier process.
        """
        route = await self._check_brokers(topic, partitions)
        if route is not None and not self.known_brokers.is_known_from_before(topic):
            brokers = ", ".join(sorted(route.brokers))
            problem = (
                f"topic {topic} has {len(route.write_queues())} of {partitions} queues at broker {brokers}, and it is unknown"
            )
            advice = f"name all Brokers in `brokers` of cluster {self.name!r}, or set `create: false`"
            raise ClusterError(f"{problem} whether one is down that has the others: {advice}", Failure.RETRY)

    async def _check_brokers(self, topic: str, partitions: int) -> TopicRoute | None:
        """Return the route of a topic to create or to grow; None if it does not exist. Raises an error if this is unknown."""
        if partitions < 1:
            raise ConfigError(f"topic {topic!r} cannot have {partitions} queues", hint="Give it at least one queue")
        check_topic(topic)
        return await self._route_of_whole(topic, "neither created nor grown")

    async def _route_of_whole(self, topic: str, unchanged: str) -> TopicRoute | None:
        """Return the route of a topic that is to be changed at all of its Brokers; None if it does not exist.

        Raises ClusterError (RETRY) if a Broker that may have the topic is down; its text says that the topic is `unchanged`.
        """
        await self._client.admin.masters()  # raises if none is registered
        reason = await self.why_incomplete(topic)
        route = await self._client.admin.route(topic)
        if reason is None and route is None:
            reason = await self._why_elsewhere()
        if reason is not None:
            raise ClusterError(f"topic {topic} is {unchanged} now: {reason}", Failure.RETRY)
        return route

    async def delete(self, topic: str) -> None:
        """Delete the topic at every Broker and name server; do nothing if it does not exist.

        Raises ClusterError: FATAL for a system topic, RETRY while a Broker that may have the topic is down. Such a Broker would
        bring the topic back with its messages.
        """
        check_topic(topic)
        if await self._route_of_whole(topic, "not deleted") is not None:
            await self._client.admin.delete_topic(topic)
            self._client.policies.forget(topic)

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return the offsets of the first message and of the next one to be stored, for one queue or every one, by name."""
        if partition is not None:
            queue = await self._queue(topic, partition)
            positions = self._client.positions
            first, next_ = await asyncio.gather(positions.first(queue), positions.next(queue))
            return {partition: await self._bounds(queue, first, next_)}
        stats = await self._client.admin.topic_stats(topic)
        return {
            partition_name(queue): await self._bounds(queue, offsets.min_offset, offsets.max_offset)
            for queue, offsets in stats.items()
        }

    async def _bounds(self, queue: Queue, first: int, next_: int) -> Bounds:
        """Return the bounds of a queue, with its last message if it is known.

        In a compacted topic, Brokers count messages without KEYS that they never show. The policy of a topic is queried once.
        """
        is_known = next_ > first and not await self._client.policies.is_compacted(queue)
        return Bounds((first,), (next_,), last=(next_ - 1,) if is_known else None)

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the committed offsets of a group, by partition name; queues without one are left out."""
        positions, queues = self._client.positions, await self.queues(topic)
        offsets = await asyncio.gather(*(positions.committed(queue, group) for queue in queues))
        return {partition_name(queue): (offset,) for queue, offset in zip(queues, offsets, strict=True) if offset is not None}

    async def queues(self, topic: str) -> Sequence[Queue]:
        """Return the readable queues of a topic. Raises ClusterError: FATAL if it does not exist, RETRY if none is readable."""
        queues = (await self._route(topic)).read_queues()
        if not queues:
            raise ClusterError(await why_unreadable(self._client.admin, topic), Failure.RETRY)
        return queues

    async def _queue(self, topic: str, partition: str) -> Queue:
        """Return a queue of a topic by its name.

        Raises ClusterError: FATAL if it does not exist, RETRY if it may exist at a Broker that is down.
        """
        route = await self._route(topic)
        queues = {partition_name(queue): queue for queue in (*route.read_queues(), *route.write_queues())}
        if partition in queues:
            return queues[partition]
        problem = f"topic {topic!r} of cluster {self.name!r} has no queue {partition}"
        if partition.rpartition(":")[0] not in route.brokers and (reason := await self.why_incomplete(topic)) is not None:
            raise ClusterError(f"{problem} now: {reason}", Failure.RETRY)
        raise ClusterError(problem, Failure.FATAL)

    async def _route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """Return the route of a topic. Raises ClusterError: FATAL if it does not exist, RETRY while known Brokers are down."""
        route = await self._client.admin.route(topic, fresh=fresh)
        if route is None:
            problem = f"there is no topic {topic!r} in cluster {self.name!r}"
            if self.known_brokers.of(topic) and (reason := await self.why_maybe_there(topic)) is not None:
                raise ClusterError(f"{problem} now: {reason}", Failure.RETRY)
            raise ClusterError(problem, Failure.FATAL)
        return route

    # --- reading and writing -------------------------------------------------------------------------------------------

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Open a reader of one queue from offset `begin` up to, not including, `end`, without joining a group."""
        queue, names = await self._queue(topic, partition), list(map(partition_name, await self.queues(topic)))
        source = Partition(self.name, topic, partition, self.known_brokers.index(topic, partition, names))
        reader = RangeReader(self._client, source, queue, begin, end, max_bytes)
        await reader.open()
        return reader

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range as one range of units: each offset is a unit, even if a compacted topic has no message there."""
        return unit_ranges_from_offsets(begin, end)

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join the group with a new client, which the inbound closes."""
        check_sharing(self, spec)
        options = spec.options if isinstance(spec.options, RocketMQInboundOptions) else RocketMQInboundOptions()
        for topic in spec.topics:
            await self._route(topic)  # raises if the topic does not exist
        check_group(spec.group)
        owners = spec.lock_owners if options.orderly or spec.release_wait_s > 0 else None
        settings = ConsumerSettings(
            group=spec.group,
            subscriptions=_subscriptions(spec),
            model=MessageModel.CLUSTERING,
            start=StartOffset.EARLIEST if spec.start is Start.EARLIEST else StartOffset.LATEST,
            began_ms=spec.began_ms,
            # `start_of` returns EARLIEST for a queue that was added to the topic later, even if `spec.start` is LATEST. If
            # `spec.start` is EARLIEST, every queue is read from its beginning anyway.
            came_later=lambda queue: spec.start_of(queue.topic, partition_name(queue)) is Start.EARLIEST,
            # Without locks, the next member of a queue would not wait until this one releases it.
            orderly=options.orderly or spec.release_wait_s > 0,
            abandoned=() if owners is None else tuple(owners.abandoned),
            release_wait_s=spec.release_wait_s,
            retries=options.retries and spec.sent_back,
            strategy=STRATEGIES[options.strategy],
            max_bytes=spec.max_bytes,
            max_msgs=options.pull_messages,
        )
        client = self._make_client(spec.member)
        try:
            await client.connect()
            if owners is not None:
                await owners.record(client.client_id)
            consumer = await join(client, settings)
            if owners is not None:
                await owners.forget(settings.abandoned)
        except BaseException as error:
            await client.close()
            if owners is not None:
                await owners.forget([client.client_id])
            if isinstance(error, ClusterError) and error.failure is Failure.FATAL:
                for topic in spec.topics:  # a Broker may have gone since the route above was queried
                    await self._route(topic, fresh=True)
            raise
        return RocketMQInbound(self.name, client, consumer, spec.topics, SendBack(client, spec.group), self.known_brokers, owners)

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise an error if a topic or the permission to consume is missing, or if the filter or the group is invalid."""
        check_sharing(self, spec)
        routes = [await self._route(topic) for topic in spec.topics]
        _subscriptions(spec)
        await check_group_can_be_joined(self._client, spec.group)
        if self._credentials is not None:
            for route in routes:
                await check_may_consume(self._client, spec.group, route)

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a producer for a topic.

        Raises ClusterError (RETRY) while a Broker that may have queues of the topic has no master: without them, messages of a
        key or of a source partition would go to other queues than before and after.
        """
        options = _outbound_options(spec)
        client, max_size = self._client, self._config.max_message_size
        if (reason := await self.why_incomplete(spec.topic)) is not None:
            raise ClusterError(f"topic {spec.topic!r} of cluster {self.name!r} is not written now: {reason}", Failure.RETRY)
        route = await self._route(spec.topic)
        if not route.write_queues():
            problem = f"topic {spec.topic!r} of cluster {self.name!r} has no writable queue now"
            raise ClusterError(f"{problem}: its Brokers have no master, or no permission to write", Failure.RETRY)
        if spec.ordered:
            self._check_frozen(route)
        levels, is_compacted, max_batch_bytes = await asyncio.gather(
            self._delay_levels(route),
            requires_keys(client, options.producer_group, route),
            max_message_bytes(client, route),
        )
        producer = client.producer(
            options.producer_group,
            spec.topic,
            in_flight_per_queue=1 if spec.ordered else options.in_flight,
            max_elapsed_s=spec.resend_s,  # a repeated send may be stored twice, so the spec can forbid repeats
            max_message_bytes=max_size,
            require_replica=options.require_replica,
            fail_behind=spec.ordered,  # messages after a failed one must not be stored before its retry
            route=route,
        )
        queues = route.write_queues()
        outbound = RocketMQOutbound(
            self,
            producer,
            spec,
            queues,
            max_message_bytes=producer.max_message_bytes,
            max_batch_bytes=max_batch_bytes,
            delay_levels=levels,
            requires_keys=is_compacted,
            order=self._target_orders.open(spec.topic, list(map(partition_name, queues))),
        )

        def on_route(route: TopicRoute) -> None:
            self.known_brokers.record(spec.topic, route.brokers)
            outbound.on_route(route)

        self.known_brokers.record(spec.topic, route.brokers)
        stop_watching = client.routes.watch(spec.topic, on_route)
        outbound.on_close(stop_watching)
        return outbound

    def _check_frozen(self, route: TopicRoute) -> None:
        """Raise ClusterError (RETRY) while a Broker has no permission to write: keys would move to other queues, and back."""
        brokers = {queue.broker for queue in route.frozen_queues}
        if brokers := brokers & self.known_brokers.of(route.topic) if self.known_brokers.of(route.topic) else brokers:
            names = sorted(brokers)
            problem = (
                f"topic {route.topic!r} of cluster {self.name!r} is not written now: it has no permission to write at "
                f"{', '.join(names)}, but at other Brokers"
            )
            raise ClusterError(f"{problem}. {self._advice_if_gone(names)}", Failure.RETRY)

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise an error if the topic is missing or has no writable queue, or the permission to produce to it is missing.

        With `spec.sender`, the permission to consume from it is checked too.
        """
        await (await self.outbound(spec)).close()
        if self._credentials is not None:
            route, options = await self._route(spec.topic), _outbound_options(spec)
            await check_may_produce(self._client, options.producer_group, route)
            if spec.sender is not None:  # `resume` reads the messages of this sender from the topic
                await check_may_consume(self._client, READER_GROUP, route)

    async def _delay_levels(self, route: TopicRoute) -> Sequence[int]:
        """Return the delays (ms) of the first Broker that supports only delay levels; () if all delay until any time.

        The levels of a Broker are cached. A Broker whose query fails counts as one without levels, until a later call repeats it.
        """
        for address in route.masters():
            if address not in self._delay_levels_by_broker:
                try:
                    self._delay_levels_by_broker[address] = await delay_levels(self._client, address)
                except AccessRefused:
                    raise
                except ClusterError as error:
                    log.warning(
                        "cluster %s: assuming that Broker %s supports delays of any length until a target topic is "
                        "opened again, because the query of its delay levels failed: %s",
                        self.name,
                        address,
                        error,
                    )
        return next((levels for address in route.masters() if (levels := self._delay_levels_by_broker.get(address))), ())


def _outbound_options(spec: OutboundSpec) -> RocketMQOutboundOptions:
    return spec.options if isinstance(spec.options, RocketMQOutboundOptions) else RocketMQOutboundOptions()


def _subscriptions(spec: InboundSpec) -> tuple[Subscription, ...]:
    options = spec.options if isinstance(spec.options, RocketMQInboundOptions) else RocketMQInboundOptions()
    return tuple(_subscription(topic, spec, options) for topic in spec.topics)


def _subscription(topic: str, spec: InboundSpec, options: RocketMQInboundOptions) -> Subscription:
    if options.sql is not None:
        if spec.msg_types_of(topic):
            raise ConfigError(
                f"the subscription to topic {topic!r} filters by tags or by SQL92, not by both",
                hint="Give either `msg_types` or `options.sql`",
            )
        return sql92(topic, options.sql)
    msg_types = spec.msg_types_of(topic)
    return tagged(topic, msg_types) if msg_types else everything(topic)
