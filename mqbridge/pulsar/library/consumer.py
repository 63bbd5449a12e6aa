"""Receives the messages of topics one by one, and acknowledges them.

Entries are queued in the consumers of the partitions, together at most `max_bytes` (see `PulsarClient.consumer`); only the
messages of one entry are held here. A message is acknowledged through its handle, a `ReceivedEntry`. A handle becomes outdated as
soon as it is certain that the broker will redeliver the entry.
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
from mqbridge.net.home_loop import HomeLoop
from mqbridge.pulsar.client.connection.lookup import retry
from mqbridge.pulsar.client.consumer.consumer_requests import ConsumerStats
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.library.received_entry import ReceivedEntry, decode_received
from mqbridge.pulsar.library.topic_consumer import TopicConsumer
from mqbridge.pulsar.library.topic_names import TopicNames, full_name, partition_topic_name
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST, LATEST, EntryId

log = logging.getLogger(__name__)


class Consumer:
    """Consumer of topics, opened by `PulsarClient.consumer`.

    Exclusive and failover subscriptions deliver each partition in order. If one of their messages must be redelivered, all
    unacknowledged messages of its partition are redelivered, in order. A message with a `defect` could not be decoded: it
    is raw, see `mqbridge.message.Message`.
    """

    def __init__(self, topic_consumer: TopicConsumer, names: TopicNames, request_timeout_s: float) -> None:
        self._home = HomeLoop(f"the consumer of subscription {topic_consumer.subscription.name!r}")
        self._topic_consumer, self._names, self._request_timeout_s = topic_consumer, names, request_timeout_s
        self._decoded_messages: deque[ReceivedMessage] = deque()
        """The messages of the entry taken last that the application has not received yet."""
        self._seek_targets: dict[EntryConsumer, tuple[EntryId, int]] = {}
        """Entry and batch index of the message to which the last `seek` moved, by partition (its consumer).

        The broker delivers the whole entry, so its earlier messages are skipped.
        """
        self._seeking: set[EntryConsumer] = set()
        """Partitions whose seek is in progress; their messages are outdated."""
        self._unconfirmed: set[EntryConsumer] = set()
        """Partitions with acknowledgements since the last `flush`."""
        self._reported_failures: set[EntryConsumer] = set()
        """Failed partitions whose error `receive` has already raised."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Wait at most `timeout` seconds (None: for ever) for the next message and return it.

        Cancelling the call loses no message. Raises TimeoutError. Raises ClusterError if the consumer is closed or has failed as
        a whole, once for each failed partition, and on every call once all partitions have failed.
        """
        self._home.check()
        message = self._take()
        if message is None:
            async with asyncio.timeout(timeout):
                while message is None:
                    await self._topic_consumer.wait()
                    message = self._take()
        return message

    def _take(self) -> ReceivedMessage | None:
        """Return the next message, None if no message is buffered. Raises ClusterError."""
        while not self._closed:
            while self._decoded_messages:
                message = self._decoded_messages.popleft()
                if self._is_current(message.handle):  # the broker will redeliver an outdated one
                    return message
            received = self._topic_consumer.take()
            if received is None:
                self._raise_failure()
                return None
            self._decode_entry(*received)
        raise ClusterError(f"the consumer of subscription {self._topic_consumer.subscription.name!r} is closed", Failure.FATAL)

    def _decode_entry(self, consumer: EntryConsumer, entry: Entry) -> None:
        """Decode an entry into the messages to be received next; acknowledge it if no message is left to receive.

        A reader (its subscription has `reader_from`, the entry to start at) acknowledges nothing.
        """
        topic, partition = self._names.topic_and_partition(consumer.topic)
        target, index = self._seek_targets.pop(consumer, (None, 0))  # only the first entry after a seek can be its target
        first_index = index if target == (entry.ledger, entry.entry) else 0
        handle, messages = decode_received(consumer, entry, topic, partition, first_index=first_index)
        self._decoded_messages.extend(messages)
        if not messages and consumer.subscription.reader_from is None:
            handle.acknowledge_all()

    def _raise_failure(self) -> None:
        """Raise an error if this consumer as a whole, a partition whose error was not raised yet, or every partition failed."""
        if self._topic_consumer.end_error is not None:
            raise self._topic_consumer.end_error
        failed = self._topic_consumer.failed_consumers()
        for consumer in failed:
            assert consumer.end_error is not None  # noqa: S101 - it has failed
            if consumer not in self._reported_failures:
                self._reported_failures.add(consumer)
                raise consumer.end_error
        if failed and len(failed) == len(self._topic_consumer.consumers):
            raise ClusterError(
                f"all {len(failed)} partitions of subscription {failed[0].subscription.name!r} have failed, "
                f"the first one with: {failed[0].end_error}",
                Failure.FATAL,
            )

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
        """Acknowledge a message; the acknowledgement is sent within 0.1 s.

        An entry is acknowledged when all of its messages are (see `batch_index_acks` of `PulsarClient.consumer`).

        Returns False and does nothing if the message will be redelivered (another consumer became active, the connection was
        lost, or a `seek` or a negative acknowledgement has reset the partition), if its topic was deleted, and after `close`.
        """
        self._home.check()
        entry: ReceivedEntry = message.handle
        if not self._is_current(entry):
            return False
        entry.acknowledge(message.position[-1])
        self._unconfirmed.add(entry.consumer)
        return True

    def acknowledge_up_to(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message and all earlier ones of its partition. Returns the same values as `acknowledge`.

        Raises ClusterError (FATAL) on shared and key_shared subscriptions.
        """
        self._home.check()
        entry: ReceivedEntry = message.handle
        if not entry.consumer.subscription.ordered:
            raise ClusterError(
                "acknowledge_up_to is only for exclusive and failover subscriptions: use acknowledge", Failure.FATAL
            )
        if not self._is_current(entry):
            return False
        entry.acknowledge_up_to(message.position[-1])
        self._unconfirmed.add(entry.consumer)
        return True

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have a message redelivered after at least `delay_s` seconds. Returns the same values as `acknowledge`.

        All unacknowledged messages of its batch are redelivered too; on exclusive and failover subscriptions those of its whole
        partition.
        """
        self._home.check()
        entry: ReceivedEntry = message.handle
        if not self._is_current(entry):
            return False
        entry.consumer.negative_acknowledge(entry.id, delay_s)
        return True

    def _is_current(self, entry: ReceivedEntry) -> bool:
        """Return False if a message of the entry can no longer be acknowledged.

        `ReceivedEntry.is_current` knows only the consumer of the partition. This method also returns False if the partition was
        dropped (a deleted topic), while a seek of the partition is in progress, and if `self` is closed.
        """
        consumer = entry.consumer
        is_consumed = self._topic_consumer.consumers.get(consumer.topic) is consumer and consumer not in self._seeking
        return is_consumed and entry.is_current and not self._closed

    async def flush(self) -> None:
        """Wait until the brokers have received every acknowledgement.

        Raises ClusterError; the next `flush` then waits for the unconfirmed acknowledgements again.
        """
        self._home.check()
        consumers, self._unconfirmed = self._unconfirmed, set()
        try:
            await asyncio.gather(*(self._confirm(consumer) for consumer in consumers))
        except BaseException:
            self._unconfirmed |= consumers
            raise

    async def _confirm(self, consumer: EntryConsumer) -> None:
        """Send this partition's pending acknowledgements and wait until the broker has received all; not if it has failed."""
        if consumer.end_error is None:
            await retry(consumer.confirm_acks, self._request_timeout_s)
            # A broker reads commands in order, so the response to this request proves that it has read the acknowledgements.
            await consumer.last_id()

    def schema_version(self, message: ReceivedMessage) -> bytes:
        """Return the schema version of the message, b"" without a schema; see `PulsarClient.schema`."""
        entry: ReceivedEntry = message.handle
        return entry.schema_version

    # --- positions --------------------------------------------------------------------------------------------------

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the subscription's position.

        With "earliest", "latest" or a publish time (local time if it has no time zone) this moves every partition of which this
        consumer is the active one, with a message only the message's partition. The next message received is the one at the new
        position. Messages received before the seek can no longer be acknowledged. Raises ClusterError.
        """
        self._home.check()
        if isinstance(to, ReceivedMessage):
            consumer = self._topic_consumer.consumers.get(partition_topic_name(full_name(to.topic), to.partition))
            if consumer is None:
                raise ClusterError(
                    f"cannot seek: this consumer has no partition {to.partition} of topic {to.topic}", Failure.FATAL
                )
            ledger, entry, index = to.position
            # A chunked message has the id of its last chunk, but must be read from its first chunk, which only the handle knows.
            # A message without this handle was not received by a Pulsar consumer: only its position is known.
            begin = to.handle.begin if isinstance(to.handle, ReceivedEntry) else (ledger, entry)
            await self._seek(consumer, begin)
            if index:  # the broker only seeks to the beginning of an entry
                self._seek_targets[consumer] = (ledger, entry), index
            return
        active = await self._active_consumers()
        if isinstance(to, datetime):
            time = int(to.timestamp() * 1000)
            await asyncio.gather(*(self._seek(each, publish_time=time) for each in active))
        else:
            entry_id = EARLIEST if to == "earliest" else LATEST
            await asyncio.gather(*(self._seek(each, entry_id) for each in active))

    async def _active_consumers(self) -> list[EntryConsumer]:
        """Return the consumers that are active in their partitions. Raises ClusterError if there are none.

        On a failover subscription the broker announces the active consumer some time after SUBSCRIBE, so this first waits for the
        announcements, for at most `_request_timeout_s`.
        """
        consumers = self._topic_consumer.consumers
        with suppress(TimeoutError):
            async with asyncio.timeout(self._request_timeout_s):
                # A consumer with `deactivations` needs no waiting: the broker has announced it as passive.
                while any(each.end_error is None and not each.active and not each.deactivations for each in consumers.values()):
                    await self._topic_consumer.wait()
        active = [each for each in consumers.values() if each.end_error is None and each.active]
        if not active:
            raise ClusterError(
                "cannot seek: this consumer is not the active consumer of any partition now; seek with the active consumer"
            )
        return active

    async def _seek(self, consumer: EntryConsumer, entry: EntryId | None = None, publish_time: int | None = None) -> None:
        """Move one partition to this entry or publish time (ms); its messages are outdated from now on."""
        self._seeking.add(consumer)
        self._seek_targets.pop(consumer, None)
        try:
            await consumer.seek(entry, publish_time=publish_time)
        finally:
            self._seeking.discard(consumer)

    async def has_more(self) -> bool:
        """Return True if a topic has messages that were neither received nor acknowledged. Raises ClusterError."""
        self._home.check()
        if any(self._is_current(message.handle) for message in self._decoded_messages):
            return True
        return any(await asyncio.gather(*(each.has_more() for each in self._topic_consumer.consumers.values())))

    async def last_positions(self) -> dict[str, Position]:
        """Return the position of the newest message by full partition name; () for an empty one. Raises ClusterError."""
        self._home.check()
        consumers = list(self._topic_consumer.consumers.values())
        last = await asyncio.gather(*(consumer.last_message() for consumer in consumers))
        return {
            consumer.topic: () if entry < 0 else (ledger, entry, max(index, 0))  # index -1: no batch
            for consumer, (ledger, entry, index) in zip(consumers, last, strict=True)
        }

    async def stats(self) -> dict[str, ConsumerStats]:
        """Return the broker's statistics of this consumer by full partition name. Raises ClusterError."""
        self._home.check()
        consumers = list(self._topic_consumer.consumers.values())
        all_stats = await asyncio.gather(*(consumer.stats() for consumer in consumers))
        return {consumer.topic: stats for consumer, stats in zip(consumers, all_stats, strict=True)}

    @property
    def at_end(self) -> bool:
        """True once all topics are terminated (an administrator ended writing to them) and every message was received."""
        consumers = self._topic_consumer.consumers.values()
        return not self._decoded_messages and bool(consumers) and all(each.at_end and not each.queued for each in consumers)

    async def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer. Raises ClusterError if the subscription has other consumers."""
        self._home.check()
        await asyncio.gather(*(consumer.unsubscribe() for consumer in self._topic_consumer.consumers.values()))
        await self.close()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and close all consumers within `timeout` seconds; a running iteration ends.

        Unacknowledged messages will be redelivered to a consumer of the subscription.
        """
        if self._closed or self._home.is_over():
            return
        self._closed = True
        self._decoded_messages.clear()
        self._topic_consumer.wake()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except (ClusterError, TimeoutError) as error:
            topics = ", ".join(sorted(consumer.topic for consumer in self._unconfirmed))
            reason = error if str(error) else f"no response within {timeout:g} s"
            log.warning(
                "closing the consumer: acknowledgements on %s are not confirmed, messages may be redelivered: %s", topics, reason
            )
        finally:
            await self._topic_consumer.close(max(0.0, deadline - loop.time()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
