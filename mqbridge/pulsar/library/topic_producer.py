"""Chooses the partition of each message: by the hash of its key; messages without a key go round, batch by batch.

The number of partitions is requested again at intervals. When it grows, keys are hashed over the new number: messages of a key
that moves may be read before older ones of the same key, as with every Pulsar client.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Any, Literal

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.base_client import REFRESH_S, BaseClient
from mqbridge.pulsar.client.entry_producer import CLOSE_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer_settings import ProducerSettings
from mqbridge.pulsar.library.batching import PLAIN, Batcher, Batching, MessageId, OutgoingMessage
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.names import parse_topic

log = logging.getLogger(__name__)

KeyHash = Literal["java", "murmur3"]
_HASHES: dict[str, Callable[[str], int]] = {
    "java": java_string_hash,
    "murmur3": lambda key: murmur3_32(key.encode()),
}


class TopicProducer:
    """Made by `open_topic_producer`."""

    def __init__(
        self,
        client: BaseClient,
        topic: str,
        settings: ProducerSettings,
        batching: Batching,
        key_hash: KeyHash,
        refresh_s: float,
    ) -> None:
        self.topic = topic
        self.partitions = 0
        """Number of partitions; 0 for an unpartitioned topic."""
        self._client, self._settings, self._batching = client, settings, batching
        self._hash, self._refresh_s = _HASHES[key_hash], refresh_s
        self._name = parse_topic(topic)
        self._batchers: dict[int, Batcher] = {}
        self._producers: dict[int, EntryProducer] = {}
        self._next, self._left = 0, batching.max_messages
        self._unkeyed: Batcher | None = None
        """Takes messages without a key, for `_left` - 1 more."""
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Find the partitions, and open the first one to see that it can be opened. Raises ClusterError."""
        count = await self._client.partitions(self.topic, create=True)
        if count is None:
            raise ClusterError(f"there is no topic {self.topic}: create it", Failure.FATAL)
        self.partitions = count
        self._batcher(0 if count else -1)
        try:
            await self.producer(0 if count else -1).opened()
        except BaseException:
            await self.close()
            raise
        if count:
            self._refreshing = spawn(self._refresh(), f"partitions of {self.topic}")

    def send(self, payload: bytes | None, **fields: Any) -> "asyncio.Future[MessageId]":
        """Send a message with these fields of `OutgoingMessage`. The future fails with ClusterError."""
        if fields or payload is None:
            return self.send_message(OutgoingMessage(payload, **fields))
        batcher = self._unkeyed
        if batcher is None or self._left <= 1:
            batcher = self._unkeyed = self._batcher_for(PLAIN)
        else:
            self._left -= 1
        return batcher.put_plain(payload)

    def send_message(self, message: OutgoingMessage, partition: int | None = None) -> "asyncio.Future[MessageId]":
        """Send a message, to this partition if one is given. Raises ClusterError (REFUSED) if there is no such partition."""
        return self._batcher_for(message, partition).add(message)

    def _batcher_for(self, message: OutgoingMessage, partition: int | None = None) -> Batcher:
        if self._closed:
            raise ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL)
        if partition is None:
            partition = self.partition_of(message)
        elif not 0 <= partition < self.partitions:
            raise ClusterError(f"{self.topic} has {self.partitions} partitions: no partition {partition}", Failure.REFUSED)
        return self._batchers.get(partition) or self._batcher(partition)

    def partition_of(self, message: OutgoingMessage) -> int:
        """Choose the partition of a message; without a key, the next one in turn."""
        if message.key is None:
            return self._next_in_turn()
        if not self.partitions:
            return -1
        key = message.key if isinstance(message.key, str) else base64.b64encode(message.key).decode()
        return self._hash(key) % self.partitions

    def _next_in_turn(self) -> int:
        """Return the same partition for as many messages as make a batch."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._batching.max_messages
            self._next += 1
            self._unkeyed = None
        return self._next % self.partitions if self.partitions else -1

    def producer(self, partition: int) -> EntryProducer:
        """Return the producer of a partition that was sent to; -1 is the unpartitioned topic."""
        return self._producers[partition]

    def _batcher(self, partition: int) -> Batcher:
        batcher = self._batchers.get(partition)
        if batcher is None:
            topic = self.topic if partition < 0 else str(self._name.partition(partition))
            producer = self._producers[partition] = self._client.producer(topic, self._settings)
            batcher = self._batchers[partition] = Batcher(producer, self._batching, partition)
        return batcher

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                count = await self._client.partitions(self.topic)
            except ClusterError as error:
                log.log(level_of(error, logging.WARNING), "checking for new partitions of %s: %s", self.topic, error)
                continue
            if count is not None and count > self.partitions:
                log.info("%s has %d partitions now, %d before", self.topic, count, self.partitions)
                self.partitions = count

    @property
    def duplicates(self) -> int:
        """Entries that the broker had stored before."""
        return sum(producer.duplicates for producer in self._producers.values())

    async def last_sequence_id(self) -> int:
        """Open the producers of all partitions; return the highest sequence id that is stored under their name, -1 if none."""
        numbers = range(self.partitions) if self.partitions else [-1]
        for number in numbers:
            self._batcher(number)
        producers = [self._producers[number] for number in numbers]
        await asyncio.gather(*(producer.opened() for producer in producers))
        return max(producer.last_sequence_id for producer in producers)

    def send_batches(self) -> None:
        """Send the messages that wait for their batches to fill."""
        for batcher in self._batchers.values():
            batcher.flush()

    async def flush(self) -> None:
        """Send the messages that wait for their batches to fill, and wait for all receipts."""
        self.send_batches()
        await asyncio.gather(*(producer.flush() for producer in self._producers.values()))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait for the receipts, at most `timeout` seconds (see `EntryProducer.close`), and close."""
        self._closed, self._unkeyed = True, None
        await cancel(self._refreshing)
        await asyncio.gather(*(batcher.close(timeout) for batcher in self._batchers.values()))


async def open_topic_producer(
    client: BaseClient,
    topic: str,
    settings: ProducerSettings | None = None,
    *,
    batching: Batching | None = None,
    key_hash: KeyHash = "java",
    refresh_s: float = REFRESH_S,
) -> TopicProducer:
    """Open a producer of messages to all partitions of a topic, new ones included. Raises ClusterError."""
    producer = TopicProducer(client, topic, settings or ProducerSettings(), batching or Batching(), key_hash, refresh_s)
    await producer.open()
    return producer
