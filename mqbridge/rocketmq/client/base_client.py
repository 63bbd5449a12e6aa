"""What everything of a client stands on: name servers, routes, one connection per address, requests, heartbeats.

Nothing here knows producers, consumers or administration, which are built on it. All groups of a client share its connections and
its id, and brokers know them by that id: two members of one consumer group need two clients, or two instance names.
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
from mqbridge.net.connectivity import Connectivity, level_of
from mqbridge.net.dial import split_address
from mqbridge.net.tls.tls import Tls
from mqbridge.net.window import SendWindow
from mqbridge.rocketmq.client.connection import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Connection
from mqbridge.rocketmq.client.credentials import Credentials
from mqbridge.rocketmq.client.heartbeats import HEARTBEAT_S, Heartbeats
from mqbridge.rocketmq.client.nameservers import DEFAULT_PORT, NameServers
from mqbridge.rocketmq.client.pool import Pool
from mqbridge.rocketmq.client.routes import REFRESH_S, Routes
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData
from mqbridge.rocketmq.wire.codes import Status, name_of, refused
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.ids import UniqueIds

log = logging.getLogger(__name__)

Handler = Callable[[str, Command], Command | None]
"""Gets the address that asks and what it asks; what it returns is the answer.

None: there is none, or `answer` brings it later.
"""
SUCCESS = frozenset({Status.SUCCESS})
MAX_SENDS_IN_FLIGHT = 1000
"""Of one client. A broker queues 10000 sends of all its producers, and drops those that waited for 200 ms."""
MAX_BYTES_IN_FLIGHT = 64 << 20
"""Of one client; a broker on a fast network has far less on the way to its log."""

_instances = itertools.count()


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines and rhythms in seconds."""

    connect: float = CONNECT_TIMEOUT_S
    request: float = REQUEST_TIMEOUT_S
    """For one answer, unless the request says otherwise."""
    route: float = REFRESH_S
    heartbeat: float = HEARTBEAT_S


