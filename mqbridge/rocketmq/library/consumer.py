"""Consumer of a group: delivers the messages of all queues one by one, and acknowledges them one by one.

A pull is the response to one read request: consecutive messages of one queue. All queues together hold up to `max_bytes` of
undecoded messages: those that are read ahead, and those that are delivered and not acknowledged (`delivered_pull`). Only one pull
at a time is decoded, so the decoded messages in memory are those of one pull, and those that the application keeps.
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
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.consumer.consumer_settings import MessageModel
from mqbridge.rocketmq.client.consumer.subscription import RETRY_PREFIX
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull
from mqbridge.rocketmq.library.group_member import GroupMember
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.library.queue_reader import QueueReader
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.delay_levels import level_of

log = logging.getLogger(__name__)

FAILED_SEND_BACK_DELAY_S = 1.0
"""Minimum delay before this consumer delivers a message again that it could not send back."""


class Consumer:
    """Member of a group, or a reader without a group; opened by `RocketMQClient.consumer` or `RocketMQClient.reader`."""

    def __init__(self, member: GroupMember) -> None:
        self._home = HomeLoop(f"the consumer {member.name}")
        self._member, self._settings = member, member.settings
        self._readers: dict[Queue, QueueReader] = {}
        self._ready_pulls: deque[DeliveredPull] = deque()
        """Pulls with messages to deliver."""
        self._redeliveries: OrderedDict[tuple[DeliveredPull, int], ReceivedMessage] = OrderedDict()
        """Messages that this consumer delivers again as soon as possible, by pull and offset."""
        self._redelivery_timers: dict[tuple[DeliveredPull, int], asyncio.TimerHandle] = {}
        """Timers of the messages that this consumer delivers again after a delay, by pull and offset."""
        self._queue_errors: deque[MqbridgeError] = deque()
        """Errors of single queues, which `receive` has not raised yet."""
        self._terminal_error: MqbridgeError | None = None
        """The error that ended the membership; `receive` raises it once no message is left."""
        self._arrived = asyncio.Event()
        """Set when `receive` may have something to return or to raise."""
        self._send_back_tasks: set[asyncio.Task[None]] = set()
        self._close_task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._accept_task = spawn(self._accept_queues(), f"rocketmq queues of {member.name}")

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._close_task is not None

    @property
    def partitions(self) -> Sequence[tuple[str, str]]:
        """Topic and `broker:queue` of each queue assigned to this consumer now, including queues of the group's retry topic."""
        queues = [queue for queue, reader in self._readers.items() if not reader.assigned.revoked]
        return [(queue.topic, partition_name(queue)) for queue in sorted(queues)]

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds (None: for ever).

        Raises TimeoutError after `timeout` seconds, GapError if the broker has deleted messages that were never read,
        RemoteProtocolError for damaged bytes, and ClusterError if the consumer is closed or cannot continue. An error of one
        queue stops the reading of this queue only; `seek` starts it again.
        """
        self._home.check()
        async with asyncio.timeout(timeout):
            while (message := self._next_message()) is None:
                self._arrived.clear()
                await self._arrived.wait()
            return message

    def _next_message(self) -> ReceivedMessage | None:
        """Return the next message to deliver, redeliveries first; None if there is none yet. Raises the errors of `receive`."""
        if self.closed:
            raise ClusterError(f"the consumer of {self._member.name} is closed", Failure.FATAL)
        if self._queue_errors:
            raise self._queue_errors.popleft()
        while self._redeliveries:
            redelivery = self._redeliveries.popitem(last=False)[1]
            if redelivery.position[0] in redelivery.handle.unacknowledged and redelivery.handle.is_current:
                return redelivery
        while self._ready_pulls:
            try:
                message = self._ready_pulls[0].take()
            except MqbridgeError:
                self._ready_pulls.popleft()  # damaged: its queue is not read on before `seek`
                raise
            if message is not None:
                return message
            self._ready_pulls.popleft()
        if self._terminal_error is not None:
            raise self._terminal_error
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
        """Acknowledge a message. The group's offset in its queue passes it once all messages before it are acknowledged, too.

        Returns False, and does nothing, if the message no longer belongs to this consumer: its queue moved to another member, a
        seek changed the queue's offset, the message is acknowledged or sent back already, or the consumer is closed.
        """
        self._home.check()
        pull: DeliveredPull = message.handle
        return not self.closed and pull.acknowledger.acknowledge(pull, message.position[0])

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Request redelivery of a message after at least `delay_s` seconds.

        Returns False in the same cases as `acknowledge`, and also as soon as the queue is revoked, when `acknowledge` may still
        succeed.

        The message is sent back to the group's retry topic, and any member may receive it from there. The broker delays it by the
        shortest delay level (1 s to 2 h) of at least `delay_s`, or by 2 h if `delay_s` is longer. After `max_redeliveries` it
        becomes a dead letter instead.

        A consumer that is orderly, broadcasting or a reader, or that does not read the retry topic, delivers the message again
        itself, as does every consumer if sending back fails; messages that follow it in the queue may be delivered before it.
        """
        self._home.check()
        pull: DeliveredPull = message.handle
        offset = message.position[0]
        if self.closed:
            return False
        if not self._sends_back:
            if not pull.is_current or offset not in pull.unacknowledged:
                return False
            self._redeliver_later(message, delay_s)
            return True
        if not pull.acknowledger.begin_send_back(pull, offset):
            return False
        task = spawn(self._send_back(message, delay_s), f"rocketmq sending back for {self._member.name}")
        self._send_back_tasks.add(task)
        task.add_done_callback(self._send_back_tasks.discard)
        return True

    async def dead_letter(self, message: ReceivedMessage) -> bool:
        """Move a message to the group's dead letter topic. Returns False in the same cases as `negative_acknowledge`.

        Raises ClusterError if the broker does not store it; the message can then be acknowledged as before.
        """
        self._home.check()
        pull: DeliveredPull = message.handle
        offset = message.position[0]
        record = pull.find_record(offset)
        if self.closed or record is None or not pull.acknowledger.begin_send_back(pull, offset):
            return False
        is_stored = False
        try:
            await self._member.send_back.move_to_dead_letters(pull.acknowledger.assigned.queue, record)
            is_stored = True
        finally:
            pull.acknowledger.end_send_back(pull, offset, is_stored=is_stored)
        return True

    @property
    def _sends_back(self) -> bool:
        """True if redeliveries go through the group's retry topic."""
        settings = self._settings
        return settings.model is MessageModel.CLUSTERING and settings.retries and not settings.orderly

    async def _send_back(self, message: ReceivedMessage, delay_s: float) -> None:
        pull: DeliveredPull = message.handle
        acknowledger, offset = pull.acknowledger, message.position[0]
        is_stored = False
        try:
            record = pull.find_record(offset)
            if record is not None:  # for the type checker: a pull keeps the records of messages that are being sent back
                level = max(1, level_of(delay_s))  # with level 0, the broker would choose a delay of at least 10 s
                await self._member.send_back.redeliver(acknowledger.assigned.queue, record, level)
                is_stored = True
        except (ClusterError, ProtocolError) as error:
            log.warning(
                "%s: sending back the message at offset %d failed (%s); this consumer will deliver the message again itself",
                acknowledger.assigned,
                offset,
                error,
            )
        finally:
            acknowledger.end_send_back(pull, offset, is_stored=is_stored)
        if not is_stored:
            self._redeliver_later(message, max(delay_s, FAILED_SEND_BACK_DELAY_S))

    def _redeliver_later(self, message: ReceivedMessage, delay_s: float) -> None:
        """Deliver a message again after the delay. This replaces an earlier redelivery of the same message."""
        counted = message.replace(delivery_count=message.delivery_count + 1)
        redelivery = ReceivedMessage(counted, message.topic, message.partition, message.handle)
        key = message.handle, message.position[0]
        if (timer := self._redelivery_timers.pop(key, None)) is not None:
            timer.cancel()
        self._redeliveries.pop(key, None)
        self._redelivery_timers[key] = self._loop.call_later(delay_s, self._redeliver, key, redelivery)

    def _redeliver(self, key: tuple[DeliveredPull, int], message: ReceivedMessage) -> None:
        del self._redelivery_timers[key]
        self._redeliveries[key] = message
        self._arrived.set()

    # --- seeking ----------------------------------------------------------------------------------------------------

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group's offsets; those of this consumer if it is a reader.

        `earliest`, `latest` or a time applies to every queue that is assigned to this consumer, except queues of the retry topic.
        A message applies to its own queue. The next message received from a queue is the one at the new offset. Raises
        ClusterError.
        """
        self._home.check()
        if isinstance(to, ReceivedMessage):
            pull: DeliveredPull = to.handle
            reader = self._readers.get(pull.acknowledger.assigned.queue)
            if reader is None or reader.assigned.revoked:
                raise ClusterError(
                    f"cannot seek to a message: {pull.acknowledger.assigned} is no longer assigned to this consumer",
                    Failure.REFRESH,
                )
            await reader.seek(to.position[0])
            return
        if not self._readers:
            await asyncio.sleep(0)  # let a consumer that was just opened accept its assigned queues
        readers = [
            reader
            for queue, reader in self._readers.items()
            if not queue.topic.startswith(RETRY_PREFIX) and not reader.assigned.revoked
        ]
        if not readers:
            raise ClusterError(f"the consumer of {self._member.name} cannot seek, because it has no queue now: retry later")
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
        """Wait until the brokers have stored the messages sent back, and confirmed all acknowledgements. Raises ClusterError."""
        self._home.check()
        if self._send_back_tasks:
            await asyncio.wait(self._send_back_tasks)
        await asyncio.gather(*(reader.assigned.flush() for reader in self._readers.values() if not reader.assigned.revoked))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and leave the group, within `timeout` seconds; iteration ends at once."""
        if self._home.is_over():
            return
        if self._close_task is None:
            self._close_task = spawn(self._close(timeout), f"rocketmq closing the consumer of {self._member.name}")
            self._arrived.set()
        await asyncio.shield(self._close_task)

    async def _close(self, timeout: float) -> None:
        deadline = self._loop.time() + timeout
        for timer in self._redelivery_timers.values():
            timer.cancel()
        if self._send_back_tasks:
            await asyncio.wait(self._send_back_tasks, timeout=timeout)
        await cancel(*self._send_back_tasks)
        await self._member.close(max(0.0, deadline - self._loop.time()))
        await cancel(self._accept_task, *(reader.task for reader in self._readers.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- queues -----------------------------------------------------------------------------------------------------

    def _on_pull(self, pull: DeliveredPull) -> None:
        """Let `receive` deliver the messages of this pull."""
        self._ready_pulls.append(pull)
        self._arrived.set()

    def _on_queue_error(self, error: MqbridgeError) -> None:
        """Let `receive` raise this error, which stopped the reading of one queue."""
        self._queue_errors.append(error)
        self._arrived.set()

    async def _accept_queues(self) -> None:
        """Start a reader for each queue that is assigned to this consumer, until the consumer is closed."""
        try:
            async for assigned in self._member.assigned_queues():
                self._remove_revoked_readers()
                self._readers[assigned.queue] = QueueReader(
                    assigned, self._on_pull, self._on_queue_error, commits=self._member.stores_offsets
                )
        except MqbridgeError as error:
            self._terminal_error = error
            self._arrived.set()

    def _remove_revoked_readers(self) -> None:
        """Cancel and remove the readers of revoked queues. `receive` skips what is left of the pulls that they delivered."""
        for queue, reader in list(self._readers.items()):
            if reader.assigned.revoked:
                reader.task.cancel()
                del self._readers[queue]
