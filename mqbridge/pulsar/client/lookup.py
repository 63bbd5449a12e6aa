"""Which broker owns a topic, how many partitions it has, which topics there are. Nothing is cached: owners move.

A topic must be looked up before a producer or consumer is opened on it, also when there is only one broker: looking it up is what
makes the broker load it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.pool import Address, Pool, parse_service_url
from mqbridge.pulsar.wire import codes, commands
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

MAX_REDIRECTS = 20
REQUEST_TIMEOUT_S = 10.0
"""For one answer. The operation that asks has its own, longer deadline and asks again."""
FIRST_DELAY_S, MOST_DELAY_S = 0.1, 10.0

T = TypeVar("T")


async def retrying(operation: Callable[[], Awaitable[T]], timeout: float) -> T:
    """Run it until it succeeds, fails for good, or `timeout` seconds have passed: then its last error is raised."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    backoff = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
    while True:
        try:
            return await operation()
        except ClusterError as error:
            delay = backoff.delay()
            if error.failure in {Failure.FATAL, Failure.REFUSED} or loop.time() + delay > deadline:
                raise
        await asyncio.sleep(delay)


class Lookup:
    """Asks the brokers of one cluster. Each call asks once and raises ClusterError; see `retrying`."""

    def __init__(self, pool: Pool, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._pool = pool
        self._timeout = request_timeout_s

    async def owner(self, topic: str) -> Connection:
        """A connection to the broker that serves this topic (a partition, or one without)."""
        connection, service = await self._pool.service()
        authoritative = False
        for _ in range(MAX_REDIRECTS):
            answer: pb.CommandLookupTopicResponse = await connection.request(
                lambda request_id: commands.lookup(request_id, topic, authoritative),  # noqa: B023 - used before it changes
                BaseCommand.LOOKUP_RESPONSE,
                f"the lookup of {topic}",
                self._timeout,
            )
            if answer.response == answer.Failed or not answer.HasField("response"):
                raise self._refused(answer.error, answer.message, f"looking up {topic}")
            connection = await self._follow(answer, service)
            if answer.response == answer.Connect:
                return connection
            authoritative = answer.authoritative
        raise ClusterError(f"looking up {topic}: more than {MAX_REDIRECTS} redirects, the brokers do not agree on its owner")

    async def _follow(self, answer: pb.CommandLookupTopicResponse, service: Address) -> Connection:
        """The connection that an answer points to."""
        tls = self._pool.is_tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        try:
            (address,) = parse_service_url(url, tls)
        except ValueError as error:
            raise ClusterError(f"the broker's address in a lookup answer is of no use: {error}") from error
        if answer.proxy_through_service_url:
            return await self._pool.get(service, None if address == service else str(address))
        return await self._pool.get(address)

    async def partitions(self, topic: str, *, create: bool) -> int | None:
        """How many partitions, 0 for a topic without; None when there is no such topic (or namespace).

        With `create` asking may create the topic, if the broker is set up so.
        """
        connection, _ = await self._pool.service()
        answer: pb.CommandPartitionedTopicMetadataResponse = await connection.request(
            lambda request_id: commands.partition_metadata(request_id, topic, create),
            BaseCommand.PARTITIONED_METADATA_RESPONSE,
            f"the partitions of {topic}",
            self._timeout,
        )
        if answer.response == answer.Success and answer.HasField("response"):
            return answer.partitions
        if answer.error == codes.TOPIC_NOT_FOUND and answer.HasField("error"):
            return None
        raise self._refused(answer.error, answer.message, f"asking for the partitions of {topic}")

    async def topics(self, namespace: str) -> list[str]:
        """The full names of a namespace's persistent topics, each partition by its own name."""
        connection, _ = await self._pool.service()
        answer: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(
            lambda request_id: commands.topics_of_namespace(request_id, namespace),
            BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
            f"the topics of {namespace}",
            self._timeout,
        )
        return list(answer.topics)

    def _refused(self, code: int, message: str, what: str) -> ServerRefused:
        if code == codes.SERVICE_NOT_READY:
            self._pool.skip_service()
        return codes.refused(code, message, what)
