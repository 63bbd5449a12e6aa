"""The connection of a line: to the Broker that has its partition now, found and made again after a failure."""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError, ProtocolError
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.routes import Routes
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
MOST_RETRY_S = 5.0
"""A full memory store (419) is on disk within milliseconds; a Broker restarts within seconds."""
MASTER_PATIENCE_S = 1.0
"""How long sending waits to hear from a Master where a partition is now, before it goes on where it was."""


class ConnectionContext(Protocol):
    """What a line's connection needs of its sender."""

    topic: str
    routes: Routes

    def session_for(self, name: str) -> Session:
        """The session of the partition's Broker."""


class LineConnection:
    """`name` is the partition. `is_troubled` from a failure until something is stored again."""

    def __init__(self, context: ConnectionContext, name: str) -> None:
        self.is_troubled = False
        self._context, self._name = context, name
        self._backoff = Backoff(FIRST_RETRY_S, MOST_RETRY_S)

    def stored(self) -> None:
        """A message was stored: the outage is over, and the next waits are short again."""
        self.is_troubled = False
        self._backoff.reset()

    async def restored(self, error: MqbridgeError | None) -> Session:
        """Wait and look the partition up again, as far as that helps after this error; connect.

        Raises ClusterError and ProtocolError, which are to come back here.
        """
        if error is not None:
            self._say(error)
            await asyncio.sleep(self._backoff.delay())
            if not _only_full(error):
                await self._ask_master()
        session = self._context.session_for(self._name)
        await session.connected()
        if not session.alive:
            raise ConnectionLost(f"{session.address} closes connections as soon as they are made")
        return session

    async def _ask_master(self) -> None:
        """Look the partition up. Sending needs no Master: while none answers, the last route that was known is good."""
        try:
            async with asyncio.timeout(MASTER_PATIENCE_S):
                await self._context.routes.refresh()
        except (ClusterError, ProtocolError, TimeoutError) as error:
            problem = error if str(error) else "no Master has answered yet"
            log.info("sending to %s partition %s goes on where it was: %s", self._context.topic, self._name, problem)

    def _say(self, error: MqbridgeError) -> None:
        """Once per outage; a full memory store is no news."""
        level = logging.DEBUG if self.is_troubled or _only_full(error) else level_of(error, logging.WARNING)
        self.is_troubled = True
        log.log(level, "sending to %s partition %s goes on later: %s", self._context.topic, self._name, error)


def _only_full(error: MqbridgeError) -> bool:
    """The Broker's memory store is full: normal under load, and gone in a moment."""
    return getattr(error, "code", None) == codes.RECEIVE_OVERFLOW
