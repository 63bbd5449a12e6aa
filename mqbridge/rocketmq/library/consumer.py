"""Consumer of a group: messages one by one from all queues, acknowledged one by one.

Each queue is pulled ahead, as bytes, within `max_bytes` for all of them. One pull after the other is decoded, so that the decoded
messages in memory are those of one pull and those that are not acknowledged.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Self

from mqbridge.errors import ClusterError, Failure, MqbridgeError, ProtocolError
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.consumer_settings import MessageModel
from mqbridge.rocketmq.client.subscription import RETRY_PREFIX
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull
from mqbridge.rocketmq.library.group_member import GroupMember
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.library.queue_reader import QueueReader
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.delay_levels import level_of

log = logging.getLogger(__name__)

RETURN_RETRY_S = 1.0
"""Delay of a message that could not be sent back, until this consumer has it again."""


class Consumer:
    """Made by `RocketMQClient.consumer` and `RocketMQClient.reader`."""

    def __init__(self, member: GroupMember) -> None:
        self._member, self._settings = member, member.settings
        self._topics = frozenset(subscription.topic for subscription in member.settings.subscriptions)
        self._readers: dict[Queue, QueueReader] = {}
        self._ready: deque[DeliveredPull] = deque()
        self._again: OrderedDict[tuple[DeliveredPull, int], ReceivedMessage] = OrderedDict()
        """Messages to hand out once more, by this consumer; by pull and offset."""
        self._delayed: dict[tuple[DeliveredPull, int], asyncio.TimerHandle] = {}
        """Timers of the messages that will be handed out once more."""
        self._errors: deque[MqbridgeError] = deque()
        """Errors of single queues, each raised once."""
        self._ended_by: MqbridgeError | None = None
        self._arrived = asyncio.Event()
        self._returns: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._accepting = spawn(self._accept(), f"rocketmq queues of {member.name}")

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closing is not None

    @property
    def partitions(self) -> Sequence[tuple[str, str]]:
        """Topic and `broker:queue` of each queue that this consumer reads now; those of the group's retry topic among them."""
        held = [queue for queue, reader in self._readers.items() if not reader.assigned.revoked]
        return [(queue.topic, partition_name(queue)) for queue in sorted(held)]

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds.

        Raises TimeoutError; GapError when a queue no longer holds messages that were never read; ClusterError when the consumer
        is closed or cannot continue. After an error of one queue the others go on; `seek` has that one read again.
        """
        async with asyncio.timeout(timeout):
            while (message := self._next()) is None:
                self._arrived.clear()
                await self._arrived.wait()
            return message

    def _next(self) -> ReceivedMessage | None:
        if self.closed:
            raise ClusterError(f"the consumer of {self._member.name} is closed", Failure.FATAL)
        if self._errors:
            raise self._errors.popleft()
        while self._again:
            message = self._again.popitem(last=False)[1]
            if message.position[0] in message.handle.unacknowledged and message.handle.is_current:
                return message
        while self._ready:
            try:
                found = self._ready[0].take()
            except MqbridgeError:
                self._ready.popleft()
                raise
            if found is not None:
                return found
            self._ready.popleft()
        if self._ended_by is not None:
            raise self._ended_by
        return None

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed."""
        while not self.closed:
            try:
                message = await self.receive()
            except ClusterError:
                if self.closed:
                    return
                raise
            yield message

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark a message as done. The group's offset of its queue moves when all messages before it are done, too.

        Returns False, and does nothing, when the message is no longer this consumer's: its queue moved to another member, `seek`
        left it behind, or it is acknowledged already.
        """
        handed_out: DeliveredPull = message.handle
        return not self.closed and handed_out.acknowledger.acknowledge(handed_out, message.position[0])

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have a message delivered again, not before `delay_s` seconds. Returns like `acknowledge`.

        It is sent back to the group's retry topic, from where any member gets it: after 1 s or more, at the delay level that is
        not shorter, two hours at most. After `max_redeliveries` it goes to the group's dead letters. Consumers that are orderly,
        broadcasting or readers, or that do not read the retry topic, get it again themselves, with later messages in between.
        """
        handed_out: DeliveredPull = message.handle
        offset = message.position[0]
        if self.closed:
            return False
        if not self._sends_back:
            if not handed_out.is_current or offset not in handed_out.unacknowledged:
                return False
            self._redeliver_in(delay_s, message)
            return True
        if not handed_out.acknowledger.begin_return(handed_out, offset):
            return False
        task = spawn(self._send_back(message, delay_s), f"rocketmq sending back for {self._member.name}")
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)
        return True

    async def dead_letter(self, message: ReceivedMessage) -> bool:
        """Put a message into the group's dead letters and acknowledge it. Returns like `acknowledge`; raises ClusterError."""
        handed_out: DeliveredPull = message.handle
        offset = message.position[0]
        record = handed_out.record(offset)
        if self.closed or record is None or not handed_out.acknowledger.begin_return(handed_out, offset):
            return False
        is_stored = False
        try:
            await self._member.send_back.dead(handed_out.acknowledger.assigned.queue, record)
            is_stored = True
        finally:
            handed_out.acknowledger.end_return(handed_out, offset, is_stored=is_stored)
        return True

    @property
    def _sends_back(self) -> bool:
        settings = self._settings
        return settings.model is MessageModel.CLUSTERING and settings.retries and not settings.orderly

    async def _send_back(self, message: ReceivedMessage, delay_s: float) -> None:
        handed_out: DeliveredPull = message.handle
        acknowledger, offset = handed_out.acknowledger, message.position[0]
        is_stored = False
        try:
            record = handed_out.record(offset)
            if record is not None:
                await self._member.send_back.later(acknowledger.assigned.queue, record, max(1, level_of(delay_s)))
                is_stored = True
        except (ClusterError, ProtocolError) as error:
            log.warning("%s: a message could not be sent back, it is delivered here again: %s", acknowledger.assigned, error)
        finally:
            acknowledger.end_return(handed_out, offset, is_stored=is_stored)
        if not is_stored:
            self._redeliver_in(max(delay_s, RETURN_RETRY_S), message)

    def _redeliver_in(self, delay_s: float, message: ReceivedMessage) -> None:
        again = message.replace(delivery_count=message.delivery_count + 1)
        received = ReceivedMessage(again, message.topic, message.partition, message.handle)
        key = message.handle, message.position[0]
        if (timer := self._delayed.pop(key, None)) is not None:
            timer.cancel()
        self._again.pop(key, None)
        self._delayed[key] = self._loop.call_later(delay_s, self._redeliver, key, received)

    def _redeliver(self, key: tuple[DeliveredPull, int], message: ReceivedMessage) -> None:
        del self._delayed[key]
        self._again[key] = message
        self._arrived.set()

    # --- moving -----------------------------------------------------------------------------------------------------

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group: to an end or a time in every queue that this consumer holds, or to a message in its queue.

        The next message received of a queue is the one there. Queues of the retry topic stay where they are. Raises ClusterError.
        """
        if isinstance(to, ReceivedMessage):
            handed_out: DeliveredPull = to.handle
            reader = self._readers.get(handed_out.acknowledger.assigned.queue)
            if reader is None or reader.assigned.revoked:
                raise ClusterError(f"{handed_out.acknowledger.assigned} is not this consumer's any more", Failure.REFRESH)
            await reader.seek(to.position[0])
            return
        if not self._readers:
            await asyncio.sleep(0)  # the consumer was just opened: let it accept the queues that it has
        readers = [
            reader
            for queue, reader in self._readers.items()
            if not queue.topic.startswith(RETRY_PREFIX) and not reader.assigned.revoked
        ]
        if not readers:
            raise ClusterError(f"the consumer of {self._member.name} holds no queue now, so there is nothing to seek")
        await asyncio.gather(*(self._seek_queue(reader, to) for reader in readers))

    async def _seek_queue(self, reader: QueueReader, to: Start | datetime) -> None:
        positions, queue = self._member.positions, reader.assigned.queue
        if isinstance(to, datetime):
            offset = await positions.at(queue, round(to.timestamp() * 1000))
        elif to == "earliest":
            offset = await positions.first(queue)
        else:
            offset = await positions.next(queue)
        await reader.seek(offset)

    # --- closing ----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until the brokers have every acknowledgement. Raises ClusterError."""
        if self._returns:
            await asyncio.wait(self._returns)
        await asyncio.gather(*(reader.assigned.flush() for reader in self._readers.values() if not reader.assigned.revoked))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and leave the group, within `timeout` seconds; iteration then ends."""
        if self._closing is None:
            self._closing = spawn(self._close(timeout), f"rocketmq closing the consumer of {self._member.name}")
            self._arrived.set()
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float) -> None:
        deadline = self._loop.time() + timeout
        for timer in self._delayed.values():
            timer.cancel()
        if self._returns:
            await asyncio.wait(self._returns, timeout=timeout)
        await cancel(*self._returns)
        await self._member.close(max(0.0, deadline - self._loop.time()))
        await cancel(self._accepting, *(reader.task for reader in self._readers.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- queues -----------------------------------------------------------------------------------------------------

    def _hand_out(self, handed_out: DeliveredPull) -> None:
        """A pull of a queue is there."""
        self._ready.append(handed_out)
        self._arrived.set()

    def _fail(self, error: MqbridgeError) -> None:
        """A queue ended with an error."""
        self._errors.append(error)
        self._arrived.set()

    async def _accept(self) -> None:
        try:
            async for assigned in self._member.assigned_queues():
                self._forget_readers()
                self._readers[assigned.queue] = QueueReader(assigned, self._hand_out, self._fail)
        except MqbridgeError as error:
            self._ended_by = error
            self._arrived.set()

    def _forget_readers(self) -> None:
        """End the readers of queues that were taken away; what they handed out is no longer current."""
        for queue, reader in list(self._readers.items()):
            if reader.assigned.revoked:
                reader.task.cancel()
                del self._readers[queue]
