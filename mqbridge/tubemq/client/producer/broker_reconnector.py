"""Reconnects the send queue of a partition after a failure, to the Broker that has the partition now."""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ProtocolError, TopicChanged
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import Connectivity, retry_log_level
from mqbridge.net.failing_sends import FailingSends
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.producer.routes import Routes, TopicRoute
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
"""First delay of the backoff: a Broker flushes a full memory store (419) to disk within milliseconds."""
MAX_RETRY_S = 5.0
"""Largest delay of the backoff: a Broker restarts within seconds."""
ROUTE_REFRESH_TIMEOUT_S = 1.0
"""How long a reconnect waits for routes from the Master before it connects to the last known Broker."""


class ReconnectContext(Protocol):
    """What a reconnector needs from its sender."""

    topic: str
    route: TopicRoute
    routes: Routes
    connectivity: Connectivity

    def connection_for(self, name: str) -> ServerConnection:
        """Return the connection to the Broker of the partition with this name, connected or not."""


class BrokerReconnector:
    """Reconnects the queue of one partition. `is_failing` is True from an error until a message is stored again."""

    def __init__(self, context: ReconnectContext, partition: str) -> None:
        self.failing = FailingSends()
        """The failures since a message was stored."""
        self.is_failing = False
        self._context, self._partition = context, partition
        self._backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        self._label = f"cluster {context.connectivity.name}: sending to topic {context.topic} partition {partition}"

    def on_stored(self) -> None:
        """Record that a message was stored: the outage is over, so reset the backoff."""
        self.is_failing = False
        self.failing.clear()
        self._backoff.reset()

    @property
    def why_closed(self) -> ClusterError | None:
        """The error while the Master does not list the partition to producers; None while it does, or does not answer."""
        if self._partition not in self._context.route.unlisted:
            return None
        problem = f"the Master lists no partition {self._partition} of topic {self._context.topic} to producers now"
        why = "the topic or its Broker is closed for producers (acceptPublish), or the Broker is down"
        return ClusterError(f"{problem}: {why}", Failure.REFRESH)

    async def reconnect(self, error: MqbridgeError | None) -> ServerConnection:
        """Wait for the backoff delay, refresh the route unless the Broker's memory is full, and connect.

        `error` is the reason to reconnect; None (only the connection is missing) means neither a delay nor a refresh.
        Raises ClusterError and ProtocolError; the caller then calls this method again with the raised error, unless it is
        TopicChanged: the topic was deleted.
        """
        if error is not None:
            self._log(error)
            self.failing.record(error)
            await asyncio.sleep(self._backoff.delay())
            if not _is_store_full(error):
                await self._refresh_route(may_be_deleted=getattr(error, "code", None) == codes.FORBIDDEN)
        if (closed := self.why_closed) is not None:
            raise closed
        connection = self._context.connection_for(self._partition)
        await connection.connect()
        if not connection.alive:
            raise ConnectionLost(f"Broker {connection.address} closed a new connection at once")
        return connection

    async def _refresh_route(self, *, may_be_deleted: bool) -> None:
        """Refresh the routes. Sending needs no Master: if none responds in time, the last known route is used.

        Raises TopicChanged if the topic `may_be_deleted` and the Master knows it no longer.
        """
        try:
            async with asyncio.timeout(ROUTE_REFRESH_TIMEOUT_S):
                await self._context.routes.refresh()
            if may_be_deleted or self.why_closed is not None:
                await self._context.routes.check_exists(self._context.route)
        except TopicChanged:
            raise
        except (ClusterError, ProtocolError, TimeoutError) as error:
            problem = error if str(error) else "no Master has responded yet"  # a TimeoutError has no text
            message = "%s: refreshing the route failed, continuing with the last known Broker: %s"
            log.info(message, self._label, problem)

    def _log(self, error: MqbridgeError) -> None:
        """Log the error. Later errors of an outage, and a Broker whose memory is full, are logged at debug level only."""
        level = logging.DEBUG if self.is_failing or _is_store_full(error) else retry_log_level(error, logging.WARNING)
        self.is_failing = True
        log.log(level, "%s failed, retrying: %s", self._label, error)


def _is_store_full(error: MqbridgeError) -> bool:
    """Return True if the error means that the Broker's memory is full: normal under load, and over within milliseconds."""
    return getattr(error, "code", None) == codes.RECEIVE_OVERFLOW
