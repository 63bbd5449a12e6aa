"""The project's own admin client works with a listener as with a Master and a Broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from mqbridge.errors import ServerRefused
from mqbridge.tubemq.client.admin.admin import Admin, StoredRange
from mqbridge.tubemq.server.broker import BROKER_ID
from tests.tubemq.server.serving import GROUP, TOPIC, TubeMQServing, serving

TOKEN = "any"


@asynccontextmanager
async def admin_of(served: TubeMQServing) -> AsyncIterator[Admin]:
    """Open a client of the listener's web address."""
    assert served.listener.web_port is not None
    admin = Admin(f"http://127.0.0.1:{served.listener.web_port.port}", TOKEN)
    try:
        yield admin
    finally:
        await admin.close()


@pytest_asyncio.fixture(params=[True, False], ids=["own", "backing"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[TubeMQServing]:
    async with serving(owns_groups=request.param, web=("127.0.0.1", 0)) as listener:
        yield listener


async def test_topics_are_created_grown_and_found(served: TubeMQServing) -> None:
    async with admin_of(served) as admin:
        await admin.check_change()
        await admin.create(TOPIC, 2)
        assert await admin.partitions(TOPIC) == {BROKER_ID: 2}
        await admin.create(TOPIC, 4)
        await admin.create(TOPIC, 3)
        await admin.create("other", 1)
        assert await admin.topics() == [TOPIC, "other"]
        assert await admin.partitions(TOPIC) == {BROKER_ID: 4}
        assert await admin.partitions("none") == {}
        assert await admin.publishing_brokers(TOPIC) == {BROKER_ID}
        assert await admin.read_only_partitions(TOPIC) == []
        assert await admin.brokers_without_consumers(TOPIC) == []
        assert not await admin.is_forbidden(TOPIC, GROUP)
        assert not await admin.is_black_listed(TOPIC, GROUP)
        assert [node.id for node in await admin.brokers()] == [BROKER_ID]
        with pytest.raises(ServerRefused, match="1000"):
            await admin.create("large", 2000)


async def test_offsets_of_groups_and_partitions_are_found(served: TubeMQServing) -> None:
    await served.create(TOPIC, 2)
    producer, consumer = await served.connect("p"), await served.connect("c")
    await producer.store(b"a", b"b", b"c")
    await consumer.join()
    for ref in await consumer.assigned():
        await consumer.own(ref.topic, ref.partition)
    await consumer.get()
    await consumer.confirm()
    async with admin_of(served) as admin:
        assert await admin.stored(TOPIC) == {f"{BROKER_ID}:0": StoredRange(0, 84), f"{BROKER_ID}:1": StoredRange(0, 0)}
        assert await admin.groups(TOPIC) == [GROUP]
        assert await admin.committed(TOPIC, GROUP) == {f"{BROKER_ID}:0": 84, f"{BROKER_ID}:1": 0}
        assert await admin.committed(TOPIC, "none") == {}
