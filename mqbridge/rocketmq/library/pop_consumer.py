"""Consumer with POP (brokers from 5.0 on): brokers deliver messages of any queue, and each is invisible until its timeout.

No queue is assigned, so any number of consumers of a group share a topic, and a slow one delays no other. Messages are not in
order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from mqbridge.errors import ClusterError, Failure, MqbridgeError, ProtocolError
from mqbridge.library.contract import CLOSE_TIMEOUT_S
from mqbridge.library.received import ReceivedMessage
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.mapping.stored import read
from mqbridge.rocketmq.wire.receipts import Receipt

log = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.2, 10.0


class PopConsumer:
    """Consumer made by `RocketMQClient.pop_consumer`. A message that is not acknowledged within `invisible_s` is redelivered."""

    def __init__(self, popper: Popper, topic: str, brokers: list[str]) -> None:
        self._popper, self._topic = popper, topic
        self._messages: deque[ReceivedMessage] = deque()
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self._ended_by: MqbridgeError | None = None
        self._receipts: list[Receipt] = []
        """Receipts of acknowledged messages that are not sent to the brokers yet."""
        self._acknowledging: asyncio.Task[None] | None = None
        self._failed: MqbridgeError | None = None
        """The last error of an acknowledgement, until `flush` raises it."""
        self._closed = False
        self._polls = [spawn(self._poll(broker), f"rocketmq pops of {topic} at {broker}") for broker in brokers]

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds. Raises TimeoutError, ClusterError."""
        async with asyncio.timeout(timeout):
            while True:
                if self._closed:
                    raise ClusterError(f"the consumer of {self._topic} is closed", Failure.FATAL)
                if self._messages:
                    message = self._messages.popleft()
                    if not self._messages:
                        self._taken.set()
                    return message
                if self._ended_by is not None:
                    raise self._ended_by
                self._arrived.clear()
                await self._arrived.wait()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""
        while not self._closed:
            try:
                message = await self.receive()
            except ClusterError:
                if self._closed:
                    return
                raise
            yield message

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message; the request to the broker follows soon. Returns False if it is acknowledged already."""
        receipt: Receipt | None = message.handle
        if receipt is None or self._closed:
            return False
        message.handle = None
        self._receipts.append(receipt)
        if self._acknowledging is None:
            self._acknowledging = spawn(self._acknowledge(), f"rocketmq acknowledgements of {self._topic}")
        return True

    async def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Redeliver a message in `invisible_s` seconds from now instead of at its timeout: later, or sooner to retry it.

        Raises ClusterError.
        """
        receipt: Receipt | None = message.handle
        if receipt is None:
            raise ClusterError(f"a message of {self._topic} is acknowledged already", Failure.REFUSED)
        message.handle = await self._popper.change_invisible(receipt, round(invisible_s * 1000))

    async def flush(self) -> None:
        """Wait until the brokers have every acknowledgement. Raises ClusterError if one failed; its message is redelivered."""
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging])
        error, self._failed = self._failed, None
        if error is not None:
            raise error

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send pending acknowledgements, within `timeout` seconds. Received messages without one are redelivered."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        await cancel(*self._polls)
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging], timeout=timeout)
            await cancel(self._acknowledging)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _poll(self, broker: str) -> None:
        """Pop in a loop, each time only when no message is buffered, because buffered messages approach their timeout."""
        backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        while True:
            while self._messages:
                self._taken.clear()
                await self._taken.wait()
            try:
                popped = await self._popper.pop(broker)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ClusterError) and error.failure is Failure.FATAL:
                    self._ended_by = error
                    self._arrived.set()
                    return
                delay = backoff.delay()
                log.warning("a pop of %s at %s failed, retrying in %.1f s: %s", self._topic, broker, delay, error)
                await asyncio.sleep(delay)
                continue
            backoff.reset()
            for record, receipt in popped.messages:
                partition = f"{receipt.broker}:{receipt.queue}"
                self._messages.append(ReceivedMessage(read(record), self._topic, partition, receipt))
            if popped.messages:
                self._arrived.set()

    async def _acknowledge(self) -> None:
        """Send acknowledgements until there are none; those made during a request share the next one."""
        try:
            while self._receipts:
                receipts, self._receipts = self._receipts, []
                try:
                    await self._popper.acknowledge(receipts)
                except (ClusterError, ProtocolError) as error:
                    self._failed = error
                    log.warning(
                        "acknowledging %d messages of %s failed, they will be redelivered: %s", len(receipts), self._topic, error
                    )
        finally:
            self._acknowledging = None
