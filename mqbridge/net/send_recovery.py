"""Recovery of a send queue after a failure: while sends wait, it connects again, and lets the queue send once it is connected."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mqbridge.errors import ClusterError, Failure, MqbridgeError, ProtocolError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.waiting_sends import WaitingSends


class SendRecovery:
    """The recovery of one send queue, at most one at a time. Its sends are paused until it ends.

    connect   connects once; it gets the failure that began the recovery (None if there is only no connection), or that of the
              last attempt. It pauses as long as is right after that failure
    on_error  gets the failure of an attempt, and fails the sends that must not wait any longer
    send      sends what waits
    """

    def __init__(
        self,
        sends: WaitingSends[Any],
        name: str,
        *,
        connect: Callable[[MqbridgeError | None], Awaitable[None]],
        on_error: Callable[[MqbridgeError], None],
        send: Callable[[], None],
    ) -> None:
        self._sends, self._name = sends, name
        self._connect, self._on_error, self._send = connect, on_error, send
        self._task: asyncio.Task[None] | None = None

    def start(self, error: MqbridgeError | None) -> None:
        """Begin a recovery because of this error, unless one is in progress; None: there is only no connection."""
        if self._task is None:
            self._sends.pause()
            self._task = spawn(self._run(error), self._name)

    async def _run(self, error: MqbridgeError | None) -> None:
        try:
            await self._connect_while_sends_wait(error)
        except Exception as bug:  # `spawn` logs it; sends must not wait for ever, and the next one begins another recovery
            self._sends.fail([], ClusterError(f"{self._name}: unexpected {type(bug).__name__}", Failure.FATAL))
            raise
        finally:
            self._task = None
            self._sends.resume()
        self._send()

    async def _connect_while_sends_wait(self, error: MqbridgeError | None) -> None:
        while self._sends.waiting:
            try:
                await self._connect(error)
            except (ClusterError, ProtocolError) as failure:
                error = failure
                self._on_error(failure)
            else:
                return

    async def stop(self) -> None:
        """End the recovery, if there is one. Close the sends first: then nothing waits for it."""
        await cancel(self._task)
