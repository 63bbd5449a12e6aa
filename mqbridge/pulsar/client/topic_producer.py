"""Messages to all partitions of a topic: a key decides by its hash, what has none goes round, batch by batch.

The number of partitions is asked for again now and then. When it grows, keys are hashed over the new number: messages of a key
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
from mqbridge.pulsar.client.batching import PLAIN, Batcher, Batching, MessageId, OutgoingMessage
from mqbridge.pulsar.client.client import REFRESH_S, PulsarClient
from mqbridge.pulsar.client.producer import Producer
from mqbridge.pulsar.client.publication import Publication
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
        client: PulsarClient,
        topic: str,
        publication: Publication,
        batching: Batching,
        key_hash: KeyHash,
        refresh_s: float,
    ) -> None:
        self.topic = topic
        self.partitions = 0
        """How many there are; 0 for a topic without."""
        self._client, self._publication, self._batching = client, publication, batching
        self._hash, self._refresh_s = _HASHES[key_hash], refresh_s
        self._name = parse_topic(topic)
        self._batchers: dict[int, Batcher] = {}
        self._producers: dict[int, Producer] = {}
        self._turn, self._left = 0, batching.max_messages
        self._at_turn: Batcher | None = None
        """Takes what has no key, for `_left` messages less one."""
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Find the partitions, and open the first one to see that it can be. Raises ClusterError."""
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

    def send(self, payload: bytes | None, **said: Any) -> "asyncio.Future[MessageId]":
        """Send a message; what else it says is named as in `OutgoingMessage`. The future fails with ClusterError."""
        if said or payload is None:
            return self.send_message(OutgoingMessage(payload, **said))
        batcher = self._at_turn
        if batcher is None or self._left <= 1:
            batcher = self._at_turn = self._batcher_for(PLAIN)
        else:
            self._left -= 1
        return batcher.put_plain(payload)

    def send_message(self, message: OutgoingMessage) -> "asyncio.Future[MessageId]":
        """Send a message."""
        return self._batcher_for(message).add(message)

    def _batcher_for(self, message: OutgoingMessage) -> Batcher:
        if self._closed:
            raise ClusterError(f"the producer of {self.topic} is closed", Failure.FATAL)
        partition = self.partition_of(message)
        return self._batchers.get(partition) or self._batcher(partition)

    def partition_of(self, message: OutgoingMessage) -> int:
        """Where a message goes; asked for one without a key, it is the next one's turn."""
        if message.key is None:
            return self._next_turn()
        if not self.partitions:
            return -1
        key = message.key if isinstance(message.key, str) else base64.b64encode(message.key).decode()
        return self._hash(key) % self.partitions

    def _next_turn(self) -> int:
        """The same partition for as many messages as make a batch."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._batching.max_messages
            self._turn += 1
            self._at_turn = None
        return self._turn % self.partitions if self.partitions else -1

    def producer(self, partition: int) -> Producer:
        """The producer of a partition that was sent to; -1 is the topic without partitions."""
        return self._producers[partition]

    def _batcher(self, partition: int) -> Batcher:
        batcher = self._batchers.get(partition)
        if batcher is None:
            topic = self.topic if partition < 0 else str(self._name.partition(partition))
            producer = self._producers[partition] = self._client.producer(topic, self._publication)
            batcher = self._batchers[partition] = Batcher(producer, self._batching, partition)
        return batcher

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                count = await self._client.partitions(self.topic)
            except ClusterError as error:
                log.log(level_of(error, logging.WARNING), "looking for new partitions of %s: %s", self.topic, error)
                continue
            if count is not None and count > self.partitions:
                log.info("%s has %d partitions now, %d before", self.topic, count, self.partitions)
                self.partitions = count

    async def flush(self) -> None:
        """Send what has gathered and wait until it has its receipts."""
        for batcher in self._batchers.values():
            batcher.flush()
        await asyncio.gather(*(producer.flush() for producer in self._producers.values()))

    async def close(self) -> None:
        """Wait for the receipts (see `Producer.close`) and close."""
        self._closed, self._at_turn = True, None
        await cancel(self._refreshing)
        await asyncio.gather(*(batcher.close() for batcher in self._batchers.values()))


async def open_topic_producer(
    client: PulsarClient,
    topic: str,
    publication: Publication | None = None,
    *,
    batching: Batching | None = None,
    key_hash: KeyHash = "java",
    refresh_s: float = REFRESH_S,
) -> TopicProducer:
    """A producer of messages to all partitions of a topic, new ones included. Raises ClusterError."""
    producer = TopicProducer(client, topic, publication or Publication(), batching or Batching(), key_hash, refresh_s)
    await producer.open()
    return producer
