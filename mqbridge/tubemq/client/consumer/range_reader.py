"""Reads ranges of one partition with a temporary group, without registering at the Master; see `RangeReader`.

Brokers do not send the offset of each message. The response to a get contains a pack of messages and the offset at which the
pack begins. The response to a commit contains the offset at which the pack ended. A pack's messages cannot be counted to get the
offsets in between, because offsets also count the messages of the other partitions of a store. So if a range ends inside a pack,
the partition is read once more, from the range's end: the first message found there shows where to cut the pack.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.tubemq.client.connection.master import Masters, new_client_id
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import StartOffset
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_state import INDEX_ENTRY_BYTES
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

ALL_STORES = 303
"""The qryPriorityId for reading all data of a Broker: its files, and the memory that is not written to them yet."""

MessagePosition = tuple[int, int]
"""(offset, index): the message that follows `index` other messages of the partition from this offset on."""


def existing_position(offset: int, index: int, start: int, store_end: int) -> MessagePosition | None:
    """Return the position (`offset`, `index`), with `index` limited to the number of entries that the store has from `offset` on.

    `start` is the offset at which the Broker began after a registration at `offset`, and `store_end` the end of its store.
    Returns None if `start` is not `offset`: the Broker then has no data at `offset`. The limit matters if the Broker has lost
    messages: `index` is then too large, and messages stored since must not be skipped.
    """
    if start != offset:
        return None
    return offset, min(index, max(0, store_end - offset) // INDEX_ENTRY_BYTES)


class PackSlice(NamedTuple):
    """The messages of a pack from index `first` to index `last` (exclusive). `next` is the position after them."""

    pack: Pack
    first: int
    last: int
    next: MessagePosition


class _Context:
    """What a `HeldPartition` needs from its consumer, for a partition that no Master assigned; a PartitionContext."""

    def __init__(self, masters: Masters, topic: str, group: str, host: str) -> None:
        self.membership = MemberIdentity(masters, group, topics=[topic], filters={}, priority=ALL_STORES)
        self.membership.client_id = new_client_id(host, group)
        self.budget = ReadBudget(GET_BYTES)
        self._loop = asyncio.get_running_loop()

    @property
    def master_seen_at(self) -> float:
        """The current time, as if a Master always responded: no Master can assign this group's partitions to another member."""
        return self._loop.time()

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        return self.membership.masters.connections.connection_to(ref.broker.host, ref.broker.port)

    def partition_ended(self, partition: HeldPartition) -> None:
        """Do nothing: there is no list of held partitions to update."""


async def _new_partition(masters: Masters, ref: PartitionRef, group: str) -> HeldPartition:
    """Return a partition of a temporary group, not registered yet."""
    return HeldPartition(_Context(masters, ref.topic, group, await masters.local_host()), ref)


async def store_range(masters: Masters, ref: PartitionRef, group: str) -> tuple[int, int]:
    """Return the first offset in the partition's store, and the offset that the store's next message will get.

    `group` is a temporary group: it registers for the partition to get these offsets, then releases it. Raises ClusterError.
    """
    partition = await _new_partition(masters, ref, group)
    try:
        response = await partition.register(StartOffset.EARLIEST, offset=0)  # the Broker starts at the first offset that it has
    finally:
        await partition.release()
    return response.currOffset, response.maxOffset


class RangeReader:
    """Reads ranges of one partition, one after the other; the Broker keeps one registration until `close`.

    `new_group` returns the name of a group that nobody else uses, since its position moves. The reader has one group as long as
    the Broker keeps the registration for it.
    """

    def __init__(self, masters: Masters, ref: PartitionRef, new_group: Callable[[], str]) -> None:
        self._masters, self._ref, self._new_group = masters, ref, new_group
        self._partition: HeldPartition | None = None
        """The registered partition; None before the first range."""

    @property
    def caught_up(self) -> bool:
        """True if all data was read that the store had a moment ago."""
        return self._partition is not None and self._partition.caught_up

    async def slices(self, begin: MessagePosition, end: MessagePosition | None) -> AsyncGenerator[PackSlice, None]:
        """Yield the messages from `begin` to `end` (exclusive); without `end`, wait for new messages for ever.

        Any range that was read before has ended: only one generator of a reader may be in use. If the partition's data ends
        before `end`, so does the range. Restarts of the Broker do not interrupt the read.

        Raises GapError if the data at `begin`, or unread data after it, was deleted. If the data ends before `begin`, because the
        Broker lost messages, reading starts at the end of the data. Raises ClusterError if the partition cannot be registered,
        and LaneRevoked if the Broker has ended the registration; a later range makes another one.
        """
        if self._partition is None or self._partition.revoked.is_set():
            self._partition = await _new_partition(self._masters, self._ref, self._new_group())
        partition = self._partition
        start = await partition.seek(begin[0])
        # If the Broker starts elsewhere, the count of messages in `begin` does not apply: the position is (start, 0).
        progress = _RangeProgress(partition, existing_position(*begin, start, partition.max_offset) or (start, 0), end)
        while not progress.is_done:
            for pack_slice in await progress.step():
                yield pack_slice

    async def close(self, deadline: float | None = None) -> None:
        """Release the partition; at `deadline` (event loop time) this stops waiting, and the lease at the Broker expires.

        The caller has ended the generator of `slices`.
        """
        if self._partition is not None:
            await self._partition.release(deadline)
            await self._partition.stop_releasing()
            self._partition = None


