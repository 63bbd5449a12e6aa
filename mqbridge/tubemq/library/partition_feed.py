"""Reads one partition of a consumer, pack by pack, while the consumer holds it."""

import asyncio
from collections.abc import Collection
from datetime import tzinfo

from mqbridge.errors import ClusterError, GapError, LaneRevoked, MqbridgeError
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.range_reader import messages_to_skip
from mqbridge.tubemq.library.delivered_pack import DeliveredPack
from mqbridge.tubemq.library.delivery_queue import DeliveryQueue, PartitionProblem

EARLIEST_OFFSET = 0


class PartitionFeed:
    """Puts the packs of `partition` into the queue; the next pack is read when the last one is confirmed or rejected.

    A pack that is delivered again, and one at a sought position, may begin with messages that are not to be handed out: Brokers
    deliver whole packs, and count the same messages from the same offset. `_skipped` has their indexes.
    """

    def __init__(self, partition: HeldPartition, queue: DeliveryQueue, zone: tzinfo, types: Collection[str]) -> None:
        self.partition = partition
        self._queue, self._zone, self._types = queue, zone, types
        self._skipped: tuple[int, Collection[int]] = (0, ())
        """The offset of a pack, and indexes of messages counted from that offset."""
        self._failures = 0
        """Rejections of the pack at that offset."""
        self._seeks = 0
        """Number of completed seeks."""
        self._one_seek = asyncio.Lock()
        self._problem: PartitionProblem | None = None

    async def run(self) -> None:
        """Read until the partition is taken away or given back."""
        try:
            while True:
                try:
                    await self._deliver(await self.partition.fetch())
                except GapError as error:
                    await self._report(error)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            self._queue.put(PartitionProblem(error))

    async def seek(self, offset: int, index: int = 0, *, exact: bool = True) -> None:
        """Read on at the message `index` counted from `offset`. Raises LaneRevoked and ClusterError."""
        async with self._one_seek:
            await self._seek(offset, index, exact=exact)

    async def _seek(self, offset: int, index: int = 0, *, exact: bool = True) -> None:
        begin = await self.partition.seek(offset, exact=exact)
        # Nothing is awaited from here on: the next pack is read with these.
        self._seeks += 1
        skip = messages_to_skip(offset, index, begin, self.partition.max_offset)
        self._skipped = (begin, ()) if skip is None else (begin, range(skip[1]))
        self._failures = 0
        if self._problem is not None:
            self._problem.withdraw()

    async def seek_to_start(self) -> None:
        """Read on at the first message that the Broker holds."""
        await self.seek(EARLIEST_OFFSET, exact=False)

    async def seek_to_end(self) -> None:
        """Read on after the last message. The first registration tells how far that is, the second one begins there."""
        await self.seek(self.partition.max_offset)
        await self.seek(self.partition.max_offset)

    async def _deliver(self, pack: Pack) -> None:
        """Hand the pack out, and wait until it is confirmed, rejected or sought past."""
        partition, count = self.partition, len(pack.messages)
        offset, indexes = self._skipped
        is_again = offset == pack.offset
        skipped = [index for index in indexes if index < count] if is_again else []
        if len(skipped) == count:
            await self._pass_over(pack, indexes)
            return
        failures = self._failures if is_again else 0
        delivered = DeliveredPack(partition, pack, self._zone, skipped=skipped, types=self._types, redeliveries=failures)
        seeks = self._seeks
        self._queue.put(delivered)
        try:
            await partition.settled()
        finally:
            partition.release_pack_bytes()
        if seeks != self._seeks:
            return
        if delivered.is_confirmed:
            self._skipped, self._failures = (0, ()), 0
        else:
            self._skipped, self._failures = (pack.offset, delivered.acknowledged), failures + 1

    async def _pass_over(self, pack: Pack, indexes: Collection[int]) -> None:
        """Confirm a pack that is left out as a whole. Indexes beyond it count from its end, which only a commit tells."""
        seeks, count = self._seeks, len(pack.messages)
        self.partition.release_pack_bytes()
        try:
            end = await self.partition.commit(consumed=True)
        except ClusterError:
            return  # the pack comes again
        if seeks == self._seeks:
            self._skipped = (end, [index - count for index in indexes if index >= count])

    async def _report(self, error: GapError) -> None:
        """Have the gap raised once, then read on behind it, unless the program seeks."""
        problem: MqbridgeError = error
        resume = EARLIEST_OFFSET if error.resume is None else error.resume[0]
        seeks = self._seeks
        while True:
            self._problem = PartitionProblem(problem)
            self._queue.put(self._problem)
            await self._problem.handled.wait()
            self._problem = None
            async with self._one_seek:  # the program may have begun a seek when it received the error
                if self._seeks != seeks:
                    return
                try:
                    await self._seek(resume)
                except ClusterError as failed:
                    problem = failed
                else:
                    return
