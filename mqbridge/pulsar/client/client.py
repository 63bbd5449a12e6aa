"""A client of one Pulsar cluster: it owns the connections and hands out producers and consumers."""

import itertools
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.client.lookup import REQUEST_TIMEOUT_S, Lookup, retrying
from mqbridge.pulsar.client.pool import Address, Pool
from mqbridge.pulsar.client.producer import OPEN_TIMEOUT_S, Producer
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb


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
        tls: ssl.SSLContext | None = None,
        auth: Auth = NO_AUTH,
        timing: Timing | None = None,
    ) -> None:
        self._timing = timing = timing or Timing()
        self._pool = Pool(service, tls=tls, auth=auth, keep_alive_s=timing.keep_alive, connect_timeout_s=timing.connect)
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

    async def topics(self, namespace: str) -> list[str]:
        """The full names of a namespace's persistent topics, each partition by its own name. Raises ClusterError."""
        return await retrying(lambda: self._lookup.topics(namespace), self._timing.operation)

    def producer(
        self, topic: str, *, name: str | None = None, codec: int = pb.NONE, max_elapsed_s: float | None = None
    ) -> Producer:
        """A producer of a concrete topic; it opens itself, and takes entries at once."""
        return Producer(
            self._lookup,
            next(self._ids),
            topic,
            name=name,
            codec=codec,
            max_elapsed_s=max_elapsed_s,
            open_timeout_s=self._timing.operation,
            request_timeout_s=self._timing.request,
        )

    async def consumer(self, topic: str, subscription: Subscription) -> Consumer:
        """A subscribed consumer of a concrete topic. Raises ClusterError."""
        consumer = Consumer(self._lookup, next(self._ids), topic, subscription, request_timeout_s=self._timing.request)
        await consumer.open(self._timing.operation)
        return consumer

    async def close(self) -> None:
        """Close every connection. Producers and consumers are closed before."""
        await self._pool.close()