class _RangeProgress:
    """Progress of a range read.

    `position` is the position of the next message to yield, `end` that of the first message after the range; None for no end.
    """

    def __init__(self, partition: HeldPartition, begin: MessagePosition, end: MessagePosition | None) -> None:
        self.position, self.end = begin, end
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._max_offset_at_start = partition.max_offset
        self._is_at_data_end = False
        """True if the partition's data ended before the end of the range; the read then ends, too."""

    @property
    def is_done(self) -> bool:
        return self._is_at_data_end or (self.end is not None and self.position >= self.end)

    async def step(self) -> list[PackSlice]:
        """Read one pack and commit it; return the part of it that lies in the range, as a list of at most one slice.

        The list is also empty if no messages arrived, or the commit failed; the next step then reads again.
        """
        partition = self._partition
        pack = await partition.poll()
        if pack is None and self.end is None:  # a range without an end waits for further messages
            await partition.commit_late(self._loop.time())  # asks for the end of the store, from time to time: see `caught_up`
            return []
        try:
            after = await partition.commit(consumed=True)  # the offset at which the pack ended
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "%s: committing the messages read last failed, reading them again: %s",
                partition,
                error,
            )
            return []
        if pack is None:
            self._handle_no_messages(after)
            return []
        skip = min(self.position[1], len(pack.messages)) if pack.offset == self.position[0] else 0
        if self.end is not None and pack.offset < self.end[0] < after:
            return await self._cut(pack, skip, self.end)
        return self._take_pack(pack, skip, after)

    def _handle_no_messages(self, offset: int) -> None:
        """Handle a poll without messages; the commit after it returned `offset`.

        If the data ends before the range does, stop, but only after all data was read that existed when the read began.
        """
        self.position = max(self.position, (offset, 0))
        assert self.end is not None  # noqa: S101 - for the type checker
        self._is_at_data_end = self._partition.caught_up and min(self._max_offset_at_start, self.end[0]) <= offset

    def _take_pack(self, pack: Pack, skip: int, after: int) -> list[PackSlice]:
        """Return the messages of this pack that are in the range. The pack ended at offset `after`; `end[0]` is not inside it.

        If `end[0]` is the offset at which the pack begins, the range ends after `end[1]` messages from there. The pack may have
        fewer, because packs read from the same offset may differ in size; the rest is then counted from `after`. For example,
        after a pack of 10 messages an `end` of (pack.offset, 14) becomes (after, 4). The same is done with `position`.
        """
        count, last = len(pack.messages), len(pack.messages)
        remaining_skip = self.position[1] - skip if pack.offset == self.position[0] else 0
        self.position = (after, remaining_skip)
        next_position: MessagePosition = self.position
        if self.end is not None and pack.offset == self.end[0]:
            last = min(count, self.end[1])
            if last == self.end[1]:
                self.position = next_position = self.end
            else:
                self.end = (after, self.end[1] - count)
        return [PackSlice(pack, skip, last, next_position)] if last > skip else []

    async def _cut(self, pack: Pack, skip: int, end: MessagePosition) -> list[PackSlice]:
        """Return the slice of a pack before the range's end offset, which is inside the pack.

        Reads the partition from that offset: the first message found there is the first one of the pack that is not in the slice.
        Raises ClusterError if all attempts to register there fail.
        """
        await self._partition.seek(end[0])
        following: Pack | None = None
        while following is None:
            following = await self._partition.poll()
            if following is None and self._partition.found_no_data:
                break
        first = None if following is None else following.messages[0].messageId
        # If the pack does not contain that message, all of the pack's messages are before the end of the range.
        last = next((index for index, message in enumerate(pack.messages) if message.messageId == first), len(pack.messages))
        self._partition.reject()  # not confirmed: if end[1] > 0, the next step reads the first messages of this pack again
        self.position = (end[0], 0)
        return [PackSlice(pack, skip, last, self.position)] if last > skip else []
