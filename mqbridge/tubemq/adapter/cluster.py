"""`TubeMQ`: the implementation of the adapter's cluster interface for TubeMQ.

Producing and consuming need only the Masters. Operations that the RPC protocol does not have (listing and creating topics,
groups, offsets) use the Master's web API, and so need `admin_url`.

A Broker keeps the partitions of a topic in one or more stores. A store has one index, with an entry for each message of all its
partitions. A position is (offset, index): a byte offset in the index of the store, and how many messages of the partition to skip
from this offset on, 0 for the message at the offset itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from zoneinfo import ZoneInfo

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.inbound import Inbound, InboundSpec, Start
from mqbridge.adapter.known_brokers import KnownBrokers, brokers_of, list_order
from mqbridge.adapter.numbering import PackedNumbering
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.reading import read
from mqbridge.adapter.target_order import TargetOrders
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.sharing import check_sharing
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, ConfigError, Failure, NotPermitted
from mqbridge.message import Partition, Position
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import detect_wrong_port
from mqbridge.tubemq.adapter.config import TubeMQCluster, TubeMQInboundOptions, TubeMQOutboundOptions
from mqbridge.tubemq.adapter.inbound import TubeMQInbound
from mqbridge.tubemq.adapter.names import GROUP_NAME, TOPIC_NAME, check_group_name, check_topic_name
from mqbridge.tubemq.adapter.offset_store import OffsetStore
from mqbridge.tubemq.adapter.operations import GroupAdmin, TubeMQOperations
from mqbridge.tubemq.adapter.outbound import TubeMQOutbound
from mqbridge.tubemq.adapter.temporary_groups import TemporaryGroups
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.master import MAX_TOPICS, Masters
from mqbridge.tubemq.client.consumer.held_partitions import StartOffset
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.partition_state import INDEX_ENTRY_BYTES
from mqbridge.tubemq.client.consumer.read_budget import ReadBudget
from mqbridge.tubemq.client.producer.partition_sender import MAX_MESSAGE_BYTES, open_partition_sender
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)


class TubeMQ:
    """One configured cluster: the routes of a registered producer, and the connections that all inbounds and outbounds share."""

    numbering = PackedNumbering(2)

    def __init__(self, name: str, config: TubeMQCluster) -> None:
        self.name, self.identity = name, config.identity
        has_admin = config.admin_url is not None
        # Empty messages need no capability: Brokers refuse them, but the mapping adds an attribute block.
        self.capabilities = Capabilities(
            acknowledges_dropped=True,
            seek=True,
            create_topics=has_admin,
            delete_topics=has_admin and config.admin_token is not None,
            list_topics=has_admin,
            group_topics=MAX_TOPICS,
            topic_name=TOPIC_NAME,
            group_name=GROUP_NAME,
            max_message_bytes=MAX_MESSAGE_BYTES,
            # A position of a lane counts messages from the begin of a pack. When messages arrive, or leave the Broker's memory, a
            # pack that is not confirmed is cut elsewhere when it is delivered again: of 400 messages near the end, 200 then had
            # another (offset, index).
            stable_positions=False,
        )
        self.known_brokers = KnownBrokers(config.brokers)
        self._target_orders = TargetOrders(self.known_brokers)
        self._addresses = config.master_addresses
        self._tls = None if config.tls is None else config.tls.make(name)
        self._credentials = config.credentials
        self.connectivity = Connectivity(name, self._addresses)
        self._config = config
        self._zone = ZoneInfo(config.time_zone)
        # The next four are None before `connect` and after `close`.
        self._admin: GroupAdmin | None = None
        """The client of the web API; always None without `admin_url`."""
        self._connections: ConnectionPool | None = None
        self._groups: TemporaryGroups | None = None
        self._routes: Routes | None = None

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times of certificates (s since the epoch), by a label such as `own certificate`; empty without TLS."""
        return {} if self._tls is None else self._tls.expiries

    @property
    def operations(self) -> Operations | None:
        """The operations of the web API; None without `admin_url`."""
        return None if self._admin is None else TubeMQOperations(self._admin, self._partition_names)

    async def connect(self) -> None:
        """Register a producer at a Master, to learn the topics' routes for outbounds and inbounds. Raises ClusterError."""
        config = self._config
        self.connectivity.open()
        self._connections = ConnectionPool(
            timeout_s=config.request_timeout, tls=self._tls, connectivity=self.connectivity, addresses=config.addresses
        )
        routes = Routes(Masters(self._addresses, self._connections, self._credentials), heartbeat_s=config.heartbeat)
        try:
            with detect_wrong_port("a TubeMQ Master", ", ".join(config.masters)):
                await routes.start()
        except BaseException:
            await self._connections.close()
            raise
        self._routes = routes
        if config.admin_url is not None:
            self._admin = GroupAdmin(
                config.admin_url,
                config.admin_token,
                tls=self._tls,
                proxy=config.admin_proxy,
                addresses=config.addresses,
            )
        self._groups = TemporaryGroups(routes.masters, self._admin, self._zone)

    async def close(self, deadline: float | None = None) -> None:
        """Close all connections; before that, unregister the producer and remove the temporary groups of readers.

        At `deadline` (event loop time; None: CLOSE_S (30 s) from now) it drops these requests and only closes the connections.
        """
        self.connectivity.close()
        self._config.addresses.log_unused(self.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_until(deadline)):
                # Called even if the deadline has passed: it first stops its heartbeats, which would open new connections.
                if self._routes is not None:
                    await self._routes.close()
                if self._groups is not None:
                    await self._groups.sweep()
        if self._admin is not None:
            await self._admin.close()
        if self._connections is not None:
            await self._connections.close()
        self._admin = self._routes = self._connections = self._groups = None

    async def topics(self) -> list[str]:
        """Return all topics except the system topics."""
        return await self._require_admin("list topics").topics()

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic with its partitions sorted by number and Broker; None if it does not exist.

        Partitions whose Broker accepts no messages are in `read_only`: with `admin_url` all, without it those that were assigned.
        """
        route = await self._connected_routes.look_up(topic)
        if route is None:
            return None
        names = sorted(route.partitions, key=list_order)
        read_only = sorted({*route.read_only, *await self._configured_read_only(topic)} - route.partitions.keys(), key=list_order)
        indexes = self.known_brokers.indexes(topic, [*names, *read_only])
        return Topic(
            topic,
            tuple(names),
            indexes=indexes[: len(names)],
            read_only=dict(zip(read_only, indexes[len(names) :], strict=True)),
        )

    async def _configured_read_only(self, topic: str) -> Collection[str]:
        """Return the read-only partitions by the Master's configuration; none without `admin_url`, or while it does not respond.

        The Master does not list them to producers, and to consumers only as assignments.
        """
        if self._admin is None:
            return ()
        try:
            return await self._admin.read_only_partitions(topic)
        except ClusterError as error:
            log.debug("cluster %s: read-only partitions of topic %s are unknown now: %s", self.name, topic, error)
            return ()

    async def why_incomplete(self, topic: str) -> str | None:
        """Return why Brokers may have partitions of the topic that the Master does not list.

        With `admin_url`, the Master says which online Brokers accept messages of the topic by its configuration. Without it, all
        that are known must be listed.
        """
        route = await self._connected_routes.topic(topic)
        listed = brokers_of(route.readable)
        if self._admin is None:
            absent = set(self.known_brokers.of(topic) - listed)
            advice = f"If a Broker has none any more, set `admin_url`, or {self.known_brokers.advice_if_gone(self.name, absent)}"
        else:
            absent = {str(broker) for broker in await self._admin.publishing_brokers(topic)} - listed
            advice = "If a Broker is gone for good, set it offline at the Master"
        if not absent:
            return None
        return f"the Master lists no partition of topic {topic} at Broker {', '.join(sorted(absent))}. {advice}"

    async def why_maybe_there(self, topic: str | None) -> str | None:
        """Return None: the Master knows every topic, and `describe` raises an error if no Broker that has one runs."""
        return None

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic, spread over the online Brokers, or add partitions until it has at least `partitions`.

        Returns when the topic accepts messages.
        """
        _check_topic(topic, partitions)
        await self._require_admin("create topics").create(topic, partitions)

    async def check_create(self, topic: str, partitions: int) -> None:
        """Check that the name is valid, the web API responds and accepts the token, and a Broker is online."""
        _check_topic(topic, partitions)
        await self._require_admin("create topics").check_change()

    async def delete(self, topic: str) -> None:
        """Delete the topic with its messages, and the offsets of groups; return when the Brokers have deleted the data.

        Raises ClusterError (RETRY) while a Broker of the topic is down.
        """
        await self._require_admin("delete topics").delete(topic)
        await self._connected_routes.forget(topic)

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return the range of stored positions by partition name; all partitions of a store have the range of the store.

        The result has each readable partition, and with `admin_url` all others that online Brokers list. Without `admin_url` the
        ranges are requested from the Brokers with a temporary group. The index in these positions is 0. The last message has no
        known position: the end of a store is that of all its partitions. With `partition`, only its Broker gets a request.
        """
        refs = (await self._connected_routes.topic(topic)).readable
        if self._admin is None:
            if partition is not None:
                refs = {partition: await self._partition_ref(topic, partition)}
            offsets = await self._connected_groups.bounds_of(refs.values())
            return {name: Bounds((first, 0), (end, 0)) for name, (first, end) in zip(refs, offsets, strict=True)}
        stored_ranges = await self._admin.stored(topic, None if partition is None else brokers_of([partition]))
        empty = dict.fromkeys(refs, Bounds((0, 0), (0, 0)))  # Brokers may not list partitions without messages
        bounds = empty | {name: Bounds((stored.first, 0), (stored.next, 0)) for name, stored in stored_ranges.items()}
        if partition is None:
            return bounds
        if partition not in bounds:
            await self._partition_ref(topic, partition)  # a new partition without messages, or none
        return {partition: bounds.get(partition, Bounds((0, 0), (0, 0)))}

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the confirmed positions of a group by partition name; their index is 0, since groups confirm offsets."""
        offsets = await self._require_admin("see offsets").committed(topic, group)
        return {name: (offset, 0) for name, offset in offsets.items()}

    # --- reading, inbounds and outbounds ----------------------------------------------------------------------------

    async def deleted_unread(self, topic: str, partition: str, group: str, begin: Position, first: Position) -> bool | None:
        """Return False if the group has read up to `first`, True if not and the store has no other partition, else None.

        The partitions of a store share its offsets, so those between two messages may all be of other partitions.
        """
        if self._admin is not None:
            committed = (await self.committed(topic, group)).get(partition)
            if committed is not None and committed >= first:
                return False
        ref = await self._partition_ref(topic, partition)
        # In a store without other partitions, each message takes one entry, so the position after `begin[1]` messages is known.
        end = begin[0] + begin[1] * INDEX_ENTRY_BYTES
        return first[0] > end if self._connected_routes.is_alone(ref) else None

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Open a reader with a temporary group, so that no other group's position changes.

        It reads ahead the response to one get at most, whose size only the Broker decides: half a MiB, or one large message. So
        `max_bytes` has no effect.
        """
        ref = await self._partition_ref(topic, partition)
        source = Partition(self.name, topic, partition, await self._index_of(ref))
        return self._connected_groups.reader(ref, source, begin, end)

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Measure a range in units of one entry of the store's index, that is one message of any partition of the store.

        Entries have a fixed size, so the number of entries between two offsets is known without reading. But only a read can find
        the message at a position whose index is not 0. So if `begin` is such a position, the range from it to the end of the
        first batch after which the position has index 0 again is one unit; the entries from there on are counted.
        """
        if end <= begin:
            return []
        if not begin[1]:  # `begin` is an offset
            return index_entries_between(begin, end)
        first_countable = end
        if begin[0] < end[0]:
            async with aclosing(read(self, topic, partition, begin, end)) as batches:
                async for batch in batches:
                    first_countable = batch.next
                    if not first_countable[1]:
                        break
        return [UnitRange(begin, count=1), *index_entries_between(first_countable, end)]

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group as a consumer."""
        await self._check_spec(spec)
        consumer = self._consumer(spec)
        await consumer.start()
        why_closed = None if self._admin is None else partial(_why_closed, self._admin, spec.group)
        return TubeMQInbound(self.name, consumer, self._zone, self._index_of, spec.topics, why_closed)

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Check that the topics exist, our credentials allow consuming, and with `admin_url` that the group may consume them.

        Without `admin_url` the last is not checked: only joining the group would show it, and the Master would then assign
        partitions to this client.
        """
        await self._check_spec(spec)
        for topic in spec.topics[:1]:  # one topic is enough: whether credentials allow consuming does not depend on the topic
            await self._connected_routes.check_consumer(topic)
        if (admin := self._admin) is None:
            return
        for topic in spec.topics:
            if await admin.is_forbidden(topic, spec.group):
                raise NotPermitted(_forbidden_text(spec.group, topic), codes.GROUP_FORBIDDEN, Failure.FATAL)

    async def _check_spec(self, spec: InboundSpec) -> None:
        """Raise ClusterError if a topic does not exist, ConfigError for an invalid group name or a way to share."""
        check_sharing(self, spec)
        for topic in spec.topics:
            await self._connected_routes.topic(topic)
        check_group_name(spec.group)

    def _consumer(self, spec: InboundSpec) -> PackConsumer:
        return PackConsumer(
            self._connected_routes.masters,
            spec.group,
            spec.topics,
            start=StartOffset.EARLIEST if spec.start is Start.EARLIEST else StartOffset.LATEST,
            filters={topic: types for topic in spec.topics if (types := spec.msg_types_of(topic))},
            heartbeat_s=self._config.heartbeat,
            budget=ReadBudget(spec.max_bytes, counts_packs=True),  # so that `max_bytes` also covers packs read ahead
            priority=_query_priority(spec),
            # With start LATEST, partitions that did not exist when the route first joined are still read from the first message.
            is_new_partition=lambda ref: spec.start_of(ref.topic, ref.name) is Start.EARLIEST,
            is_alone=self._connected_routes.is_alone,
            positions=None if spec.positions is None else OffsetStore(spec.positions),
            member=spec.member,
            release_wait_s=spec.release_wait_s,
        )

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a sender to the topic.

        Raises ClusterError (RETRY) while a Broker that may have partitions of the topic is down: without them, messages of a
        key or of a source partition would go to other partitions than before and after.
        """
        routes = self._connected_routes
        if (reason := await self.why_incomplete(spec.topic)) is not None:
            raise ClusterError(f"topic {spec.topic!r} of cluster {self.name!r} is not written now: {reason}", Failure.RETRY)
        self.known_brokers.record(spec.topic, brokers_of((await routes.topic(spec.topic)).partitions))
        assert self._connections is not None  # noqa: S101 - connected with the routes
        sender = await open_partition_sender(
            routes,
            self._connections,
            spec.topic,
            ordered=spec.ordered,
            in_flight=spec.options.in_flight if isinstance(spec.options, TubeMQOutboundOptions) else None,
            max_elapsed_s=spec.resend_s,
        )
        # `last_stored` reads the topic backward through this cluster, for the outbound's `resume`.
        order = self._target_orders.open(spec.topic, sender.route.partitions)
        return TubeMQOutbound(sender, spec, self._zone, last_stored=partial(last_stored, self), order=order)

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Check that the topic exists and accepts messages, by opening an outbound and closing it again."""
        await (await self.outbound(spec)).close()

    @property
    def _connected_groups(self) -> TemporaryGroups:
        if self._groups is None:
            raise ClusterError(f"cluster {self.name!r} is not connected", Failure.FATAL)
        return self._groups

    @property
    def _connected_routes(self) -> Routes:
        if self._routes is None:
            raise ClusterError(f"cluster {self.name!r} is not connected", Failure.FATAL)
        return self._routes

    def _require_admin(self, purpose: str) -> GroupAdmin:
        """Return the client of the web API. Raises ClusterError (FATAL) without `admin_url`.

        `purpose` is a verb phrase for the error: "cluster 'NAME' cannot PURPOSE".
        """
        if self._admin is None:
            raise ClusterError(
                f"cluster {self.name!r} cannot {purpose}: set admin_url (--at URL?admin=http://HOST:PORT)", Failure.FATAL
            )
        return self._admin

    async def _index_of(self, ref: PartitionRef) -> int:
        """Return the index of a partition in its topic."""
        readable = await self._connected_routes.readable_with(ref)
        return self.known_brokers.index(ref.topic, ref.name, readable)

    async def _partition_names(self, topic: str) -> list[str]:
        return list((await self._connected_routes.topic(topic)).partitions)

    async def _partition_ref(self, topic: str, name: str) -> PartitionRef:
        """Return a partition by its name; if it is unknown, refresh the routes first. Raises ClusterError (FATAL)."""
        route = await self._connected_routes.topic(topic)
        if name not in route.readable:
            await self._connected_routes.refresh()  # updates `route`
        if (ref := route.readable.get(name)) is None:
            raise ClusterError(f"topic {topic!r} of cluster {self.name!r} has no partition {name}", Failure.FATAL)
        return ref


