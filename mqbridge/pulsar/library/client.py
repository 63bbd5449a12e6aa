"""The Pulsar client of one cluster, for applications.

    async with PulsarClient("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"hello", key="customer-7")
        async with client.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                print(message.key, message.payload)
                consumer.acknowledge(message)

A topic is written `orders`, `tenant/namespace/orders` or `persistent://tenant/namespace/orders`. The short name `orders` means
`persistent://public/default/orders`.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from mqbridge.errors import ConfigError
from mqbridge.library.cluster_url import parse_addresses, parse_cluster_url, parse_proxy
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.opening import Closable, OpenedByClient, Opening
from mqbridge.library.send_window import MAX_PENDING_BYTES
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.cluster_client import REFRESH_S, ClusterClient, Timing
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S
from mqbridge.pulsar.client.connection.lookup import REQUEST_TIMEOUT_S
from mqbridge.pulsar.client.connection.service_url import DEFAULT_PORT, DEFAULT_TLS_PORT, Address
from mqbridge.pulsar.client.consumer.subscription import DEFAULT_CHUNK_LIMITS, DEFAULT_MAX_BYTES, Subscription
from mqbridge.pulsar.client.modes import ACCESS_MODES, SUBSCRIPTION_TYPES, Access, Mode
from mqbridge.pulsar.client.producer.entry_producer import OPEN_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.consumer import Consumer
from mqbridge.pulsar.library.producer import Producer
from mqbridge.pulsar.library.reader import Reader
from mqbridge.pulsar.library.topic_consumer import TopicConsumer, open_pattern_consumer, open_topic_consumer
from mqbridge.pulsar.library.topic_names import TopicNames, full_name
from mqbridge.pulsar.library.topic_producer import KeyHash, open_topic_producer
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, CodecName
from mqbridge.pulsar.wire.entry import MAX_BATCH_MESSAGES
from mqbridge.pulsar.wire.ids import EARLIEST, LATEST
from mqbridge.pulsar.wire.names import DEFAULT_NAMESPACE
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema
from mqbridge.wire.bounded_pattern import Ambiguous, BoundedPattern

T = TypeVar("T", bound=Closable)

Topics = str | Sequence[str] | re.Pattern[str]
"""A topic name, several topic names, or a pattern that selects topics."""


class PulsarClient:
    """A client that connects on its first request. Closing it also closes its producers, consumers and readers.

    `url` is `pulsar://host:6650[,host:6650]`, or `pulsar+ssl://host:6651` with `tls` (default: the CA certificates of the
    system). `auth` is the authentication method: TokenAuth, BasicAuth or TlsAuth of
    `mqbridge.pulsar.client.connection.auth` (default: none). `admin_url` is the address of the REST interface
    (`http://host:8080`), which only `admin` needs, and `admin_proxy` that of a forward proxy for it (`http://host:3128`; None: no
    proxy, whatever the environment says). `request_timeout_s` is the timeout of one request, `operation_timeout_s` the
    timeout of an operation with all its retries, such as opening a consumer, and `connect_timeout_s` the timeout of a connection
    with its handshake. `keep_alive_s` is the interval between pings; a connection on which nothing arrives between two pings is
    closed. `addresses` says where brokers can be reached, if not at the addresses that they advertise: advertised to reachable
    address, both `host:port` or both `host`. `listener_name` is the listener of `advertisedListeners` whose addresses are used
    (None: the internal one). Raises ConfigError for an invalid URL or address.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        admin_url: str | None = None,
        admin_proxy: str | None = None,
        addresses: Mapping[str, str] | None = None,
        listener_name: str | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        operation_timeout_s: float = OPEN_TIMEOUT_S,
        connect_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        cluster_url = parse_cluster_url(url, "pulsar", DEFAULT_PORT, tls, DEFAULT_TLS_PORT)
        timing = Timing(operation_timeout_s, request_timeout_s, connect_timeout_s, keep_alive_s)
        self._addresses = parse_addresses(addresses)
        self._client = ClusterClient(
            [Address(*each) for each in cluster_url.addresses],
            tls=cluster_url.tls,
            auth=auth,
            timing=timing,
            addresses=self._addresses,
            listener_name=listener_name,
        )
        self._timing, self._tls = timing, tls
        self._auth, self._admin_url = auth, admin_url
        self._admin_proxy = parse_proxy(admin_proxy)
        self._admin: Admin | None = None
        brokers = ", ".join(f"{host}:{port}" for host, port in cluster_url.addresses)
        self._opened = OpenedByClient(f"brokers: {brokers}")

    # --- topics and schemas -----------------------------------------------------------------------------------------

    async def connect(self) -> str:
        """Connect now; return the server's version. Raises ClusterError."""
        self._opened.check_open()
        return await self._client.connect()

    async def partitions(self, topic: str) -> int | None:
        """Return the number of partitions: 0 for an unpartitioned topic, None if it does not exist. Raises ClusterError."""
        self._opened.check_open()
        return await self._client.partitions(full_name(topic))

    async def topics(self, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """Return the full names of the persistent topics of a namespace, each partition by itself. Raises ClusterError."""
        self._opened.check_open()
        return await self._client.topics(namespace)

    async def schema(self, topic: str, version: bytes | None = None) -> RegisteredSchema | None:
        """Return this version of the topic's schema, or the latest without a version; None if missing. Raises ClusterError."""
        self._opened.check_open()
        return await self._client.schema(full_name(topic), version)

    async def register_schema(self, topic: str, schema: Schema) -> bytes:
        """Add a schema to an existing topic; return the schema's version. Raises ClusterError, FATAL if it is incompatible."""
        self._opened.check_open()
        return await self._client.register_schema(full_name(topic), schema)

    @property
    def admin(self) -> Admin:
        """The REST client for tenants, namespaces, topics and subscriptions. Raises ConfigError without `admin_url`."""
        if self._admin is None:
            if self._admin_url is None:
                raise ConfigError("the client has no admin_url: open the client with one, such as http://host:8080")
            self._admin = Admin(
                self._admin_url,
                self._timing.operation,
                tls=self._tls,
                auth=self._auth,
                proxy=self._admin_proxy,
                addresses=self._addresses,
            )
        return self._admin

    # --- producers, consumers and readers ---------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        batch_messages: int = 1000,
        batch_bytes: int = 128 << 10,
        batch_delay_s: float = 0.001,
        batch_by_key: bool = False,
        key_hash: KeyHash = "java",
        max_pending_bytes: int = MAX_PENDING_BYTES,
        refresh_s: float = REFRESH_S,
        name: str | None = None,
        access: Access = "shared",
        compression: CodecName = "none",
        schema: Schema | None = None,
        chunking: bool = False,
        chunk_bytes: int | None = None,
        initial_subscription: str | None = None,
        producer_properties: Mapping[str, str] | None = None,
        max_elapsed_s: float | None = None,
        fails_in_order: bool = False,
        sole_sender: bool = False,
        retries_first_opening: bool = False,
    ) -> Opening[Producer]:
        """Open a producer of all partitions of a topic: `await` it, or use it with `async with`. Raises ClusterError.

        batch_messages, batch_bytes, batch_delay_s
                               limits of a batch: messages (1: no batches, at most 100,000), bytes, and seconds from its first
                               message until it is sent
        batch_by_key           make one batch per key, as key_shared subscriptions need it (False: batches mix keys)
        key_hash               hash function that chooses the partition of a key; `java` is the default of the Java client
        max_pending_bytes      `send` waits while messages of this total size have no receipt
        refresh_s              interval between checks for new partitions, in seconds
        name                   producer name for deduplication; only one producer of a topic at a time may use it (None: the
                               broker generates a name)
        access                 which other producers the topic may have: any ("shared") or none (the others, see `Access`)
        compression            compression codec of every entry
        schema                 schema that is registered with the topic, or checked against the topic's schema (None: no schema)
        chunking, chunk_bytes  split messages above the broker's limit into chunks of this size (None: the broker's limit);
                               without `chunking`, `send` raises ClusterError (REFUSED) for them
        initial_subscription   subscription that is created together with a new topic, so it receives the first messages
        producer_properties    properties that the topic's statistics show
        max_elapsed_s          a message fails if it has no receipt after this time, in seconds (None: never)
        fails_in_order         if a message fails after `max_elapsed_s`, all later messages fail too, so the order is kept (False:
                               later messages are stored, so sending the failed one again changes the order)
        sole_sender            end with an error if another producer sent under `name` while this one was disconnected (False:
                               continue; a deduplicating broker may then drop messages that have no receipt)
        retries_first_opening  retry the first opening until the broker is ready (False: for at most `operation_timeout_s`)
        """
        if batch_messages > MAX_BATCH_MESSAGES:
            raise ConfigError(f"batch_messages is {batch_messages}, but consumers take at most {MAX_BATCH_MESSAGES} in a batch")
        batching = Batching(batch_messages, batch_bytes, batch_delay_s, batch_by_key)
        settings = ProducerSettings(
            name=name,
            codec=CODEC_NUMBERS[compression],
            access=ACCESS_MODES[access],
            schema=schema,
            chunking=chunking,
            chunk_bytes=chunk_bytes,
            properties=tuple((producer_properties or {}).items()),
            initial_subscription=initial_subscription,
            max_elapsed_s=max_elapsed_s,
            fails_in_order=fails_in_order,
            sole_sender=sole_sender,
            retries_first_opening=retries_first_opening,
        )

        async def open_producer() -> Producer:
            producer = await open_topic_producer(
                self._client, full_name(topic), settings, batching=batching, key_hash=key_hash, refresh_s=refresh_s
            )
            return Producer(topic, producer, max_pending_bytes)

        return self._opening(open_producer)

    def consumer(
        self,
        topics: Topics,
        group: str,
        *,
        start: Start = "earliest",
        mode: Mode = "failover",
        namespace: str = DEFAULT_NAMESPACE,
        consumer_name: str = "",
        priority: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        batch_index_acks: bool = False,
        ack_timeout_s: float | None = None,
        start_ago_s: int = 0,
        read_compacted: bool = False,
        key_ranges: Sequence[tuple[int, int]] = (),
        schema: Schema | None = None,
        subscription_properties: Mapping[str, str] | None = None,
        chunk_limits: ChunkLimits = DEFAULT_CHUNK_LIMITS,
        stall_check_s: float = 30.0,
        create_topic: bool = True,
        refresh_s: float = REFRESH_S,
    ) -> Opening[Consumer]:
        """Subscribe to all partitions of topics: `await` it, or use it with `async with`. Raises ClusterError.

        topics                   topic names, or a regular expression over `tenant/namespace/topic` (without a slash: over
                                 `topic`), which selects existing and future topics of `namespace`
        group                    name of the subscription
        start, start_ago_s       where a new subscription begins: at "earliest" or "latest"; or, if `start_ago_s` is set, with
                                 the messages published in the last `start_ago_s` seconds
        mode                     subscription type: "exclusive", "failover" (one active consumer per partition, which receives in
                                 order), "shared" or "key_shared"; see `Mode`
        consumer_name            name that the topic's statistics show
        priority                 consumers with a lower number receive messages first (shared), or become active first (failover)
        max_bytes                maximum size of the buffered messages of all partitions together
        batch_index_acks         acknowledge single messages of a batch, at a broker with acknowledgmentAtBatchIndexLevelEnabled
                                 (False: a batch is acknowledged when all of its messages are)
        ack_timeout_s            messages without acknowledgement are redelivered after this time, in seconds (None: never)
        read_compacted           receive only the newest message of each key of a compacted topic; only exclusive and failover
        key_ranges               key_shared: ranges of key hashes (0 to 65535, both ends included) of this consumer (empty: the
                                 broker assigns them)
        schema                   schema that is checked against the topic's schema (None: no check)
        subscription_properties  properties that the broker stores with a new subscription
        chunk_limits             limits of chunked messages that wait for their remaining chunks; see `ChunkLimits`
        stall_check_s            exclusive and failover: after this time without a message, ask the broker if it has any, and if
                                 so subscribe again
        create_topic             allow the broker to auto-create a missing topic (False: a missing topic raises ClusterError)
        refresh_s                interval between checks for new partitions and topics, in seconds
        """
        names = _topic_names(topics)
        subscription = Subscription(
            group,
            SUBSCRIPTION_TYPES[mode],
            earliest=start == "earliest",
            consumer_name=consumer_name,
            max_bytes=max_bytes,
            batch_index_ack=batch_index_acks,
            ack_timeout_s=ack_timeout_s,
            chunk_limits=chunk_limits,
            rollback_s=start_ago_s,
            priority=priority,
            read_compacted=read_compacted,
            key_ranges=tuple(key_ranges),
            schema=schema,
            properties=tuple((subscription_properties or {}).items()),
            silence_s=stall_check_s,
            create_topic=create_topic,
        )

        async def open_consumer() -> Consumer:
            topic_consumer = await self._subscribe(topics, names, namespace, subscription, refresh_s)
            return Consumer(topic_consumer, names, self._timing.request)

        return self._opening(open_consumer)

    def reader(
        self,
        topics: str | Sequence[str],
        *,
        start: Start | datetime = "earliest",
        read_compacted: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        refresh_s: float = REFRESH_S,
    ) -> Opening[Reader]:
        """Open a reader of all partitions of topics, which must exist. Raises ClusterError.

        `start` is "earliest", "latest", or a publish time (local time if it has no time zone). The other arguments are those of
        `consumer`.
        """
        names = _topic_names(topics)

        async def open_reader() -> Reader:
            subscription = await self._client.reader_subscription(LATEST if start == "latest" else EARLIEST)
            subscription = replace(subscription, read_compacted=read_compacted, max_bytes=max_bytes, create_topic=False)
            topic_consumer = await self._subscribe(topics, names, DEFAULT_NAMESPACE, subscription, refresh_s)
            reader = Reader(Consumer(topic_consumer, names, self._timing.request))
            if isinstance(start, datetime):
                try:
                    await reader.seek(start)
                except BaseException:
                    await reader.close()
                    raise
            return reader

        return self._opening(open_reader)

    # --- entries ----------------------------------------------------------------------------------------------------

    def entry_producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        access: Access = "shared",
        compression: CodecName = "none",
        schema: Schema | None = None,
        chunking: bool = False,
        chunk_bytes: int | None = None,
        initial_subscription: str | None = None,
        producer_properties: Mapping[str, str] | None = None,
        max_elapsed_s: float | None = None,
        fails_in_order: bool = False,
        sole_sender: bool = False,
        retries_first_opening: bool = False,
    ) -> Opening[EntryProducer]:
        """Open a producer of encoded entries to one partition (`orders-partition-0`) or an unpartitioned topic.

        Raises ClusterError. An entry is the unit that the broker stores: one message, or a batch of them. This is faster for
        applications that make batches themselves. `send` of the producer takes metadata and payload of an entry, and returns a
        future; it never waits, so the caller must limit the pending bytes. The arguments are those of `producer`.
        """
        settings = ProducerSettings(
            name=name,
            codec=CODEC_NUMBERS[compression],
            access=ACCESS_MODES[access],
            schema=schema,
            chunking=chunking,
            chunk_bytes=chunk_bytes,
            properties=tuple((producer_properties or {}).items()),
            initial_subscription=initial_subscription,
            max_elapsed_s=max_elapsed_s,
            fails_in_order=fails_in_order,
            sole_sender=sole_sender,
            retries_first_opening=retries_first_opening,
        )

        async def open_producer() -> EntryProducer:
            producer = self._client.producer(full_name(topic), settings)
            try:
                await producer.opened()
            except BaseException:
                await producer.close(timeout=0.0)
                raise
            return producer

        return self._opening(open_producer)

    def entry_consumer(
        self,
        topics: Topics,
        group: str,
        *,
        start: Start = "earliest",
        mode: Mode = "failover",
        namespace: str = DEFAULT_NAMESPACE,
        consumer_name: str = "",
        priority: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        batch_index_acks: bool = False,
        ack_timeout_s: float | None = None,
        start_ago_s: int = 0,
        read_compacted: bool = False,
        key_ranges: Sequence[tuple[int, int]] = (),
        schema: Schema | None = None,
        subscription_properties: Mapping[str, str] | None = None,
        chunk_limits: ChunkLimits = DEFAULT_CHUNK_LIMITS,
        stall_check_s: float = 30.0,
        create_topic: bool = True,
        refresh_s: float = REFRESH_S,
    ) -> Opening[TopicConsumer]:
        """Subscribe like `consumer`, but receive entries, each with the consumer of its partition, which acknowledges it.

        It is faster for applications that process batches of messages: `mqbridge.pulsar.mapping.stored.decode_entries` decodes
        the entries. The arguments are those of `consumer`. Raises ClusterError.
        """
        names = _topic_names(topics)
        subscription = Subscription(
            group,
            SUBSCRIPTION_TYPES[mode],
            earliest=start == "earliest",
            consumer_name=consumer_name,
            max_bytes=max_bytes,
            batch_index_ack=batch_index_acks,
            ack_timeout_s=ack_timeout_s,
            chunk_limits=chunk_limits,
            rollback_s=start_ago_s,
            priority=priority,
            read_compacted=read_compacted,
            key_ranges=tuple(key_ranges),
            schema=schema,
            properties=tuple((subscription_properties or {}).items()),
            silence_s=stall_check_s,
            create_topic=create_topic,
        )

        return self._opening(lambda: self._subscribe(topics, names, namespace, subscription, refresh_s))

    # --- opening and closing ----------------------------------------------------------------------------------------

    async def _subscribe(
        self, topics: Topics, names: TopicNames, namespace: str, subscription: Subscription, refresh_s: float
    ) -> TopicConsumer:
        """Open a consumer of entries. `names` is empty if `topics` is a pattern; only then `namespace` is used."""
        if isinstance(topics, re.Pattern):
            pattern = topics.pattern if "/" in topics.pattern else f"{namespace}/{topics.pattern}"
            try:
                BoundedPattern(pattern)
            except Ambiguous as error:
                raise ConfigError(f"the pattern {topics.pattern!r} could take longer than anybody waits: {error}") from None
            return await open_pattern_consumer(self._client, namespace, pattern, subscription, refresh_s=refresh_s)
        return await open_topic_consumer(self._client, names.full_names, subscription, refresh_s=refresh_s)

    def _opening(self, open_resource: Callable[[], Coroutine[Any, Any, T]]) -> Opening[T]:
        """Return the `Opening` of a producer, consumer or reader, which closing the client will close too."""

        async def open_and_register() -> T:
            self._opened.check_open()
            return await self._opened.register(await open_resource())

        return Opening(open_and_register)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close all producers, consumers and readers within `timeout` seconds, the newest first; then close the connections."""
        if not self._opened.begin_close():
            return
        try:
            await self._opened.close(timeout)
        finally:
            await self._client.close()
            if self._admin is not None:
                await self._admin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _topic_names(topics: Topics) -> TopicNames:
    """Return the names of these topics; the topics of a pattern are not known yet."""
    if isinstance(topics, re.Pattern):
        return TopicNames([])
    return TopicNames([topics] if isinstance(topics, str) else list(topics))
