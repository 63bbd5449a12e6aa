"""Reads a range of one partition without the Master, with a group of its own; see `read_range`.

The protocol does not tell the offset of a message: offsets count the messages of all partitions of a store, and a pack has only
the offset at which the read began. A commit tells where it ended. If a range ends inside a pack, the partition is read once more
from that end on: the first message found there tells where to cut the pack.
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
"""qryPriorityId that also reads data that is only in memory."""

MessagePosition = tuple[int, int]
"""The offset of a pack, and the index of a message behind it."""


def messages_to_skip(offset: int, index: int, begin: int, end: int) -> MessagePosition | None:
    """Return (offset, number of messages to skip) for a position, if the Broker begins at `begin` and its store ends at `end`.

    None if the pack begins elsewhere: the Broker then no longer has the offset. Messages that came after the position was made
    are not skipped: each of those before it has an index entry, unless the Broker lost it.
    """
    if begin != offset:
        return None
    return offset, min(index, max(0, end - offset) // INDEX_ENTRY_BYTES)


class PackSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, and the position behind them."""

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
        """Always now: no other member of this group can get its partitions."""
        return self._loop.time()

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        return self.membership.masters.connections.to(ref.broker.host, ref.broker.port)

    def partition_ended(self, partition: HeldPartition) -> None:
        """Nothing to do."""


async def _open(masters: Masters, ref: PartitionRef, group: str) -> HeldPartition:
    return HeldPartition(_Context(masters, ref.topic, group, await masters.local_host()), ref)


async def store_range(masters: Masters, ref: PartitionRef, group: str) -> MessagePosition:
    """Return the first and the next offset of the partition's store. Raises ClusterError."""
    partition = await _open(masters, ref, group)
    try:
        answer = await partition.register(0, 0)
    finally:
        await partition.release()
    return answer.currOffset, answer.maxOffset


async def read_range(
    masters: Masters, ref: PartitionRef, group: str, begin: MessagePosition, end: MessagePosition | None
) -> AsyncGenerator[PackSlice, None]:
    """Yield the messages from `begin` up to, not including, `end`; without an end, for ever.

    `group` must not be used by others: its position moves. Closing the generator leaves it. Ends early if the partition holds
    less. Survives restarts of the Broker. Raises GapError if data was deleted, ClusterError if it cannot be registered.
    """
    partition = await _open(masters, ref, group)
    try:
        given = await partition.start_at(0, begin[0])
        reader = _Range(partition, messages_to_skip(*begin, given, partition.max_offset) or (given, 0), end)
        while not reader.is_done:
            for found in await reader.step():
                yield found
    finally:
        await partition.release()


class _Range:
    """Progress of a range read: `position` is the next message, `end` is where it stops."""

    def __init__(self, partition: HeldPartition, begin: MessagePosition, end: MessagePosition | None) -> None:
        self.position, self.end = begin, end
        self._partition = partition
        self._held_until = partition.max_offset
        self._is_short = False

    @property
    def is_done(self) -> bool:
        return self._is_short or (self.end is not None and self.position >= self.end)

    async def step(self) -> list[PackSlice]:
        """Read one pack; return the part that lies in the range."""
        partition = self._partition
        pack = await partition.poll()
        if pack is None and self.end is None:
            return []
        try:
            behind = await partition.commit(consumed=True)
        except ClusterError as error:
            log.log(
                level_of(error, logging.INFO), "%s: reading the pack again, because its end is not known: %s", partition, error
            )
            return []
        if pack is None:
            self._found_nothing(behind)
            return []
        skip = min(self.position[1], len(pack.messages)) if pack.offset == self.position[0] else 0
        if self.end is not None and pack.offset < self.end[0] < behind:
            return await self._cut(pack, skip, self.end)
        return self._whole(pack, skip, behind)

    def _found_nothing(self, behind: int) -> None:
        """The end may lie beyond the data; but wait for the data that existed at the start."""
        self.position = max(self.position, (behind, 0))
        assert self.end is not None  # noqa: S101 - for the type checker
        self._is_short = self._partition.caught_up and min(self._held_until, self.end[0]) <= behind

    def _whole(self, pack: Pack, skip: int, behind: int) -> list[PackSlice]:
        """Return the slice of a pack that lies in the range, or that contains the end, counted from the pack's own offset."""
        count, last = len(pack.messages), len(pack.messages)
        left = self.position[1] - skip if pack.offset == self.position[0] else 0
        self.position = (behind, left)  # a position may count further than the pack goes now
        after: MessagePosition = self.position
        if self.end is not None and pack.offset == self.end[0]:
            last = min(count, self.end[1])
            if last == self.end[1]:
                self.position = after = self.end
            else:
                self.end = (behind, self.end[1] - count)
        return [PackSlice(pack, skip, last, after)] if last > skip else []

    async def _cut(self, pack: Pack, skip: int, end: MessagePosition) -> list[PackSlice]:
        """Cut a pack that contains the end: look up the first message behind the end, and continue there."""
        await self._seek(end[0])
        behind: Pack | None = None
        while behind is None:
            behind = await self._partition.poll()
            if behind is None and self._partition.caught_up:
                break
        first = None if behind is None else behind.messages[0].messageId
        last = next((index for index, one in enumerate(pack.messages) if one.messageId == first), len(pack.messages))
        self._partition.reject()
        self.position = (end[0], 0)
        return [PackSlice(pack, skip, last, self.position)] if last > skip else []

    async def _seek(self, offset: int) -> None:
        """Seek; raises ClusterError after the usual number of tries of a registration."""
        await self._partition.seek(offset)
