"""Receives the messages of topics one by one, and acknowledges them.

Entries wait in the consumers of the partitions, within `max_bytes` together; the messages of one entry at a time wait here. A
message is acknowledged through its handle, a `ReceivedEntry`: it is current until the entry is going to be delivered again.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import Self

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Position
from mqbridge.pulsar.client.consumer_requests import ConsumerStats
from mqbridge.pulsar.client.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.lookup import retrying
from mqbridge.pulsar.library.received_entry import ReceivedEntry, open_entry
from mqbridge.pulsar.library.topic_consumer import TopicConsumer
from mqbridge.pulsar.library.topic_names import TopicNames, concrete_name, full_name
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST, LATEST, EntryId

log = logging.getLogger(__name__)


class Consumer:
    """Opened by `PulsarClient.consumer`.

    On exclusive and failover subscriptions messages come in order per partition, and what must be delivered again brings all
    that is not acknowledged of its partition again, in order. A message with a `defect` could not be decoded: its payload holds
    the raw bytes.
    """

    def __init__(self, entries: TopicConsumer, names: TopicNames, request_timeout_s: float) -> None:
        self._entries, self._names, self._request_timeout_s = entries, names, request_timeout_s
        self._ready: deque[ReceivedMessage] = deque()
        """Messages of the entry that was taken last."""
        self._seek_targets: dict[EntryConsumer, tuple[EntryId, int]] = {}
        """Entry and message index that the next entry of a partition may have: messages before it are skipped."""
        self._seeking: set[EntryConsumer] = set()
        self._unconfirmed: set[EntryConsumer] = set()
        """Partitions with acknowledgements since the last `flush`."""
        self._reported: set[EntryConsumer] = set()
        """Failed partitions whose error `receive` has raised."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds. A call that is cancelled loses no message.

        Raises TimeoutError; ClusterError when the consumer is closed, and once for each partition that cannot go on.
        """
        message = self._take()
        if message is None:
            async with asyncio.timeout(timeout):
                while message is None:
                    await self._entries.wait()
                    message = self._take()
        return message

    def _take(self) -> ReceivedMessage | None:
        """The next message if there is one. Raises ClusterError."""
        while not self._closed:
            while self._ready:
                message = self._ready.popleft()
                if self._is_current(message.handle):  # else it will be delivered again
                    return message
            taken = self._entries.take()
            if taken is None:
                self._raise_failure()
                return None
            self._open(*taken)
        raise ClusterError("the consumer is closed", Failure.FATAL)

    def _open(self, consumer: EntryConsumer, entry: Entry) -> None:
        topic, partition = self._names.topic_and_partition(consumer.topic)
        target, index = self._seek_targets.pop(consumer, (None, 0))
        first_index = index if target == (entry.ledger, entry.entry) else 0
        handle, messages = open_entry(consumer, entry, topic, partition, first_index=first_index)
        self._ready.extend(messages)
        if not messages and consumer.subscription.reader_from is None:
            handle.acknowledge_all()

    def _raise_failure(self) -> None:
        if self._entries.ended is not None:
            raise self._entries.ended
        failed = self._entries.failed_consumers()
        for consumer in failed:
            assert consumer.ended is not None  # noqa: S101 - it has failed
            if consumer not in self._reported:
                self._reported.add(consumer)
                raise consumer.ended
        if failed and len(failed) == len(self._entries.consumers):
            raise ClusterError(f"every partition has failed: {failed[0].ended}", Failure.FATAL)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        try:
            return await self.receive()
        except ClusterError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark a message as done; the broker hears of it within 0.1 s. An entry is acknowledged with the last of its messages.

        Returns False, and does nothing, when the message will be delivered again: its partition has moved to another consumer,
        its connection was lost, or `seek` or a negative acknowledgement has set the partition back.
        """
        entry: ReceivedEntry = message.handle
        if not self._is_current(entry):
            return False
        entry.acknowledge(message.position[-1])
        self._unconfirmed.add(entry.consumer)
        return True

    def acknowledge_up_to(self, message: ReceivedMessage) -> bool:
        """Mark a message and all before it in its partition as done; exclusive and failover. Returns like `acknowledge`.

        Raises ClusterError (FATAL) for shared subscriptions.
        """
        entry: ReceivedEntry = message.handle
        if not entry.consumer.subscription.ordered:
            raise ClusterError("acknowledge_up_to is for exclusive and failover subscriptions", Failure.FATAL)
        if not self._is_current(entry):
            return False
        entry.acknowledge_up_to(message.position[-1])
        self._unconfirmed.add(entry.consumer)
        return True

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have a message delivered again, not before `delay_s` seconds. Returns like `acknowledge`.

        Unacknowledged messages of its batch come again, too; on exclusive and failover subscriptions all of its partition.
        """
        entry: ReceivedEntry = message.handle
        if not self._is_current(entry):
            return False
        entry.consumer.negative_acknowledge(entry.id, delay_s)
        return True

    def _is_current(self, entry: ReceivedEntry) -> bool:
        consumer = entry.consumer
        held = self._entries.consumers.get(consumer.topic) is consumer and consumer not in self._seeking
        return held and entry.is_current and not self._closed

    async def flush(self) -> None:
        """Wait until the brokers have every acknowledgement. Raises ClusterError; what was not confirmed is then sent again."""
        consumers, self._unconfirmed = self._unconfirmed, set()
        try:
            await asyncio.gather(*(self._confirm(consumer) for consumer in consumers))
        except BaseException:
            self._unconfirmed |= consumers
            raise

    async def _confirm(self, consumer: EntryConsumer) -> None:
        if consumer.ended is None:
            await retrying(consumer.confirm_acks, self._request_timeout_s)
            await consumer.last_id()  # its answer comes after all acknowledgements of the connection were read

    def schema_version(self, message: ReceivedMessage) -> bytes:
        """Return the version of the schema that the message was sent with, b"" if none; see `PulsarClient.schema`."""
        entry: ReceivedEntry = message.handle
        return entry.schema_version

    # --- positions --------------------------------------------------------------------------------------------------

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the subscription: to an end or a time in every partition of this consumer, or to a message in its partition.

        The next message received of a partition is the one there; what was received before can no longer be acknowledged.
        Raises ClusterError.
        """
        if isinstance(to, ReceivedMessage):
            consumer = self._entries.consumers.get(concrete_name(full_name(to.topic), to.partition))
            if consumer is None:
                raise ClusterError(f"this consumer has no partition {to.partition} of {to.topic}", Failure.FATAL)
            ledger, entry, index = to.position
            begin = to.handle.begin if isinstance(to.handle, ReceivedEntry) else (ledger, entry)
            await self._seek(consumer, begin)
            if index:
                self._seek_targets[consumer] = (ledger, entry), index
            return
        held = await self._active_consumers()
        if isinstance(to, datetime):
            time = int(to.timestamp() * 1000)
            await asyncio.gather(*(self._seek(each, publish_time=time) for each in held))
        else:
            end = EARLIEST if to == "earliest" else LATEST
            await asyncio.gather(*(self._seek(each, end) for each in held))

    async def _active_consumers(self) -> list[EntryConsumer]:
        """Return the consumers of the partitions that this consumer holds. Raises ClusterError if there are none.

        On a failover subscription the broker sends its choice of the active consumer some time after the SUBSCRIBE.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._request_timeout_s):
                while any(
                    each.ended is None and not each.active and not each.deactivations for each in self._entries.consumers.values()
                ):
                    await self._entries.wait()
        held = [each for each in self._entries.consumers.values() if each.ended is None and each.active]
        if not held:
            raise ClusterError("this consumer holds no partition now, so there is nothing to seek")
        return held

    async def _seek(self, consumer: EntryConsumer, entry: EntryId | None = None, publish_time: int | None = None) -> None:
        self._seeking.add(consumer)
        self._seek_targets.pop(consumer, None)
        try:
            await consumer.seek(entry, publish_time=publish_time)
        finally:
            self._seeking.discard(consumer)

    async def has_more(self) -> bool:
        """Return True if a topic has messages beyond those received, or acknowledged before. Raises ClusterError."""
        if any(self._is_current(message.handle) for message in self._ready):
            return True
        return any(await asyncio.gather(*(each.has_more() for each in self._entries.consumers.values())))

    async def last_positions(self) -> dict[str, Position]:
        """Return the newest position of each partition, by its full name; () if it is empty. Raises ClusterError."""
        consumers = list(self._entries.consumers.values())
        last = await asyncio.gather(*(consumer.last_message() for consumer in consumers))
        return {
            consumer.topic: () if entry < 0 else (ledger, entry, max(index, 0))
            for consumer, (ledger, entry, index) in zip(consumers, last, strict=True)
        }

    async def stats(self) -> dict[str, ConsumerStats]:
        """Return the broker's statistics of this consumer, by the full name of the partition. Raises ClusterError."""
        consumers = list(self._entries.consumers.values())
        found = await asyncio.gather(*(consumer.stats() for consumer in consumers))
        return {consumer.topic: stats for consumer, stats in zip(consumers, found, strict=True)}

    @property
    def at_end(self) -> bool:
        """True once all topics are terminated and every message was received."""
        consumers = self._entries.consumers.values()
        return not self._ready and bool(consumers) and all(each.at_end and not each.waiting for each in consumers)

    async def unsubscribe(self) -> None:
        """Delete the subscription, and close the consumer. Raises ClusterError if it has other consumers."""
        await asyncio.gather(*(consumer.unsubscribe() for consumer in self._entries.consumers.values()))
        await self.close()

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and leave the subscription, within `timeout` seconds; iteration then ends.

        What is not acknowledged is delivered again, here or to another consumer.
        """
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._entries.wake()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except (ClusterError, TimeoutError) as error:
            log.warning("closing a consumer: acknowledgements may be lost, their messages come again: %s", error or "timeout")
        finally:
            await self._entries.close(max(0.0, deadline - loop.time()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
