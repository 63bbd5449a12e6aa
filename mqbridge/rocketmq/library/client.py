"""The public client of a RocketMQ cluster."""

from collections.abc import Sequence
from datetime import datetime
from typing import Self, TypeVar

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.library.cluster_url import parse_cluster_url
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.opening import Closable, OpenedByClient, Opening
from mqbridge.library.send_window import MAX_PENDING_BYTES
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.admin import Admin
from mqbridge.rocketmq.client.allocation_strategies import STRATEGIES
from mqbridge.rocketmq.client.base_client import Timing
from mqbridge.rocketmq.client.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection import REQUEST_TIMEOUT_S
from mqbridge.rocketmq.client.consumer_settings import MAX_BYTES, ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.credentials import Credentials
from mqbridge.rocketmq.client.group_admin import GroupAdmin
from mqbridge.rocketmq.client.name_server_address import DEFAULT_PORT, join_address
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.queue_producer import ORDERED
from mqbridge.rocketmq.client.sendback import MAX_TIMES
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.library.consumer import Consumer
from mqbridge.rocketmq.library.encoding import Compression
from mqbridge.rocketmq.library.group_member import GroupMember, Mode, Strategy, join_group, start_of
from mqbridge.rocketmq.library.lazy_client import LazyClusterClient
from mqbridge.rocketmq.library.partitions import find_queue
from mqbridge.rocketmq.library.pop import INVISIBLE_MS, MAX_MSGS, POLL_MS, Popper
from mqbridge.rocketmq.library.pop_consumer import PopConsumer
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.library.subscriptions import subscriptions_of
from mqbridge.rocketmq.library.transactions import Check, TransactionProducer
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES
from mqbridge.secret import Secret

SCHEME = "rocketmq"
PRODUCER_GROUP = "mqbridge"
LEAVE_TIMEOUT_S = 1.0
"""How long a consumer takes at most to leave its group when it was opened while the client closed."""

T = TypeVar("T", bound=Closable)


