"""Consumers while a broker dies and comes back."""

from collections.abc import Iterator

import pytest

from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.kit.rocketmq import RocketMQ
from tests.rocketmq.client.real_topics import Place, Reading, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[RocketMQ]:
    with RocketMQ(brokers=2, heap_mb=384) as kit:
        yield kit


async def test_a_broker_is_killed_and_comes_back(two_brokers: RocketMQ) -> None:
    kit = two_brokers
    place = Place(kit, 2)
    queues = {Queue(place.topic, broker, number) for broker in kit.broker_names for number in range(2)}
    try:
        readings = [
            await place.reading(group=place.group, retries=False),
            await place.reading(group=f"{place.group}-orderly", orderly=True, retries=False),
        ]
        sent = send(place, "first")
        await until(lambda: all(bodies(one) == sent for one in readings))

        kit.kill_broker(1)
        sent |= send(place, "meanwhile", brokers=1)
        await until(lambda: all(bodies(one) == sent for one in readings))

        kit.restart_broker(1)
        sent |= send(place, "after")
        await until(lambda: all(bodies(one) == sent for one in readings))
        await until(lambda: all(set(one.consumer.held) == queues for one in readings))
        for one in readings:
            assert len(one.got) <= len(sent) + 2, "only what was not committed at the broker that died may come again"
    finally:
        await place.close()
    client = await place.client()
    for queue in queues:
        assert await client.positions.committed(queue, place.group) == await client.positions.next(queue)
    await client.close()


def bodies(reading: Reading) -> set[bytes]:
    return {body for _, _, body in reading.got}


def send(place: Place, name: str, brokers: int = 2) -> set[bytes]:
    sent = set()
    for broker in range(brokers):
        for number in range(2):
            body = f"{name} {broker} {number}".encode()
            place.kit.send(place.topic, body, queue=number, broker=broker)
            sent.add(body)
    return sent
