"""Lookup of topic owners, partition counts and topic lists. Results are not cached, because owners change.

A topic must be looked up before a producer or consumer is opened on it, even with only one broker: the lookup makes the broker
load the topic.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, ServerRefused, TopicChanged
from mqbridge.net.backoff import Backoff
from mqbridge.pulsar.client.connection.authorization import EITHER, explain_denial, explain_topic_denial
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.connection_pool import ConnectionPool
from mqbridge.pulsar.client.connection.service_url import Address, parse_service_url
from mqbridge.pulsar.wire import client_commands, codes, topic_lists
from mqbridge.pulsar.wire.names import PERSISTENT, parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.wire.limits import check_partitions, check_topics

MAX_REDIRECTS = 20
"""Maximum redirects of one lookup: brokers that disagree about the owner would redirect for ever."""
REQUEST_TIMEOUT_S = 10.0
"""Deadline of one response. The whole operation has a longer deadline and repeats the request."""
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""First and maximum delay between two attempts, in seconds."""

T = TypeVar("T")


async def retry(operation: Callable[[], Awaitable[T]], timeout: float) -> T:
    """Repeat `operation` with backoff until it succeeds; return its result.

    Raises its last error if that is FATAL or REFUSED, or if the next attempt would begin later than `timeout` seconds after the
    call of `retry`. An attempt in progress is not interrupted.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
    while True:
        try:
            return await operation()
        except ClusterError as error:
            delay = backoff.delay()
            if error.failure in {Failure.FATAL, Failure.REFUSED} or loop.time() + delay > deadline:
                raise
        await asyncio.sleep(delay)


class Owner(NamedTuple):
    """Connection to the broker that serves a topic.

    `proxied` is True if the connection goes through a proxy at the service address.
    """

    connection: Connection
    proxied: bool


class TopicList(NamedTuple):
    """Topics of a namespace."""

    names: list[str] | None
    """Full names, each partition separately; None if the list has not changed since the known hash."""
    hash: str
    """The broker's hash of the list, for the next request."""


