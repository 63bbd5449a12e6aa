"""Reads a range of one partition, past the Master and as a group of its own; see `read_range`.

Nothing in the protocol says where a message lies: offsets count the messages of all partitions of a store, and a pack has only
the offset at which the read began. A commit tells where it ended. Where a range ends inside of a pack, the partition is read once
more from that end on: the first message found there says where the pack is to be cut.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import NamedTuple

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.master import Masters, client_id
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

INDEX_ENTRY_BYTES = 28
ALL_STORES = 303
"""qryPriorityId that also reads what is only in memory."""

Place = tuple[int, int]
"""The offset of a pack, and the index of a message behind it."""


def left_out(offset: int, index: int, begin: int, end: int) -> Place | None:
    """Which messages a position leaves out of a partition that the Broker begins at `begin`, when its store ended at `end`.

    None of a pack that begins elsewhere: that is what a Broker gives that no longer knows the offset. And none that came after
    the position was made: each of those before has an entry of the index, unless the Broker lost it.
    """
    if begin != offset:
        return None
    return offset, min(index, max(0, end - offset) // INDEX_ENTRY_BYTES)


class PackSlice(NamedTuple):
    """The messages from `first` to `last` (exclusive) of a pack, and the position behind them."""

    pack: Pack
    first: int
    last: int
    next: Place


class _Context:
    """What a partition needs of a consumer, without a Master that assigned it."""

    def __init__(self, masters: Masters, topic: str, group: str, host: str) -> None:
        self.membership = Member(masters, group, [topic], {}, priority=ALL_STORES)
        self.membership.client_id = client_id(host, group)
        self.budget = ReadBudget(GET_BYTES)
        self._loop = asyncio.get_running_loop()

    @property
    def seen_at(self) -> float:
        """Nobody else can be given this group's partitions."""
        return self._loop.time()

    def session_for(self, ref: PartitionRef) -> Session:
        return self.membership.masters.sessions.to(ref.broker.host, ref.broker.port)

    def dropped(self, partition: HeldPartition) -> None:
        """Nobody asks."""


async def _open(masters: Masters, ref: PartitionRef, group: str) -> HeldPartition:
    return HeldPartition(_Context(masters, ref.topic, group, await masters.local_host()), ref)


async def held_range(masters: Masters, ref: PartitionRef, group: str) -> Place:
    """The first offset that the partition's store holds and the next one. Raises ClusterError."""
    partition = await _open(masters, ref, group)
    try:
        answer = await partition.register(0, 0)
    finally:
        await partition.release()
    return answer.currOffset, answer.maxOffset


async def read_range(
    masters: Masters, ref: PartitionRef, group: str, begin: Place, end: Place | None
) -> AsyncGenerator[PackSlice, None]:
    """What lies from `begin` up to, not including, `end`; without an end as long as it is read.

    `group` is nobody else's: it is moved, and left when the generator is closed. Ends early when the partition holds less.
    Survives restarts of the Broker. Raises GapError when what was to be read is gone, ClusterError when it cannot be taken.
    """
    partition = await _open(masters, ref, group)
    try:
        given = await partition.start_at(0, begin[0])
        reader = _Range(partition, left_out(*begin, given, partition.max_offset) or (given, 0), end)
        while not reader.is_done:
            for found in await reader.step():
                yield found
    finally:
        await partition.release()


class _Range:
    """Where a read stands: `position` is what comes next, `end` where it stops."""

    def __init__(self, partition: HeldPartition, begin: Place, end: Place | None) -> None:
        self.position, self.end = begin, end
        self._partition = partition
        self._held_until = partition.max_offset
        self._is_short = False

    @property
    def is_done(self) -> bool:
        return self._is_short or (self.end is not None and self.position >= self.end)

    async def step(self) -> list[PackSlice]:
        """One pack, as far as it lies in the range."""
        partition = self._partition
        pack = await partition.look()
        if pack is None and self.end is None:
            return []
        try:
            behind = await partition.commit(consumed=True)
        except ClusterError as error:
            log.log(level_of(error, logging.INFO), "%s is read once more, because its end is not known: %s", partition, error)
            return []
        if pack is None:
            self._found_nothing(behind)
            return []
        skip = min(self.position[1], len(pack.messages)) if pack.offset == self.position[0] else 0
        if self.end is not None and pack.offset < self.end[0] < behind:
            return await self._cut(pack, skip, self.end)
        return self._whole(pack, skip, behind)

    def _found_nothing(self, behind: int) -> None:
        """The end may lie beyond what there is; but what there was at the start is waited for."""
        self.position = max(self.position, (behind, 0))
        assert self.end is not None  # noqa: S101 - for the type checker
        self._is_short = self._partition.caught_up and min(self._held_until, self.end[0]) <= behind

    def _whole(self, pack: Pack, skip: int, behind: int) -> list[PackSlice]:
        """A pack that lies in the range, or that has the end among the messages counted from its own offset."""
        count, last = len(pack.messages), len(pack.messages)
        left = self.position[1] - skip if pack.offset == self.position[0] else 0
        self.position = (behind, left)  # a position may count further than the pack goes now
        after: Place = self.position
        if self.end is not None and pack.offset == self.end[0]:
            last = min(count, self.end[1])
            if last == self.end[1]:
                self.position = after = self.end
            else:
                self.end = (behind, self.end[1] - count)
        return [PackSlice(pack, skip, last, after)] if last > skip else []

    async def _cut(self, pack: Pack, skip: int, end: Place) -> list[PackSlice]:
        """A pack in which the end lies: what is first behind it is looked up, and reading goes on there."""
        await self._seek(end[0])
        behind: Pack | None = None
        while behind is None:
            behind = await self._partition.look()
            if behind is None and self._partition.caught_up:
                break
        first = None if behind is None else behind.messages[0].messageId
        last = next((index for index, one in enumerate(pack.messages) if one.messageId == first), len(pack.messages))
        self._partition.reject()
        self.position = (end[0], 0)
        return [PackSlice(pack, skip, last, self.position)] if last > skip else []

    async def _seek(self, offset: int) -> None:
        """Raises ClusterError after as many tries as any registration has."""
        await self._partition.seek(offset)
