"""Two listeners with parking topics of different names over one cluster: neither makes, holds or reads those of the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mqbridge.adapter.cluster import Cluster
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.listener import ListenerProcess
from tests.sdk.listener import Backing
from tests.sdk.rocketmq import until
from tests.sdk.rocketmq_listener import backing_topic, serving, stored_in

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(300)]

PARKINGS = ("parked-one", "parked-two")
HALVES, DELAYED, FIRST_DELAYED = 5, 20, 1000
LEVEL, DELAY_S = 2, 5.0
CHECKED_S = 10.0
"""Time within which the producer of a half message is asked, and within which delayed messages are due."""
PRODUCERS = "transacting"
"""The producer group at both listeners."""


class ParkingListener:
    """A listener and its parking topics."""

    def __init__(self, backing: Backing, parking: str, folder: Path, cluster: Cluster) -> None:
        self.process = ListenerProcess(parking, serving(backing, parking=parking), folder / parking)
        self.parking, self.cluster = parking, cluster

    async def topics(self) -> dict[str, list[str]]:
        """Return the groups of its parking topics, by topic."""
        operations = self.cluster.operations
        assert operations is not None
        names = [name for name in await self.cluster.topics() if self.parking in name]
        return {name: sorted(await operations.groups(name)) for name in names}

    async def members(self) -> dict[str, int]:
        """Return the number of members of each group of its parking topics."""
        operations = self.cluster.operations
        assert operations is not None
        topics = await self.topics()
        return {group: len(await operations.members(topic, group)) for topic, groups in topics.items() for group in groups}


async def test_listeners_leave_the_parking_of_others_alone(backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    cluster = await stack.enter_async_context(opened(*backing))
    topic = await backing_topic(cluster, 1)
    one, two = (ParkingListener(backing, parking, tmp_path, cluster) for parking in PARKINGS)
    for each in (one, two):
        stack.callback(each.process.kill)
        await asyncio.to_thread(each.process.start)

    def transact(listener: ParkingListener, start: int, answers: str) -> java.JavaProgram:
        program = java.spawn(
            "RocketTransact", name_servers=listener.process.address, topic=topic, group=PRODUCERS, messages=HALVES, start=start,
            size=200, outcomes="unknown", answers=answers,
        )  # fmt: skip
        return stack.enter_context(program)

    first = transact(one, 0, "commit")
    await until(lambda: sum("outcome" in line for line in first.lines()) == HALVES, first.stderr)
    first.kill()
    at_one = one.process.address
    await asyncio.to_thread(
        java.run, "RocketProduce", name_servers=at_one, topic=topic, messages=DELAYED, start=FIRST_DELAYED, delay_level=LEVEL
    )
    one.process.kill()
    made = await one.topics()
    print(f"{backing[0]}: made {made}")
    assert made
    assert await two.topics() == {}

    second = transact(two, HALVES, "commit")
    *lines, _ = await asyncio.to_thread(second.wait)
    await asyncio.sleep(CHECKED_S)
    assert {line["check"] for line in lines if "check" in line} == set(range(HALVES, 2 * HALVES)), "it was asked of others"
    assert (await one.topics()).keys() == made.keys()
    assert all(one.parking in group for groups in (await one.topics()).values() for group in groups)
    assert all(two.parking in group for groups in (await two.topics()).values() for group in groups)
    stored = set(await stored_in(cluster, topic))
    delayed_by_itself = cluster.capabilities.delay
    delayed = set(range(FIRST_DELAYED, FIRST_DELAYED + DELAYED))
    assert stored == set(range(HALVES, 2 * HALVES)) | (delayed if delayed_by_itself else set())

    await asyncio.to_thread(one.process.start)
    third = transact(one, 2 * HALVES, "commit")
    await asyncio.to_thread(third.wait)
    print(f"members of the first one's parking: {await one.members()}, of the second one's: {await two.members()}")
    expected = delayed | set(range(3 * HALVES))

    async def all_stored() -> bool:
        return set(await stored_in(cluster, topic)) == expected

    async with asyncio.timeout(90):
        while not await all_stored():
            await asyncio.sleep(0.5)
