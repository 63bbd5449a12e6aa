"""Heartbeats: a client announces all its groups to every broker of its topics, every 30 s and when the groups change.

A broker keeps a single subscription set per group, the one in the last heartbeat, and handles the requests of a connection
concurrently. So heartbeats to one broker never overlap, and the content of each is read when it is sent: an old heartbeat cannot
undo a newer one.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from functools import partial

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.connection.connection import Connection
from mqbridge.rocketmq.client.connection.connection_pool import ConnectionPool
from mqbridge.rocketmq.client.connection.per_broker_order import PerBrokerOrder
from mqbridge.rocketmq.client.connection.route_table import RouteTable
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat
from mqbridge.rocketmq.wire.codes import Code, Status, refusal_error

log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
"""Interval of heartbeats. Brokers drop a client after 120 s without one, and close a connection that was idle for that long."""
UNREGISTER_TIMEOUT_S = 3.0
"""Timeout of UNREGISTER_CLIENT. It is short because a broker that misses the request drops the client by itself after 120 s."""


class Heartbeats:
    """Sends the heartbeats of one client every `interval_s`, and unregisters its groups.

    `timeout_s` limits the wait for each response, in seconds.
    """

    def __init__(self, pool: ConnectionPool, routes: RouteTable, timeout_s: float, interval_s: float = HEARTBEAT_S) -> None:
        self._pool, self._routes = pool, routes
        self._timeout_s, self._interval_s = timeout_s, interval_s
        self._producers: Counter[str] = Counter()
        """Number of producers by group."""
        self.consumers: dict[str, ConsumerData] = {}
        """Consumer groups to announce, by name. `BaseClient.add_consumer` sets them, without sending a heartbeat."""
        self.broker_versions: dict[str, int] = {}
        """Version number that each broker announced in its last response to a heartbeat, by address."""
        self._client_id = ""
        """Empty before `start`."""
        self._failing: set[str] = set()
        """Addresses of the brokers that have accepted no heartbeat since the last warning about them."""
        self._order = PerBrokerOrder()
        self._new_group = asyncio.Event()
        """Set when a producer group was added that the brokers do not know yet."""
        self._task: asyncio.Task[None] | None = None

    def start(self, client_id: str) -> None:
        """Start sending heartbeats with this client id."""
        self._client_id = client_id
        if self._task is None:
            self._task = spawn(self._heartbeat_loop(), f"rocketmq heartbeats of {client_id}")

    async def close(self) -> None:
        """Stop sending heartbeats, and unregister every group at each broker with an open connection."""
        await cancel(self._task)
        await asyncio.gather(
            *(self._unregister("producerGroup", group) for group in self._producers),
            *(self._unregister("consumerGroup", group) for group in self.consumers),
        )

    def add_producer(self, group: str) -> None:
        """Add a producer of this group. Its first producer triggers a heartbeat, so that the brokers learn of the group."""
        self._producers[group] += 1
        if self._producers[group] == 1:
            self._new_group.set()

    async def remove_producer(self, group: str) -> None:
        """Remove a producer of this group; after its last producer the group is unregistered at the brokers."""
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            await self._unregister("producerGroup", group)

    async def remove_consumer(self, group: str) -> None:
        """Unregister this consumer group at the brokers, and stop announcing it."""
        if self.consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def send_all(self) -> None:
        """Send a heartbeat to every broker in use, slaves included if there are consumers, and log failures.

        Without groups nothing is sent.
        """
        if self._producers or self.consumers:
            await asyncio.gather(*map(self._send_to, self._routes.addresses(masters=not self.consumers)))

    async def greet(self, connection: Connection) -> None:
        """Send the first heartbeat over a new connection. Raises ConnectionLost, RequestTimeout or AccessRefused.

        Without groups it is sent only with TLS or credentials: a heartbeat needs no permission, so the response shows whether the
        broker accepts our certificate and credentials. Before `start` nothing is sent.

        A group may be removed while the broker handles this heartbeat. `remove_consumer` and `remove_producer` use open
        connections only, and this one is not open yet, so such a group is unregistered here.
        """
        if not (self._client_id and (self._producers or self.consumers or self._pool.may_be_refused)):
            return
        heartbeat = await self._order.run(connection.address, partial(self._send, connection))
        announced = [("producerGroup", group) for group in heartbeat.producers]
        announced += [("consumerGroup", consumer.group) for consumer in heartbeat.consumers]
        while (removed := next((item for item in announced if not self._has_group(*item)), None)) is not None:
            announced.remove(removed)
            field, group = removed
            await self._unregister_at(connection, {"clientID": self._client_id, field: group}, group)
            # The loop checks all groups again: others may have been removed during this request.

    def _has_group(self, field: str, group: str) -> bool:
        """Return True if the group still has producers or a consumer here; `field` is its field in UNREGISTER_CLIENT."""
        return group in (self._producers if field == "producerGroup" else self.consumers)

    async def _send_to(self, address: str) -> None:
        try:
            connection = self._pool.ready(address)
            if connection is None:
                await self._pool.get(address)  # a new connection calls `greet`, which sends the heartbeat
            else:
                await self._order.run(address, partial(self._send, connection))
        except ClusterError as error:
            self._log_failure(address, error, retry_log_level(error, logging.WARNING))

    def _log_failure(self, address: str, error: ClusterError, level: int = logging.WARNING) -> None:
        """Log a failed heartbeat; only the first one since the broker has accepted one is a warning."""
        text = "a heartbeat to broker %s failed, sending the next one in %g s: %s"
        log.log(logging.DEBUG if address in self._failing else level, text, address, self._interval_s, error)
        if level == logging.WARNING:
            self._failing.add(address)

    async def _send(self, connection: Connection) -> Heartbeat:
        """Send a heartbeat with the current groups and return it; a response with an error code is only logged."""
        heartbeat = Heartbeat(self._client_id, tuple(self._producers), tuple(self.consumers.values()))
        response = await connection.request(Code.HEART_BEAT, {}, heartbeat.encode(), self._timeout_s)
        connection.record_credentials_accepted()  # a refusal of them raises AccessRefused
        self.broker_versions[connection.address] = response.version
        if response.code == Status.GO_AWAY:  # the broker is shutting down
            self._pool.retire(connection)
        elif response.code == Status.SUCCESS:
            self._failing.discard(connection.address)
        else:
            self._log_failure(connection.address, refusal_error("HEART_BEAT", response.code, response.remark))
        return heartbeat

    async def _heartbeat_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._new_group.wait()
            self._new_group.clear()
            await self._pool.read_credentials()  # may have been replaced; does not raise if they were read before
            await self.send_all()

    # --- unregistering ----------------------------------------------------------------------------------------------

    async def _unregister(self, field: str, group: str) -> None:
        """Unregister a group at every broker with an open connection; `field` is producerGroup or consumerGroup."""
        ext = {"clientID": self._client_id, field: group}
        brokers = set(self._routes.addresses())
        connections = [connection for connection in self._pool.open_connections() if connection.address in brokers]
        await asyncio.gather(*(self._unregister_at(connection, ext, group) for connection in connections))

    async def _unregister_at(self, connection: Connection, ext: dict[str, str], group: str) -> None:
        timeout_s = min(self._timeout_s, UNREGISTER_TIMEOUT_S)
        request = partial(connection.request, Code.UNREGISTER_CLIENT, ext, b"", timeout_s)
        try:
            await self._order.run(connection.address, request)
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "unregistering group %s at broker %s failed (without heartbeats the broker removes this member after 120 s): %s",
                group,
                connection.address,
                error,
            )
