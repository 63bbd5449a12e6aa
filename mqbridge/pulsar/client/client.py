"""A client of one Pulsar cluster: it owns the connections and hands out producers, consumers and watches.

A producer and a consumer are of one concrete topic, a partition or a topic without, and move entries. For partitioned topics,
patterns of topics and single messages there are `topic_producer` and `topic_consumer`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client import schemas
from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.client.credit import CreditPool
from mqbridge.pulsar.client.lookup import REQUEST_TIMEOUT_S, Lookup, retrying
from mqbridge.pulsar.client.pool import Address, Pool
from mqbridge.pulsar.client.probes import probe_consuming, probe_producing
from mqbridge.pulsar.client.producer import OPEN_TIMEOUT_S, Producer
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.schemas import RegisteredSchema
from mqbridge.pulsar.client.subscription import Subscription, reader
from mqbridge.pulsar.client.topic_watch import TopicWatch
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema

REFRESH_S = 60.0
"""Between looks for new partitions and topics; where the broker reports topics itself, it is only asked whether that is all."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines in seconds."""

    operation: float = OPEN_TIMEOUT_S
    """For opening something or asking for metadata, with all repetitions."""
    request: float = REQUEST_TIMEOUT_S
    """For one answer."""
    connect: float = HANDSHAKE_TIMEOUT_S
    keep_alive: float = KEEP_ALIVE_S


class PulsarClient:
    """Opens no connection before it is asked for something. Topic names are full ones, see `wire.names`."""

    def __init__(
        self,
        service: Sequence[Address],
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        timing: Timing | None = None,
        connectivity: Connectivity | None = None,
    ) -> None:
        self._timing = timing = timing or Timing()
        self._pool = Pool(
            service,
            tls=tls,
            auth=auth,
            keep_alive_s=timing.keep_alive,
            connect_timeout_s=timing.connect,
            connectivity=connectivity,
        )
        self._lookup = Lookup(self._pool, timing.request)
        self._ids = itertools.count()

    async def connect(self) -> str:
        """Reach the cluster; the server's version. Raises ClusterError."""
        connection, _ = await self._pool.service()
        return connection.server_version

    async def max_message_size(self) -> int:
        """Most bytes of an entry that the cluster takes, as its broker announced. Raises ClusterError."""
        connection, _ = await self._pool.service()
        return connection.max_message_size

    async def partitions(self, topic: str, *, create: bool = False) -> int | None:
        """How many partitions, 0 for a topic without, None for a missing one. Raises ClusterError.

        With `create` asking may create the topic, if the broker is set up so.
        """
        return await retrying(lambda: self._lookup.partitions(topic, create=create), self._timing.operation)

    async def topics(self, namespace: str, pattern: str | None = None) -> list[str]:
        """The full names of a namespace's persistent topics, each partition by its own name. Raises ClusterError.

        With a pattern (see `wire.topic_lists`) brokers leave out most of what does not match.
        """
        found = await retrying(lambda: self._lookup.topics(namespace, pattern), self._timing.operation)
        return found.names or []

    def watch_topics(self, namespace: str, pattern: str, refresh_s: float = REFRESH_S) -> TopicWatch:
        """The topics that match, as they come and go; begins when it is first asked for."""
        return TopicWatch(self._lookup, next(self._ids), namespace, pattern, refresh_s, self._timing.request)

    # --- schemas ----------------------------------------------------------------------------------------------------

    async def schema(self, topic: str, version: bytes | None = None) -> RegisteredSchema | None:
        """The schema of a topic, the latest without a version; None when it has none. Raises ClusterError."""
        return await retrying(lambda: schemas.fetch(self._lookup, topic, version, self._timing.request), self._timing.operation)

    async def register_schema(self, topic: str, schema: Schema) -> bytes:
        """Add a schema to an existing topic, unless it is there; its version. Raises ClusterError, FATAL when incompatible."""
        return await retrying(lambda: schemas.register(self._lookup, topic, schema, self._timing.request), self._timing.operation)

    # --- ends -------------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        publication: Publication | None = None,
        *,
        name: str | None = None,
        codec: int = pb.NONE,
        max_elapsed_s: float | None = None,
    ) -> Producer:
        """A producer of a concrete topic; it opens itself, and takes entries at once. The short settings make a `Publication`."""
        return Producer(
            self._lookup,
            next(self._ids),
            topic,
            publication or Publication(name, codec, max_elapsed_s=max_elapsed_s),
            open_timeout_s=self._timing.operation,
            request_timeout_s=self._timing.request,
        )

    async def consumer(self, topic: str, subscription: Subscription, pool: CreditPool | None = None) -> Consumer:
        """A subscribed consumer of a concrete topic. Raises ClusterError.

        Consumers of one pool have its bytes together; without one it is the subscription's `max_bytes`.
        """
        consumer = Consumer(self._lookup, next(self._ids), topic, subscription, pool=pool, request_timeout_s=self._timing.request)
        try:
            await consumer.open(self._timing.operation)
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def reader(self, topic: str, start: EntryId) -> Consumer:
        """A consumer of a concrete topic from this entry on, which the broker forgets. Raises ClusterError."""
        await retrying(self._pool.service, self._timing.operation)  # from then on our role is known
        return await self.consumer(topic, reader(start, self._pool.auth.principal))

    async def check_producing(self, topic: str) -> None:
        """Raises Denied when we may not produce to this concrete topic. Changes nothing there."""
        key = next(self._ids)
        await retrying(lambda: probe_producing(self._lookup, key, topic, self._timing.request), self._timing.operation)

    async def check_consuming(self, topic: str, subscription: str) -> None:
        """Raises Denied when we may not consume from this concrete topic with this subscription. Changes nothing there."""
        key = next(self._ids)
        probe = lambda: probe_consuming(self._lookup, key, topic, subscription, self._timing.request)  # noqa: E731
        await retrying(probe, self._timing.operation)

    async def close(self) -> None:
        """Close every connection. Producers and consumers are closed before."""
        await self._pool.close()
