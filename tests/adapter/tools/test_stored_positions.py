"""The last stored source position is found anywhere in a target, also if the system can count back only so far."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.message import Message, Partition, Position, origin_prefix
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from mqbridge.testing.memory.adapter.registration import ADAPTER
from mqbridge.testing.memory.broker import delete_broker
from tests.patience import PATIENCE_S

SOURCE = Partition("s", "t", "0", 0)
COUNT = 600


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Make a topic with COUNT messages in one partition; only number 7 has an origin: position 3 of SOURCE."""
    made = MemoryCluster("readback", ADAPTER.cluster_model())
    await made.create("t", 1)
    for number in range(COUNT):
        origin = f"{origin_prefix(SOURCE)}3" if number == 7 else None
        made.broker.topics["t"][0].append([Message(b"%d" % number, position=(number,), origin=origin)])
    yield made
    delete_broker("readback")


async def search(cluster: MemoryCluster, since: Mapping[int, Position] | None = None) -> dict[int, Position]:
    """Search the partition for the last stored position of SOURCE."""
    async with asyncio.timeout(PATIENCE_S):
        return await last_stored(cluster, "t", {0: "0"}, SOURCE, since)


@pytest.mark.parametrize(("since", "expected"), [(0, {0: (3,)}), (7, {0: (3,)}), (8, {}), (COUNT, {}), (COUNT + 5, {})])
async def test_nothing_is_read_before_the_given_position(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, since: int, expected: dict[int, Position]
) -> None:
    begins: list[Position] = []
    original = MemoryCluster.reader

    async def reader(
        self: MemoryCluster, topic: str, partition: str, begin: Position, end: Position | None = None, **_: Any
    ) -> Any:
        begins.append(begin)
        return await original(self, topic, partition, begin, end)

    monkeypatch.setattr(MemoryCluster, "reader", reader)
    assert await search(cluster, {0: (since,)}) == expected
    assert all(begin >= (since,) for begin in begins)
    assert await search(cluster, {1: (COUNT,)}) == {0: (3,)}  # a limit for another partition is ignored


async def test_a_system_that_cannot_count_back_is_read_from_its_beginning(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def newest(*_: Any) -> Mapping[str, Position]:
        await asyncio.sleep(0)
        return {"0": (COUNT - 10,)}

    monkeypatch.setattr(MemoryOperations, "newest", newest)
    assert await search(cluster) == {0: (3,)}


async def test_retention_during_the_search_is_tolerated(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryOperations.newest

    async def newest(self: MemoryOperations, topic: str, count: int) -> Mapping[str, Position]:
        await asyncio.sleep(0)
        cluster.broker.delete_below("t", 0, 100)
        return await original(self, topic, count)

    monkeypatch.setattr(MemoryOperations, "newest", newest)
    assert await search(cluster) == {}
