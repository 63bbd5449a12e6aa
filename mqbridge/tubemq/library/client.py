"""The TubeMQ client for programs.

async with TubeMQClient("tubemq://localhost:8715") as client:
    async with client.producer("orders") as producer:
        await producer.send(b"hello", key="customer-7")
    async with client.consumer("orders", group="billing") as consumer:
        async for message in consumer:
            print(message.key, message.payload)
            consumer.acknowledge(message)
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self
from zoneinfo import ZoneInfo

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.library.cluster_url import parse_addresses, parse_cluster_url, parse_proxy
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.opening import OpenedByClient, Opening
from mqbridge.library.send_window import MAX_PENDING_BYTES
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import detect_wrong_port
from mqbridge.net.secret import Secret
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.admin.admin import Admin
from mqbridge.tubemq.client.connection.connection_pool import IDLE_S, ConnectionPool
from mqbridge.tubemq.client.connection.credentials import as_credentials
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.connection.server_connection import REQUEST_TIMEOUT_S
from mqbridge.tubemq.client.consumer.held_partitions import OffsetLookup, StartOffset
from mqbridge.tubemq.client.consumer.membership import BoundSubscription
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.read_budget import ReadBudget
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender, open_partition_sender
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.library.balanced_consumer import BalancedConsumer
from mqbridge.tubemq.library.consumer import Consumer
from mqbridge.tubemq.library.load_balancing_sender import LoadBalancingSender, open_load_balancing_sender
from mqbridge.tubemq.library.pack_puller import SETTLE_S, PackPuller
from mqbridge.tubemq.library.producer import Producer
from mqbridge.tubemq.wire.string_formats import DEFAULT_MASTER_PORT, DEFAULT_MASTER_TLS_PORT

HEARTBEAT_S = 2.0
"""Default interval between heartbeats. The Master assigns partitions in its responses to heartbeats, and a new member has its
partitions after two of them. The Java SDK's interval is 13 s."""
MAX_BYTES = 64 << 20
"""Default limit of the bytes of undelivered packs in a consumer: 64 MiB."""
LEAVE_TIMEOUT_S = 1.0
"""Time that a producer or consumer has to unregister at the Master if the call that opens it is cancelled."""
MAX_ELAPSED_S = 60.0
"""Default time for which a producer retries a failed message."""

_STARTS = {"earliest": StartOffset.EARLIEST, "latest": StartOffset.LATEST}
MsgTypes = Collection[str] | Mapping[str, Collection[str]]
"""Message types to receive: the same for all topics, or by topic. Empty for all messages."""


