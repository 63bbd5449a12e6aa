"""Reconnects a send queue after a failure, to the current Broker of its partition."""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError, ProtocolError
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.routes import Routes
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MAX_RETRY_S = 5.0
"""A full memory store (419) is flushed to disk within milliseconds; a Broker restarts within seconds."""
MASTER_PATIENCE_S = 1.0
"""How long a reconnect waits for routes from a Master before it uses the last known Broker."""


class ReconnectContext(Protocol):
    """The part of a sender that its reconnectors need."""

    topic: str
    routes: Routes

    def connection_for(self, name: str) -> ServerConnection:
        """Return the connection to the partition's Broker."""


class BrokerReconnector:
    """Reconnects one partition's queue; `name` is the partition. `is_failing` is True until a message is stored again."""

    def __init__(self, context: ReconnectContext, name: str) -> None:
        self.is_failing = False
        self._context, self._name = context, name
        self._backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)

    def stored(self) -> None:
        """Note that a message was stored: end the outage and reset the backoff."""
        self.is_failing = False
        self._backoff.reset()

    async def reconnect(self, error: MqbridgeError | None) -> ServerConnection:
        """Wait for the backoff delay, refresh the route unless the Broker's memory is full, and connect.

        `error` is the previous failure; None connects at once. Raises ClusterError and ProtocolError; the caller passes the
        raised error to its next call.
        """
        if error is not None:
            self._log(error)
            await asyncio.sleep(self._backoff.delay())
            if not _is_store_full(error):
                await self._refresh_route()
        connection = self._context.connection_for(self._name)
        await connection.connected()
        if not connection.alive:
            raise ConnectionLost(f"{connection.address} closes connections as soon as they are established")
        return connection

    async def _refresh_route(self) -> None:
        """Refresh the partition's route. Sending needs no Master: if none responds, the last known route is used."""
        try:
            async with asyncio.timeout(MASTER_PATIENCE_S):
                await self._context.routes.refresh()
        except (ClusterError, ProtocolError, TimeoutError) as error:
            problem = error if str(error) else "no Master has responded yet"
            message = "sending to %s partition %s continues with the last known Broker, the routes could not be refreshed: %s"
            log.info(message, self._context.topic, self._name, problem)

    def _log(self, error: MqbridgeError) -> None:
        """Log the error: the first one of an outage at the error's level, later ones and a full memory store at debug level."""
        level = logging.DEBUG if self.is_failing or _is_store_full(error) else level_of(error, logging.WARNING)
        self.is_failing = True
        log.log(level, "sending to %s partition %s failed, retrying: %s", self._context.topic, self._name, error)


def _is_store_full(error: MqbridgeError) -> bool:
    """Return True if the Broker's memory store is full, which is normal under load and lasts for milliseconds."""
    return getattr(error, "code", None) == codes.RECEIVE_OVERFLOW
