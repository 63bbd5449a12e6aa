"""The consumer that `TubeMQClient.consumer` opens: receives messages as a member of a group.

Each partition that the Master assigns to this member has a `PartitionFeed`, which puts its packs into the `DeliveryQueue`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from datetime import datetime, tzinfo
from typing import Self

from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.library.contract import CLOSE_TIMEOUT_S, Start
from mqbridge.library.received import ReceivedMessage
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.library.delivered_pack import DeliveredPack
from mqbridge.tubemq.library.delivery_queue import DeliveryQueue
from mqbridge.tubemq.library.partition_feed import PartitionFeed


class Consumer:
    """Delivers the messages of the member's partitions to the program, and acknowledges them.

    TubeMQ confirms whole packs. A pack is the messages of one response of a Broker: half a MiB at most, or one larger message.
    This consumer confirms a pack when all of its messages are acknowledged; only then does the Broker send the partition's next
    pack. So a message that is never acknowledged blocks its partition. An unconfirmed pack is delivered again as a whole when the
    partition moves to another member or the consumer is closed.

    `zone` is the time zone of `$msgTime$`. `types` are the message types to receive, by topic; a topic without an entry: all.
    """

    def __init__(self, member: PackConsumer, *, zone: tzinfo, types: Mapping[str, Collection[str]]) -> None:
        self._home = HomeLoop(f"the consumer of group {member.membership.group!r}")
        self._member, self._zone, self._types = member, zone, types
        self._queue = DeliveryQueue()
        self._feeds: dict[tuple[str, str], PartitionFeed] = {}
        self._read_tasks: set[asyncio.Task[None]] = set()
        self._assign_task = spawn(self._accept_assignments(), "tubemq consumer: assignments")
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def partitions(self) -> list[tuple[str, str]]:
        """The (topic, partition name) pairs of the partitions held now."""
        return [(ref.topic, ref.name) for ref in self._member.held_partitions.refs]

    async def receive(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; wait at most `timeout` seconds for it, None: forever. Many tasks may wait at once.

        A damaged message has its `defect` set, and is raw (see `Message`). Raises
            TimeoutError   if no message arrived in time
            GapError       if a Broker deleted messages before they were read: once; reading then resumes after the gap
            ClusterError   if this consumer is closed, or the group cannot continue
        """
        self._home.check()
        return await self._queue.get(timeout)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        self._home.check()
        while not self._closed:
            try:
                message = await self._queue.get(timeout=None)
            except ClusterError:
                if self._closed:
                    return
                raise
            yield message

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Mark a message as processed. The pack is confirmed at the Broker when all of its messages are acknowledged.

        Returns False and does nothing if the delivery is no longer valid: the partition moved to another member, the pack was
        negatively acknowledged, or `seek` moved the partition. The message is then delivered again, unless the seek skipped it.
        """
        self._home.check()
        index = message.position[1]  # in the pack
        return self._pack_of(message).acknowledge(index)

    def negative_acknowledge(self, message: ReceivedMessage, delay_s: float = 0.0) -> bool:
        """Have the message's pack delivered again after `delay_s` seconds, without the messages acknowledged so far.

        Until then the partition delivers nothing. All unacknowledged messages of the pack are delivered again, and their earlier
        deliveries can no longer be acknowledged. A message's `delivery_count` counts how often its pack was negatively
        acknowledged. Returns False in the same cases as `acknowledge`.
        """
        self._home.check()
        return self._pack_of(message).reject(delay_s)

    async def seek(self, to: Start | datetime | ReceivedMessage) -> None:
        """Move the group's position: to the start or end of every partition held here, or to a message, in its partition only.

        The next message received from a partition is the one at the new position. Raises ClusterError: FATAL for a datetime,
        since TubeMQ cannot look up positions by time; RETRY if a partition is not held, or its Broker did not respond.
        """
        self._home.check()
        if isinstance(to, datetime):
            raise ClusterError("TubeMQ cannot seek to a time: it has no lookup of offsets by time", Failure.FATAL)
        if isinstance(to, ReceivedMessage):
            feed = self._feeds.get((to.topic, to.partition))
            if feed is None or feed.partition.revoked.is_set():
                raise ClusterError(f"cannot seek: this consumer does not hold partition {to.partition} of topic {to.topic!r} now")
            await _run_seek(feed.seek(*to.position))
            return
        held = [feed for feed in self._feeds.values() if not feed.partition.revoked.is_set()]
        if not held:
            raise ClusterError("cannot seek: this consumer holds no partition yet; the Master assigns some after a few seconds")
        await asyncio.gather(*(_run_seek(feed.seek_to_start() if to == "earliest" else feed.seek_to_end()) for feed in held))

    async def flush(self) -> None:
        """Send each confirmation of a pack to its Broker at once, not with the next get. Raises ClusterError.

        A pack that is only partly acknowledged is not confirmed yet.
        """
        self._home.check()
        held = list(self._member.held_partitions.held.values())
        await asyncio.gather(*(partition.commit_confirmed() for partition in held))

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the confirmed packs, release the partitions and leave the group, within `timeout` seconds.

        Iteration then ends, and `receive` raises ClusterError. A partition that is not released in time stays blocked for other
        members until its lease at the Broker expires.
        """
        if self._closed or self._home.is_over():
            return
        self._closed = True
        self._queue.end(ClusterError(f"the consumer of group {self._member.membership.group!r} is closed", Failure.FATAL))
        try:
            await self._member.close(timeout)  # also ends the feeds; cancelling a feed would abandon its request at the Broker
        finally:
            await cancel(self._assign_task, *self._read_tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _pack_of(message: ReceivedMessage) -> DeliveredPack:
        pack = message.handle
        if not isinstance(pack, DeliveredPack):
            raise TypeError("cannot acknowledge: this message was not received from a TubeMQ consumer")
        return pack

    async def _accept_assignments(self) -> None:
        """Start a reader for each partition that the Master assigns; report an error of the group to `receive`."""
        try:
            async for partition in self._member.assignments():
                task = spawn(self._read(partition), f"tubemq consumer: {partition}")
                self._read_tasks.add(task)
                task.add_done_callback(self._read_tasks.discard)
        except ClusterError as error:
            self._queue.end(error)

    async def _read(self, partition: HeldPartition) -> None:
        """Run the feed of a partition until the partition is revoked or released."""
        ref = partition.ref
        feed = self._feeds[ref.topic, ref.name] = PartitionFeed(
            partition, self._queue, self._zone, self._types.get(ref.topic, ())
        )
        try:
            await feed.run()
        finally:
            if self._feeds.get((ref.topic, ref.name)) is feed:  # otherwise the partition is assigned again, with a new feed
                del self._feeds[ref.topic, ref.name]


async def _run_seek(seek: Awaitable[None]) -> None:
    """Await a seek; raise ClusterError if the partition was revoked meanwhile."""
    try:
        await seek
    except LaneRevoked as error:
        raise ClusterError(f"the seek has no effect: {error}") from error
