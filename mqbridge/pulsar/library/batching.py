"""Collects the messages of one producer into batch entries, limited by message count, bytes and delay.

There is one batch for all messages, or one for each key. Key_Shared subscriptions dispatch whole entries by the key of the first
message, so they need one batch for each key.

A message with a delivery time, or with a sequence id set by the caller, becomes an entry of its own; the batches of earlier
messages are sent before it. The same holds for a message above `Batching.max_bytes` if the producer splits messages into
chunks, because a batch cannot be split.
"""

import asyncio
import base64
import functools
from dataclasses import dataclass
from typing import NamedTuple

from mqbridge.net.waiting_sends import Caller
from mqbridge.pulsar.client.producer.entry_producer import CLOSE_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.pending_entry import SendResult
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.single_metadata import PLAIN_PREFIXES, encode_prefix


@dataclass(frozen=True, slots=True)
class Batching:
    """Limits of a batch: its messages, the encoded bytes of these, and its delay.

    With `max_messages=1` every message is an entry of its own, without batch framing.
    """

    max_messages: int = 1000
    max_bytes: int = 128 << 10
    """Maximum size of a batch before compression, metadata included; a larger message becomes a batch of one message."""
    max_delay_s: float = 0.01
    """Time from the first message that waits in any batch until all batches are sent, in seconds."""
    by_key: bool = False
    """True for one batch for each key: `max_messages` and `max_bytes` then apply to all batches together. False for a single
    batch, which has the key of its first message."""


class MessageId(NamedTuple):
    """Id of a stored message.

    `partition` is -1 for an unpartitioned topic, `batch_index` is -1 without batch framing. `ledger` and `entry` are -1 for a
    message that a deduplicating broker dropped as a duplicate.
    """

    ledger: int
    entry: int
    partition: int
    batch_index: int


class OutgoingMessage:
    """A message to send. Its times are ms since the epoch.

    payload       None is a tombstone
    key           a bytes key is stored as base64
    ordering_key  a Key_Shared subscription chooses the consumer by this key; None: by `key`
    event_time    0: none
    deliver_at    None: delivered at once
    sequence_id   None: the producer numbers the message
    """

    __slots__ = ("deliver_at", "event_time", "key", "ordering_key", "payload", "properties", "sequence_id")

    def __init__(
        self,
        payload: bytes | None,
        *,
        key: str | bytes | None = None,
        ordering_key: bytes | None = None,
        properties: tuple[tuple[str, str], ...] = (),
        event_time: int = 0,
        deliver_at: int | None = None,
        sequence_id: int | None = None,
    ) -> None:
        self.payload, self.key = payload, key
        self.ordering_key, self.properties = ordering_key, properties
        self.event_time, self.deliver_at, self.sequence_id = event_time, deliver_at, sequence_id

    def write_to(self, metadata: MessageMetadata) -> None:
        """Write all fields except payload and sequence id into the metadata of an entry that contains only this message."""
        self.write_keys_to(metadata)
        for key, value in self.properties:
            metadata.properties.add(key=key, value=value)
        if self.event_time:
            metadata.event_time = self.event_time
        if self.payload is None:
            metadata.null_value = True
        if self.deliver_at is not None:
            metadata.deliver_at_time = self.deliver_at

    def batch_prefix(self) -> bytes:
        """Return the encoded metadata with its size, which precedes the payload in a batch."""
        has_key = self.key is not None or self.ordering_key is not None
        if not (has_key or self.properties or self.event_time) and self.payload is not None:
            return PLAIN_PREFIXES[len(self.payload)]
        key, is_binary = self.key, False
        if isinstance(key, bytes):
            key, is_binary = base64.b64encode(key).decode(), True
        return encode_prefix(
            -1 if self.payload is None else len(self.payload), self.properties, key, is_binary, self.ordering_key, self.event_time
        )

    def write_keys_to(self, metadata: MessageMetadata) -> None:
        """Write the key and the ordering key into the metadata of an entry; brokers dispatch entries by them."""
        if isinstance(self.key, bytes):
            metadata.partition_key = base64.b64encode(self.key).decode()
            metadata.partition_key_b64_encoded = True
        elif self.key is not None:
            metadata.partition_key = self.key
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key


PLAIN = OutgoingMessage(b"")
"""Stands for any message that has only a payload, which is passed separately; see `Batcher.add_plain`."""


class _Batch:
    """The messages of a batch entry that is not sent yet.

    `parts` are the encoded metadata and the payload of each message; `futures` receive the ids, one for each message.
    """

    __slots__ = ("first_message", "futures", "parts")

    def __init__(self, first: OutgoingMessage) -> None:
        self.first_message = first
        self.parts: list[bytes] = []
        self.futures: list[asyncio.Future[MessageId]] = []


