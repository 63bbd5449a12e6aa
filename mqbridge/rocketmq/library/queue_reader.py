"""Reads one queue of a consumer, pull by pull, until the queue is revoked."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull, QueueAcknowledger

log = logging.getLogger(__name__)

ACKNOWLEDGEMENT_WAIT_S = 10.0
"""How long a queue that nothing is pulled from waits for acknowledgements before it logs a WARNING."""


class QueueReader:
    """Receives the pulls of one assigned queue in a task, each one when all messages of the previous pull are delivered.

    The bytes of a pull count against the consumer's `max_bytes` until its messages are acknowledged, or without `commits` until
    they are delivered. Calls `on_pull` with each pull, and `on_error` with an error of the queue; after an error, reading
    continues when `seek` is called.
    """

    def __init__(
        self,
        assigned: AssignedQueue,
        on_pull: Callable[[DeliveredPull], None],
        on_error: Callable[[MqbridgeError], None],
        *,
        commits: bool = True,
    ) -> None:
        self.assigned = assigned
        self.acknowledger = QueueAcknowledger(assigned, commits=commits)
        assigned.holds_budget = True  # until the `DeliveredPull` releases its bytes
        assigned.on_jump = self._on_jump
        self._on_pull, self._on_error = on_pull, on_error
        self._last_pull: DeliveredPull | None = None
        self._has_moved = asyncio.Event()
        """Set by `seek`; the task waits for it after an error."""
        self.task = spawn(self._read(), f"rocketmq reading {assigned}")

    async def _read(self) -> None:
        while True:
            self._has_moved.clear()
            try:
                pulled = self.assigned.take() or await self._receive()
            except LaneRevoked:
                return
            except MqbridgeError as error:
                self._on_error(error)
                await self._has_moved.wait()
                continue
            self._last_pull = self.acknowledger.add(pulled)
            del pulled  # the pull owns the records now, and drops them; this reference would keep them
            self._on_pull(self._last_pull)
            await self._last_pull.exhausted.wait()

    async def _receive(self) -> PulledRecords:
        """Wait for the next pull; log a WARNING, once for each wait, if only acknowledgements make room for it."""
        self.acknowledger.drop_acknowledged()
        has_warned = False
        while True:
            try:
                async with asyncio.timeout(ACKNOWLEDGEMENT_WAIT_S):
                    return await self.assigned.receive()
            except TimeoutError:
                if self.assigned.waits_for_release and not has_warned:
                    has_warned = True
                    self._warn_of_full_memory()

    def _warn_of_full_memory(self) -> None:
        log.warning(
            "%s: not read on, because messages that are not acknowledged, from offset %s on, hold %d bytes, the share of this "
            "queue in `max_bytes` of the consumer: acknowledge them, or raise `max_bytes`",
            self.assigned,
            self.acknowledger.oldest_outstanding,
            self.assigned.held_bytes,
        )

    def _on_jump(self) -> None:
        """Give up what was delivered before the jump; the task need not wait until the rest of its last pull is delivered."""
        self.acknowledger.drop_outdated()
        if self._last_pull is not None:
            self._last_pull.exhaust()

    async def seek(self, offset: int) -> None:
        """Continue at this offset, and commit it."""
        if self.assigned.rewind(offset):  # True: the message at `offset` was delivered and not acknowledged
            self.assigned.commit(offset)
        else:
            await self.assigned.seek(offset)  # commits the offset itself
        if self._last_pull is not None and not self._last_pull.is_current:  # the queue was revoked
            self._last_pull.exhaust()  # the rest of this pull is not delivered: the task need not wait for it
        self._has_moved.set()
