"""Reads one queue of a consumer, pull by pull, until the queue is revoked."""

import asyncio
from collections.abc import Callable

from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull, QueueAcknowledger


class QueueReader:
    """Receives the pulls of one assigned queue in a task, each one when all messages of the previous pull are delivered.

    The bytes of a pull count against the consumer's `max_bytes` until all its messages are delivered. Calls `on_pull` with each
    pull, and `on_error` with an error of the queue; after an error, reading continues when `seek` is called.
    """

    def __init__(
        self, assigned: AssignedQueue, on_pull: Callable[[DeliveredPull], None], on_error: Callable[[MqbridgeError], None]
    ) -> None:
        assigned.holds_budget = True  # until `DeliveredPull.exhaust` releases the bytes of the pull
        self.assigned = assigned
        self.acknowledger = QueueAcknowledger(assigned)
        self._on_pull, self._on_error = on_pull, on_error
        self._last_pull: DeliveredPull | None = None
        self._has_moved = asyncio.Event()
        """Set by `seek`; the task waits for it after an error."""
        self.task = spawn(self._read(), f"rocketmq reading {assigned}")

    async def _read(self) -> None:
        while True:
            self._has_moved.clear()
            try:
                pulled = await self.assigned.receive()
            except LaneRevoked:
                return
            except MqbridgeError as error:
                self._on_error(error)
                await self._has_moved.wait()
                continue
            self._last_pull = self.acknowledger.add(pulled)
            self._on_pull(self._last_pull)
            await self._last_pull.exhausted.wait()

    async def seek(self, offset: int) -> None:
        """Continue at this offset, and commit it."""
        if self.assigned.rewind(offset):  # True: the message at `offset` was delivered and not acknowledged
            self.assigned.commit(offset)
        else:
            await self.assigned.seek(offset)  # commits the offset itself
        if self._last_pull is not None and not self._last_pull.is_current:  # ended by this seek, or the queue was revoked
            self._last_pull.exhaust()  # the rest of this pull is not delivered: the task need not wait for it
        self._has_moved.set()
