"""Registration of a producer or consumer at the topic's owner, and its repetition.

The broker may close it (the topic moves, and the broker may name the new owner), redirect it to another cluster, or the
connection may end. Each time the owner of the topic is looked up again, because owners move. A registration without a response
is closed before the next one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, RequestTimeout, ServerRefused
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.authorization import AccessDenied
from mqbridge.pulsar.client.connection import Connection, PushHandler
from mqbridge.pulsar.client.connection_pool import Address
from mqbridge.pulsar.client.lookup import FIRST_DELAY_S, MOST_DELAY_S, Lookup
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)

Closed = pb.CommandCloseProducer | pb.CommandCloseConsumer


class Registrable(PushHandler, Protocol):
    """A producer or consumer that is registered at a broker."""

    async def register(self, connection: Connection) -> None:
        """Register at this broker. Raises MqbridgeError; after a RequestTimeout the broker may know it nevertheless."""

    def begin(self, connection: Connection) -> None:
        """Note the success of the registration."""

    def gives_up(self, error: ClusterError, delay: float) -> bool:
        """Return True if this failure is final, False for another attempt after `delay` seconds."""

    def end(self, error: ClusterError) -> None:
        """Note that there will be no further registration."""


class BrokerRegistration:
    """Registration of one producer or consumer. `connection` is None while it is not registered."""

    def __init__(
        self,
        lookup: Lookup,
        registrable: Registrable,
        what: str,
        topic: str,
        key: int,
        table: Callable[[Connection], dict[int, Any]],
        close_command: Callable[[int, int], bytes],
        request_timeout_s: float,
    ) -> None:
        self.connection: Connection | None = None
        self.ended = False
        self._lookup, self._registrable = lookup, registrable
        self._what, self._topic, self._key = what, topic, key
        self._table, self._close_command, self._timeout_s = table, close_command, request_timeout_s
        self._registering_at: Connection | None = None
        """Connection of a registration in progress."""
        self._to_close: Connection | None = None
        """Connection of an old registration that must be closed before the next one."""
        self._assigned: Closed | None = None
        """The close command that named the next owner."""
        self._proxied = False
        self._cluster: list[Address] = []
        """Addresses of the cluster that the topic was migrated to."""
        self._task: asyncio.Task[None] | None = None

    # --- registering ------------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Register once. Raises ClusterError."""
        to_close, self._to_close = self._to_close, None
        if to_close is not None and to_close.alive:
            await self._close_at(to_close)
        connection = self._registering_at = await self._find()
        table = self._table(connection)
        table[self._key] = self._registrable
        try:
            await self._registrable.register(connection)
        except MqbridgeError as error:
            table.pop(self._key, None)
            self._registering_at = None
            if isinstance(error, RequestTimeout):
                self._to_close = connection
            raise
        self._registering_at = None
        if table.get(self._key) is not self._registrable:
            raise ConnectionLost(f"the broker closed the {self._what} of {self._topic} while it was being opened")
        self.connection = connection
        self._registrable.begin(connection)

    async def _find(self) -> Connection:
        assigned, self._assigned = self._assigned, None
        if assigned is not None:
            urls = assigned.assignedBrokerServiceUrl, assigned.assignedBrokerServiceUrlTls
            try:
                return await self._lookup.assigned(*urls, self._proxied)
            except ClusterError as error:
                log.log(level_of(error, logging.INFO), "%s: cannot use the assigned broker: %s", self._topic, error)
        owner = await self._lookup.owner(self._topic, self._cluster)
        self._proxied = owner.proxied
        return owner.connection

    def reopen(self, delay: float = 0.0) -> None:
        """Register in the background until it succeeds or `gives_up`."""
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
                if self._registrable.gives_up(error, delay):
                    self._task = None
                    self._registrable.end(_final(f"no {self._what} for {self._topic}: {error}", error))
                    return
                log.log(level_of(error, logging.INFO), "%s: %s; trying again in %.1f s", self._topic, error, delay)
                await asyncio.sleep(delay)
            except Exception as bug:  # the task reports it; waiting tasks must not wait for ever
                self._task = None
                self._registrable.end(
                    ClusterError(f"no {self._what} for {self._topic}: unexpectedly {type(bug).__name__}", Failure.FATAL)
                )
                raise
            else:
                break
        self._task = None

    # --- leaving ----------------------------------------------------------------------------------------------------

    def leave(self) -> Connection | None:
        """Forget the registration; return its connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            table = self._table(connection)
            if table.get(self._key) is self._registrable:
                del table[self._key]
        return connection

    def close_first(self) -> None:
        """Have the current registration closed at the broker before the next one."""
        if self.connection is not None:  # else keep the connection of an earlier registration
            self._to_close = self.connection

    def on_closed(self, command: Closed) -> None:
        """Process a close by the broker, which may name the next owner."""
        if command.assignedBrokerServiceUrl or command.assignedBrokerServiceUrlTls:
            self._assigned = command

    def on_migrated(self, command: pb.CommandTopicMigrated) -> bool:
        """Process a migration to another cluster; a close follows. Return False if its address is unusable."""
        try:
            self._cluster = self._lookup.addresses(command.brokerServiceUrl, command.brokerServiceUrlTls)
        except ClusterError as error:
            log.warning("%s was migrated to another cluster, but %s", self._topic, error)
            return False
        log.warning("%s was migrated to the cluster at %s", self._topic, self._cluster[0])
        return True

    async def stop_trying(self) -> None:
        """Cancel a registration in progress."""
        await cancel(self._task)
        self._task = None

    async def close(self, connection: Connection | None, deadline: float | None = None) -> None:
        """Close it at every broker that may know it. Waits for the responses up to the deadline."""
        registering, self._registering_at = self._registering_at, None
        if registering is not None:
            self._table(registering).pop(self._key, None)
        for each in {connection, registering, self._to_close} - {None}:
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
                f"closing the {self._what} of {self._topic}",
                timeout,
            )
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s: closing the %s: %s", self._topic, self._what, error)


def _final(problem: str, error: ClusterError) -> ClusterError:
    """Return a FATAL error, with the broker's code if there is one. AccessDenied is complete by itself."""
    if isinstance(error, AccessDenied):
        return error
    if isinstance(error, ServerRefused):
        return ServerRefused(problem, error.code, Failure.FATAL)
    return ClusterError(problem, Failure.FATAL)
