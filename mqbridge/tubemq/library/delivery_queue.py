"""Queue of the packs and errors of all partitions of a consumer, in order of arrival."""

import asyncio
from collections import deque

from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.library.received import ReceivedMessage
from mqbridge.tubemq.library.delivered_pack import DeliveredPack


class PartitionProblem:
    """An error of one partition, which `DeliveryQueue.get` raises once.

    `handled` is set when the error was raised or withdrawn: only then does the partition's feed read on.
    """

    def __init__(self, error: MqbridgeError) -> None:
        self.error = error
        self.handled = asyncio.Event()
        self.is_withdrawn = False

    def withdraw(self) -> None:
        """Discard the error before it is raised: a seek has resolved it."""
        self.is_withdrawn = True
        self.handled.set()


class DeliveryQueue:
    """Delivers the messages of queued packs one by one. Many tasks may wait in `get`; cancelling one loses no message."""

    def __init__(self) -> None:
        self._items: deque[DeliveredPack | PartitionProblem] = deque()
        self._may_have_items = asyncio.Event()
        """Set by `put` and `end`; cleared when a task finds nothing to return."""
        self._end_error: ClusterError | None = None
        """The error that `get` raises after `end`."""

    def put(self, item: DeliveredPack | PartitionProblem) -> None:
        """Add a pack or an error; does nothing after `end`."""
        if self._end_error is None:
            self._items.append(item)
            self._may_have_items.set()

    def end(self, error: ClusterError) -> None:
        """Discard all items; from now on `get` raises this error. Further calls do nothing.

        `handled` is not set: the feeds that wait for it must not read on.
        """
        if self._end_error is None:
            self._end_error = error
            self._items.clear()
            self._may_have_items.set()

    async def get(self, timeout: float | None) -> ReceivedMessage:
        """Return the next message; wait for it at most `timeout` seconds (None: no limit).

        Raises TimeoutError, the error that comes next in the queue, or after `end` its error.
        """
        message = self._next_message()
        if message is not None:
            return message
        async with asyncio.timeout(timeout):
            while True:
                # There is no await between this wait and the return, so a cancelled task never loses a message.
                await self._may_have_items.wait()
                message = self._next_message()
                if message is not None:
                    return message

    def _next_message(self) -> ReceivedMessage | None:
        """Return the next message, or raise the next error, if there is one now; else None."""
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
        if self._end_error is not None:
            raise self._end_error
        self._may_have_items.clear()
        return None