class RocketMQClient:
    """One cluster, found through its name servers: `rocketmq://host:9876[,host:9876]`, or `rocketmq+ssl://` with TLS.

    It connects on the first request, and `close` closes what it has opened. Producers, administration and look-ups share one
    connection per address. Each consumer has connections of its own: members of one group need different client ids.

    tls                how TLS is set up; None trusts the authorities of the machine
    access_key, secret_key, security_token   sign every request, where brokers control access
    request_timeout_s  for one response
    heartbeat_s        interval between heartbeats; brokers forget a client after 120 s without one
    refresh_s          interval between refreshes of the routes: how fast new queues and moved brokers are seen
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
    ) -> None:
        """Raises ConfigError for a URL or credentials that cannot be used."""
        found = parse_cluster_url(url, SCHEME, DEFAULT_PORT, tls)
        self._name_servers = [join_address(host, port) for host, port in found.addresses]
        self._tls = found.tls
        self._credentials = _credentials(access_key, secret_key, security_token)
        self._timing = Timing(request=request_timeout_s, heartbeat=heartbeat_s, route=refresh_s)
        self._shared: LazyClusterClient | None = None
        self._opened = OpenedByClient()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    # --- producing --------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        producer_group: str = PRODUCER_GROUP,
        compression: Compression = "none",
        in_flight_per_queue: int = ORDERED,
        max_elapsed_s: float | None = None,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> Opening[Producer]:
        """Open a producer of a topic: `await` it, or use it with `async with`. Raises ClusterError: FATAL for a missing topic.

        compression          of payloads from 4 KiB on; such a message is sent alone instead of in a batch
        in_flight_per_queue  requests of one queue that may be outstanding; more than 1 is faster and gives up the order
        max_elapsed_s        when nothing was stored in a queue for this long since a send first failed, its messages fail with
                             the last error; None retries for ever
        max_pending_bytes    `send` waits while this many bytes have no receipt
        max_message_bytes    the brokers' `maxMessageSize`
        """

        async def open_producer() -> Producer:
            client = await self._connected()
            queue_producer = client.producer(
                producer_group,
                topic,
                in_flight_per_queue=in_flight_per_queue,
                max_elapsed_s=max_elapsed_s,
                max_message_bytes=max_message_bytes,
            )
            try:
                await queue_producer.queues()
                producer = Producer(queue_producer, compression=compression, max_pending_bytes=max_pending_bytes)
            except BaseException:
                await queue_producer.close()
                raise
            return await self._kept(producer)

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
        """Open a producer of transactional messages. `check` answers brokers that ask for the outcome of a transaction.

        Producers of one `producer_group` answer for each other, so each application has its own. Raises ClusterError.
        """

        async def open_producer() -> TransactionProducer:
            client = await self._connected()
            producer = TransactionProducer(
                client,
                producer_group,
                topic,
                check,
                compression=compression,
                max_elapsed_s=max_elapsed_s,
                max_message_bytes=max_message_bytes,
            )
            return await self._kept(producer)

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
        max_redeliveries: int = MAX_TIMES,
        strategy: Strategy = "averagely",
        max_bytes: int = MAX_BYTES,
        offsets: BroadcastOffsets | None = None,
        instance: str | None = None,
    ) -> Opening[Consumer]:
        """Join a consumer group: `await` it, or use it with `async with`. Raises ClusterError, ConfigError.

        start             where a queue begins that has no offset of the group: an end, or what was stored at a time or later
        msg_types         only messages with one of these tags
        sql               only messages whose properties satisfy this SQL92 expression (`enablePropertyFilter` of the brokers)
        mode              `clustering`: the members divide the queues; `broadcasting`: every member reads all of them
        orderly           lock each queue at its broker, so that no two members ever read it at the same time
        retries           also receive what members of the group sent back; all members must do the same
        max_redeliveries  after this many deliveries a message that is sent back goes to the group's dead letters
        strategy          how the members divide the queues; all members, Java ones too, must use the same
        max_bytes         bound of the messages that wait here, as stored
        offsets           with `broadcasting`: keeps the offsets; without it, each queue begins at `start` each time
        instance          the part of the client id that is unique otherwise; a stable one keeps `consistent_hash` stable
        """

        async def open_consumer() -> Consumer:
            begin, start_ms = start_of(start)
            settings = ConsumerSettings(
                group,
                subscriptions_of(topics, msg_types, sql),
                MessageModel.CLUSTERING if mode == "clustering" else MessageModel.BROADCASTING,
                begin,
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
        """Read a topic as no group's member, and leave nothing behind at the brokers. Raises ClusterError.

        Acknowledgements are kept nowhere. `partitions` (`broker:queue`) are all that the topic has now, if none is given.
        """

        async def open_reader() -> Consumer:
            client = await self._connected()
            route = await client.admin.route(topic)
            if route is None:
                raise ClusterError(f"no name server knows topic {topic!r}; create it, or correct the name", Failure.FATAL)
            queues = tuple(route.read_queues())
            if partitions:
                queues = tuple(find_queue(topic, queues, partition) for partition in partitions)
            begin, start_ms = start_of(start)
            settings = ConsumerSettings(
                "", (everything(topic),), MessageModel.ASSIGNED, begin, start_ms, queues=queues, max_bytes=max_bytes
            )
            return await self._open_consumer(settings, MAX_TIMES, None)

        return Opening(open_reader)

    def pull_consumer(
        self, settings: ConsumerSettings, *, max_redeliveries: int = MAX_TIMES, instance: str | None = None
    ) -> Opening[GroupMember]:
        """Join a group, or read given queues, pull by pull: the pulls of each queue. Raises ClusterError.

        The fastest way to read: a pull is decoded only when its `records` are asked for, and committed as a whole.
        """

        async def open_member() -> GroupMember:
            member = await join_group(lambda: self._make_client(instance), settings, max_redeliveries=max_redeliveries)
            return await self._kept(member)

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
        invisible_s: float = INVISIBLE_MS / 1000,
        poll_s: float = POLL_MS / 1000,
        max_messages: int = MAX_MSGS,
    ) -> Opening[PopConsumer]:
        """Consume by POP (brokers from 5.0 on): each message is acknowledged by itself, at any consumer. Raises ClusterError.

        invisible_s   a message that is not acknowledged for this long is delivered again
        poll_s        how long a broker holds a request while it has no message
        max_messages  of one request, 32 at most
        """

        async def open_consumer() -> PopConsumer:
            client = await self._connected()
            (subscription,) = subscriptions_of(topic, msg_types, sql)
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
            return await self._kept(consumer)

        return Opening(open_consumer)

    # --- administration and look-ups --------------------------------------------------------------------------------

    @property
    def admin(self) -> Admin:
        """Topics and brokers: create, change, delete, configure, statistics."""
        return self.requests.admin

    @property
    def groups(self) -> GroupAdmin:
        """Consumer groups: create, delete, members, progress, offsets, resets."""
        return self.requests.groups

    @property
    def positions(self) -> Positions:
        """Offsets of queues and groups."""
        return self.requests.positions

    @property
    def query(self) -> Query:
        """Single messages, by key or id."""
        return Query(self.requests)

    @property
    def requests(self) -> ClusterClient:
        """The client below: requests of any code, and handlers for the requests of brokers. Needs a running loop."""
        return self._client()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close every producer and consumer, the last one first, then the connections."""
        if self._closed:
            return
        self._closed = True
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

    def _client(self) -> LazyClusterClient:
        if self._closed:
            raise ClusterError("the client is closed", Failure.FATAL)
        if self._shared is None:
            self._shared = LazyClusterClient(
                self._name_servers, timing=self._timing, tls=self._tls, credentials=self._credentials
            )
        return self._shared

    async def _connected(self) -> ClusterClient:
        client = self._client()
        await client.ready()
        return client

    def _make_client(self, instance: str | None) -> ClusterClient:
        if self._closed:
            raise ClusterError("the client is closed", Failure.FATAL)
        return ClusterClient(
            self._name_servers, timing=self._timing, instance=instance, tls=self._tls, credentials=self._credentials
        )

    async def _open_consumer(self, settings: ConsumerSettings, max_redeliveries: int, instance: str | None) -> Consumer:
        consumer = Consumer(await join_group(lambda: self._make_client(instance), settings, max_redeliveries=max_redeliveries))
        return await self._kept(consumer)

    async def _kept(self, opened: T) -> T:
        """Have it closed with this client, which may have been closed while it was opened."""
        if self._closed:
            await opened.close(LEAVE_TIMEOUT_S)
            raise ClusterError("the client is closed", Failure.FATAL)
        self._opened.add(opened)
        return opened


def _credentials(
    access_key: str | Secret | None, secret_key: str | Secret | None, security_token: str | Secret | None
) -> Credentials | None:
    if access_key is None and secret_key is None and security_token is None:
        return None
    if access_key is None or secret_key is None:
        raise ConfigError("access_key and secret_key go together")
    return Credentials(_secret(access_key), _secret(secret_key), None if security_token is None else _secret(security_token))


def _secret(value: str | Secret) -> Secret:
    return Secret(value) if isinstance(value, str) else value
