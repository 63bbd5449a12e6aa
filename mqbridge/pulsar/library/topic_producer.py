"""Chooses the partition of each message by the hash of its key. Messages without a key go to the partitions round-robin.

The round-robin partition changes after as many messages as a batch may have, not after each message. The number of partitions is
requested periodically. When it grows, a key may move to another partition, and its messages there may be read before older ones
in the previous partition; the same happens with every Pulsar client.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.cluster_client import REFRESH_S, ClusterClient
from mqbridge.pulsar.client.producer.entry_producer import CLOSE_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
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
    """Producer of messages to all partitions of a topic; create it with `open_topic_producer`."""

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        settings: ProducerSettings,
        batching: Batching,
        key_hash: KeyHash,
        refresh_s: float,
    ) -> None:
        self.topic = topic
        self.partitions = 0
        """Number of partitions; 0 for an unpartitioned topic."""
        self.fails_in_order = settings.fails_in_order
        """See `ProducerSettings.fails_in_order`."""
        self._client, self._settings, self._batching = client, settings, batching
        self._hash, self._refresh_s = _HASHES[key_hash], refresh_s
        self._name = parse_topic(topic)
        self._batchers: dict[int, Batcher] = {}
        self._producers: dict[int, EntryProducer] = {}
        self._partition_counter, self._remaining = 0, batching.max_messages
        """Number of changes of the round-robin partition. After `_remaining` more messages it changes again; the last of them
        goes to the new partition."""
        self._unkeyed_batcher: Batcher | None = None
        """Batcher of the current round-robin partition; None after the partition has changed, until it is looked up."""
        self._refresh_task: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Request the number of partitions, and open the first partition's producer to find out whether producing is allowed.

        A missing topic is created if the broker allows that. Raises ClusterError.
        """
        count = await self._client.partitions(self.topic, create=True)
        if count is None:
            raise ClusterError(f"topic {self.topic} does not exist, and the broker did not create it: create it", Failure.FATAL)
        self.partitions = count
        first = 0 if count else -1  # -1: the unpartitioned topic
        self._get_or_open_batcher(first)
        try:
            await self.producer(first).opened()
        except BaseException:
            await self.close()
            raise
        if count:
            self._refresh_task = spawn(self._refresh_partitions(), f"partitions of {self.topic}")

    def send(self, payload: bytes | None, **fields: Any) -> "asyncio.Future[MessageId]":
        """Send a message; `fields` are arguments of `OutgoingMessage`. The future may fail with ClusterError.

        Raises ClusterError (FATAL) if the producer is closed.
        """
        if fields or payload is None:
            return self.send_message(OutgoingMessage(payload, **fields))
        batcher = self._unkeyed_batcher
        if batcher is None or self._remaining <= 1:  # with the last of `_remaining` messages the partition changes
            batcher = self._unkeyed_batcher = self._batcher_for(PLAIN)
        else:
            self._remaining -= 1
        return batcher.add_plain(payload)

    def send_message(self, message: OutgoingMessage, partition: int | None = None) -> "asyncio.Future[MessageId]":
        """Send a message to the partition with this index, or to the one that `partition_of` chooses if it is None.

        Raises ClusterError: REFUSED for a missing partition, FATAL if the producer is closed.
        """
        return self._batcher_for(message, partition).add(message)

    def _batcher_for(self, message: OutgoingMessage, partition: int | None = None) -> Batcher:
        """Choose the partition of a message and return its batcher. Raises the errors of `send_message`."""
        if self._closed:
            raise ClusterError(f"the producer of topic {self.topic} is closed", Failure.FATAL)
        if partition is None:
            partition = self.partition_of(message)
        elif not 0 <= partition < self.partitions:
            extent = f"it has {self.partitions} partitions" if self.partitions else "it is not partitioned"
            raise ClusterError(f"topic {self.topic} has no partition {partition}: {extent}", Failure.REFUSED)
        return self._batchers.get(partition) or self._get_or_open_batcher(partition)

    def partition_of(self, message: OutgoingMessage) -> int:
        """Return the partition index of a message: by its key, or round-robin without a key; -1 for an unpartitioned topic."""
        if message.key is None:
            return self._next_partition()
        if not self.partitions:
            return -1
        key = message.key if isinstance(message.key, str) else base64.b64encode(message.key).decode()
        return self._hash(key) % self.partitions

    def _next_partition(self) -> int:
        """Count a message without a key and return its partition, which changes after `max_messages` messages.

        The result is -1 for an unpartitioned topic.
        """
        self._remaining -= 1
        if self._remaining <= 0:
            self._remaining = self._batching.max_messages
            self._partition_counter += 1
            self._unkeyed_batcher = None
        return self._partition_counter % self.partitions if self.partitions else -1

    def producer(self, partition: int) -> EntryProducer:
        """Return the producer of a partition that already has one; -1 stands for the unpartitioned topic."""
        return self._producers[partition]

    def _get_or_open_batcher(self, partition: int) -> Batcher:
        """Return the batcher of a partition; create it, with its producer, if it is missing."""
        batcher = self._batchers.get(partition)
        if batcher is None:
            topic = self.topic if partition < 0 else str(self._name.partition(partition))
            # The metadata request of `open` has created a partitioned topic; one without partitions is created by PRODUCER.
            settings = replace(self._settings, is_partition=True) if partition >= 0 else self._settings
            producer = self._producers[partition] = self._client.producer(topic, settings)
            batcher = self._batchers[partition] = Batcher(producer, self._batching, partition)
        return batcher

    async def _refresh_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                count = await self._client.partitions(self.topic)
            except ClusterError as error:
                text = "checking for new partitions of topic %s failed, checking again in %g s: %s"
                log.log(retry_log_level(error, logging.WARNING), text, self.topic, self._refresh_s, error)
                continue
            if count is not None and count > self.partitions:
                log.info("topic %s has grown from %d to %d partitions", self.topic, self.partitions, count)
                self.partitions = count

    @property
    def duplicates(self) -> int:
        """Number of entries that the broker dropped as duplicates."""
        return sum(producer.duplicates for producer in self._producers.values())

    async def last_sequence_id(self) -> int:
        """Open the producers of all partitions, and return the highest sequence id stored under the producer name, -1 if none."""
        partitions = range(self.partitions) if self.partitions else [-1]
        for partition in partitions:
            self._get_or_open_batcher(partition)
        producers = [self._producers[partition] for partition in partitions]
        await asyncio.gather(*(producer.opened() for producer in producers))
        return max(producer.last_sequence_id for producer in producers)

    def send_batches(self) -> None:
        """Send all batches now, full or not."""
        for batcher in self._batchers.values():
            batcher.flush()

    async def flush(self) -> None:
        """Send all batches now, and wait for all receipts."""
        self.send_batches()
        await asyncio.gather(*(producer.flush() for producer in self._producers.values()))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Wait at most `timeout` seconds for the receipts (see `EntryProducer.close`), and close."""
        self._closed, self._unkeyed_batcher = True, None
        await cancel(self._refresh_task)
        await asyncio.gather(*(batcher.close(timeout) for batcher in self._batchers.values()))


async def open_topic_producer(
    client: ClusterClient,
    topic: str,
    settings: ProducerSettings | None = None,
    *,
    batching: Batching | None = None,
    key_hash: KeyHash = "java",
    refresh_s: float = REFRESH_S,
) -> TopicProducer:
    """Open a producer of messages to all partitions of a topic; it also sends to partitions that are added later.

    Raises ClusterError.
    """
    producer = TopicProducer(client, topic, settings or ProducerSettings(), batching or Batching(), key_hash, refresh_s)
    await producer.open()
    return producer
