"""Low-level client of one Pulsar cluster: it owns the connections and opens producers, consumers and topic watches.

Its producers and consumers send and receive entries of one concrete topic: a partition, or an unpartitioned topic.
`mqbridge.pulsar.library` adds partitioned topics, topic patterns and single messages.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.connection import schema_registry
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S
from mqbridge.pulsar.client.connection.connection_pool import ConnectionPool
from mqbridge.pulsar.client.connection.lookup import REQUEST_TIMEOUT_S, Lookup, retry
from mqbridge.pulsar.client.connection.service_url import Address
from mqbridge.pulsar.client.connection.topic_watch import TopicWatch
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.consumer.subscription import Subscription, reader
from mqbridge.pulsar.client.permission_checks import check_consume_permission, check_produce_permission
from mqbridge.pulsar.client.producer.entry_producer import OPEN_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import RegisteredSchema, Schema

REFRESH_S = 60.0
"""Interval between two requests for the topic list, by which new topics and partitions are found. The list is requested even if
the broker pushes changes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits and the keep-alive interval, in seconds."""

    operation: float = OPEN_TIMEOUT_S
    """Time limit for opening a producer or consumer, or for a metadata request, including all retries."""
    request: float = REQUEST_TIMEOUT_S
    """Time limit for one response."""
    connect: float = HANDSHAKE_TIMEOUT_S
    """Time limit for dialing, and again for the handshake."""
    keep_alive: float = KEEP_ALIVE_S
    """Interval between two pings."""


class ClusterClient:
    """Low-level client; it connects on the first request. All topic names are full: `persistent://tenant/namespace/topic`.

    `service` are the addresses in the service URL. `tls` None means connections without TLS. Connections report their state to
    `connectivity`; None: the state is not reported outside of this client. `addresses` says where brokers can be reached.
    `listener_name` is the listener whose addresses they return; None: the internal one.
    """

    def __init__(
        self,
        service: Sequence[Address],
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        timing: Timing | None = None,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
        listener_name: str | None = None,
    ) -> None:
        self._timing = timing = timing or Timing()
        self._pool = ConnectionPool(
            service,
            tls=tls,
            auth=auth,
            keep_alive_s=timing.keep_alive,
            connect_timeout_s=timing.connect,
            connectivity=connectivity,
            addresses=addresses,
        )
        self._lookup = Lookup(self._pool, timing.request, listener_name)
        self._ids = itertools.count()
        """Unused ids for new producers, consumers and watchers."""

    async def connect(self) -> str:
        """Connect to the cluster; return the server's version. Raises ClusterError."""
        connection, _ = await self._pool.connect_service()
        return connection.server_version

    async def max_message_size(self) -> int:
        """Return the maximum size of an entry in bytes, as announced by the broker. Raises ClusterError."""
        connection, _ = await self._pool.connect_service()
        return connection.max_message_size

    async def partitions(self, topic: str, *, create: bool = False) -> int | None:
        """Return the number of partitions: 0 for an unpartitioned topic, None if the topic does not exist. Raises ClusterError.

        With `create` the request may create the topic, where the broker allows that.
        """
        return await retry(lambda: self._lookup.partitions(topic, create=create), self._timing.operation)

    async def topics(self, namespace: str, pattern: str | None = None) -> list[str]:
        """Return the full names of a namespace's persistent topics, each partition separately. Raises ClusterError.

        `pattern` is a regular expression over `tenant/namespace/topic`, by which the broker filters; it may ignore the pattern.
        """
        topic_list = await retry(lambda: self._lookup.topics(namespace, pattern), self._timing.operation)
        return topic_list.names or []  # None would mean an unchanged list, but the request contains no hash

    def watch_topics(self, namespace: str, pattern: str, refresh_s: float = REFRESH_S) -> TopicWatch:
        """Return a watch on the topics of a namespace that match a pattern. It starts with the first call of `next_change`."""
        return TopicWatch(self._lookup, next(self._ids), namespace, pattern, refresh_s, self._timing.request)

    # --- schemas ----------------------------------------------------------------------------------------------------

    async def schema(self, topic: str, version: bytes | None = None) -> RegisteredSchema | None:
        """Return the schema of a topic in this version (None: the latest); None if the topic has none. Raises ClusterError."""
        return await retry(
            lambda: schema_registry.fetch(self._lookup, topic, version, self._timing.request), self._timing.operation
        )

    async def register_schema(self, topic: str, schema: Schema) -> bytes:
        """Add a schema to an existing topic unless the topic has it; return its version.

        Raises ClusterError, which is FATAL if the schema is incompatible with those of the topic.
        """
        return await retry(
            lambda: schema_registry.register(self._lookup, topic, schema, self._timing.request), self._timing.operation
        )

    # --- open -------------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        settings: ProducerSettings | None = None,
        *,
        name: str | None = None,
        codec: int = pb.NONE,
        max_elapsed_s: float | None = None,
    ) -> EntryProducer:
        """Return a producer of a concrete topic. It opens in the background and accepts entries at once.

        `settings` replaces the other parameters: `name` (None: the broker generates one), `codec` (a `pb.CompressionType`) and
        `max_elapsed_s` (seconds after which an entry without a receipt fails; None: never).
        """
        return EntryProducer(
            self._lookup,
            next(self._ids),
            topic,
            settings or ProducerSettings(name, codec, max_elapsed_s=max_elapsed_s),
            open_timeout_s=self._timing.operation,
            request_timeout_s=self._timing.request,
        )

    async def consumer(self, topic: str, subscription: Subscription, budget: ReceiveBudget | None = None) -> EntryConsumer:
        """Subscribe to a concrete topic. Raises ClusterError.

        Consumers with the same budget share its bytes. Without a budget the limit is the subscription's `max_bytes`.
        """
        consumer = EntryConsumer(
            self._lookup, next(self._ids), topic, subscription, budget=budget, request_timeout_s=self._timing.request
        )
        try:
            await consumer.open(self._timing.operation)
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def reader(self, topic: str, start: EntryId) -> EntryConsumer:
        """Open a reader of a concrete topic that begins at this entry; the broker stores no position. Raises ClusterError."""
        return await self.consumer(topic, await self.reader_subscription(start))

    async def reader_subscription(self, start: EntryId) -> Subscription:
        """Return the subscription of a reader that begins at this entry. Raises ClusterError."""
        # Connect first, because the subscription's name begins with the client's role, which is unknown before.
        await retry(self._pool.connect_service, self._timing.operation)
        return reader(start, self._pool.auth.principal)

    async def check_producing(self, topic: str) -> None:
        """Check the permission to produce to this concrete topic. Changes nothing in the cluster.

        Raises AccessDenied without the permission, ClusterError if the topic's broker is unreachable.
        """
        producer_id = next(self._ids)
        await retry(
            lambda: check_produce_permission(self._lookup, producer_id, topic, self._timing.request), self._timing.operation
        )

    async def check_consuming(self, topic: str, subscription: str) -> None:
        """Check the permission to consume from this concrete topic with this subscription. Changes nothing in the cluster.

        Raises AccessDenied without the permission, ClusterError if the topic's broker is unreachable.
        """
        consumer_id = next(self._ids)
        await retry(
            lambda: check_consume_permission(self._lookup, consumer_id, topic, subscription, self._timing.request),
            self._timing.operation,
        )

    async def close(self) -> None:
        """Close all connections. The caller must close producers and consumers first."""
        await self._pool.close()