class Lookup:
    """Lookups at the brokers of one cluster. Each call makes one attempt and raises ClusterError; `retry` repeats it."""

    def __init__(
        self, pool: ConnectionPool, request_timeout_s: float = REQUEST_TIMEOUT_S, listener_name: str | None = None
    ) -> None:
        """`listener_name` is the listener of the brokers whose addresses are used; None: their internal listener."""
        self._pool = pool
        self._listener_name = listener_name
        self._timeout_s = request_timeout_s

    async def owner(self, topic: str, service: Sequence[Address] = ()) -> Owner:
        """Connect to the broker that serves this topic (a partition, or an unpartitioned topic).

        If the topic was migrated to another cluster, `service` are the service addresses of that cluster; (): ask this cluster.
        """
        connection, address = await (self._pool.connect_first(service) if service else self._pool.connect_service())
        authoritative = False  # after a redirect: the flag of the redirecting broker, to be sent to the next one
        for _ in range(MAX_REDIRECTS):
            response: pb.CommandLookupTopicResponse = await connection.request(
                lambda request_id: client_commands.lookup(request_id, topic, authoritative, self._listener_name),  # noqa: B023 - called before they change
                BaseCommand.LOOKUP_RESPONSE,
                f"the lookup of {topic}",
                self._timeout_s,
            )
            if response.response == response.Failed or not response.HasField("response"):
                with explain_topic_denial("look up", topic, connection.principal, EITHER):
                    raise self._refusal_error(response.error, response.message, f"looking up {topic}")
            proxied = response.proxy_through_service_url
            connection = await self._connect(
                response.brokerServiceUrl, response.brokerServiceUrlTls, address if proxied else None
            )
            if response.response == response.Connect:
                return Owner(connection, proxied)
            authoritative = response.authoritative
        raise ClusterError(
            f"looking up topic {topic}: more than {MAX_REDIRECTS} redirects, because the brokers do not agree on its owner"
        )

    @property
    def can_use_assignments(self) -> bool:
        """True if a close command may name the next owner: brokers name it by the address of their internal listener."""
        return self._listener_name is None

    async def connect_assigned(self, url: str, url_tls: str, proxied: bool) -> Connection:
        """Connect to the next owner of a topic, which a broker named in its close command. Raises ClusterError.

        With `proxied` the connection goes through the proxy at the service address.
        """
        proxy = (await self._pool.connect_service())[1] if proxied else None
        return await self._connect(url, url_tls, proxy)

    def addresses(self, url: str, url_tls: str) -> list[Address]:
        """Return the addresses in `url_tls` if this client uses TLS, otherwise those in `url`. Raises ClusterError."""
        tls = self._pool.is_tls
        if tls and not url_tls:
            raise ClusterError(f"the broker at {url} has no address for TLS: set its brokerServicePortTls")
        try:
            return parse_service_url(url_tls if tls else url, tls)
        except ValueError as error:
            raise ClusterError(f"a lookup returned an invalid broker address: {error}") from error

    async def _connect(self, url: str, url_tls: str, proxy: Address | None) -> Connection:
        """Return the connection to the broker with these URLs, through the proxy at the address `proxy` unless that is None."""
        address, *more = self.addresses(url, url_tls)
        if more:
            raise ClusterError(f"a lookup returned several addresses of the topic's owner instead of one: {url or url_tls}")
        if proxy is not None:
            # If the broker has this address itself, there is no proxy before it.
            return await self._pool.get(proxy, None if address == proxy else str(address))
        return await self._pool.get(address)

    async def partitions(self, topic: str, *, create: bool, connection: Connection | None = None) -> int | None:
        """Return the number of partitions: 0 for an unpartitioned topic, None if the topic (or namespace) does not exist.

        Raises ClusterError (FATAL) for an impossible number. With `create`, a broker that creates topics automatically creates a
        missing topic. The broker of `connection` is asked; None: one at a service address.
        """
        if connection is None:
            connection, _ = await self._pool.connect_service()
        response: pb.CommandPartitionedTopicMetadataResponse = await connection.request(
            lambda request_id: client_commands.partition_metadata(request_id, topic, create),
            BaseCommand.PARTITIONED_METADATA_RESPONSE,
            f"the partitions of {topic}",
            self._timeout_s,
        )
        if response.response == response.Success and response.HasField("response"):
            return _checked_count(response.partitions, topic)
        if response.error == codes.TOPIC_NOT_FOUND and response.HasField("error"):
            return None
        with explain_topic_denial("look up", topic, connection.principal, EITHER):
            raise self._refusal_error(response.error, response.message, f"asking for the partitions of {topic}")

    async def check_exists(self, topic: str, connection: Connection, *, is_partition: bool, may_be_created: bool = False) -> None:
        """Check that a persistent topic exists, as a partition of a partitioned topic (`is_partition`) or by itself.

        With `may_be_created` it may also be missing.

        A PRODUCER creates a missing topic, also a single partition of a topic that does not exist: what is stored there is found
        by no consumer of the topic. A non-persistent topic exists only while it is in use, so only its partitioned topic is
        checked. The broker of `connection` is asked, because a topic may have been migrated to another cluster.

        Raises TopicChanged if the topic does not exist, and ClusterError.
        """
        name = parse_topic(topic)
        if not is_partition and name.domain != PERSISTENT:
            return
        asked = str(name.parent) if is_partition else topic
        count = await self.partitions(asked, create=False, connection=connection)
        if count is None:
            if may_be_created:
                return
            found = "does not exist any more: create it again"
        elif is_partition and count <= name.partition_index:
            found = (
                f"has {count} partitions now, so partition {name.partition_index} is gone" if count else "is not partitioned now"
            )
        elif not is_partition and count:
            found = f"is partitioned now, with {count} partitions"
        else:
            return
        raise TopicChanged(f"topic {asked} {found}. The producer was closed, so that it does not create {topic} by itself")

    async def topics(self, namespace: str, pattern: str | None = None, known_hash: str | None = None) -> TopicList:
        """Return the persistent topics of a namespace that match the regular expression `pattern`; None: all.

        A broker may ignore the pattern and return all topics.

        `known_hash` is the hash of an earlier list: the result contains no names if the list is still the same. None: always
        names.
        """
        connection, _ = await self._pool.connect_service()
        with explain_denial("list the topics of", namespace, namespace, connection.principal, EITHER):
            response: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(
                lambda request_id: topic_lists.topics_of_namespace(request_id, namespace, pattern, known_hash),
                BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                f"the topics of {namespace}",
                self._timeout_s,
            )
        try:
            check_topics(len(response.topics), f"topics and partitions in {namespace}")
        except RemoteProtocolError as error:
            raise ClusterError(str(error), Failure.FATAL) from error
        return TopicList(list(response.topics) if response.changed else None, response.topics_hash)

    async def service(self) -> Connection:
        """Return a connection to one of the service addresses, for requests that any broker can answer."""
        return (await self._pool.connect_service())[0]

    def _refusal_error(self, code: int, message: str, what: str) -> ServerRefused:
        """Return the error for a refused request; if the broker is not ready, let the next request go to another address.

        `message` is the broker's text. `what` names the request, for the beginning of the error.
        """
        if code == codes.SERVICE_NOT_READY:
            self._pool.skip_service()
        return codes.refusal_error(code, message, what)


def _checked_count(count: int, topic: str) -> int:
    """Return a number of partitions. Raises ClusterError (FATAL) if no cluster can have so many."""
    try:
        check_partitions(count, topic)
    except RemoteProtocolError as error:
        raise ClusterError(str(error), Failure.FATAL) from error
    return count