class Batcher:
    """Collects the messages of one producer into batches.

    `partition` is the partition index in the ids of its messages, -1 for an unpartitioned topic.
    """

    def __init__(self, producer: EntryProducer, batching: Batching, partition: int) -> None:
        self._producer, self._batching, self._partition = producer, batching, partition
        self._is_chunking = producer.settings.chunking
        self._max_bytes = batching.max_bytes
        """The limit of the next batch: not above the limit of the broker, once that is known."""
        self._batches: dict[object, _Batch] = {}
        """Batches by (ordering key, key), or the only batch by None."""
        self._message_count = self._batch_bytes = 0
        """Totals of all batches."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future

    def add(self, message: OutgoingMessage) -> "asyncio.Future[MessageId]":
        """Add a message to a batch, which is sent when it is full or its delay is over.

        The future returns the message id, or fails with ClusterError.
        """
        return self._add(message, message.payload)

    def add_plain(self, payload: bytes) -> "asyncio.Future[MessageId]":
        """Add a message that has only a payload; faster than `add` if the message neither begins nor completes a batch."""
        prefix = PLAIN_PREFIXES[len(payload)]
        size = self._batch_bytes + len(prefix) + len(payload)
        batch = self._batches.get(None)
        if batch is None or size >= self._max_bytes or self._message_count + 1 >= self._batching.max_messages:
            return self._add(PLAIN, payload)
        future: asyncio.Future[MessageId] = self._create_future()
        batch.parts += (prefix, payload)
        batch.futures.append(future)
        self._message_count += 1
        self._batch_bytes = size
        return future

    def _add(self, message: OutgoingMessage, payload: bytes | None) -> "asyncio.Future[MessageId]":
        """Add a message with this payload to a batch, or send it alone (see the module's docstring). None is a tombstone."""
        future: asyncio.Future[MessageId] = self._create_future()
        batching = self._batching
        may_be_split = self._is_chunking and payload is not None and len(payload) > self._max_bytes
        if message.deliver_at is not None or message.sequence_id is not None or batching.max_messages <= 1 or may_be_split:
            self.flush()
            self._send_alone(message, payload, future)
            return future
        # PLAIN has no payload of its own, so its own prefix would contain a wrong size.
        prefix = message.batch_prefix() if payload is None or message is not PLAIN else PLAIN_PREFIXES[len(payload)]
        payload = payload or b""
        size = len(prefix) + len(payload)
        if self._message_count and self._batch_bytes + size > self._max_bytes:
            self.flush()
        key = (message.ordering_key, message.key) if batching.by_key else None
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(message)
        batch.parts += (prefix, payload)
        batch.futures.append(future)
        self._message_count += 1
        self._batch_bytes += size
        is_first = self._timer is None
        if self._message_count >= batching.max_messages or self._batch_bytes >= self._max_bytes:
            self.flush()
        elif is_first and self._producer.is_rejecting:
            self.flush()  # the message fails now, and does not wait until the producer accepts entries again
        elif is_first:
            self._timer = self._loop.call_later(batching.max_delay_s, self.flush)
        return future

    def _send_alone(self, message: OutgoingMessage, payload: bytes | None, future: "asyncio.Future[MessageId]") -> None:
        """Send a message as an entry of its own."""
        metadata = MessageMetadata()
        message.write_to(metadata)
        caller = Caller(None, None, (future,))
        sent = self._producer.send(metadata, payload or b"", count=1, sequence_id=message.sequence_id, caller=caller)
        sent.add_done_callback(functools.partial(self._on_sent, [future], metadata))

    def flush(self) -> None:
        """Send all batches now, full or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches, self._batches = self._batches, {}
        self._message_count = self._batch_bytes = 0
        self._max_bytes = min(self._batching.max_bytes, self._producer.max_message_size or self._batching.max_bytes)
        for batch in batches.values():
            count = len(batch.futures)
            metadata = MessageMetadata(num_messages_in_batch=count)
            batch.first_message.write_keys_to(metadata)
            sent = self._producer.send(metadata, b"".join(batch.parts), count, caller=Caller(None, None, batch.futures))
            sent.add_done_callback(functools.partial(self._on_sent, batch.futures, metadata))

    def _on_sent(
        self, futures: "list[asyncio.Future[MessageId]]", metadata: MessageMetadata, sent: "asyncio.Future[SendResult]"
    ) -> None:
        """Complete the futures of an entry's messages with their ids, or with the error of the entry.

        `metadata` are those with which the entry was stored: of a batch, or of one message without batch framing. If the
        producer rejects entries because this one failed, the messages that wait for a full batch fail, too.
        """
        error = sent.exception()
        if error is not None:
            if self._producer.is_rejecting:
                self.flush()
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        (ledger, entry, *_), partition = sent.result(), self._partition
        new_tuple = tuple.__new__  # does the same as MessageId's constructor, at less than half its cost
        for batch_index, future in enumerate(futures, 0 if metadata.HasField("num_messages_in_batch") else -1):
            try:
                future.set_result(new_tuple(MessageId, (ledger, entry, partition, batch_index)))
            except asyncio.InvalidStateError:
                continue  # the caller has cancelled the future

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send all batches, wait at most `timeout` seconds for their receipts, and close the producer.

        Messages that have no receipt by then fail.
        """
        self.flush()
        await self._producer.close(timeout)
