"""Reads one partition pack by pack, for as long as it is assigned to the consumer. A pack has the messages of one response."""

import asyncio
from collections.abc import Collection
from datetime import tzinfo

from mqbridge.errors import ClusterError, GapError, LaneRevoked, MqbridgeError
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.range_reader import existing_position
from mqbridge.tubemq.library.delivered_pack import DeliveredPack
from mqbridge.tubemq.library.delivery_queue import DeliveryQueue, PartitionProblem

EARLIEST_OFFSET = 0
"""Start of a store's index. A Broker that has deleted this offset continues at its first one."""


class PartitionFeed:
    """Puts the packs of `partition` into the queue; reads the next pack when the last one is confirmed or rejected.

    Brokers deliver whole packs only. So a pack that is delivered again contains messages that are already acknowledged, and the
    first pack after a seek may begin before the message to continue at. `_skipped` has the indexes of these messages, which are
    not delivered. An index is counted from an offset: a read from that offset always finds the same messages in the same order.
    """

    def __init__(self, partition: HeldPartition, queue: DeliveryQueue, zone: tzinfo, types: Collection[str]) -> None:
        self.partition = partition
        self._queue, self._zone, self._types = queue, zone, types
        self._skipped: tuple[int, Collection[int]] = (0, ())
        """An offset, and the indexes, counted from that offset, of the messages not to deliver."""
        self._rejections = 0
        """Number of rejections of the pack at the offset in `_skipped`."""
        self._seeks = 0
        """Number of completed seeks."""
        self._seek_lock = asyncio.Lock()
        self._problem: PartitionProblem | None = None
        """The gap, or the failed attempt to continue after it, which `Consumer.receive` has to raise before reading continues.

        None if there is no such error.
        """

    async def run(self) -> None:
        """Read until the partition is revoked or released, or until an error other than a gap, which `receive` then raises."""
        try:
            while True:
                try:
                    await self._deliver(await self.partition.fetch())
                except GapError as error:
                    await self._report_gap(error)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            self._queue.put(PartitionProblem(error))

    async def seek(self, offset: int, index: int = 0, *, exact: bool = True) -> None:
        """Continue at the message with this `index`, counted from `offset`. Raises LaneRevoked, ClusterError.

        If the Broker has only later offsets, the feed reports a gap, or with `exact=False` continues at the first of them.
        """
        async with self._seek_lock:
            await self._seek(offset, index, exact=exact)

    async def _seek(self, offset: int, index: int = 0, *, exact: bool = True) -> None:
        """Like `seek`, for a caller that holds `_seek_lock`."""
        begin = await self.partition.seek(offset, exact=exact)
        # No await from here on: `_skipped` has to be set before the next pack is read.
        self._seeks += 1
        # None if the Broker no longer has `offset`, else (offset, index), with `index` limited to the stored messages.
        position = existing_position(offset, index, begin, self.partition.max_offset)
        self._skipped = (begin, ()) if position is None else (begin, range(position[1]))
        self._rejections = 0
        if self._problem is not None:
            self._problem.withdraw()

    async def seek_to_start(self) -> None:
        """Continue at the first message that the Broker has stored."""
        await self.seek(EARLIEST_OFFSET, exact=False)

    async def seek_to_end(self) -> None:
        """Continue after the last message. The first seek finds out the current end offset, the second one moves to it."""
        await self.seek(self.partition.max_offset)
        await self.seek(self.partition.max_offset)

    async def _deliver(self, pack: Pack) -> None:
        """Deliver the pack, and wait until it is confirmed or rejected, or a seek makes it obsolete."""
        partition, count = self.partition, len(pack.messages)
        offset, indexes = self._skipped
        starts_at_offset = offset == pack.offset  # otherwise the indexes are not those of this pack
        skipped = [index for index in indexes if index < count] if starts_at_offset else []
        if len(skipped) == count:
            await self._confirm_skipped(pack, indexes)
            return
        rejections = self._rejections if starts_at_offset else 0
        delivered = DeliveredPack(partition, pack, self._zone, skipped=skipped, types=self._types, redeliveries=rejections)
        seeks_before = self._seeks
        self._queue.put(delivered)
        try:
            await partition.wait_until_settled()
        finally:
            partition.release_pack_bytes()
        if self._seeks != seeks_before:
            return  # the seek has set `_skipped`
        if delivered.is_confirmed:
            self._skipped, self._rejections = (0, ()), 0
        else:
            self._skipped, self._rejections = (pack.offset, delivered.acknowledged), rejections + 1

    async def _confirm_skipped(self, pack: Pack, indexes: Collection[int]) -> None:
        """Confirm a pack without delivering it, because all its messages are skipped.

        From then on, indexes beyond the pack are counted from its end. Only the response to a commit has the offset of that end.
        """
        seeks_before, count = self._seeks, len(pack.messages)
        self.partition.release_pack_bytes()
        try:
            end = await self.partition.commit(consumed=True)
        except ClusterError:
            return  # `run` reads the pack again, and this method then tries again
        if self._seeks == seeks_before:
            self._skipped = (end, [index - count for index in indexes if index >= count])

    async def _report_gap(self, error: GapError) -> None:
        """Have `receive` raise the gap once, then continue after it, unless the program seeks.

        If continuing fails, `receive` raises that error, too, before the next attempt.
        """
        problem: MqbridgeError = error
        resume_offset = EARLIEST_OFFSET if error.resume is None else error.resume[0]  # (offset, 0): a gap ends at a stored offset
        seeks_before = self._seeks
        while True:
            self._problem = PartitionProblem(problem)
            self._queue.put(self._problem)
            await self._problem.handled.wait()
            self._problem = None
            async with self._seek_lock:  # the program may have begun a seek when it received the error
                if self._seeks != seeks_before:
                    return
                try:
                    await self._seek(resume_offset)
                except ClusterError as seek_error:
                    problem = seek_error
                else:
                    return