class BaseClient:
    """Made inside a running loop; `connect` before anything else, `close` at the end, or `async with`.

    `name_servers` are `host:port`. `instance` replaces the part of the client id that is unique otherwise. `credentials` sign
    every request.
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
    ) -> None:
        self.timing = timing = timing or Timing()
        self.connectivity = connectivity or connectivity_of(",".join(name_servers), name_servers)
        self.pool = Pool(
            self._on_request,
            self._on_lost,
            self._greet,
            tls=tls,
            credentials=credentials,
            connect_timeout_s=timing.connect,
            connectivity=self.connectivity,
        )
        self.name_servers = NameServers(name_servers, self.pool, timing.request)
        self.routes = Routes(self.name_servers, timing.route)
        self.window = SendWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
        """What all producers of this client may have on the way together."""
        self._instance = instance or f"{os.getpid()}#{time.time_ns()}{next(_instances)}"
        self._client_id = ""
        self._ids: UniqueIds | None = None
        self._handlers: dict[int, Handler] = {}
        self._heartbeats = Heartbeats(self.pool, self.routes, timing.request, timing.heartbeat)

    @property
    def client_id(self) -> str:
        """`ip@instance`, what brokers call us. There is none before `connect`."""
        if not self._client_id:
            raise LocalProtocolError("a client has no id before it is connected")
        return self._client_id

    async def connect(self) -> None:
        """Reach a name server. Raises Unreachable, which names all of them."""
        local = await self.name_servers.connect()
        if not self._client_id:
            self._client_id = f"{local}@{self._instance}"
            self._ids = UniqueIds(ip_address(local).packed, os.getpid(), zlib.crc32(self._client_id.encode()))
        self._heartbeats.start(self._client_id)
        self.routes.start()

    async def close(self) -> None:
        """Tell the brokers that every group of this client is gone, and close all connections."""
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
        """A new UNIQ_KEY, what Java applications see as the message id."""
        start, counter = self.reserve_ids(1)
        return f"{start}{counter:04X}"

    def reserve_ids(self, count: int) -> tuple[str, int]:
        """As many in a row: how all begin, and the first one's counter, which are the last four digits."""
        if self._ids is None:
            raise LocalProtocolError("a client makes no ids before it is connected")
        now = time.time_ns() // 1_000_000
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
        """Ask a server; its answer, if the code of that is in `accept`.

        Raises ServerRefused (with what helps), Unreachable, ConnectionLost, RequestTimeout. After a REFRESH the route of the
        request's topic is looked up again before it is used.
        """
        fields = ext or {}
        limit = self.timing.request if timeout is None else timeout
        connection = self.pool.ready(address) or await self.pool.get(address)
        answer = await connection.request(code, fields, body, limit)
        if answer.code == Status.GO_AWAY:  # it was not looked at; the broker takes new connections until it is gone
            self.pool.retire(connection)
            answer = await (await self.pool.get(address)).request(code, fields, body, limit)
        if answer.code in accept:
            return answer
        error = refused(f"{name_of(code)} at {address}", answer.code, answer.remark)
        if error.failure is Failure.REFRESH and "topic" in fields:
            self.routes.invalidate(fields["topic"])
        raise error

    async def oneway(
        self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Tell a server what it does not answer. Raises Unreachable or ConnectionLost."""
        (await self.pool.get(address)).oneway(code, ext or {}, body, remark)

    # --- what brokers ask -------------------------------------------------------------------------------------------

    def on(self, code: int, handler: Handler) -> None:
        """Let `handler` answer requests of this kind; it replaces the one before."""
        self._handlers[code] = handler

    def answer(self, address: str, request: Command, response: Command) -> None:
        """Answer later what a handler answered by None. Without a connection nobody waits for it any more."""
        connection = self.pool.ready(address)
        if connection is not None and not request.is_oneway:
            connection.answer(request, response)

    def _on_request(self, connection: Connection, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            response: Command | None = request.answer(Status.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        else:
            try:
                response = handler(connection.address, request)
            except MqbridgeError as error:
                log.warning("%s from %s could not be handled: %s", name_of(request.code), connection.address, error)
                response = request.answer(Status.SYSTEM_ERROR, remark=str(error))
        if response is not None and not request.is_oneway:
            connection.answer(request, response)

    # --- groups -----------------------------------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        """Name this producer group in heartbeats from now on, until as many `remove_producer` have come."""
        self._heartbeats.add_producer(group)

    async def remove_producer(self, group: str) -> None:
        """The producer group has one user less; the last one unregisters it."""
        await self._heartbeats.remove_producer(group)

    def add_consumer(self, consumer: ConsumerData) -> None:
        """Name this consumer group in heartbeats from now on, in place of what was said of it before; see `heartbeat`."""
        self._heartbeats.consumers[consumer.group] = consumer

    replace_consumer = add_consumer

    async def remove_consumer(self, group: str) -> None:
        """Unregister the consumer group at every broker that is connected."""
        await self._heartbeats.remove_consumer(group)

    async def heartbeat(self) -> None:
        """Tell every known broker about all groups now. One that cannot be told is logged; the next heartbeat tells it."""
        await self._heartbeats.beat()

    def broker_version(self, address: str) -> int | None:
        """The version (its ordinal) that a broker's answer to a heartbeat said."""
        return self._heartbeats.versions.get(address)

    async def _greet(self, connection: Connection) -> None:
        if connection.address not in self.name_servers.addresses or connection.address in self.routes.addresses():
            await self._heartbeats.greet(connection)

    def _on_lost(self, connection: Connection, error: Exception) -> None:
        log.log(level_of(error, logging.INFO), "%s", error)
        self.routes.lost(connection.address)


def connectivity_of(name: str, name_servers: Sequence[str]) -> Connectivity:
    """That of a cluster that begins with these name servers. Raises ValueError for an address that is none."""
    return Connectivity(name, (split_address(address, DEFAULT_PORT) for address in name_servers))


def _month_start(now: int) -> int:
    """When the month of this time began, both in ms."""
    return _day_month_start(now // 86_400_000)


@lru_cache(maxsize=2)
def _day_month_start(day: int) -> int:
    first = datetime.fromtimestamp(day * 86_400, UTC).replace(day=1)
    return int(first.timestamp()) * 1000