class TubeMQClient:
    """A client of one cluster. It connects on the first request, and on close also closes the producers and consumers it opened.

    url                 the Masters: `tubemq://host:8715[,host:8715]`, or `tubemq+ssl://` for TLS; ports may be omitted
    tls                 certificates for `tubemq+ssl://`; None: only the platform's certificate authorities. TubeMQ 2.4 requires a
                        client certificate
    user, password      for clusters that authenticate clients; both or neither
    admin_url           the Master's web address, such as `http://host:8080`; without it `admin` raises ClusterError
    admin_proxy         a forward proxy for `admin`, such as `http://host:3128`; None: no proxy, whatever the environment says
    addresses           where the servers can be reached, if not at the addresses that they advertise: advertised to reachable
                        address, both `host:port` or both `host`; None: they can be reached as they are
    admin_token         the Master's confModAuthToken, needed by `admin` only to create topics
    time_zone           the time zone of `$msgTime$`, the event time that messages carry as YYYYMMDDHHMM
    heartbeat_s         seconds between heartbeats to Masters and Brokers; a Master drops members after 30 s without one
    request_timeout_s   seconds for which a server may be silent before the requests to it fail
    idle_s              seconds after which an unused connection is closed
    shared_connections  True: one connection per server; False: one per partition, so that partitions do not wait for each other
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls | None = None,
        user: str | None = None,
        password: Secret | str | None = None,
        admin_url: str | None = None,
        admin_proxy: str | None = None,
        addresses: Mapping[str, str] | None = None,
        admin_token: Secret | str | None = None,
        time_zone: str = "UTC",
        heartbeat_s: float = HEARTBEAT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        idle_s: float = IDLE_S,
        shared_connections: bool = True,
    ) -> None:
        self._addresses, self._tls = parse_cluster_url(
            url, scheme="tubemq", default_port=DEFAULT_MASTER_PORT, tls=tls, default_tls_port=DEFAULT_MASTER_TLS_PORT
        )
        self._reachable = parse_addresses(addresses)
        self._credentials = as_credentials(user, password)
        self._admin_url, self._admin_token, self._admin_proxy = admin_url, admin_token, parse_proxy(admin_proxy)
        self._zone = _time_zone(time_zone)
        self._heartbeat_s, self._request_timeout_s = heartbeat_s, request_timeout_s
        self._idle_s, self._shared_connections = idle_s, shared_connections
        masters = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        self._opened = OpenedByClient(f"Masters: {masters}")
        self._masters: Masters | None = None
        self._routes: Routes | None = None
        """Registered as a producer at the Master; None before the first producer or sender is opened."""
        self._connect_lock = asyncio.Lock()
        self._admins: list[Admin] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close everything that this client opened, the last first, then the connections, within about `timeout` seconds."""
        if not self._opened.begin_close():
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with contextlib.AsyncExitStack() as stack:  # runs all callbacks, in reverse order, even if one raises
            if self._masters is not None:
                stack.push_async_callback(self._masters.connections.close)
            for admin in self._admins:
                stack.push_async_callback(admin.close)
            if self._routes is not None:
                stack.push_async_callback(lambda routes: _close_routes(routes, deadline - loop.time()), self._routes)
            stack.push_async_callback(self._opened.close, timeout)

    @property
    def masters(self) -> Masters:
        """The cluster's Masters, made on first use; `masters.connections.snapshot()` returns the counters of all connections.

        Raises ClusterError if this client is closed.
        """
        self._opened.check_open()
        if self._masters is None:
            cluster_name = ",".join(f"{host}:{port}" for host, port in self._addresses)
            connections = ConnectionPool(
                timeout_s=self._request_timeout_s,
                idle_s=self._idle_s,
                shared=self._shared_connections,
                tls=self._tls,
                connectivity=Connectivity(cluster_name, self._addresses),
                addresses=self._reachable,
            )
            self._masters = Masters(self._addresses, connections, self._credentials)
        return self._masters

    # --- producing --------------------------------------------------------------------------------------------------

    def producer(
        self,
        topic: str,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_elapsed_s: float | None = MAX_ELAPSED_S,
        in_flight: int = 1,
    ) -> Opening[Producer]:
        """Open a producer: `await` the result, or use it with `async with`.

        Raises ServerRefused (FATAL) if the topic does not exist.

        max_pending_bytes  `send` waits while this many bytes are sent and not yet stored
        max_elapsed_s      seconds for which a failed message is retried; None for ever
        in_flight          requests in flight per partition, for messages with a key. 1 keeps their order in all cases; 16 keeps
                           it as long as the Broker refuses no message, and sends three to seven times as fast
        """

        async def open_producer() -> Producer:
            routes, connections = await self._connect_producer()
            ordered = await open_partition_sender(routes, connections, topic, in_flight=in_flight, max_elapsed_s=max_elapsed_s)
            # Not bounded, because the producer limits the pending bytes of both senders.
            any_partition = await open_load_balancing_sender(
                routes, connections, topic, max_elapsed_s=max_elapsed_s, bounded=False
            )
            producer = Producer(ordered, any_partition, zone=self._zone, max_pending_bytes=max_pending_bytes)
            return await self._opened.register(producer)

        return Opening(open_producer)

    def partition_sender(
        self,
        topic: str,
        *,
        ordered: bool = True,
        in_flight: int | None = None,
        max_elapsed_s: float | None = None,
    ) -> Opening[PartitionSender]:
        """Open a sender of encoded messages; each call of `send` names the partition.

        With `ordered`, a failed message also fails those that wait behind it in its partition. `in_flight` is the number of
        requests in flight per partition; None: 1 with `ordered`, else 1000 (MAX_UNORDERED_REQUESTS).
        `max_elapsed_s` is the time (s) for which a failed message is retried; None for ever.
        """

        async def open_sender() -> PartitionSender:
            routes, connections = await self._connect_producer()
            sender = await open_partition_sender(
                routes, connections, topic, ordered=ordered, in_flight=in_flight, max_elapsed_s=max_elapsed_s
            )
            return await self._opened.register(sender)

        return Opening(open_sender)

    def load_balancing_sender(self, topic: str, *, max_elapsed_s: float | None = None) -> Opening[LoadBalancingSender]:
        """Open a sender of encoded messages to any partition that accepts them.

        `max_elapsed_s` is the time (s) for which a failed message is retried; None for ever.
        """

        async def open_sender() -> LoadBalancingSender:
            routes, connections = await self._connect_producer()
            sender = await open_load_balancing_sender(routes, connections, topic, max_elapsed_s=max_elapsed_s)
            return await self._opened.register(sender)

        return Opening(open_sender)

    # --- consuming --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Start = "earliest",
        msg_types: MsgTypes = (),
        max_bytes: int = MAX_BYTES,
        bound: BoundSubscription | None = None,
        query_priority: int | None = None,
    ) -> Opening[Consumer]:
        """Join a group and receive its messages: `await` the result, or use it with `async with`.

        All members of a group must name the same topics and message types; the Master assigns the partitions to them. Raises
        ServerRefused (FATAL) if the topic does not exist.

        start           where a group without a stored position begins: "earliest" or "latest"
        msg_types       receive only messages of these types: a collection, or a mapping by topic; the Brokers filter. Empty: all
        max_bytes       limit of the bytes of undelivered packs; each Broker has an equal share of it, but 1 MiB at least
        bound           makes the group a bound group: partitions start at given offsets once all members have joined. None: an
                        ordinary group
        query_priority  which stores of a Broker are read (qryPriorityId, 101 to 303). The hundreds digit is for topics without a
                        filter, the ones digit for topics with a filter; 1 reads only the file, 2 also the memory that is being
                        written to the file, 3 all. None takes the cluster's setting, usually 301: filtered messages then arrive
                        up to 20 s late
        """
        names = _topic_names(topics)
        types = _types_by_topic(names, msg_types)

        async def join() -> Consumer:
            member = PackConsumer(
                self.masters,
                group,
                names,
                start=_STARTS[start],
                filters=types,
                bound=bound,
                heartbeat_s=self._heartbeat_s,
                budget=ReadBudget(max_bytes, counts_packs=True),
                priority=query_priority,
            )
            await self._join(member)
            consumer = Consumer(member, zone=self._zone, types=types)
            return await self._opened.register(consumer)

        return Opening(join)

    def pack_consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Start = "earliest",
        msg_types: MsgTypes = (),
        offsets: OffsetLookup | None = None,
        max_bytes: int = MAX_BYTES,
        bound: BoundSubscription | None = None,
        query_priority: int | None = None,
    ) -> Opening[PackConsumer]:
        """Join a group and read whole packs, partition by partition: see `assignments()` of `PackConsumer`.

        `offsets` is called before a partition is acquired, and returns its start offset, or None for the group's position. So a
        program that stores offsets together with its results can process each message exactly once. Without `offsets` every
        partition starts at the group's position. The other arguments are those of `consumer`, but `max_bytes` limits the
        concurrent get requests, at 1 MiB each.
        """
        names = _topic_names(topics)
        types = _types_by_topic(names, msg_types)

        async def join() -> PackConsumer:
            consumer = PackConsumer(
                self.masters,
                group,
                names,
                start=_STARTS[start],
                filters=types,
                offsets=offsets,
                bound=bound,
                heartbeat_s=self._heartbeat_s,
                budget=ReadBudget(max_bytes),
                priority=query_priority,
            )
            await self._join(consumer)
            return await self._opened.register(consumer)

        return Opening(join)

    def pack_puller(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Start = "earliest",
        msg_types: MsgTypes = (),
        settle_s: float = SETTLE_S,
        max_bytes: int = MAX_BYTES,
        query_priority: int | None = None,
    ) -> Opening[PackPuller]:
        """Join a group and pull packs of all partitions, one after the other: see `PackPuller`.

        A pack that is neither confirmed nor rejected within `settle_s` seconds is delivered again. The other arguments are those
        of `consumer`.
        """

        async def join() -> PackPuller:
            consumer = await self.pack_consumer(
                topics, group, start=start, msg_types=msg_types, max_bytes=max_bytes, query_priority=query_priority
            )
            puller = PackPuller(consumer, settle_s=settle_s, close_consumer=consumer.close)
            return await self._opened.register(puller)

        return Opening(join)

    def balanced_consumer(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        node: tuple[int, int] | None = None,
        start: Start = "earliest",
        msg_types: MsgTypes = (),
        offsets: OffsetLookup | None = None,
        max_bytes: int = MAX_BYTES,
        query_priority: int | None = None,
    ) -> Opening[BalancedConsumer]:
        """Join a group whose members choose their partitions: the program acquires and releases partitions itself.

        `node` is (number of this member from 0, number of members). The Master refuses a number that another member has, and a
        number of members that differs from that of the other members. With None the member has no number, and its share is all
        partitions. The other arguments are those of `pack_consumer`.
        """
        names = _topic_names(topics)

        async def join() -> BalancedConsumer:
            consumer = BalancedConsumer(
                self.masters,
                group,
                names,
                node=node,
                start=_STARTS[start],
                filters=_types_by_topic(names, msg_types),
                offsets=offsets,
                heartbeat_s=self._heartbeat_s,
                budget=ReadBudget(max_bytes),
                priority=query_priority,
            )
            await self._join(consumer)
            return await self._opened.register(consumer)

        return Opening(join)

    # --- administration ---------------------------------------------------------------------------------------------

    def admin(self) -> Admin:
        """Return a client of the HTTP administration API: topics, groups, offsets. Raises ClusterError without `admin_url`."""
        if self._admin_url is None:
            raise ClusterError("admin() needs the Master's web address: open the client with admin_url", Failure.FATAL)
        admin = Admin(self._admin_url, self._admin_token, tls=self._tls, proxy=self._admin_proxy, addresses=self._reachable)
        self._admins.append(admin)
        return admin

    # --- connecting -------------------------------------------------------------------------------------------------

    async def _connect_producer(self) -> tuple[Routes, ConnectionPool]:
        """Return the producers' routes and the connections; the first call registers at the Master. Raises ClusterError."""
        masters = self.masters
        async with self._connect_lock:
            if self._routes is None:
                routes = Routes(masters, heartbeat_s=self._heartbeat_s)
                try:
                    with self._hint_at_wrong_port():
                        await routes.start()
                except asyncio.CancelledError:
                    await _close_routes(routes, LEAVE_TIMEOUT_S)
                    raise
                if self._opened.is_closed:  # by another task during `start`
                    await _close_routes(routes, LEAVE_TIMEOUT_S)
                    self._opened.check_open()
                self._routes = routes
        return self._routes, masters.connections

    async def _join(self, member: PackConsumer | BalancedConsumer) -> None:
        """Start a member; if cancelled meanwhile, leave the group."""
        try:
            with self._hint_at_wrong_port():
                await member.start()
        except asyncio.CancelledError:
            await member.close(LEAVE_TIMEOUT_S)  # otherwise the Master may keep partitions assigned to this member
            raise

    def _hint_at_wrong_port(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an unexpected response raises Unreachable, with the hint that the port may not be a Master's.

        It is for the first requests of a producer or consumer.
        """
        return detect_wrong_port("a TubeMQ Master", ", ".join(f"{host}:{port}" for host, port in self._addresses))


async def _close_routes(routes: Routes, timeout: float) -> None:
    """Close the routes, which unregisters the producer at the Master; give up after `timeout` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await routes.close()


def _topic_names(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)


def _types_by_topic(topics: Iterable[str], msg_types: MsgTypes) -> dict[str, frozenset[str]]:
    """Return the message types to receive, by topic; a topic of which all messages are received is left out."""
    if isinstance(msg_types, Mapping):
        return {topic: frozenset(types) for topic, types in msg_types.items() if types}
    return dict.fromkeys(topics, frozenset(msg_types)) if msg_types else {}


def _time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{name!r} is not a time zone; write a name such as Asia/Shanghai or UTC") from error
