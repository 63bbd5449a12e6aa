"""One stream out of many topics: all partitions of some topics, or of all that match a pattern, as they come and go.

What it hands out names the consumer that it came from, which is the one to acknowledge it with. Consumers take turns.

What a pattern found exists, so to subscribe never creates it: else a topic that is deleted would come back at once. A partition
that is counted and not there yet is taken when it is listed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.client import REFRESH_S, PulsarClient
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.client.credit import CreditPool
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.client.topic_watch import TopicWatch
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.names import parse_topic

log = logging.getLogger(__name__)


class TopicConsumer:
    """Made by `open_topic_consumer` and `open_pattern_consumer`."""

    def __init__(
        self,
        client: PulsarClient,
        topics: Sequence[str],
        watch: TopicWatch | None,
        subscription: Subscription,
        refresh_s: float,
    ) -> None:
        self.consumers: dict[str, Consumer] = {}
        """By concrete topic."""
        self._client, self._watch, self._subscription, self._refresh_s = client, watch, subscription, refresh_s
        self._topics = set(topics)
        self._pool = CreditPool(subscription.max_bytes)
        self._order: list[Consumer] = []
        self._turn = 0
        self._changed = asyncio.Event()
        self._subscribing = asyncio.Lock()
        """One look at a time: two that find the same partition would both consume it, and one is never closed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: ClusterError | None = None

    async def open(self) -> None:
        """Subscribe to all there is. Raises ClusterError; then nothing stays open."""
        try:
            if self._watch is not None:
                self._topics |= (await self._watch.changes()).added
            self._pool.consumers = len(self._topics)
            for topic in sorted(self._topics):
                await self._subscribe(topic, missing_is_fatal=self._watch is None)
        except BaseException:
            await self.close()
            raise
        self._tasks.append(spawn(self._grow(), "partitions of consumed topics"))
        if self._watch is not None:
            self._tasks.append(spawn(self._follow(self._watch), "topics that match"))

    async def receive(self) -> tuple[Consumer, Entry]:
        """The next entry and who has it; waits. Raises ClusterError when a consumer, or all of them, cannot go on."""
        while True:
            if (taken := self.take()) is not None:
                return taken
            if self._ended is not None:
                raise self._ended
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> tuple[Consumer, Entry] | None:
        """The next entry if there is one."""
        order = self._order
        for step in range(len(order)):
            consumer = order[(self._turn + step) % len(order)]
            entry = consumer.take()
            if entry is not None:
                self._turn += step + 1
                return consumer, entry
            if consumer.ended is not None and not consumer.closed and not self._is_gone(consumer.ended):
                self._ended = consumer.ended
        return None

    def _notify(self) -> None:
        self._changed.set()

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str, *, missing_is_fatal: bool) -> None:
        """Consume what is not consumed of this topic yet."""
        name = parse_topic(topic)
        count = await self._client.partitions(topic, create=missing_is_fatal and self._subscription.create_topic)
        if count is None:
            if missing_is_fatal:
                raise ClusterError(f"there is no topic {topic}: create it", Failure.FATAL)
            return
        concrete = [str(name.partition(index)) for index in range(count)] or [topic]
        self._pool.consumers = max(self._pool.consumers, len(concrete))
        for each in concrete:
            if each in self.consumers and self._is_gone(self.consumers[each].ended):
                await self._drop(each)
            if each not in self.consumers:
                await self._consume(each)

    async def _consume(self, topic: str) -> None:
        try:
            consumer = await self._client.consumer(topic, self._subscription, self._pool)
        except ClusterError as error:
            if not self._is_gone(error):
                raise
            log.info("%s is not there: %s", topic, error)
            return
        consumer.on_change = self._notify
        self.consumers[topic] = consumer
        self._order.append(consumer)
        self._notify()

    def _is_gone(self, error: ClusterError | None) -> bool:
        """Whether it says that a topic of the pattern is not there: the watch tells when it is."""
        return self._watch is not None and codes.is_missing(error)

    async def _leave(self, topic: str) -> None:
        """A topic that is gone; what it had is still handed over to nobody, as it is deleted."""
        gone = [each for each in self.consumers if str(parse_topic(each).parent) == topic or each == topic]
        for each in gone:
            await self._drop(each)

    async def _drop(self, topic: str) -> None:
        consumer = self.consumers.pop(topic)
        self._order.remove(consumer)
        await consumer.close()

    async def _grow(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            for topic in sorted(self._topics):
                await self._try_subscribing(topic)

    async def _follow(self, watch: TopicWatch) -> None:
        while True:
            try:
                change = await watch.changes()
            except ClusterError as error:
                self._ended = error
                self._notify()
                return
            self._topics = set(watch.topics)
            for topic in sorted(change.removed):
                await self._leave(topic)
            for topic in sorted(change.added):
                await self._try_subscribing(topic)

    async def _try_subscribing(self, topic: str) -> None:
        try:
            async with self._subscribing:
                await self._subscribe(topic, missing_is_fatal=False)
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "looking for partitions of %s: %s", topic, error)

    async def close(self) -> None:
        """Send the acknowledgements and close all consumers."""
        await cancel(*self._tasks)
        if self._ended is None:
            self._ended = ClusterError("the consumer is closed", Failure.FATAL)
        await asyncio.gather(*(consumer.close() for consumer in self.consumers.values()))
        if self._watch is not None:
            await self._watch.close()
        self._notify()


async def open_topic_consumer(
    client: PulsarClient, topics: str | Sequence[str], subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """A consumer of all partitions of these topics, new ones included. Raises ClusterError."""
    names = [topics] if isinstance(topics, str) else list(topics)
    consumer = TopicConsumer(client, names, None, subscription, refresh_s)
    await consumer.open()
    return consumer


async def open_pattern_consumer(
    client: PulsarClient, namespace: str, pattern: str, subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """A consumer of all topics of a namespace that match (see `wire.topic_lists`), as they come and go. Raises ClusterError."""
    watch = client.watch_topics(namespace, pattern, refresh_s)
    consumer = TopicConsumer(client, [], watch, replace(subscription, create_topic=False), refresh_s)
    await consumer.open()
    return consumer
