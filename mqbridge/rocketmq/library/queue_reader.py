"""Reads one queue of a consumer, pull by pull, until it is taken away."""

import asyncio
from collections.abc import Callable

from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull, QueueAcknowledger


class QueueReader:
    """Takes the next pull when every message of the last one is handed out. Its bytes count in `max_bytes` until then."""

    def __init__(
        self, assigned: AssignedQueue, hand_out: Callable[[DeliveredPull], None], fail: Callable[[MqbridgeError], None]
    ) -> None:
        assigned.holds_budget = True
        self.assigned = assigned
        self.acknowledger = QueueAcknowledger(assigned)
        self._hand_out, self._fail = hand_out, fail
        self._handed_out: DeliveredPull | None = None
        """The last pull."""
        self._moved = asyncio.Event()
        """Set by a seek: a queue that ended with an error is read again."""
        self.task = spawn(self._read(), f"rocketmq reading {assigned}")

    async def _read(self) -> None:
        while True:
            self._moved.clear()
            try:
                pulled = await self.assigned.receive()
            except LaneRevoked:
                return
            except MqbridgeError as error:
                self._fail(error)
                await self._moved.wait()
                continue
            self._handed_out = self.acknowledger.add(pulled)
            self._hand_out(self._handed_out)
            await self._handed_out.exhausted.wait()

    async def seek(self, offset: int) -> None:
        """Continue at this offset, and commit it."""
        if self.assigned.rewind(offset):
            self.assigned.commit(offset)
        else:
            await self.assigned.seek(offset)
        if self._handed_out is not None and not self._handed_out.is_current:
            self._handed_out.exhaust()
        self._moved.set()
