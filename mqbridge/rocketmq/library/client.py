"""The RocketMQ client of one cluster, for applications.

    async with RocketMQClient("rocketmq://localhost:9876") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"hello", key="customer-7")
        async with client.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                print(message.key, message.payload)
                consumer.acknowledge(message)

A partition is a queue, written `broker:queue`, for example `broker-a:3`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.library.cluster_url import parse_addresses, parse_cluster_url
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.opening import OpenedByClient, Opening
from mqbridge.library.send_window import MAX_PENDING_BYTES
from mqbridge.net.secret import Secret
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.client.admin.group_admin import GroupAdmin
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.admin.read_permission import why_unreadable
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.base_client import Timing
from mqbridge.rocketmq.client.connection.connection import REQUEST_TIMEOUT_S
from mqbridge.rocketmq.client.connection.credentials import Credentials
from mqbridge.rocketmq.client.connection.name_server_address import DEFAULT_PORT, join_address
from mqbridge.rocketmq.client.consumer.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.consumer.consumer_settings import MAX_BYTES, ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.consumer.sendback import MAX_REDELIVERIES
from mqbridge.rocketmq.client.consumer.subscription import Subscription, everything, sql92, tagged
from mqbridge.rocketmq.client.producer.queue_producer import ORDERED
from mqbridge.rocketmq.library.consumer import Consumer
from mqbridge.rocketmq.library.group_member import GroupMember, Mode, Strategy, join_group, parse_start
from mqbridge.rocketmq.library.lazy_client import LazyClusterClient
from mqbridge.rocketmq.library.partitions import find_queue
from mqbridge.rocketmq.library.pop import DEFAULT_INVISIBLE_MS, DEFAULT_POLL_MS, MAX_POP_MESSAGES, Popper
from mqbridge.rocketmq.library.pop_consumer import PopConsumer
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.library.transactions import Check, TransactionProducer
from mqbridge.rocketmq.mapping.compressed_body import Compression
from mqbridge.rocketmq.wire.allocation_strategies import STRATEGIES
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

SCHEME = "rocketmq"
"""Scheme of cluster URLs; with `+ssl` appended, connections use TLS."""
DEFAULT_PRODUCER_GROUP = "mqbridge"
LATE_CLOSE_TIMEOUT_S = 1.0
"""Time limit of closing a producer or consumer whose opening ended only after the client was closed."""


class RocketMQClient:
    """A client that connects on its first request. Closing it also closes its producers and consumers.

    Producers, administration and look-ups share one connection per address. Each consumer of a group has its own connections,
    because brokers identify the members of a group by client id.

    url                name servers of the cluster: `rocketmq://host:9876[,host:9876]`, or `rocketmq+ssl://` for TLS
    tls                TLS settings for `rocketmq+ssl://`; None: trust the CA certificates of the system
    access_key, secret_key, security_token
                       credentials that sign every request, for brokers with access control; None: requests are not signed.
                       Only temporary keys have a security token
    request_timeout_s  timeout of one response, in seconds; pulls and pops, which brokers hold until there is a message, have a
                       longer one
    heartbeat_s        interval between heartbeats, in seconds; brokers remove a client after 120 s without one
    addresses          where the servers can be reached, if not at the addresses that they advertise: advertised to reachable
                       address, both `host:port` or both `host`; None: they can be reached as they are
    refresh_s          interval between route queries, in seconds: how soon new queues and moved brokers are noticed
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls | None = None,
        access_key: str | Secret | None = None,
        secret_key: str | Secret | None = None,
        security_token: str | Secret | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        heartbeat_s: float = Timing().heartbeat,
        refresh_s: float = Timing().route,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """Raises ConfigError for an invalid URL or incomplete credentials."""
        parsed_url = parse_cluster_url(url, SCHEME, DEFAULT_PORT, tls)
        self._name_servers = [join_address(host, port) for host, port in parsed_url.addresses]
        self._tls = parsed_url.tls
        self._addresses = parse_addresses(addresses)
        self._credentials = _make_credentials(access_key, secret_key, security_token)
        self._timing = Timing(request=request_timeout_s, heartbeat=heartbeat_s, route=refresh_s)
        self._shared: LazyClusterClient | None = None
        """The cluster client of everything but group members and readers; None before its first use."""
        name_servers = ", ".join(self._name_servers)
        self._opened = OpenedByClient(f"name servers: {name_servers}", LATE_CLOSE_TIMEOUT_S)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._opened.is_closed

    # --- producing --------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        producer_group: str = DEFAULT_PRODUCER_GROUP,
        compression: Compression = "none",
        in_flight_per_queue: int = ORDERED,
        max_elapsed_s: float | None = None,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        require_replica: bool = False,
    ) -> Opening[Producer]:
        """Open a producer of a topic: `await` it, or use it with `async with`. Raises ClusterError: FATAL for a missing topic.

        producer_group       name under which brokers know the producer
        compression          compression of payloads of 4 KiB or more; a compressed message is sent alone instead of in a batch
        in_flight_per_queue  maximum number of concurrent requests to one queue; more than 1 is faster, but gives up the order
        max_elapsed_s        if a queue has stored nothing for this many seconds since a send to it failed, its messages fail with
                             the last error (None: retry forever)
        max_pending_bytes    limit of the bytes of messages without a receipt; `send` waits while its message would exceed it
        max_message_bytes    maximum size of a message, the `maxMessageSize` of the brokers; a larger message fails at once
        require_replica      send messages again that a broker stores without the flush or replica that its settings demand, so
                             they may be stored several times; False: they count as stored, and `SendReceipt.status` tells it
        """

        async def open_producer() -> Producer:
            client = await self._connected_client()
            queue_producer = client.producer(
                producer_group,
                topic,
                in_flight_per_queue=in_flight_per_queue,
                max_elapsed_s=max_elapsed_s,
                max_message_bytes=max_message_bytes,
                require_replica=require_replica,
            )
            try:
                await queue_producer.queues()
                producer = Producer(
                    queue_producer,
                    compression=compression,
                    max_pending_bytes=max_pending_bytes,
                    requires_keys=await queue_producer.requires_keys(),
                )
            except BaseException:
                await queue_producer.close()
                raise
            return await self._opened.register(producer)

        return Opening(open_producer)

    def transaction_producer(
        self,
        topic: str,
        check: Check,
        *,
        producer_group: str,
        compression: Compression = "none",
        max_elapsed_s: float | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> Opening[TransactionProducer]:
        """Open a producer of transactional messages: `await` it, or use it with `async with`. Raises ClusterError.

        `check` returns the outcome of a transaction for which a broker asks. Brokers ask any producer of `producer_group`, so
        each application needs a group of its own, whose producers can all look up the outcome. The other arguments are the same
        as for `producer`.
        """

        async def open_producer() -> TransactionProducer:
            client = await self._connected_client()
            producer = TransactionProducer(
                client,
                producer_group,
                topic,
                check,
                compression=compression,
                max_elapsed_s=max_elapsed_s,
                max_message_bytes=max_message_bytes,
            )
            return await self._opened.register(producer)

        return Opening(open_producer)

    # --- consuming --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Start | datetime = "earliest",
        msg_types: Sequence[str] = (),
        sql: str | None = None,
        mode: Mode = "clustering",
        orderly: bool = False,
        retries: bool = True,
        max_redeliveries: int = MAX_REDELIVERIES,
        strategy: Strategy = "averagely",
        max_bytes: int = MAX_BYTES,
        offsets: BroadcastOffsets | None = None,
        instance: str | None = None,
    ) -> Opening[Consumer]:
        """Open a consumer in a group: `await` it, or use it with `async with`. Raises ClusterError, ConfigError.

        start             where the group begins in queues without a committed offset: `earliest`, `latest`, or the first message
                          stored at this time or later
        msg_types         tags of the messages to receive; empty means all
        sql               SQL92 expression on the properties of the messages to receive, instead of `msg_types`; brokers need
                          `enablePropertyFilter`; None: no such filter
        mode              `clustering`: the members of the group divide the queues; `broadcasting`: every member reads all queues
        orderly           lock each queue at its broker, so that two members never read it at the same time
        retries           also receive messages that members of the group sent back; all members must use the same value.
                          False: this consumer itself redelivers its messages after `negative_acknowledge`
        max_redeliveries  number of redeliveries after which a message that is sent back becomes a dead letter
        strategy          how the members divide the queues; all members, including Java ones, must use the same
        max_bytes         limit of the stored bytes of messages, read ahead or unacknowledged, all queues together;
                          a queue whose share is full of unacknowledged messages is not read on before some are acknowledged
        offsets           with `broadcasting`, stores the offsets; None: each new consumer begins at `start`
        instance          unique suffix of the client id (None: generated); with `consistent_hash`, a fixed value keeps the
                          assignment of queues the same after a restart
        """

        async def open_consumer() -> Consumer:
            start_offset, start_ms = parse_start(start)
            settings = ConsumerSettings(
                group,
                _make_subscriptions(topics, msg_types, sql),
                MessageModel.CLUSTERING if mode == "clustering" else MessageModel.BROADCASTING,
                start_offset,
                start_ms,
                orderly=orderly,
                retries=retries,
                strategy=STRATEGIES[strategy],
                store=offsets,
                max_bytes=max_bytes,
            )
            return await self._open_consumer(settings, max_redeliveries, instance)

        return Opening(open_consumer)

    def reader(
        self,
        topic: str,
        *,
        partitions: Sequence[str] = (),
        start: Start | datetime = "earliest",
        max_bytes: int = MAX_BYTES,
    ) -> Opening[Consumer]:
        """Open a consumer that joins no group and leaves no trace at the brokers: `await` it, or use it with `async with`.

        partitions  queues to read, as `broker:queue`; empty means all queues that the topic has now
        start       where each queue begins, as for `consumer`
        max_bytes   limit of the bytes of messages read ahead, all queues together

        Acknowledgements are not stored, so each new reader begins at `start`. Raises ClusterError.
        """

        async def open_reader() -> Consumer:
            client = await self._connected_client()
            route = await client.admin.route(topic)
            if route is None:
                raise ClusterError(f"no name server knows topic {topic!r}; create it, or correct the name", Failure.FATAL)
            queues = tuple(route.read_queues())
            if not queues:
                raise ClusterError(f"cannot open a reader: {await why_unreadable(client.admin, topic)}", Failure.RETRY)
            if partitions:
                queues = tuple(find_queue(topic, queues, partition) for partition in partitions)
            start_offset, start_ms = parse_start(start)
            settings = ConsumerSettings(
                group="",
                subscriptions=(everything(topic),),
                model=MessageModel.ASSIGNED,
                start=start_offset,
                start_ms=start_ms,
                queues=queues,
                max_bytes=max_bytes,
            )
            return await self._open_consumer(settings, MAX_REDELIVERIES, instance=None)

        return Opening(open_reader)

    def pull_consumer(
        self, settings: ConsumerSettings, *, max_redeliveries: int = MAX_REDELIVERIES, instance: str | None = None
    ) -> Opening[GroupMember]:
        """Open a member of a group, or a reader of given queues, that returns whole pulls. Raises ClusterError.

        A pull is the response to one pull request. This is the fastest way to read, because a pull is committed as a
        whole, and decoded only if its `records` are used. `max_redeliveries` and `instance` are the same as for `consumer`.
        """

        async def open_member() -> GroupMember:
            member = await join_group(lambda: self._make_client(instance), settings, max_redeliveries=max_redeliveries)
            return await self._opened.register(member)

        return Opening(open_member)

    def pop_consumer(
        self,
        topic: str,
        group: str,
        *,
        start: Start = "earliest",
        msg_types: Sequence[str] = (),
        sql: str | None = None,
        orderly: bool = False,
        invisible_s: float = DEFAULT_INVISIBLE_MS / 1000,
        poll_s: float = DEFAULT_POLL_MS / 1000,
        max_messages: int = MAX_POP_MESSAGES,
    ) -> Opening[PopConsumer]:
        """Open a consumer by POP (brokers from 5.0 on): `await` it, or use it with `async with`. Raises ClusterError.

        Any number of consumers share the topic, and each message is acknowledged by itself. Messages are not
        in order, except with `orderly`.

        start         where a group that is new to the topic begins: at its first message, or after its last one
        msg_types, sql
                      filters, as for `consumer`
        orderly       keep the order of each queue: its next messages are delivered once the previous ones are acknowledged
        invisible_s   time after which a message that is not acknowledged is delivered again, in seconds
        poll_s        time for which a broker holds a request while it has no message, in seconds
        max_messages  maximum number of messages per request, at most 32
        """

        async def open_consumer() -> PopConsumer:
            client = await self._connected_client()
            (subscription,) = _make_subscriptions(topic, msg_types, sql)
            popper = Popper(
                client,
                group,
                subscription,
                start=StartOffset.EARLIEST if start == "earliest" else StartOffset.LATEST,
                orderly=orderly,
                invisible_ms=round(invisible_s * 1000),
                poll_ms=round(poll_s * 1000),
                max_msgs=max_messages,
            )
            consumer = PopConsumer(popper, topic, await popper.brokers())
            return await self._opened.register(consumer)

        return Opening(open_consumer)

    # --- administration and look-ups --------------------------------------------------------------------------------

    @property
    def admin(self) -> Admin:
        """Administration of topics and brokers: create, change and delete topics, change settings, get statistics."""
        return self.requests.admin

    @property
    def groups(self) -> GroupAdmin:
        """Administration of consumer groups: create, delete, list members, get the progress, read and reset offsets."""
        return self.requests.groups

    @property
    def positions(self) -> Positions:
        """Look-ups of offsets in a queue: of its first message, of the next one to be stored, at a time, committed by a group."""
        return self.requests.positions

    @property
    def query(self) -> Query:
        """Look-ups of single messages, by key or by id."""
        return Query(self.requests)

    @property
    def requests(self) -> ClusterClient:
        """The protocol client that this client uses: sends requests of any code, and sets handlers for requests of brokers.

        Needs a running loop. Raises ClusterError if this client is closed.
        """
        return self._shared_client()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close every producer and consumer, the last opened one first, within `timeout` seconds, then the connections."""
        if not self._opened.begin_close():
            return
        try:
            await self._opened.close(timeout)
        finally:
            if self._shared is not None:
                await self._shared.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _shared_client(self) -> LazyClusterClient:
        """Return the cluster client of everything but group members and readers. Raises ClusterError if the client is closed."""
        self._opened.check_open()
        if self._shared is None:
            self._shared = LazyClusterClient(
                self._name_servers,
                timing=self._timing,
                tls=self._tls,
                credentials=self._credentials,
                addresses=self._addresses,
            )
        return self._shared

    async def _connected_client(self) -> ClusterClient:
        """Return the shared client, connected. Raises ClusterError."""
        client = self._shared_client()
        await client.ensure_connected()
        return client

    def _make_client(self, instance: str | None) -> ClusterClient:
        """Return a new cluster client for one group member or reader. Raises ClusterError if the client is closed."""
        self._opened.check_open()
        return ClusterClient(
            self._name_servers,
            timing=self._timing,
            instance=instance,
            tls=self._tls,
            credentials=self._credentials,
            addresses=self._addresses,
        )

    async def _open_consumer(self, settings: ConsumerSettings, max_redeliveries: int, instance: str | None) -> Consumer:
        consumer = Consumer(await join_group(lambda: self._make_client(instance), settings, max_redeliveries=max_redeliveries))
        return await self._opened.register(consumer)


def _make_subscriptions(topics: str | Sequence[str], msg_types: Sequence[str], sql: str | None) -> tuple[Subscription, ...]:
    """Return one subscription per topic, all with the same filter; without `msg_types` (tags) and `sql`, they match everything.

    Raises ConfigError if both `msg_types` and `sql` are given, or if `msg_types` is a string; LocalProtocolError for an invalid
    filter.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if sql is not None and msg_types:
        raise ConfigError(
            f"a subscription to {', '.join(names)} filters by msg_types (tags) or by sql, not by both: give one of them"
        )
    if isinstance(msg_types, str):
        raise ConfigError(f"msg_types is a list: write [{msg_types!r}]")
    if sql is not None:
        return tuple(sql92(topic, sql) for topic in names)
    return tuple(tagged(topic, msg_types) if msg_types else everything(topic) for topic in names)


def _make_credentials(
    access_key: str | Secret | None, secret_key: str | Secret | None, security_token: str | Secret | None
) -> Credentials | None:
    if access_key is None and secret_key is None and security_token is None:
        return None
    if access_key is None or secret_key is None:
        raise ConfigError("credentials need both access_key and secret_key: give the missing one, too")
    token = None if security_token is None else _as_secret(security_token)
    return Credentials(_as_secret(access_key), _as_secret(secret_key), token)


def _as_secret(value: str | Secret) -> Secret:
    return Secret(value) if isinstance(value, str) else value
