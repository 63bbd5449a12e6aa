"""Where a producer or consumer is registered, and what registers it again: the part of a session that both have.

The broker may close it (the topic moves, perhaps it says where to), send it to another cluster, or the connection may end. Each
time the owner of the topic is found anew, because owners move. A registration without an answer is closed before the next.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, RequestTimeout, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.connection import Connection, Session
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, Lookup
from mqbridge.pulsar.client.pool import Address
from mqbridge.pulsar.client.rights import Denied
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)

Closed = pb.CommandCloseProducer | pb.CommandCloseConsumer


class Role(Session, Protocol):
    """What a producer or consumer does itself."""

    async def register(self, connection: Connection) -> None:
        """Ask this broker. Raises MqbridgeError; a RequestTimeout means that the broker may know it nevertheless."""

    def begin(self, connection: Connection) -> None:
        """It is registered there."""

    def gives_up(self, error: ClusterError, delay: float) -> bool:
        """Whether this failure ends it, rather than another try after `delay` seconds."""

    def end(self, error: ClusterError) -> None:
        """It will not be registered any more."""


class Attachment:
    """The registration of one role. `connection` is where it holds, None while it does not."""

    def __init__(
        self,
        lookup: Lookup,
        role: Role,
        what: str,
        topic: str,
        key: int,
        table: Callable[[Connection], dict[int, Any]],
        close_command: Callable[[int, int], bytes],
        request_timeout_s: float,
    ) -> None:
        self.connection: Connection | None = None
        self.ended = False
        self._lookup, self._role = lookup, role
        self._what, self._topic, self._key = what, topic, key
        self._table, self._close_command, self._timeout_s = table, close_command, request_timeout_s
        self._asked: Connection | None = None
        """Where a registration is under way."""
        self._to_close: Connection | None = None
        """Where the broker may still know it, and must be told to forget it before it is registered again."""
        self._assigned: Closed | None = None
        """The close that named the next owner."""
        self._proxied = False
        self._cluster: list[Address] = []
        """The addresses of the cluster that the topic was migrated to."""
        self._task: asyncio.Task[None] | None = None

    # --- registering ------------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Try once. Raises ClusterError."""
        to_close, self._to_close = self._to_close, None
        if to_close is not None and to_close.alive:
            await self._close_at(to_close)
        connection = self._asked = await self._find()
        table = self._table(connection)
        table[self._key] = self._role
        try:
            await self._role.register(connection)
        except MqbridgeError as error:
            table.pop(self._key, None)
            self._asked = None
            if isinstance(error, RequestTimeout):
                self._to_close = connection
            raise
        self._asked = None
        if table.get(self._key) is not self._role:
            raise ConnectionLost(f"the broker closed the {self._what} of {self._topic} while it was being opened")
        self.connection = connection
        self._role.begin(connection)

    async def _find(self) -> Connection:
        assigned, self._assigned = self._assigned, None
        if assigned is not None:
            urls = assigned.assignedBrokerServiceUrl, assigned.assignedBrokerServiceUrlTls
            try:
                return await self._lookup.assigned(*urls, self._proxied)
            except ClusterError as error:
                log.log(level_of(error, logging.INFO), "%s: the broker that was named as the next one: %s", self._topic, error)
        owner = await self._lookup.owner(self._topic, self._cluster)
        self._proxied = owner.proxied
        return owner.connection

    def reopen(self, delay: float = 0.0) -> None:
        """Register again and again until it succeeds or the role gives up."""
        if not self.ended and self._task is None:
            self._task = spawn(self._keep_trying(delay), f"open {self._what} {self._topic}")

    async def _keep_trying(self, delay: float) -> None:
        await asyncio.sleep(delay)
        backoff = Backoff(FIRST_DELAY_S, MOST_DELAY_S)
        while not self.ended:
            try:
                await self.attach()
            except ClusterError as error:
                delay = backoff.delay()
                if self._role.gives_up(error, delay):
                    self._task = None
                    self._role.end(_final(f"no {self._what} for {self._topic}: {error}", error))
                    return
                log.log(level_of(error, logging.INFO), "%s: %s; trying again in %.1f s", self._topic, error, delay)
                await asyncio.sleep(delay)
            except Exception as bug:  # told by the task; those who wait would do so for ever
                self._task = None
                self._role.end(
                    ClusterError(f"no {self._what} for {self._topic}: unexpectedly {type(bug).__name__}", Failure.FATAL)
                )
                raise
            else:
                break
        self._task = None

    # --- leaving ----------------------------------------------------------------------------------------------------

    def leave(self) -> Connection | None:
        """Forget the registration; the connection that it was on."""
        connection, self.connection = self.connection, None
        if connection is not None:
            table = self._table(connection)
            if table.get(self._key) is self._role:
                del table[self._key]
        return connection

    def close_first(self) -> None:
        """The broker does not know that this registration is left: tell it before the next one."""
        if self.connection is not None:  # else it may still have to be told about the one before
            self._to_close = self.connection

    def on_closed(self, said: Closed) -> None:
        """The broker closed it, and may say where to go."""
        if said.assignedBrokerServiceUrl or said.assignedBrokerServiceUrlTls:
            self._assigned = said

    def on_migrated(self, said: pb.CommandTopicMigrated) -> bool:
        """The topic now lives in another cluster; a close follows. False when its address is of no use."""
        try:
            self._cluster = self._lookup.addresses(said.brokerServiceUrl, said.brokerServiceUrlTls)
        except ClusterError as error:
            log.warning("%s was migrated to another cluster, but %s", self._topic, error)
            return False
        log.warning("%s was migrated to the cluster at %s", self._topic, self._cluster[0])
        return True

    async def stop_trying(self) -> None:
        """Give up a registration that is under way."""
        await cancel(self._task)
        self._task = None

    async def close(self, connection: Connection | None, deadline: float | None = None) -> None:
        """Tell the broker: where it was registered, or where it may have been. Waits for its answers up to the deadline."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._table(asked).pop(self._key, None)
        for each in {connection, asked, self._to_close} - {None}:
            if each is not None and each.alive:
                await self._close_at(each, deadline)

    async def _close_at(self, connection: Connection, deadline: float | None = None) -> None:
        timeout = self._timeout_s
        if deadline is not None:
            timeout = min(timeout, max(0.0, deadline - asyncio.get_running_loop().time()))
        try:
            await connection.request(
                lambda request_id: self._close_command(request_id, self._key),
                BaseCommand.SUCCESS,
                f"the close of the {self._what} of {self._topic}",
                timeout,
            )
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s: closing the %s: %s", self._topic, self._what, error)


def _final(problem: str, error: ClusterError) -> ClusterError:
    """FATAL, with the broker's code where it gave one. A missing right says all itself."""
    if isinstance(error, Denied):
        return error
    if isinstance(error, ServerRefused):
        return ServerRefused(problem, error.code, Failure.FATAL)
    return ClusterError(problem, Failure.FATAL)
