"""Messages one by one into batch entries of one producer: by number, bytes and time, in one run or one batch per key.

Key_Shared subscriptions dispatch whole entries by the key of their first message, so they need batches of a single key. What must
be delivered later, or has a sequence id of its own, travels alone, behind what came before it.
"""

import asyncio
import base64
import functools
from dataclasses import dataclass
from typing import NamedTuple

from mqbridge.pulsar.client.producer import Producer
from mqbridge.pulsar.client.sending import SendReceipt
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.single_metadata import PLAIN_PREFIXES, encode_prefix


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch is sent. `max_messages=1` sends every message as an entry of its own, without a batch's framing."""

    max_messages: int = 1000
    max_bytes: int = 128 << 10
    max_delay_s: float = 0.01
    by_key: bool = False
    """A batch for each key; the limits are those of all together."""


class MessageId(NamedTuple):
    """Where a message was stored; -1 for what does not apply: no partition, no batch, a duplicate's ledger and entry."""

    ledger: int
    entry: int
    partition: int
    batch_index: int


class OutgoingMessage:
    """A message to send. `payload` None is a tombstone; times are ms since the epoch."""

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
        self.payload, self.key, self.ordering_key, self.properties = payload, key, ordering_key, properties
        self.event_time, self.deliver_at, self.sequence_id = event_time, deliver_at, sequence_id

    def describe(self, metadata: MessageMetadata) -> None:
        """Write all but the payload."""
        self.describe_keys(metadata)
        for key, value in self.properties:
            metadata.properties.add(key=key, value=value)
        if self.event_time:
            metadata.event_time = self.event_time
        if self.payload is None:
            metadata.null_value = True
        if self.deliver_at is not None:
            metadata.deliver_at_time = self.deliver_at

    def head(self) -> bytes:
        """What stands before the payload in a batch."""
        if self.key is self.ordering_key is None and self.payload is not None and not (self.properties or self.event_time):
            return PLAIN_PREFIXES[len(self.payload)]
        key, is_binary = self.key, False
        if isinstance(key, bytes):
            key, is_binary = base64.b64encode(key).decode(), True
        return encode_prefix(
            -1 if self.payload is None else len(self.payload), self.properties, key, is_binary, self.ordering_key, self.event_time
        )

    def describe_keys(self, metadata: MessageMetadata) -> None:
        """Write what brokers dispatch by."""
        if isinstance(self.key, bytes):
            metadata.partition_key = base64.b64encode(self.key).decode()
            metadata.partition_key_b64_encoded = True
        elif self.key is not None:
            metadata.partition_key = self.key
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key


PLAIN = OutgoingMessage(b"")
"""Says nothing; see `Batcher.put_plain`."""


class _Batch:
    """Messages that will be an entry."""

    __slots__ = ("first", "futures", "parts")

    def __init__(self, first: OutgoingMessage) -> None:
        self.first = first
        self.parts: list[bytes] = []
        self.futures: list[asyncio.Future[MessageId]] = []


class Batcher:
    """In front of one producer; `partition` is what its receipts say."""

    def __init__(self, producer: Producer, batching: Batching, partition: int) -> None:
        self._producer, self._batching, self._partition = producer, batching, partition
        self._batches: dict[object, _Batch] = {}
        self._messages = self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future

    def add(self, message: OutgoingMessage) -> "asyncio.Future[MessageId]":
        """Send a message, perhaps a little later; the future is where it was stored, or fails with ClusterError."""
        return self._put(message, message.payload)

    def put_plain(self, payload: bytes) -> "asyncio.Future[MessageId]":
        """The same for a payload of which nothing else is said. Most fit into a batch that has begun and does not end by them."""
        head = PLAIN_PREFIXES[len(payload)]
        size = self._bytes + len(head) + len(payload)
        batch = self._batches.get(None)
        if batch is None or size >= self._batching.max_bytes or self._messages + 1 >= self._batching.max_messages:
            return self._put(PLAIN, payload)
        future: asyncio.Future[MessageId] = self._future()
        batch.parts += (head, payload)
        batch.futures.append(future)
        self._messages += 1
        self._bytes = size
        return future

    def _put(self, message: OutgoingMessage, payload: bytes | None) -> "asyncio.Future[MessageId]":
        """With this payload, whatever the message has. What comes later, or has its own sequence id, cannot be in a batch."""
        future: asyncio.Future[MessageId] = self._future()
        batching = self._batching
        if message.deliver_at is not None or message.sequence_id is not None or batching.max_messages <= 1:
            self.flush()
            self._send_alone(message, payload, future)
            return future
        head = message.head() if payload is None or message is not PLAIN else PLAIN_PREFIXES[len(payload)]
        payload = payload or b""
        size = len(head) + len(payload)
        if self._messages and self._bytes + size > batching.max_bytes:
            self.flush()
        key = (message.ordering_key, message.key) if batching.by_key else None
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(message)
        batch.parts += (head, payload)
        batch.futures.append(future)
        self._messages += 1
        self._bytes += size
        if self._messages >= batching.max_messages or self._bytes >= batching.max_bytes:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(batching.max_delay_s, self.flush)
        return future

    def _send_alone(self, message: OutgoingMessage, payload: bytes | None, future: "asyncio.Future[MessageId]") -> None:
        metadata = MessageMetadata()
        message.describe(metadata)
        sent = self._producer.send(metadata, payload or b"", 1, message.sequence_id)
        sent.add_done_callback(functools.partial(self._done, [future], False))

    def flush(self) -> None:
        """Send what has gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches, self._batches = self._batches, {}
        self._messages = self._bytes = 0
        for batch in batches.values():
            count = len(batch.futures)
            metadata = MessageMetadata(num_messages_in_batch=count)
            batch.first.describe_keys(metadata)
            sent = self._producer.send(metadata, b"".join(batch.parts), count)
            sent.add_done_callback(functools.partial(self._done, batch.futures, True))

    def _done(self, futures: "list[asyncio.Future[MessageId]]", batched: bool, sent: "asyncio.Future[SendReceipt]") -> None:
        error = sent.exception()
        if error is not None:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        (ledger, entry, *_), partition = sent.result(), self._partition
        place = tuple.__new__  # what MessageId's own constructor does, at less than half its cost
        for index, future in enumerate(futures, 0 if batched else -1):
            try:
                future.set_result(place(MessageId, (ledger, entry, partition, index)))
            except asyncio.InvalidStateError:
                continue  # nobody waits any more

    async def close(self) -> None:
        """Send what has gathered and close the producer."""
        self.flush()
        await self._producer.close()
