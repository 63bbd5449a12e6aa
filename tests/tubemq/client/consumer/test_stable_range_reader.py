"""Positions of messages depend neither on where packs end nor on where the read begins."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.tubemq.client.consumer import stable_range_reader
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.range_reader import INDEX_ENTRY_BYTES, MessagePosition, PackSlice
from mqbridge.tubemq.client.consumer.stable_range_reader import read_stable_range

CELL_ENTRIES = 8
Found = list[tuple[int, MessagePosition]]


class Store:
    """The index of a store, in which some entries are of our partition; packs end at random entries."""

    def __init__(self, ours: list[bool], seed: int) -> None:
        self.ours, self._random = ours, random.Random(seed)

    @property
    def end(self) -> int:
        return len(self.ours) * INDEX_ENTRY_BYTES

    async def read_range(self, begin: MessagePosition, end: MessagePosition) -> AsyncGenerator[PackSlice, None]:
        """Like `RangeReader.slices`: yield all messages up to the offset of `end`, and as many after it as its index says."""
        assert begin[1] == 0
        assert begin[0] <= self.end
        at, left = begin[0] // INDEX_ENTRY_BYTES, end[1]
        while at < len(self.ours):
            await asyncio.sleep(0)
            is_counted = at * INDEX_ENTRY_BYTES >= end[0]
            if is_counted and not left:
                return
            most = len(self.ours) if is_counted else end[0] // INDEX_ENTRY_BYTES
            until = min(most, at + self._random.randint(1, 12))
            numbers = [number for number in range(at, until) if self.ours[number]]
            if is_counted:
                numbers = numbers[:left]
                left -= len(numbers)
            following = end if is_counted and not left else (until * INDEX_ENTRY_BYTES, 0)
            if numbers:
                pack = Pack(numbers, at * INDEX_ENTRY_BYTES, 0, self.end, 1)  # type: ignore[arg-type]
                yield PackSlice(pack, 0, len(numbers), following)
            at = until

    async def read(self, begin: MessagePosition, end: MessagePosition) -> tuple[Found, MessagePosition]:
        """Return the numbers and positions of the messages, and the position at which a read would continue."""
        found: Found = []
        behind = begin

        async def store_end() -> int:
            await asyncio.sleep(0)
            return self.end

        with patch.object(stable_range_reader, "CELL_ENTRIES", CELL_ENTRIES):
            async with aclosing(read_stable_range(self.read_range, begin, end, store_end)) as slices:
                async for part in slices:
                    base, index = part.position
                    numbers: Any = part.pack.messages[part.first : part.last]
                    found += [(number, (base, index + each)) for each, number in enumerate(numbers)]
                    assert found[-1][1] < part.next <= end
                    behind = part.next
        return found, behind


stores = st.lists(st.booleans(), max_size=60)


@given(stores, st.integers(0, 60), st.integers(0, 1 << 30), st.data())
def test_every_read_finds_the_same_positions(ours: list[bool], begin: int, seed: int, data: Any) -> None:
    async def check() -> None:
        store = Store(ours, seed)
        first: MessagePosition = (min(begin, len(ours)) * INDEX_ENTRY_BYTES, 0)
        end: MessagePosition = (store.end, 0)
        whole, _ = await store.read(first, end)
        numbers = [number for number in range(begin, len(ours)) if ours[number]]
        assert [number for number, _ in whole] == numbers
        positions = [position for _, position in whole]
        assert positions == sorted(set(positions))
        assert all(index < CELL_ENTRIES for _, index in positions)
        if not whole:
            return
        one, other = sorted(data.draw(st.tuples(*[st.integers(0, len(whole) - 1)] * 2)))
        assert (await store.read(positions[one], end))[0] == whole[one:]
        between, behind = await store.read(positions[one], positions[other])
        assert between == whole[one:other]
        assert (await store.read(behind, end))[0] == whole[other if between else one :]

    asyncio.run(check())


@given(stores, st.integers(0, 60), st.integers(0, 70), st.integers(0, 1 << 30))
def test_an_index_may_go_beyond_the_cell_of_its_offset(ours: list[bool], begin: int, skip: int, seed: int) -> None:
    """Lanes count indexes from the start of a pack, not of a cell."""

    async def check() -> None:
        store = Store(ours, seed)
        numbers = [number for number in range(begin, len(ours)) if ours[number]]
        position = (min(begin, len(ours)) * INDEX_ENTRY_BYTES, skip)
        beyond = (store.end + 5 * CELL_ENTRIES * INDEX_ENTRY_BYTES, 0)
        assert [number for number, _ in (await store.read(position, beyond))[0]] == numbers[skip:]

    asyncio.run(check())
