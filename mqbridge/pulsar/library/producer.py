"""Sends messages to all partitions of a topic."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MappingError
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Properties, SendReceipt
from mqbridge.library.send_window import SendWindow
from mqbridge.message import Message, Pair
from mqbridge.net.home_loop import HomeLoop
from mqbridge.pulsar.library.batching import MessageId, OutgoingMessage
from mqbridge.pulsar.library.topic_producer import TopicProducer
from mqbridge.pulsar.mapping.properties import write_properties
from mqbridge.pulsar.wire.ids import unsigned

MESSAGE_OVERHEAD_BYTES = 512
"""Bytes that each pending message counts for `max_pending_bytes`, besides the size of its payload and properties."""


class Producer:
    """Producer of one topic, opened by `PulsarClient.producer`.

    The hash of the key chooses the partition, so messages of a key keep their order. Messages without a key are distributed over
    the partitions round-robin, batch by batch.
    """

    def __init__(self, topic: str, producer: TopicProducer, max_pending_bytes: int) -> None:
        self._home = HomeLoop(f"the producer of topic {topic!r}")
        self._topic, self._producer = topic, producer
        self._window = SendWindow(max_pending_bytes)
        self._closed = False

    @property
    def topic(self) -> str:
        """The topic name as the application has written it."""
        return self._topic

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def partitions(self) -> int:
        """Number of partitions, 0 for an unpartitioned topic."""
        return self._producer.partitions

    @property
    def duplicates(self) -> int:
        """Number of batches that a deduplicating broker dropped because it had stored them before."""
        return self._producer.duplicates

    async def last_sequence_id(self) -> int:
        """Return the highest sequence id that is stored under this producer's name, -1 if none. Raises ClusterError."""
        self._home.check()
        return await self._producer.last_sequence_id()

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | bytes | None = None,
        keys: Sequence[str] = (),
        msg_type: str | None = None,
        properties: Properties = (),
        event_time: int | None = None,
        deliver_at: int | None = None,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
        partition: int | None = None,
    ) -> SendReceipt:
        """Send a message and return when it is stored. First wait until it fits into `max_pending_bytes`.

        Concurrent calls share batches and keep their order. A `payload` of None is a tombstone. `keys` and `msg_type`, which
        Pulsar lacks, become reserved properties. Times are ms since the epoch; `deliver_at` is effective on shared subscriptions
        only. If `ordering_key` is set, a key_shared subscription chooses the consumer by it instead of by `key`. `sequence_id`
        must be greater than all earlier ones (None: the producer counts); a deduplicating broker drops a message whose id is not
        greater than the last one stored. `partition` is a partition index, which replaces the choice by key.

        Raises ClusterError: REFUSED if the broker rejects the message, RETRY after `max_elapsed_s`, FATAL if the producer has
        ended, ConnectionLost if it is closed while the message waits. Raises MappingError if Pulsar's metadata cannot represent
        the message.
        """
        self._home.check()
        if self._closed:
            raise self._closed_error()
        if not isinstance(payload, bytes | None):
            raise TypeError(f"a payload is bytes or None, not {type(payload).__name__}")
        pairs: tuple[Pair, ...] = ()
        if properties:
            pairs = tuple(properties.items() if isinstance(properties, Mapping) else properties)
        # Keys, message type and event time 0 (no time in Pulsar) become properties; the metadata has fields for all others.
        if pairs or keys or msg_type is not None or event_time == 0:
            message = Message(payload, pairs, keys=tuple(keys), msg_type=msg_type, event_time=event_time)
            pairs = tuple(write_properties(message, None))
        size = MESSAGE_OVERHEAD_BYTES + len(payload or b"") + sum(len(name) + len(value) for name, value in pairs)
        outgoing = OutgoingMessage(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=pairs,
            event_time=0 if event_time is None else unsigned(event_time),
            deliver_at=deliver_at,
            sequence_id=sequence_id,
        )
        number = await self._window.enter(size)
        try:
            stored = self._producer.send_message(outgoing, partition)
        except (ValueError, TypeError) as error:  # raised by protobuf and by the UTF-8 encoder
            self._window.leave(number, size)
            raise MappingError(f"a message for topic {self._topic} cannot be encoded: {error}") from error
        except BaseException:
            self._window.leave(number, size)
            raise
        stored.add_done_callback(partial(self._leave_window, number, size))
        try:
            return self._receipt(await asyncio.shield(stored))
        except ClusterError as error:
            if self._closed and error.failure is Failure.FATAL:
                raise ConnectionLost(
                    f"the producer of topic {self._topic} was closed before the message had a receipt"
                ) from error
            raise

    def _leave_window(self, number: int, size: int, stored: "asyncio.Future[MessageId]") -> None:
        """Release the room of a message. If it failed in order, those that wait for room fail, too: they are later ones."""
        error = stored.exception() if self._producer.fails_in_order else None
        if isinstance(error, ClusterError) and error.failure is not Failure.REFUSED:
            self._window.fail_waiting(error)
        self._window.leave(number, size)

    def _receipt(self, message_id: MessageId) -> SendReceipt:
        """Return the receipt of a stored message."""
        ledger, entry, partition, index = message_id
        return SendReceipt(
            self._topic,
            "" if partition < 0 else str(partition),
            () if ledger < 0 else (ledger, entry, max(index, 0)),  # -1: a duplicate, whose position is unknown
            f"{ledger}:{entry}:{partition}" if index < 0 else f"{ledger}:{entry}:{partition}:{index}",
        )

    async def flush(self) -> None:
        """Wait until every message sent so far is stored or has failed."""
        self._home.check()
        self._producer.send_batches()
        await self._window.drain()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait at most `timeout` seconds for receipts, then close; messages without a receipt fail with ConnectionLost."""
        if self._closed or self._home.is_over():
            return
        self._closed = True
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except TimeoutError:
            pass  # closing the entry producers logs how many messages have no receipt
        except asyncio.CancelledError:
            deadline = 0.0  # has passed: the producers are closed without waiting
            raise
        finally:
            self._window.abort(ConnectionLost(f"the producer of topic {self._topic} was closed before the message was sent"))
            await self._producer.close(max(0.0, deadline - asyncio.get_running_loop().time()))

    def _closed_error(self) -> ClusterError:
        return ClusterError(f"the producer of topic {self._topic} is closed", Failure.FATAL)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