def index_entries_between(begin: Position, end: Position) -> list[UnitRange]:
    """Return the index entries from `begin` to `end` as a list of one unit range; an empty list if `end` is not after `begin`.

    The index of `begin` must be 0. If the index of `end` is not 0, the messages between the offset of `end` and `end` itself are
    one more unit.
    """
    count = -(-(end[0] - begin[0]) // INDEX_ENTRY_BYTES) + (end[1] > 0)  # the division is rounded up
    return [UnitRange(begin, count, step=INDEX_ENTRY_BYTES)] if begin < end else []


def _check_topic(topic: str, partitions: int) -> None:
    check_topic_name(topic)
    if partitions < 1:
        raise ConfigError(f"topic {topic!r} cannot have {partitions} partitions", hint="Give it one at least")


def _forbidden_text(group: str, topic: str) -> str:
    return (
        f"group {group!r} may not consume topic {topic!r}, which is for listed groups only: list the group with the"
        f" Master's web API (method=admin_add_authorized_consumergroup_info&topicName={topic}&groupName={group})"
    )


def _query_priority(spec: InboundSpec) -> int | None:
    return spec.options.query_priority if isinstance(spec.options, TubeMQInboundOptions) else None


async def _why_closed(admin: GroupAdmin, group: str, topic: str) -> str | None:
    """Return why no member of the group may read the topic by its configuration; None if its members may."""
    if brokers := await admin.brokers_without_consumers(topic):
        return f"closed for consumers at Broker {', '.join(map(str, brokers))} (acceptSubscribe=false)"
    if await admin.is_black_listed(topic, group):
        return f"closed for the group {group}, which is in its black list (admin_delete_black_consumergroup_info takes it out)"
    return None
