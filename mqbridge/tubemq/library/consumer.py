"""Receive messages as a member of a group: the consumer of `TubeMQClient.consumer`.

Every partition that the Master assigns to this member has a `PartitionFeed`, which puts its packs into the `DeliveryQueue`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from datetime import datetime, tzinfo
from typing import Self

from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.pack_consumer import PackConsumer
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.library.delivered_pack import DeliveredPack
from mqbridge.tubemq.library.delivery_queue import DeliveryQueue
from mqbridge.tubemq.library.partition_feed import PartitionFeed


class Consumer:
    """Hands out the messages of the member's partitions, and acknowledges them.

    TubeMQ confirms packs: the messages that a Broker sent together, half a MiB at most, or one larger message. A pack is
    confirmed when all of its messages are acknowledged, and only then the Broker sends the next pack of the partition. So a
    message that is never acknowledged stops its partition. When the partition moves or the consumer is closed, a pack that is
    not confirmed is delivered again as a whole.
    """

    def __init__(self, member: PackConsumer, *, zone: tzinfo, types: Mapping[str, Collection[str]]) -> None:
        self._member, self._zone, self._types = member, zone, types
        self._queue = DeliveryQueue()
        self._feeds: dict[tuple[str, str], PartitionFeed] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._assigning = spawn(self._assign(), "tubemq consumer: assignments")
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """Topic and name of each partition that is held now."""
        return [(ref.topic, ref.name) for ref in self._member.held_partitions.refs]

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait for it, at most `timeout` seconds. Any number of tasks may wait.

        A damaged message has a `defect`, and the bytes as they came. Raises TimeoutError; GapError once for each partition whose
        Broker deleted messages that were never read, whereupon the partition is read on behind the gap; ClusterError when this
        consumer is closed, or the group cannot continue.
        """
        return await self._queue.get(timeout)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while not self._closed:
            try:
                message = await self._queue.get(None)
            except ClusterError:
                if self._closed:
                    return
                raise
            yield message

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark a message as done. The Broker hears of it when all messages of its pack are done.

        Returns False, and does nothing, when the message is no longer this consumer's: its partition moved to another member, its
        pack was negatively acknowledged, or `seek` left it behind. It is then delivered again.
        """
        return self._pack_of(message).acknowledge(message.position[1])

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have the message's pack delivered again after `delay_s` seconds, without the messages acknowledged so far.

        The partition waits meanwhile. Messages of the pack that the program still has are delivered again, too: they cannot be
        acknowledged any more. `delivery_count` counts the deliveries of a pack to this consumer. Returns like `acknowledge`.
        """
        return self._pack_of(message).reject(delay_s)

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group: to an end of every partition that this consumer holds, or to a message in its partition.

        The next message received of a partition is the one there. Raises ClusterError: FATAL for a time, which TubeMQ cannot
        look up; RETRY when a partition is not held, or its Broker did not answer.
        """
        if isinstance(to, datetime):
            raise ClusterError("TubeMQ cannot seek to a time: its offsets have no times", Failure.FATAL)
        if isinstance(to, ReceivedMessage):
            feed = self._feeds.get((to.topic, to.partition))
            if feed is None or feed.partition.revoked.is_set():
                raise ClusterError(f"partition {to.partition} of topic {to.topic!r} is not held by this consumer now")
            await _sought(feed.seek(*to.position))
            return
        held = [feed for feed in self._feeds.values() if not feed.partition.revoked.is_set()]
        if not held:
            problem = (
                "this consumer holds no partition yet, so there is nothing to seek: the Master assigns them after a few seconds"
            )
            raise ClusterError(problem)
        await asyncio.gather(*(_sought(feed.seek_to_start() if to == "earliest" else feed.seek_to_end()) for feed in held))

    async def flush(self) -> None:
        """Wait until the Brokers have every confirmed pack. Raises ClusterError.

        Acknowledgements of a pack of which other messages are not acknowledged have no effect at the Broker yet.
        """
        held = list(self._member.held_partitions.held.values())
        await asyncio.gather(*(partition.commit_confirmed() for partition in held))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Confirm the packs that are done, give the partitions back and leave the group, within `timeout` seconds.

        Iteration then ends, and `receive` raises ClusterError.
        """
        if self._closed:
            return
        self._closed = True
        self._queue.end(ClusterError(f"the consumer of group {self._member.membership.group!r} is closed", Failure.FATAL))
        try:
            await self._member.close(timeout)  # ends the feeds: cancelling one would leave its request unanswered
        finally:
            await cancel(self._assigning, *self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _pack_of(message: ReceivedMessage) -> DeliveredPack:
        pack = message.handle
        if not isinstance(pack, DeliveredPack):
            raise TypeError("a message is acknowledged by the consumer that handed it out; this one is not TubeMQ's")
        return pack

    async def _assign(self) -> None:
        try:
            async for partition in self._member.assignments():
                task = spawn(self._read(partition), f"tubemq consumer: {partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except ClusterError as error:
            self._queue.end(error)

    async def _read(self, partition: HeldPartition) -> None:
        ref = partition.ref
        feed = self._feeds[ref.topic, ref.name] = PartitionFeed(
            partition, self._queue, self._zone, self._types.get(ref.topic, ())
        )
        try:
            await feed.run()
        finally:
            if self._feeds.get((ref.topic, ref.name)) is feed:
                del self._feeds[ref.topic, ref.name]


async def _sought(seek: Awaitable[None]) -> None:
    try:
        await seek
    except LaneRevoked as error:
        raise ClusterError(f"the seek has no effect: {error}") from error
