"""Receives the entries of all partitions of several topics, or of all topics that match a pattern.

Each entry is returned with the consumer of its partition, which acknowledges it. The consumers are read round-robin.

With a pattern, subscribing never creates a topic: a deleted topic would be re-created at once. If a partition is listed but does
not exist yet, the next check for new partitions subscribes to it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.contract import CLOSE_TIMEOUT_S
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.cluster_client import REFRESH_S, ClusterClient
from mqbridge.pulsar.client.connection.topic_watch import TopicWatch
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.names import parse_topic

log = logging.getLogger(__name__)


class TopicConsumer:
    """Consumer of topics; create it with `open_topic_consumer` or `open_pattern_consumer`.

    `watch` reports the topics that match the pattern; it is None without a pattern. Every `refresh_s` seconds,
    this consumer checks for new partitions.
    """

    def __init__(
        self,
        client: ClusterClient,
        topics: Sequence[str],
        watch: TopicWatch | None,
        subscription: Subscription,
        refresh_s: float,
    ) -> None:
        self._home = HomeLoop(f"the consumer of subscription {subscription.name!r}")
        self.consumers: dict[str, EntryConsumer] = {}
        """Full name of a partition or of an unpartitioned topic -> its consumer."""
        self._client, self._watch = client, watch
        self.subscription, self._refresh_s = subscription, refresh_s
        self._topics = set(topics)
        self._budget = ReceiveBudget(subscription.max_bytes)
        self._round_robin: list[EntryConsumer] = []
        self._next_index = 0
        """Index in `_round_robin`, modulo its length, at which the next `take` begins."""
        self._changed = asyncio.Event()
        """Set by `wake`, and cleared by each `wait`."""
        self._subscribe_lock = asyncio.Lock()
        """Held during a check for new partitions: two concurrent checks could both subscribe to a partition, and one of the two
        consumers would never be closed."""
        self._tasks: list[asyncio.Task[None]] = []
        self._end_error: ClusterError | None = None
        self.closed = False
        """True once `close` was called."""

    async def open(self) -> None:
        """Subscribe to every partition. Raises ClusterError after closing everything again."""
        try:
            if self._watch is not None:
                self._topics |= (await self._watch.next_change()).added
            self._budget.consumers = len(self._topics)  # at least; the budget also counts those that join
            for topic in sorted(self._topics):
                await self._subscribe(topic, missing_is_fatal=self._watch is None)
        except BaseException:
            await self.close()
            raise
        self._tasks.append(spawn(self._refresh_partitions(), "partitions of consumed topics"))
        if self._watch is not None:
            self._tasks.append(spawn(self._apply_topic_changes(self._watch), "topics that match"))

    async def receive(self) -> tuple[EntryConsumer, Entry]:
        """Wait for the next entry; return its consumer and the entry.

        Raises ClusterError if the consumer of a partition has failed, or this consumer has ended (`end_error`).
        """
        self._home.check()
        while True:
            if (received := self.take()) is not None:
                return received
            if self.end_error is not None:
                raise self.end_error
            for consumer in self.failed_consumers():
                assert consumer.end_error is not None  # noqa: S101 - it has failed
                raise consumer.end_error
            await self.wait()

    def take(self) -> tuple[EntryConsumer, Entry] | None:
        """Return the next queued entry with its consumer; None if no entry is queued."""
        consumers = self._round_robin
        for step in range(len(consumers)):
            consumer = consumers[(self._next_index + step) % len(consumers)]
            entry = consumer.take()
            if entry is not None:
                self._next_index += step + 1
                return consumer, entry
        return None

    def failed_consumers(self) -> list[EntryConsumer]:
        """Return the consumers that ended with an error, except closed ones and those of deleted topics of a pattern."""
        return [
            each
            for each in self._round_robin
            if each.end_error is not None and not each.closed and not self._is_missing_in_pattern(each.end_error)
        ]

    @property
    def end_error(self) -> ClusterError | None:
        """The error that ended this consumer as a whole: it was closed, or the topics of its pattern cannot be listed."""
        return self._end_error

    async def wait(self) -> None:
        """Wait until the state of a consumer changes: afterwards an entry may be queued, or a consumer may have failed."""
        self._home.check()
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Wake all callers of `wait`, so that they check again."""
        self._changed.set()

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str, *, missing_is_fatal: bool) -> None:
        """Open consumers for the partitions of this topic that have none.

        With `missing_is_fatal`, a missing topic is auto-created if the subscription allows that, otherwise it raises ClusterError
        (FATAL). Without, a missing topic is ignored.
        """
        name = parse_topic(topic)
        count = await self._client.partitions(topic, create=missing_is_fatal and self.subscription.create_topic)
        if count is None:
            if missing_is_fatal:
                raise ClusterError(f"topic {topic} does not exist: create it", Failure.FATAL)
            return
        partitions = [str(name.partition(index)) for index in range(count)] or [topic]  # a count of 0: unpartitioned
        # At least this many consumers will share the budget: the first ones must not take the memory of the later ones.
        self._budget.consumers = max(self._budget.consumers, len(partitions))
        for partition in partitions:
            if partition in self.consumers and self._is_missing_in_pattern(self.consumers[partition].end_error):
                await self._drop_consumer(partition)  # it was deleted and created again
            if partition not in self.consumers:
                await self._open_consumer(partition)

    async def _open_consumer(self, topic: str) -> None:
        """Open the consumer of a partition, or of an unpartitioned topic."""
        try:
            consumer = await self._client.consumer(topic, self.subscription, self._budget)
        except ClusterError as error:
            if not self._is_missing_in_pattern(error):
                raise
            log.info("topic %s is listed but does not exist yet, subscribing at a later check: %s", topic, error)
            return
        consumer.on_change = self.wake
        self.consumers[topic] = consumer
        self._round_robin.append(consumer)
        self.wake()

    def _is_missing_in_pattern(self, error: ClusterError | None) -> bool:
        """Return True if the error says that a topic does not exist and this consumer has a pattern.

        Then it is no failure: the topic was deleted, and the watch will report if it is created again.
        """
        return self._watch is not None and codes.is_topic_missing(error)

    async def _drop_topic(self, topic: str) -> None:
        """Close the consumers of a deleted topic; their queued entries are dropped."""
        deleted = [each for each in self.consumers if str(parse_topic(each).parent) == topic or each == topic]
        for each in deleted:
            await self._drop_consumer(each)

    async def _drop_consumer(self, topic: str) -> None:
        """Close and forget the consumer of a partition, or of an unpartitioned topic."""
        consumer = self.consumers.pop(topic)
        self._round_robin.remove(consumer)
        await consumer.close()

    async def _refresh_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            for topic in sorted(self._topics):
                await self._try_subscribe(topic)

    async def _apply_topic_changes(self, watch: TopicWatch) -> None:
        while True:
            try:
                change = await watch.next_change()
            except ClusterError as error:
                self._end_error = error
                self.wake()
                return
            self._topics = set(watch.topics)
            for topic in sorted(change.removed):
                await self._drop_topic(topic)
            for topic in sorted(change.added):
                await self._try_subscribe(topic)

    async def _try_subscribe(self, topic: str) -> None:
        """Subscribe to new partitions of this topic; an error is logged, and the next check tries again."""
        try:
            async with self._subscribe_lock:
                await self._subscribe(topic, missing_is_fatal=False)
        except ClusterError as error:
            text = "checking for new partitions of topic %s failed, trying again at the next check: %s"
            log.log(retry_log_level(error, logging.WARNING), text, topic, error)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send the pending acknowledgements and close all consumers, within `timeout` seconds."""
        if self._home.is_over():
            return
        self.closed = True
        deadline = asyncio.get_running_loop().time() + timeout
        await cancel(*self._tasks)
        if self._end_error is None:
            self._end_error = ClusterError(f"the consumer of subscription {self.subscription.name!r} is closed", Failure.FATAL)
        self.wake()
        await asyncio.gather(*(consumer.close(deadline) for consumer in self.consumers.values()))
        if self._watch is not None:
            await self._watch.close()


async def open_topic_consumer(
    client: ClusterClient, topics: str | Sequence[str], subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """Open a consumer of all partitions of these topics; it also subscribes to partitions that are added later.

    Raises ClusterError.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    consumer = TopicConsumer(client, names, watch=None, subscription=subscription, refresh_s=refresh_s)
    await consumer.open()
    return consumer


async def open_pattern_consumer(
    client: ClusterClient, namespace: str, pattern: str, subscription: Subscription, *, refresh_s: float = REFRESH_S
) -> TopicConsumer:
    """Open a consumer of the topics of a namespace that match a pattern (see `wire.topic_lists`), including later topics.

    Raises ClusterError.
    """
    watch = client.watch_topics(namespace, pattern, refresh_s)
    consumer = TopicConsumer(client, [], watch, replace(subscription, create_topic=False), refresh_s)
    await consumer.open()
    return consumer
