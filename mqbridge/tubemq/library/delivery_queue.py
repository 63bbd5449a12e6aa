"""The packs and errors of all partitions of a consumer, in the order in which they arrived."""

import asyncio
from collections import deque

from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.library.received import ReceivedMessage
from mqbridge.tubemq.library.delivered_pack import DeliveredPack


class PartitionProblem:
    """An error of one partition, which `get` raises once; `handled` is set then, or when it was withdrawn."""

    def __init__(self, error: MqbridgeError) -> None:
        self.error = error
        self.handled = asyncio.Event()
        self.is_withdrawn = False

    def withdraw(self) -> None:
        """Do not raise it: a seek has solved it."""
        self.is_withdrawn = True
        self.handled.set()


class DeliveryQueue:
    """Hands out the messages of the packs one by one. Any number of tasks may wait in `get`; cancelling one loses no message."""

    def __init__(self) -> None:
        self._items: deque[DeliveredPack | PartitionProblem] = deque()
        self._available = asyncio.Event()
        self._end: ClusterError | None = None

    def put(self, item: DeliveredPack | PartitionProblem) -> None:
        """Add a pack or an error."""
        if self._end is None:
            self._items.append(item)
            self._available.set()

    def end(self, error: ClusterError) -> None:
        """Hand out nothing more: `get` raises this error from now on."""
        if self._end is None:
            self._end = error
            self._items.clear()
            self._available.set()

    async def get(self, timeout: float | None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds. Raises TimeoutError and the errors that were put."""
        message = self._take()
        if message is not None:
            return message
        async with asyncio.timeout(timeout):
            while True:
                # Nothing is awaited between this wait and the return: a task that is cancelled has taken no message.
                await self._available.wait()
                message = self._take()
                if message is not None:
                    return message

    def _take(self) -> ReceivedMessage | None:
        while self._items:
            item = self._items[0]
            if isinstance(item, DeliveredPack):
                message = item.next_message()
                if message is not None:
                    return message
                self._items.popleft()
                continue
            self._items.popleft()
            if not item.is_withdrawn:
                item.handled.set()
                raise item.error
        if self._end is not None:
            raise self._end
        self._available.clear()
        return None
