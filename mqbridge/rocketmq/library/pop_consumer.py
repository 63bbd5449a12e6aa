"""Consumer by POP (brokers from 5.0 on): brokers choose the messages, and each message is acknowledged by itself.

Consumers are not assigned queues: any number of consumers of a group share a topic, and a slow one delays no other. Messages are
not in order. A pop is a request for messages: the broker returns each one with a receipt, by which it is acknowledged, and hides
it from other consumers for the time `invisible_s`.
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
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.mapping.stored import decode_record
from mqbridge.rocketmq.wire.receipts import ReceiptHandle

log = logging.getLogger(__name__)

MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.2, 10.0
"""Bounds of the pause before a failed pop is retried."""
MAX_PENDING_RECEIPTS = 10_000
"""Nothing is popped while more acknowledgements than this wait for a broker that does not respond."""


class PopConsumer:
    """Receives the messages of one topic; opened by `RocketMQClient.pop_consumer`.

    A message that is not acknowledged within the `invisible_s` of `pop_consumer` is redelivered to any consumer of the group.
    `brokers` are the names of the brokers that have queues of the topic now; each is popped by a task of its own, and so is each
    that comes later.
    """

    def __init__(self, popper: Popper, topic: str, brokers: list[str]) -> None:
        self._home = HomeLoop(f"the POP consumer of topic {topic!r}")
        self._popper, self._topic = popper, topic
        self._buffered: deque[ReceivedMessage] = deque()
        self._arrived = asyncio.Event()
        """Set when `receive` may have something to return or to raise."""
        self._may_pop = asyncio.Event()
        """Set when `receive` has taken the last buffered message, and when acknowledgements were sent."""
        self._fatal_error: MqbridgeError | None = None
        """The error that ended the pops of a broker; `receive` raises it once no message is buffered."""
        self._pending_receipts: list[ReceiptHandle] = []
        """Receipts of acknowledged messages that are not sent to the brokers yet."""
        self._ack_task: asyncio.Task[None] | None = None
        """Sends the pending receipts; None while there are none."""
        self._ack_error: MqbridgeError | None = None
        """The last error of an acknowledgement that `flush` has not raised yet."""
        self._closed = False
        self._poll_tasks: dict[str, asyncio.Task[None]] = {}
        """The task that pops each broker, by name."""
        self._poll_brokers(brokers)
        self._stop_watching = popper.watch_brokers(self._poll_brokers)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds (None: for ever). Raises TimeoutError, ClusterError."""
        self._home.check()
        async with asyncio.timeout(timeout):
            while True:
                if self._closed:
                    raise ClusterError(f"the consumer of topic {self._topic} is closed", Failure.FATAL)
                if self._buffered:
                    message = self._buffered.popleft()
                    if not self._buffered:
                        self._may_pop.set()
                    return message
                if self._fatal_error is not None:
                    raise self._fatal_error
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
        """Acknowledge a message; the request to the broker is sent soon, at the latest by `flush` or `close`.

        Returns False, and does nothing, if the message is acknowledged already, or the consumer is closed.
        """
        self._home.check()
        receipt: ReceiptHandle | None = message.handle  # None: acknowledged already
        if receipt is None or self._closed:
            return False
        message.handle = None  # marks the message as acknowledged
        self._pending_receipts.append(receipt)
        if self._ack_task is None:
            self._ack_task = spawn(self._acknowledge(), f"rocketmq acknowledgements of {self._topic}")
        return True

    async def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Set the time of a message's redelivery to `invisible_s` seconds from now, later or sooner than it was.

        Raises ClusterError; it is REFUSED if the message is acknowledged already.
        """
        self._home.check()
        receipt: ReceiptHandle | None = message.handle
        if receipt is None:
            raise ClusterError(f"cannot extend a message of topic {self._topic}: it is acknowledged already", Failure.REFUSED)
        message.handle = await self._popper.change_invisible(receipt, round(invisible_s * 1000))

    async def flush(self) -> None:
        """Wait until the brokers have confirmed all acknowledgements.

        Raises the last error of the failed ones (ClusterError, ProtocolError); their messages are redelivered.
        """
        self._home.check()
        if self._ack_task is not None:
            await asyncio.wait([self._ack_task])
        error, self._ack_error = self._ack_error, None
        if error is not None:
            raise error

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop receiving, and send pending acknowledgements within `timeout` seconds; all other messages are redelivered."""
        if self._closed or self._home.is_over():
            return
        self._closed = True
        self._arrived.set()
        self._stop_watching()
        await cancel(*self._poll_tasks.values())
        if self._ack_task is not None:
            await asyncio.wait([self._ack_task], timeout=timeout)
            await cancel(self._ack_task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _poll_brokers(self, brokers: list[str]) -> None:
        """Begin to pop these brokers; a broker that is popped already, or whose pops ended with an error, is not begun again."""
        for broker in brokers:
            if broker not in self._poll_tasks:
                self._poll_tasks[broker] = spawn(self._poll(broker), f"rocketmq pops of {self._topic} at {broker}")

    async def _poll(self, broker: str) -> None:
        """Pop from one broker in a loop, but only while no message is buffered: one that waits too long is redelivered."""
        backoff = Backoff(MIN_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S)
        while True:
            while self._buffered or len(self._pending_receipts) > MAX_PENDING_RECEIPTS:
                self._may_pop.clear()
                await self._may_pop.wait()
            try:
                popped = await self._popper.pop(broker)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ClusterError) and error.failure is Failure.FATAL:
                    self._fatal_error = error
                    self._arrived.set()
                    return
                delay = backoff.delay()
                log.warning("a pop of topic %s from broker %s failed (%s); retrying in %.1f s", self._topic, broker, error, delay)
                await asyncio.sleep(delay)
                continue
            backoff.reset()
            for record, receipt in popped.messages:
                partition = f"{receipt.broker}:{receipt.queue}"
                self._buffered.append(ReceivedMessage(decode_record(record), self._topic, partition, receipt))
            if popped.messages:
                self._arrived.set()

    async def _acknowledge(self) -> None:
        """Send pending acknowledgements until there are none. Those that are added during a request share the next request."""
        try:
            while self._pending_receipts:
                receipts, self._pending_receipts = self._pending_receipts, []
                self._may_pop.set()
                try:
                    await self._popper.acknowledge(receipts)
                except (ClusterError, ProtocolError) as error:
                    self._ack_error = error
                    log.warning(
                        "acknowledging %d messages of topic %s failed (%s); brokers redeliver those that are not acknowledged",
                        len(receipts),
                        self._topic,
                        error,
                    )
        finally:
            self._ack_task = None
