"""Receives the entries of all partitions of several topics, or of all topics that match a pattern.

Each entry is returned with the consumer of its partition, which acknowledges it. Consumers are served round-robin.

Subscribing never creates a topic that a pattern has found, because a deleted topic would be re-created at once. A partition that
the metadata counts but that does not exist yet is consumed when it is listed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.contract import CLOSE_TIMEOUT_S
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.base_client import REFRESH_S, BaseClient
from mqbridge.pulsar.client.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.client.topic_watch import TopicWatch
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.names import parse_topic

log = logging.getLogger(__name__)


class TopicConsumer:
    """Consumer of topics; create it with `open_topic_consumer` or `open_pattern_consumer`."""

    def __init__(
        self,
        client: BaseClient,
        topics: Sequence[str],
        watch: TopicWatch | None,
        subscription: Subscription,
        refresh_s: float,
    ) -> None:
        self.consumers: dict[str, EntryConsumer] = {}
        """Concrete topic name -> its consumer."""
        self._client, self._watch, self._subscription, self._refresh_s = client, watch, subscription, refresh_s
        self._topics = set(topics)
        self._budget = ReceiveBudget(subscription.max_bytes)
        self._order: list[EntryConsumer] = []
        self._next = 0
        self._changed = asyncio.Event()
        self._subscribing = asyncio.Lock()
        """Held during a check for partitions: two concurrent checks could consume the same partition, and one consumer would
        never be closed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: ClusterError | None = None
        self.closed = False
        """True once `close` was called."""

    async def open(self) -> None:
        """Subscribe to every partition. Raises ClusterError after closing everything again."""
        try:
            if self._watch is not None:
                self._topics |= (await self._watch.next_change()).added
            self._budget.consumers = len(self._topics)
            for topic in sorted(self._topics):
                await self._subscribe(topic, missing_is_fatal=self._watch is None)
        except BaseException:
            await self.close()
            raise
        self._tasks.append(spawn(self._refresh_partitions(), "partitions of consumed topics"))
        if self._watch is not None:
            self._tasks.append(spawn(self._apply_topic_changes(self._watch), "topics that match"))

    async def receive(self) -> tuple[EntryConsumer, Entry]:
        """Wait for the next entry; return its consumer and the entry. Raises ClusterError if one consumer or all have failed."""
        while True:
            if (taken := self.take()) is not None:
                return taken
            if self.ended is not None:
                raise self.ended
            for consumer in self.failed_consumers():
                assert consumer.ended is not None  # noqa: S101 - it has failed
                raise consumer.ended
            await self.wait()

    def take(self) -> tuple[EntryConsumer, Entry] | None:
        """Return the next buffered entry with its consumer; None without one."""
        order = self._order
        for step in range(len(order)):
            consumer = order[(self._next + step) % len(order)]
            entry = consumer.take()
            if entry is not None:
                self._next += step + 1
                return consumer, entry
        return None

    def failed_consumers(self) -> list[EntryConsumer]:
        """Return the consumers that have failed; their `ended` is the error."""
        return [each for each in self._order if each.ended is not None and not each.closed and not self._is_gone(each.ended)]

    @property
    def ended(self) -> ClusterError | None:
        """The error that ended the whole consumer: it was closed, or the topics of its pattern cannot be listed."""
        return self._ended

    async def wait(self) -> None:
        """Wait until an entry may have arrived or a consumer may have failed."""
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Wake all callers of `wait`, so that they check again."""
        self._changed.set()

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str, *, missing_is_fatal: bool) -> None:
        """Open consumers for the partitions of this topic that have none."""
        name = parse_topic(topic)
        count = await self._client.partitions(topic, create=missing_is_fatal and self._subscription.create_topic)
        if count is None:
            if missing_is_fatal:
                raise ClusterError(f"there is no topic {topic}: create it", Failure.FATAL)
            return
        concrete = [str(name.partition(index)) for index in range(count)] or [topic]
        self._budget.consumers = max(self._budget.consumers, len(concrete))
        for each in concrete:
            if each in self.consumers and self._is_gone(self.consumers[each].ended):
                await self._drop(each)
            if each not in self.consumers:
                await self._consume(each)

    async def _consume(self, topic: str) -> None:
        try:
            consumer = await self._client.consumer(topic, self._subscription, self._budget)
        except ClusterError as error:
            if not self._is_gone(error):
                raise
            log.info("%s is listed but does not exist yet: %s", topic, error)
            return
        consumer.on_change = self.wake
        self.consumers[topic] = consumer
        self._order.append(consumer)
        self.wake()

    def _is_gone(self, error: ClusterError | None) -> bool:
        """Return True if the error means that a topic of the pattern does not exist; the watch reports its creation."""
        return self._watch is not None and codes.is_missing(error)

    async def _drop_topic(self, topic: str) -> None:
        """Close the consumers of a deleted topic; their buffered entries are dropped."""
        gone = [each for each in self.consumers if str(parse_topic(each).parent) == topic or each == topic]
        for each in gone:
            await self._drop(each)

    async def _drop(self, topic: str) -> None:
        consumer = self.consumers.pop(topic)
        self._order.remove(consumer)
        await consumer.close()

    async def _refresh_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            for topic in sorted(self._topics):
                await self._try_subscribing(topic)

    async def _apply_topic_changes(self, watch: TopicWatch) -> None:
        while True:
            try:
                change = await watch.next_change()
            except ClusterError as error:
                self._ended = error
                self.wake()
                return
            self._topics = set(watch.topics)
            for topic in sorted(change.removed):
                await self._drop_topic(topic)
            for topic in sorted(change.added):
                await self._try_subscribing(topic)

    async def _try_subscribing(self, topic: str) -> None:
        try:
            async with self._subscribing:
                await self._subscribe(topic, missing_is_fatal=False)
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "checking for new partitions of %s failed: %s", topic, error)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the acknowledgements and close all consumers, within `timeout` seconds."""
        self.closed = True
        deadline = asyncio.get_running_loop().time() + timeout
        await cancel(*self._tasks)
        if self._ended is None:
            self._ended = ClusterError("the consumer is closed", Failure.FATAL)
        self.wake()
        await asyncio.gather(*(consumer.close(deadline) for consumer in self.consumers.values()))
        if self._watch is not None:
            await self._watch.close()


async def open_topic_consumer(
    client: BaseClient, topics: str | Sequence[str], subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """Open a consumer of all partitions of these topics, new partitions included. Raises ClusterError."""
    names = [topics] if isinstance(topics, str) else list(topics)
    consumer = TopicConsumer(client, names, None, subscription, refresh_s)
    await consumer.open()
    return consumer


async def open_pattern_consumer(
    client: BaseClient, namespace: str, pattern: str, subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """Open a consumer of the topics of a namespace that match a pattern (see `wire.topic_lists`). Raises ClusterError."""
    watch = client.watch_topics(namespace, pattern, refresh_s)
    consumer = TopicConsumer(client, [], watch, replace(subscription, create_topic=False), refresh_s)
    await consumer.open()
    return consumer
