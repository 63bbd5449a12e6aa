"""Topics of two real Brokers that several clients create and grow at the same time, and that grow while a Broker is down."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.tubemq.client.admin.admin import Admin
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_more import SecondBroker
from tests.kit.tubemq_settings import TOKEN
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.thorough]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[TubeMQ, SecondBroker]]:
    with TubeMQ(pool={1: 1}) as server:
        second = SecondBroker(server)
        second.start()
        try:
            yield server, second
        finally:
            second.process.kill()


@pytest.fixture
async def admins(brokers: tuple[TubeMQ, SecondBroker]) -> AsyncIterator[list[Admin]]:
    admins = [Admin(brokers[0].admin_url, TOKEN) for _ in range(3)]
    yield admins
    for admin in admins:
        await admin.close()


async def settings(admin: Admin, topic: str) -> dict[int, dict[str, Any]]:
    """Return the settings of a topic by Broker, without those that name its last change and its current state."""
    changing = {"serialId", "modifyUser", "modifyDate", "runInfo"}
    configs = await admin._topic_configs(topic)
    return {broker: {name: entry[name] for name in entry.keys() - changing} for broker, entry in configs.items()}


async def test_clients_that_create_and_grow_a_topic_at_the_same_time_all_succeed(admins: list[Admin]) -> None:
    topic = f"shared_{next(_numbers)}"
    for numbers in ((4, 4, 4), (8, 8, 8), (14, 10, 20)):
        await asyncio.gather(*(admin.create(topic, number) for admin, number in zip(admins, numbers, strict=True)))
        partitions = await admins[0].partitions(topic)
        assert partitions.keys() == {1, 2}
        assert sum(partitions.values()) >= max(numbers)


async def test_a_topic_grows_only_at_its_brokers_and_keeps_the_settings_of_each(
    admins: list[Admin], brokers: tuple[TubeMQ, SecondBroker]
) -> None:
    topic = f"kept_{next(_numbers)}"
    brokers[0].admin(
        "admin_add_new_topic_record",
        topicName=topic,
        brokerId=1,
        numPartitions=2,
        numTopicStores=2,
        deletePolicy="delete,5h",
        unflushInterval=7777,
        memCacheMsgSizeInMB=4,
        createUser="tests",
    )
    before = await settings(admins[0], topic)
    await admins[0].create(topic, 5)
    assert await settings(admins[0], topic) == {1: before[1] | {"numPartitions": 3}}


@pytest.mark.thorough  # the Master notices after half a minute that a Broker was killed
async def test_a_topic_is_not_changed_while_one_of_its_brokers_is_down(
    admins: list[Admin], brokers: tuple[TubeMQ, SecondBroker]
) -> None:
    topic, (admin, *_) = f"down_{next(_numbers)}", admins
    await admin.create(topic, 4)
    before = await settings(admin, topic)
    await asyncio.to_thread(brokers[1].process.kill)
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while 2 in await admin._running_brokers():
                await asyncio.sleep(0.5)
        with pytest.raises(ClusterError, match="Brokers 2 are down") as caught:
            await admin.create(topic, 8)
        assert caught.value.failure is Failure.RETRY
        assert await settings(admin, topic) == before
    finally:
        await asyncio.to_thread(brokers[1].process.start)
    await admin.create(topic, 8)
    assert await admin.partitions(topic) == {1: 4, 2: 4}
