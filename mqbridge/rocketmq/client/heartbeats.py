"""Heartbeats: one says everything about all groups of a client, to every broker of a topic in use, every 30 s and at changes.

A broker keeps ONE subscription set per group, that of the last heartbeat, and works on the requests of a connection side by side.
So heartbeats to one broker never overlap, and each is composed at the moment it is sent: an old one cannot undo a newer one.
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
from mqbridge.rocketmq.client.per_broker_order import PerBrokerOrder
from mqbridge.rocketmq.client.pool import Pool
from mqbridge.rocketmq.client.routes import Routes
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat
from mqbridge.rocketmq.wire.codes import Code, Status, refused

log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
"""Brokers forget a client after 120 s, and close a connection that was idle for so long."""
LEAVE_TIMEOUT_S = 3.0
"""For the answer to UNREGISTER_CLIENT: a broker that hears nothing forgets us all the same."""


class Heartbeats:
    """The groups of one client."""

    def __init__(self, pool: Pool, routes: Routes, timeout_s: float, every_s: float = HEARTBEAT_S) -> None:
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
        """Begin, under this id."""
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
        """A producer of this group more; brokers hear of a new group soon."""
        self._producers[group] += 1
        if self._producers[group] == 1:
            self._soon.set()

    async def remove_producer(self, group: str) -> None:
        """A producer of this group less."""
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            await self._unregister("producerGroup", group)

    async def remove_consumer(self, group: str) -> None:
        """This consumer group is gone."""
        if self.consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    # --- telling ----------------------------------------------------------------------------------------------------

    async def beat(self) -> None:
        """One to every broker in use: masters only, when there are producers only."""
        if self._producers or self.consumers:
            await asyncio.gather(*map(self._tell, self._routes.addresses(masters=not self.consumers)))

    async def greet(self, connection: Connection) -> None:
        """The first one over a new connection. Raises ConnectionLost, RequestTimeout or AccessRefused.

        Where we have to be let in it goes out even when it names no group: that takes no right, so it tells whether the broker
        takes our certificate and credentials. Groups that were removed meanwhile are taken back here: no farewell goes over a
        connection that is not open yet.
        """
        if not (self._client_id and (self._producers or self.consumers or self._pool.is_locked)):
            return
        said = await self._order.take(connection.address, partial(self._send, connection))
        named = [("producerGroup", one) for one in said.producers] + [("consumerGroup", one.group) for one in said.consumers]
        while (gone := next((one for one in named if not self._has(*one)), None)) is not None:
            named.remove(gone)  # and look again: more are removed while the broker answers
            field, group = gone
            await self._leave(connection, {"clientID": self._client_id, field: group}, group)

    def _has(self, field: str, group: str) -> bool:
        return group in (self._producers if field == "producerGroup" else self.consumers)

    async def _tell(self, address: str) -> None:
        try:
            connection = self._pool.ready(address)
            if connection is None:
                await self._pool.get(address)  # which greets
            else:
                await self._order.take(address, partial(self._send, connection))
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "%s has no heartbeat: %s", address, error)

    async def _send(self, connection: Connection) -> Heartbeat:
        said = Heartbeat(self._client_id, tuple(self._producers), tuple(self.consumers.values()))
        answer = await connection.request(Code.HEART_BEAT, {}, said.encode(), self._timeout_s)
        connection.admit()
        self.versions[connection.address] = answer.version
        if answer.code == Status.GO_AWAY:
            self._pool.retire(connection)
        elif answer.code != Status.SUCCESS:
            log.warning("%s", refused(f"a heartbeat at {connection.address}", answer.code, answer.remark))
        return said

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
            log.log(level_of(error, logging.INFO), "%s was not told that %s is gone: %s", connection.address, group, error)
