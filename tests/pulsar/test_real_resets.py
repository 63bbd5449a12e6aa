"""An operator resets a subscription of a real broker while its consumer is cut off: every message is delivered again."""

import asyncio
from collections.abc import Callable

import pytest

from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import numbers, send_all, take
from tests.pulsar.proxy import CuttingProxy

pytestmark = pytest.mark.cluster

COUNT = 10
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("individually", [False, True], ids=["cumulative", "individual"])
@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover], ids=["exclusive", "failover"])
async def test_acknowledgements_do_not_undo_a_reset_during_an_outage(pulsar: Pulsar, client, kind: int, individually: bool):
    """Neither one that the broker had before, nor one that waits for the connection."""
    topic = pulsar.take_topic()
    path = topic.replace("://", "/")

    def subscription() -> dict:
        return pulsar.admin("GET", f"{path}/stats")["subscriptions"]["s"]

    producer = client.producer(topic)
    await send_all(producer, 0, COUNT)
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        through = client_of(proxy.url)
        consumer = await through.consumer(topic, Subscription("s", kind))
        entries = await take(consumer, 7)
        pongs = consumer._connection().pongs
        for entry in entries[:4]:
            (consumer.acknowledge if individually else consumer.acknowledge_up_to)(entry.id)
        consumer.flush_acks()
        await until(lambda: subscription()["msgBacklog"] == COUNT - 4 and (individually or consumer._connection().pongs > pongs))
        (consumer.acknowledge if individually else consumer.acknowledge_up_to)(entries[5].id)
        proxy.away = True
        proxy.drop()
        await until(lambda: not subscription()["consumers"])
        await asyncio.to_thread(pulsar.admin, "POST", f"{path}/subscription/s/resetcursor", EARLIEST)
        proxy.away = False
        again = await take(consumer, COUNT)
        assert numbers(again) == list(range(COUNT))
        consumer.acknowledge_up_to(again[-1].id)
        await consumer.confirm_acks()
        assert subscription()["msgBacklog"] == 0
        await through.close()
    await producer.close()
