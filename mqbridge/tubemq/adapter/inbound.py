"""Consuming from TubeMQ: a lane is a partition, a batch is a pack (the messages of one response to a get request).

A pack can only be confirmed or rejected as a whole, and the Broker sends the next one only after that. So a lane has one
batch that is neither acknowledged nor rejected at a time, and `receive` waits until it is.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import tzinfo
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.range_reader import existing_position
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

FORMAT = "tubemq.pack"
"""Format of batches whose `data` is the sequence of a pack's messages as the Broker sent them."""

CLOSED_CHECK_S = 5.0
"""Pause between two checks whether topics without an assigned partition are closed for consumers."""

WhyClosed = Callable[[str], Awaitable[str | None]]
"""Function that returns why no member of the group may read a topic, as a predicate; None if its members may."""
IndexOf = Callable[[PartitionRef], Awaitable[int]]
"""Function that returns the index of a partition in its topic."""


class TubeMQInbound:
    """The gateway's membership in a group: yields the lanes of the partitions that the Master assigns to it.

    The Master assigns no partition of a topic that is closed, for all consumers or for this group, and does not say so.
    `why_closed` finds it out; None if nobody can be asked.
    """

    individual_ack = False
    """Packs can only be acknowledged in order, each as a whole."""

    def __init__(
        self,
        cluster: str,
        consumer: PackConsumer,
        zone: tzinfo,
        index_of: IndexOf,
        topics: Sequence[str] = (),
        why_closed: WhyClosed | None = None,
    ) -> None:
        self._cluster, self._consumer = cluster, consumer
        self._zone, self._index_of = zone, index_of
        self._topics = topics
        self._closed_topics: dict[str, str] = {}
        """Topics without an assigned partition that are closed, with the reason."""
        self._closed = False
        self._watch = None if why_closed is None else spawn(self._watch_closed(why_closed), f"closed topics of {cluster}")

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why Brokers refuse to let this member read now, by partition, or by topic if it is closed."""
        return {**self._closed_topics, **self._consumer.refusals}

    async def _watch_closed(self, why_closed: WhyClosed) -> None:
        """Check regularly whether topics without an assigned partition are closed; log each once, and that it is open again."""
        while True:
            await asyncio.sleep(CLOSED_CHECK_S)
            for topic in self._topics:
                await self._check_closed(topic, why_closed)

    async def _check_closed(self, topic: str, why_closed: WhyClosed) -> None:
        is_assigned = any(held.ref.topic == topic for held in self._consumer.held_partitions.held.values())
        try:
            reason = None if is_assigned else await why_closed(topic)
        except (ClusterError, ProtocolError) as error:
            log.debug("topic %s: it is unknown whether it is closed: %s", topic, error)
            return
        if reason is not None:
            if topic not in self._closed_topics:
                log.warning("topic %s: reading waits, because it is %s", topic, reason)
            self._closed_topics[topic] = reason
        elif self._closed_topics.pop(topic, None) is not None:
            log.info("topic %s may be read again", topic)

    async def lanes(self) -> AsyncIterator["TubeMQLane"]:
        """Yield a lane for each partition that the Master assigns."""
        async for held in self._consumer.assignments():
            ref = held.ref
            partition = Partition(self._cluster, ref.topic, ref.name, await self._index_of(ref))
            yield TubeMQLane(held, partition, self._zone)

    async def close(self, deadline: float | None = None) -> None:
        """Release all partitions and leave the group, by `deadline` (event loop time; None: CLOSE_S (30 s) from now)."""
        if not self._closed:
            self._closed = True
            await cancel(self._watch)
            await self._consumer.close(seconds_until(deadline))


class TubeMQLane:
    """One partition while it is assigned to this member."""

    def __init__(self, held: HeldPartition, partition: Partition, zone: tzinfo) -> None:
        self.partition = partition
        self.releasing, self.revoked = held.releasing, held.revoked
        """Events that are set when the partition is going to be given up, and as soon as it is revoked or released."""
        self._held, self._zone = held, zone
        self._skip: tuple[int, int] | None = None
        """After a seek into a pack: (offset of the pack, number of messages to skip), since Brokers deliver whole packs.

        None if the next pack is delivered whole.
        """

    @property
    def caught_up(self) -> bool:
        """True if the last get request found no message."""
        return self._held.caught_up

    @property
    def possible_gaps(self) -> int:
        """How often the store had deleted unread data that may have had messages of this partition."""
        return self._held.counters.possible_gaps

    async def receive(self) -> Batch:
        """Wait until the previous pack is acknowledged or rejected, then return the next one, or again the rejected one."""
        held = self._held
        held.release_pack_bytes()  # the read budget no longer counts the previous pack: the caller counts its batch
        await held.wait_until_settled()
        while True:
            pack = await held.fetch()
            skip = self._messages_to_skip(pack)
            if skip < len(pack.messages):
                # The offset at which the pack ends is known only after its commit. Until then, the position after the batch is
                # counted from the pack's offset: a smaller position than that of the next pack's first message.
                next_position = pack.offset, len(pack.messages)
                return batch_of(pack, skip, len(pack.messages), next_position, self.partition, self._zone)
            held.release_pack_bytes()  # nobody receives this pack
            await self._confirm_skipped(pack, skip)

    def _messages_to_skip(self, pack: Pack) -> int:
        """Return the number of messages at the start of the pack that are before the position of the last seek."""
        return self._skip[1] if self._skip is not None and pack.offset == self._skip[0] else 0

    async def _confirm_skipped(self, pack: Pack, skip: int) -> None:
        """Confirm a pack of which all messages are skipped; what is left to skip then counts from the offset where it ends."""
        try:
            end = await self._held.commit(consumed=True)
        except ClusterError:
            return  # the pack is delivered again
        self._skip = (end, skip - len(pack.messages))

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Confirm the batch's pack; does nothing if the pack is no longer the lane's current one.

        A pack is confirmed as a whole, so with `indexes` (a `range(n)`) this waits for the rest, also if these are all messages:
        the caller ends the batch with a call without `indexes`, or rejects it. The positions in `receipt` are not needed.
        """
        if indexes is None and self._is_current(batch):
            self._skip = None  # the messages to skip were before this batch
            self._held.release_pack_bytes()
            self._held.confirm()

    def counted(self, batch: Batch) -> None:
        """Count the pack against the read budget no longer."""
        self._held.release_pack_bytes()

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Have the batch's pack delivered again after `delay_s` seconds; does nothing if it is not the lane's current one.

        Messages that were acknowledged by `indexes` are delivered again, too.
        """
        if self._is_current(batch):
            self._held.release_pack_bytes()
            self._held.reject(delay_s)

    async def seek(self, position: Position) -> None:
        """Have the Broker continue at the position's offset; messages between that offset and the position are skipped.

        Nothing is skipped if the Broker has no data at that offset any more.
        """
        offset, skip = position
        begin = await self._held.seek(offset)
        self._skip = existing_position(offset, skip, begin, self._held.max_offset)

    async def release(self, deadline: float | None = None) -> None:
        """Release the partition; returns at `deadline` in any case (event loop time; None: CLOSE_S (30 s) from now)."""
        await self._held.release(resolve_deadline(deadline))

    def _is_current(self, batch: Batch) -> bool:
        pack: Pack = batch.handle
        return self._held.pack is pack


def batch_of(
    pack: Pack,
    first: int,
    last: int,
    next_position: Position,
    partition: Partition,
    zone: tzinfo,
    first_position: tuple[int, int] | None = None,
) -> Batch:
    """Return the messages from `first` to `last` (exclusive) of a pack as a batch; `next_position` is the position after them.

    `first_position` is the position of the first of them; by default it is the offset of the pack and the index `first`.
    """
    first_position = first_position or (pack.offset, first)
    messages = pack.messages if (first, last) == (0, len(pack.messages)) else pack.messages[first:last]
    count = last - first
    size = pack.size if count == len(pack.messages) else sum(len(message.payLoadData) for message in messages)
    return Batch(
        partition,
        partial(decode, messages, first_position[0], zone, first_position[1]),
        count=count,
        size=size,
        held_bytes=pack.held_bytes,  # of the whole pack, which `handle` keeps in memory
        first=first_position,
        next=next_position,
        format=FORMAT,
        data=messages,
        handle=pack,
    )
