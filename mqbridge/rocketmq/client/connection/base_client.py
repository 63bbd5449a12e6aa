"""Base of all clients: name servers, routes, one connection per address, requests, heartbeats.

Producers, consumers and administration are built on it. All groups of a client share its connections and its id, by which brokers
identify them: two members of one consumer group need two clients, or two instance names.
"""

import itertools
import logging
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import Self

from mqbridge.errors import Failure, LocalProtocolError, MqbridgeError
from mqbridge.net.addresses import DIRECT, AddressMap, split_address
from mqbridge.net.connectivity import Connectivity, retry_log_level
from mqbridge.net.tls.tls import Tls
from mqbridge.net.window import RequestWindow
from mqbridge.rocketmq.client.connection.connection import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Connection
from mqbridge.rocketmq.client.connection.connection_pool import ConnectionPool
from mqbridge.rocketmq.client.connection.credentials import Credentials
from mqbridge.rocketmq.client.connection.heartbeats import HEARTBEAT_S, Heartbeats
from mqbridge.rocketmq.client.connection.name_server_address import DEFAULT_PORT
from mqbridge.rocketmq.client.connection.nameservers import NameServers
from mqbridge.rocketmq.client.connection.route_table import REFRESH_S, RouteTable
from mqbridge.rocketmq.client.connection.unreplicated import UnreplicatedSends
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData
from mqbridge.rocketmq.wire.codes import Status, refusal_error, request_name
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.ids import UniqueIds

log = logging.getLogger(__name__)

Handler = Callable[[str, Command], Command | None]
"""(address of the broker, its request) -> the response; None for no response, or if `answer` sends it later."""
SUCCESS = frozenset({Status.SUCCESS})
MAX_SENDS_IN_FLIGHT = 1000
"""Limit of sends in flight per client. A broker queues 10000 sends of all producers, and drops those that waited for 200 ms."""
MAX_BYTES_IN_FLIGHT = 64 << 20
"""Limit of the bytes of sends in flight per client; a broker on a fast network needs far less in flight."""

_instances = itertools.count()
"""Numbers the clients of this process: two clients may be created at the same `time_ns`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals in seconds."""

    connect: float = CONNECT_TIMEOUT_S
    """Timeout of opening one connection."""
    request: float = REQUEST_TIMEOUT_S
    """Timeout of one response, unless the request sets another."""
    route: float = REFRESH_S
    """Interval at which the routes of the topics in use are requested again."""
    heartbeat: float = HEARTBEAT_S
    """Interval of heartbeats."""


