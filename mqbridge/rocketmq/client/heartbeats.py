"""Heartbeats: each announces all groups of a client, to every broker of a topic in use, every 30 s and at changes.

A broker keeps ONE subscription set per group, that of the last heartbeat, and handles the requests of a connection concurrently.
So heartbeats to one broker never overlap, and each is composed when it is sent: an old one cannot undo a newer one.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from functools import partial

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.connection_pool import ConnectionPool
from mqbridge.rocketmq.client.per_broker_order import PerBrokerOrder
from mqbridge.rocketmq.client.route_table import RouteTable
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat
from mqbridge.rocketmq.wire.codes import Code, Status, refused

log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
"""Brokers drop a client after 120 s without one, and close a connection that was idle for that long."""
LEAVE_TIMEOUT_S = 3.0
"""Timeout of UNREGISTER_CLIENT: without it a broker drops us later anyway."""


class Heartbeats:
    """Announces the groups of one client."""

    def __init__(self, pool: ConnectionPool, routes: RouteTable, timeout_s: float, every_s: float = HEARTBEAT_S) -> None:
        self._pool, self._routes = pool, routes
        self._timeout_s, self._every_s = timeout_s, every_s
        self._producers: Counter[str] = Counter()
        self.consumers: dict[str, ConsumerData] = {}
        self.versions: dict[str, int] = {}
        self._client_id = ""
        self._order = PerBrokerOrder()
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, client_id: str) -> None:
        """Start, with this client id."""
        self._client_id = client_id
        if self._task is None:
            self._task = spawn(self._beating(), f"rocketmq heartbeats of {client_id}")

    async def close(self) -> None:
        """Unregister every group."""
        await cancel(self._task)
        await asyncio.gather(
            *(self._unregister("producerGroup", group) for group in self._producers),
            *(self._unregister("consumerGroup", group) for group in self.consumers),
        )

    def add_producer(self, group: str) -> None:
        """Add a producer of this group; a new group is announced soon."""
        self._producers[group] += 1
        if self._producers[group] == 1:
            self._soon.set()

    async def remove_producer(self, group: str) -> None:
        """Remove a producer of this group; the last one unregisters it."""
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            await self._unregister("producerGroup", group)

    async def remove_consumer(self, group: str) -> None:
        """Remove this consumer group."""
        if self.consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Send a heartbeat to every broker in use: to masters only if there are only producers."""
        if self._producers or self.consumers:
            await asyncio.gather(*map(self._send_to, self._routes.addresses(masters=not self.consumers)))

    async def greet(self, connection: Connection) -> None:
        """Send the first heartbeat over a new connection. Raises ConnectionLost, RequestTimeout or AccessRefused.

        With TLS or credentials it is sent even without groups: it needs no permission, so it shows if the broker accepts our
        certificate and credentials. Groups that were removed meanwhile are unregistered here: no unregistration uses a connection
        that is not open yet.
        """
        if not (self._client_id and (self._producers or self.consumers or self._pool.is_locked)):
            return
        sent = await self._order.take(connection.address, partial(self._send, connection))
        named = [("producerGroup", one) for one in sent.producers] + [("consumerGroup", one.group) for one in sent.consumers]
        while (gone := next((one for one in named if not self._has(*one)), None)) is not None:
            named.remove(gone)  # and check again: more may be removed while the broker answers
            field, group = gone
            await self._leave(connection, {"clientID": self._client_id, field: group}, group)

    def _has(self, field: str, group: str) -> bool:
        return group in (self._producers if field == "producerGroup" else self.consumers)

    async def _send_to(self, address: str) -> None:
        try:
            connection = self._pool.ready(address)
            if connection is None:
                await self._pool.get(address)  # sends the first one
            else:
                await self._order.take(address, partial(self._send, connection))
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "heartbeat to %s failed: %s", address, error)

    async def _send(self, connection: Connection) -> Heartbeat:
        sent = Heartbeat(self._client_id, tuple(self._producers), tuple(self.consumers.values()))
        answer = await connection.request(Code.HEART_BEAT, {}, sent.encode(), self._timeout_s)
        connection.admit()
        self.versions[connection.address] = answer.version
        if answer.code == Status.GO_AWAY:
            self._pool.retire(connection)
        elif answer.code != Status.SUCCESS:
            log.warning("%s", refused(f"a heartbeat at {connection.address}", answer.code, answer.remark))
        return sent

    async def _beating(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._soon.wait()
            self._soon.clear()
            await self._pool.read_credentials()
            await self.beat()

    # --- leaving ----------------------------------------------------------------------------------------------------

    async def _unregister(self, field: str, group: str) -> None:
        ext = {"clientID": self._client_id, field: group}
        brokers = set(self._routes.addresses())
        await asyncio.gather(*(self._leave(one, ext, group) for one in self._pool.live() if one.address in brokers))

    async def _leave(self, connection: Connection, ext: dict[str, str], group: str) -> None:
        deadline = min(self._timeout_s, LEAVE_TIMEOUT_S)
        request = partial(connection.request, Code.UNREGISTER_CLIENT, ext, b"", deadline)
        try:
            await self._order.take(connection.address, request)
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s: unregistering %s failed: %s", connection.address, group, error)
