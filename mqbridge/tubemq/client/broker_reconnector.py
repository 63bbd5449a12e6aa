"""Reconnects a send queue after a failure, to the Broker that has its partition now."""

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
MOST_RETRY_S = 5.0
"""A full memory store (419) is flushed to disk within milliseconds; a Broker restarts within seconds."""
MASTER_PATIENCE_S = 1.0
"""How long sending waits for a Master's routes before it continues with the last known Broker."""


class ReconnectContext(Protocol):
    """The part of a sender that its reconnectors need."""

    topic: str
    routes: Routes

    def connection_for(self, name: str) -> ServerConnection:
        """Return the connection to the partition's Broker."""


class BrokerReconnector:
    """`name` is the partition. `is_failing` is True from a failure until a message is stored again."""

    def __init__(self, context: ReconnectContext, name: str) -> None:
        self.is_failing = False
        self._context, self._name = context, name
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)

    def stored(self) -> None:
        """Note that a message was stored: the outage is over, and the backoff starts again."""
        self.is_failing = False
        self._backoff.reset()

    async def reconnect(self, error: MqbridgeError | None) -> ServerConnection:
        """Back off, refresh the route if that may help after this error, and connect.

        Raises ClusterError and ProtocolError; the caller passes them to the next call.
        """
        if error is not None:
            self._log(error)
            await asyncio.sleep(self._backoff.delay())
            if not _is_store_full(error):
                await self._refresh_route()
        connection = self._context.connection_for(self._name)
        await connection.connected()
        if not connection.alive:
            raise ConnectionLost(f"{connection.address} closes connections as soon as they are made")
        return connection

    async def _refresh_route(self) -> None:
        """Refresh the partition's route. Sending needs no Master: while none responds, the last known route is used."""
        try:
            async with asyncio.timeout(MASTER_PATIENCE_S):
                await self._context.routes.refresh()
        except (ClusterError, ProtocolError, TimeoutError) as error:
            problem = error if str(error) else "no Master has responded yet"
            log.info("sending to %s partition %s continues at the same Broker: %s", self._context.topic, self._name, problem)

    def _log(self, error: MqbridgeError) -> None:
        """Log once per outage; a full memory store only at debug level."""
        level = logging.DEBUG if self.is_failing or _is_store_full(error) else level_of(error, logging.WARNING)
        self.is_failing = True
        log.log(level, "sending to %s partition %s failed, retrying: %s", self._context.topic, self._name, error)


def _is_store_full(error: MqbridgeError) -> bool:
    """Return True if the Broker's memory store is full: normal under load, and over in a moment."""
    return getattr(error, "code", None) == codes.RECEIVE_OVERFLOW