class BaseClient:
    """Client of one cluster. Create it inside a running loop; call `connect` first and `close` last, or use `async with`.

    `name_servers` are `host:port`. `timing` None: the defaults of Timing. `instance` is the part of the client id after the
    address; by default it is unique. `tls` None: plain connections. `credentials` sign every request; None: no request is signed.
    `connectivity` records which servers of the cluster can be reached; by default the client has one of its own. `addresses` says
    where they can be reached.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        timing: Timing | None = None,
        instance: str | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self.timing = timing = timing or Timing()
        self.connectivity = connectivity or connectivity_of(",".join(name_servers), name_servers)
        self.unreplicated = UnreplicatedSends(self.connectivity)
        self.pool = ConnectionPool(
            self._on_request,
            self._on_lost,
            self._greet,
            tls=tls,
            credentials=credentials,
            connect_timeout_s=timing.connect,
            connectivity=self.connectivity,
            addresses=addresses,
        )
        self.name_servers = NameServers(name_servers, self.pool, timing.request)
        self.routes = RouteTable(self.name_servers, timing.route)
        self.window = RequestWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
        """Limits of sends in flight, for all producers of this client together."""
        self._instance = instance or unique_instance()
        self._client_id = ""
        self._ids: UniqueIds | None = None
        self._handlers: dict[int, Handler] = {}
        self._heartbeats = Heartbeats(self.pool, self.routes, timing.request, timing.heartbeat)

    @property
    def client_id(self) -> str:
        """`ip@instance`, by which brokers identify us; `ip` is our address in the first connection that `connect` opens."""
        if not self._client_id:
            raise LocalProtocolError("the client has no client id yet: call connect first")
        return self._client_id

    async def connect(self) -> None:
        """Connect to a name server, and start heartbeats and route updates. Raises Unreachable with the error of each server."""
        local = await self.name_servers.connect()
        if not self._client_id:
            self._client_id = f"{local}@{self._instance}"
            self._ids = UniqueIds(ip_address(local).packed, os.getpid(), zlib.crc32(self._client_id.encode()))
        self._heartbeats.start(self._client_id)
        self.routes.start()

    async def close(self) -> None:
        """Unregister every group of this client at the brokers, and close all connections."""
        try:
            await self.routes.close()
            await self._heartbeats.close()
        finally:
            await self.pool.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def unique_id(self) -> str:
        """Return a new UNIQ_KEY, which Java applications see as the message id."""
        prefix, counter = self.reserve_ids(1)
        return f"{prefix}{counter:04X}"

    def reserve_ids(self, count: int) -> tuple[str, int]:
        """Reserve consecutive ids: return their common prefix and the counter of the first one.

        An id is the prefix and the counter as four hexadecimal digits.
        """
        if self._ids is None:
            raise LocalProtocolError("the client cannot make message ids yet: call connect first")
        now = time.time_ns() // 1_000_000
        # As in Java clients, the time in an id counts from the start of the month.
        return self._ids.reserve(now - _month_start(now), count)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: frozenset[int] = SUCCESS,
    ) -> Command:
        """Send a request; return the response if its code is in `accept`.

        `ext` are the header fields. `timeout` limits the wait for one response, in seconds; None: `timing.request`. Raises
        ServerRefused (with its `Failure`), Unreachable, ConnectionLost, RequestTimeout. If the failure is REFRESH (the route
        is outdated), the cached route of the topic in the field `topic`, if any, is invalidated.
        """
        fields = ext or {}
        limit = self.timing.request if timeout is None else timeout
        connection = self.pool.ready(address) or await self.pool.get(address)
        response = await connection.request(code, fields, body, limit)
        if response.code == Status.GO_AWAY:  # not processed; the broker accepts new connections until it stops
            self.pool.retire(connection)
            response = await (await self.pool.get(address)).request(code, fields, body, limit)
        if response.code in accept:
            return response
        error = refusal_error(f"{request_name(code)} at {address}", response.code, response.remark)
        if error.failure is Failure.REFRESH and "topic" in fields:
            self.routes.invalidate(fields["topic"])
        raise error

    async def oneway(
        self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Send a request that gets no response.

        Waits first, at most `timing.request`, while the server does not read what was sent before: nothing else limits the number
        of such requests. Raises Unreachable, ConnectionLost or RequestTimeout.
        """
        connection = await self.pool.get(address)
        await connection.wait_for_room(self.timing.request)
        connection.oneway(code, ext or {}, body, remark)

    # --- requests of brokers ----------------------------------------------------------------------------------------

    def on(self, code: int, handler: Handler) -> None:
        """Set the handler of requests with this code, replacing the previous one."""
        self._handlers[code] = handler

    def answer(self, address: str, request: Command, response: Command) -> None:
        """Send the response to a request whose handler returned None; it is dropped if the connection is lost."""
        connection = self.pool.ready(address)
        if connection is not None and not request.is_oneway:
            connection.answer(request, response)

    def _on_request(self, connection: Connection, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            # The text of Java servers, with its leading space.
            remark = f" request type {request.code} not supported"
            response: Command | None = request.answer(Status.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        else:
            try:
                response = handler(connection.address, request)
            except MqbridgeError as error:
                text = "request %s from %s could not be handled, responding with an error: %s"
                log.warning(text, request_name(request.code), connection.address, error)
                response = request.answer(Status.SYSTEM_ERROR, remark=str(error))
        if response is not None and not request.is_oneway:
            connection.answer(request, response)

    # --- groups -----------------------------------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        """Add this producer group to heartbeats. Each producer of the group calls this once, and `remove_producer` once."""
        self._heartbeats.add_producer(group)

    async def remove_producer(self, group: str) -> None:
        """Remove a producer of the group. When the last one is removed, the group is unregistered."""
        await self._heartbeats.remove_producer(group)

    def add_consumer(self, consumer: ConsumerData) -> None:
        """Add this consumer group to heartbeats, replacing its earlier data; call `heartbeat` to send the data at once."""
        self._heartbeats.consumers[consumer.group] = consumer

    async def remove_consumer(self, group: str) -> None:
        """Unregister the consumer group at every connected broker."""
        await self._heartbeats.remove_consumer(group)

    async def heartbeat(self) -> None:
        """Send a heartbeat with all groups to every known broker now. Failures are logged; the next heartbeat retries."""
        await self._heartbeats.send_all()

    def broker_version(self, address: str) -> int | None:
        """Return the version number that the broker announced in its response to a heartbeat; None before the first response."""
        return self._heartbeats.broker_versions.get(address)

    async def _greet(self, connection: Connection) -> None:
        """Send a heartbeat on a new connection to a broker. A name server gets none, unless a broker has the same address."""
        if connection.address not in self.name_servers.addresses or connection.address in self.routes.addresses():
            await self._heartbeats.greet(connection)

    def _on_lost(self, connection: Connection, error: Exception) -> None:
        text = "cluster %s: lost the connection to %s, the routes of topics on that server will be requested again: %s"
        log.log(retry_log_level(error, logging.INFO), text, self.connectivity.name, connection.address, error)
        self.routes.invalidate_broker(connection.address)


def unique_instance(name: str | None = None) -> str:
    """Return a new instance name, which begins with `name`, if there is one."""
    unique = f"{os.getpid()}#{time.time_ns()}{next(_instances)}"
    return unique if name is None else f"{name}#{unique}"


def connectivity_of(name: str, name_servers: Sequence[str]) -> Connectivity:
    """Return the connectivity of a cluster with these name servers. Raises ValueError for an invalid address."""
    return Connectivity(name, (split_address(address, DEFAULT_PORT) for address in name_servers))


def _month_start(now: int) -> int:
    """Return the start of the month of this time, both in ms."""
    return _month_start_of_day(now // 86_400_000)


@lru_cache(maxsize=2)
def _month_start_of_day(day: int) -> int:
    """Return the start (ms) of the month of a day, which is counted from the epoch; cached, as it changes once a month."""
    first = datetime.fromtimestamp(day * 86_400, UTC).replace(day=1)
    return int(first.timestamp()) * 1000
