"""Registration of a producer or consumer at the broker that owns its topic, repeated whenever it ends.

A registration ends when its connection is lost, when the topic migrates to another cluster, or when the broker closes it because
the topic moves to another broker. The close command may name the new owner; otherwise the owner is looked up again. If an
attempt to register got no response, the broker may have registered the producer or consumer all the same. So it is closed there
before the next attempt.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, RequestTimeout, ServerRefused, TopicChanged
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.failing_sends import FailingSends
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from mqbridge.pulsar.client.connection.connection import Connection, PushHandler
from mqbridge.pulsar.client.connection.lookup import FIRST_DELAY_S, MAX_DELAY_S, Lookup
from mqbridge.pulsar.client.connection.service_url import Address
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)

WARN_AFTER_S = 10.0
"""After this time without success, one failure is logged as a warning. Topics that move to another broker need less."""

CloseCommand = pb.CommandCloseProducer | pb.CommandCloseConsumer


class Registrable(PushHandler, Protocol):
    """A producer or consumer that is registered at a broker."""

    async def register(self, connection: Connection) -> None:
        """Register at this broker. Raises MqbridgeError; a RequestTimeout leaves open whether the broker has registered it."""

    def on_registered(self, connection: Connection) -> None:
        """Start to work over this connection, because the registration has succeeded."""

    def is_final(self, error: ClusterError, delay: float) -> bool:
        """Return True if this error of a registration is final, False to register again after `delay` seconds."""

    def end(self, error: ClusterError) -> None:
        """End with this error, because there will be no further registration."""


class BrokerRegistration:
    """Registration of one producer or consumer, the `registrable`.

    `what` is "producer" or "consumer" for log texts. `table` returns a connection's table of producers or consumers, in which
    `key`, the id, finds this one. `close_command` encodes the command that closes the registration, for a request id and `key`.
    `is_over` returns True once the producer or consumer must not be registered again.
    """

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
        is_over: Callable[[], bool],
    ) -> None:
        self.connection: Connection | None = None
        """Connection to the broker where the producer or consumer is registered; None while it is not registered."""
        self._is_over = is_over
        self._lookup, self._registrable = lookup, registrable
        self._what, self._topic = what, topic
        self._key, self._table = key, table
        self._close_command, self._timeout_s = close_command, request_timeout_s
        self._registering_at: Connection | None = None
        """Connection of a registration in progress."""
        self._to_close: Connection | None = None
        """Connection to the broker at which an earlier registration must be closed before the next one begins."""
        self._assignment: CloseCommand | None = None
        """The broker's close command that names the topic's next owner; None if there is none."""
        self._proxied = False
        """True if the last owner was reached through a proxy at the service address."""
        self._migrated_to: list[Address] = []
        """Service addresses of the cluster to which the topic was migrated; empty without a migration."""
        self.failing = FailingSends()
        """The failures of the registration, until it succeeds."""
        self._has_warned = False
        """True once a failure of the running task was logged as a warning."""
        self._task: asyncio.Task[None] | None = None
        """Task that registers in the background."""

    # --- registering ------------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Connect to the topic's owner and make one attempt to register. Raises ClusterError."""
        to_close, self._to_close = self._to_close, None
        if to_close is not None and to_close.alive:
            await self._close_at(to_close)
        connection = self._registering_at = await self._connect_to_owner()
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
        # The connection removes the handler from its table when it passes on a close command.
        if table.get(self._key) is not self._registrable:
            raise ConnectionLost(f"the broker closed the {self._what} of topic {self._topic} while it was being opened")
        self.connection = connection
        self._registrable.on_registered(connection)

    async def _connect_to_owner(self) -> Connection:
        """Connect to the owner that the last close command named; without one, or if that fails, look the owner up."""
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            urls = assignment.assignedBrokerServiceUrl, assignment.assignedBrokerServiceUrlTls
            try:
                return await self._lookup.connect_assigned(*urls, proxied=self._proxied)
            except ClusterError as error:
                log.log(
                    retry_log_level(error, logging.INFO),
                    "topic %s: cannot connect to the assigned broker %s, looking up the owner instead: %s",
                    self._topic,
                    " or ".join(filter(None, urls)),
                    error,
                )
        owner = await self._lookup.owner(self._topic, self._migrated_to)
        self._proxied = owner.proxied
        return owner.connection

    def reopen(self, delay: float = 0.0) -> None:
        """Register in the background after `delay` seconds; repeat until an attempt succeeds or its error is final.

        Do nothing if the producer or consumer is over, or if the background task is running already.
        """
        if not self._is_over() and self._task is None:
            self._task = spawn(self._retry_until_registered(delay), f"open {self._what} {self._topic}")

    async def _retry_until_registered(self, delay: float) -> None:
        await asyncio.sleep(delay)
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        began_at = asyncio.get_running_loop().time()
        self._has_warned = False
        while not self._is_over():
            try:
                await self.attach()
            except ClusterError as error:
                delay = backoff.delay()
                self.failing.record(error)
                if self._registrable.is_final(error, delay):
                    self._task = None
                    self._registrable.end(
                        _final_error(f"the {self._what} of topic {self._topic} cannot be opened: {error}", error)
                    )
                    return
                log.log(
                    retry_log_level(error, self._retry_level(began_at)),
                    "topic %s: registering the %s failed, retrying in %.1f s: %s",
                    self._topic,
                    self._what,
                    delay,
                    error,
                )
                await asyncio.sleep(delay)
            except Exception as bug:  # `spawn` logs it; tasks that wait for the registration must not wait for ever
                self._task = None
                self._registrable.end(
                    ClusterError(
                        f"the {self._what} of topic {self._topic} cannot be opened: unexpected {type(bug).__name__}",
                        Failure.FATAL,
                    )
                )
                raise
            else:
                self.failing.clear()
                break
        self._task = None

    def _retry_level(self, began_at: float) -> int:
        """Return INFO for a failure that may end soon, WARNING for the first one after WARN_AFTER_S, and DEBUG after that."""
        if self._has_warned:
            return logging.DEBUG
        self._has_warned = asyncio.get_running_loop().time() - began_at >= WARN_AFTER_S
        return logging.WARNING if self._has_warned else logging.INFO

    # --- detaching --------------------------------------------------------------------------------------------------

    def detach(self) -> Connection | None:
        """Remove the producer or consumer from its connection; return this connection, None if it was not registered."""
        connection, self.connection = self.connection, None
        if connection is not None:
            table = self._table(connection)
            if table.get(self._key) is self._registrable:
                del table[self._key]
        return connection

    def close_before_next(self, connection: Connection | None = None) -> None:
        """Mark a registration, so that it is closed at the broker before the next one begins, or by `close`.

        `connection` is the one of a registration that is not complete; None: mark the current registration.
        """
        if (marked := connection or self.connection) is not None:  # else keep `_to_close`: an earlier one may have to be closed
            self._to_close = marked

    def on_closed(self, command: CloseCommand) -> None:
        """Process the broker's close command, which may name the next owner."""
        if not self._lookup.can_use_assignments:
            return
        if command.assignedBrokerServiceUrl or command.assignedBrokerServiceUrlTls:
            self._assignment = command

    def on_migrated(self, command: pb.CommandTopicMigrated) -> bool:
        """Process a migration to another cluster; a close command follows. Return False if the new address is unusable."""
        try:
            self._migrated_to = self._lookup.addresses(command.brokerServiceUrl, command.brokerServiceUrlTls)
        except ClusterError as error:
            log.warning(
                "topic %s was migrated to another cluster, but its address is invalid, so this client cannot follow: %s",
                self._topic,
                error,
            )
            return False
        log.warning("topic %s was migrated to the cluster at %s, connecting to that cluster", self._topic, self._migrated_to[0])
        return True

    async def cancel_attempt(self) -> None:
        """Cancel the background task that registers, if there is one."""
        await cancel(self._task)
        self._task = None

    async def close(self, connection: Connection | None, deadline: float | None = None) -> None:
        """Close the producer or consumer at every broker that may have registered it.

        These are the broker of `connection`, that of an attempt in progress, and that of an earlier registration to be closed.
        Wait for each response for one request timeout, but not beyond `deadline` (loop time; None: no deadline).
        """
        registering, self._registering_at = self._registering_at, None
        if registering is not None:
            self._table(registering).pop(self._key, None)
        for each in {connection, registering, self._to_close} - {None}:
            if each is not None and each.alive:
                await self._close_at(each, deadline)

    async def _close_at(self, connection: Connection, deadline: float | None = None) -> None:
        """Send the close command over this connection; log an error instead of raising it."""
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
            log.log(
                retry_log_level(error, logging.INFO),
                "topic %s: the broker did not confirm the close of the %s, and may keep it until the connection ends: %s",
                self._topic,
                self._what,
                error,
            )


def _final_error(problem: str, error: ClusterError) -> ClusterError:
    """Return a FATAL error with this text, and the class and code of a refusal. AccessDenied and TopicChanged are unchanged."""
    if isinstance(error, AccessDenied | TopicChanged):
        return error
    if isinstance(error, ServerRefused):
        return type(error)(problem, error.code, Failure.FATAL)
    return ClusterError(problem, Failure.FATAL)
