"""Reads a range of one partition with a temporary group, without the Master; see `read_range`.

Brokers do not send the offset of a message. Offsets count the messages of all partitions of a store, and a pack has only the
offset at which its read began; the response to a commit has the offset at which it ended. If a range ends inside a pack, the
partition is read once more from the range's end: the first message found there shows where to cut the pack.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import NamedTuple

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.group_member import MemberIdentity
from mqbridge.tubemq.client.master import Masters, new_client_id
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

INDEX_ENTRY_BYTES = 28
ALL_STORES = 303
"""The qryPriorityId with which Brokers also deliver data that is not on disk yet."""

MessagePosition = tuple[int, int]
"""The offset of a pack, and the index of a message counted from that offset."""


def messages_to_skip(offset: int, index: int, begin: int, end: int) -> MessagePosition | None:
    """Return (offset, number of messages to skip) for the position (`offset`, `index`).

    The Broker begins at `begin`, and its store ends at `end`. Returns None if `begin` is not `offset`: the Broker then no longer
    has that offset. If the Broker lost messages, `index` may be too large, and newer messages must not be skipped: so the
    number is limited to the index entries that the store has from `offset` on.
    """
    if begin != offset:
        return None
    return offset, min(index, max(0, end - offset) // INDEX_ENTRY_BYTES)


class PackSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, and the position after them."""

    pack: Pack
    first: int
    last: int
    next: MessagePosition


class _Context:
    """The PartitionContext of a partition that no Master assigned."""

    def __init__(self, masters: Masters, topic: str, group: str, host: str) -> None:
        self.membership = MemberIdentity(masters, group, [topic], {}, priority=ALL_STORES)
        self.membership.client_id = new_client_id(host, group)
        self.budget = ReadBudget(GET_BYTES)
        self._loop = asyncio.get_running_loop()

    @property
    def master_seen_at(self) -> float:
        """The current time: no Master can assign this group's partitions to another member."""
        return self._loop.time()

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        return self.membership.masters.connections.to(ref.broker.host, ref.broker.port)

    def partition_ended(self, partition: HeldPartition) -> None:
        """Do nothing."""


async def _open(masters: Masters, ref: PartitionRef, group: str) -> HeldPartition:
    return HeldPartition(_Context(masters, ref.topic, group, await masters.local_host()), ref)


async def store_range(masters: Masters, ref: PartitionRef, group: str) -> MessagePosition:
    """Return the first offset of the partition's store, and the offset of its next message. Raises ClusterError."""
    partition = await _open(masters, ref, group)
    try:
        response = await partition.register(0, 0)
    finally:
        await partition.release()
    return response.currOffset, response.maxOffset


async def read_range(
    masters: Masters, ref: PartitionRef, group: str, begin: MessagePosition, end: MessagePosition | None
) -> AsyncGenerator[PackSlice, None]:
    """Yield the messages from `begin` to `end` (exclusive); without `end`, wait for new messages for ever.

    `group` must not have other users, since its position moves. Closing the generator releases the partition. The range ends
    early if the partition has less data. Restarts of the Broker do not interrupt it. Raises GapError if data was deleted, and
    ClusterError if the partition cannot be registered.
    """
    partition = await _open(masters, ref, group)
    try:
        start = await partition.start_at(0, begin[0])
        reader = _Range(partition, messages_to_skip(*begin, start, partition.max_offset) or (start, 0), end)
        while not reader.is_done:
            for found in await reader.step():
                yield found
    finally:
        await partition.release()


class _Range:
    """Progress of a range read: `position` is the next message to yield, `end` the first one not to yield."""

    def __init__(self, partition: HeldPartition, begin: MessagePosition, end: MessagePosition | None) -> None:
        self.position, self.end = begin, end
        self._partition = partition
        self._max_offset_at_start = partition.max_offset
        self._is_short = False
        """True if the partition has no more data before the end of the range."""

    @property
    def is_done(self) -> bool:
        return self._is_short or (self.end is not None and self.position >= self.end)

    async def step(self) -> list[PackSlice]:
        """Read one pack; return its slice that lies in the range, if any."""
        partition = self._partition
        pack = await partition.poll()
        if pack is None and self.end is None:
            return []
        try:
            after = await partition.commit(consumed=True)
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s: the commit failed, reading the pack again: %s", partition, error)
            return []
        if pack is None:
            self._found_nothing(after)
            return []
        skip = min(self.position[1], len(pack.messages)) if pack.offset == self.position[0] else 0
        if self.end is not None and pack.offset < self.end[0] < after:
            return await self._cut(pack, skip, self.end)
        return self._take_pack(pack, skip, after)

    def _found_nothing(self, offset: int) -> None:
        """Handle a poll that found nothing up to `offset`.

        The end of the range may be after the end of the data: then stop, but only after all data that existed at the start.
        """
        self.position = max(self.position, (offset, 0))
        assert self.end is not None  # noqa: S101 - for the type checker
        self._is_short = self._partition.caught_up and min(self._max_offset_at_start, self.end[0]) <= offset

    def _take_pack(self, pack: Pack, skip: int, after: int) -> list[PackSlice]:
        """Return the slice of a pack that ends at offset `after`; the range does not end inside it, except by index.

        An index in `position` or `end` may be larger than this pack, since packs vary from read to read. The remainder of the
        index is then counted from the offset after the pack.
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
        """Cut a pack at the end offset inside it: find the first message from that offset on, and continue there."""
        await self._seek(end[0])
        following: Pack | None = None
        while following is None:
            following = await self._partition.poll()
            if following is None and self._partition.caught_up:
                break
        first = None if following is None else following.messages[0].messageId
        last = next((index for index, message in enumerate(pack.messages) if message.messageId == first), len(pack.messages))
        self._partition.reject()
        self.position = (end[0], 0)
        return [PackSlice(pack, skip, last, self.position)] if last > skip else []

    async def _seek(self, offset: int) -> None:
        """Seek; raises ClusterError if all attempts to register fail."""
        await self._partition.seek(offset)
