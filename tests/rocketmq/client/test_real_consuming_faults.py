"""Consumers continue while a broker is killed and restarted."""

from collections.abc import Iterator

import pytest

from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.kit.rocketmq import RocketMQ
from tests.rocketmq.client.real_topics import Environment, ReadingMember, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[RocketMQ]:
    with RocketMQ(brokers=2, heap_mb=384) as kit:
        yield kit


async def test_consumers_lose_no_message_when_a_broker_is_killed_and_restarted(two_brokers: RocketMQ) -> None:
    server = two_brokers
    env = Environment(server, 2)
    queues = {Queue(env.topic, broker, number) for broker in server.broker_names for number in range(2)}
    try:
        members = [
            await env.join_reading(group=env.group, retries=False),
            await env.join_reading(group=f"{env.group}-orderly", orderly=True, retries=False),
        ]
        sent = send(env, "first")
        await until(lambda: all(bodies(member) == sent for member in members))

        server.kill_broker(1)
        sent |= send(env, "meanwhile", brokers=1)
        await until(lambda: all(bodies(member) == sent for member in members))

        server.restart_broker(1)
        sent |= send(env, "after")
        await until(lambda: all(bodies(member) == sent for member in members))
        await until(lambda: all(set(member.consumer.held) == queues for member in members))
        for member in members:
            assert len(member.received) <= len(sent) + 2, "only messages whose commit the killed broker lost may be redelivered"
    finally:
        await env.close()
    client = await env.client()
    for queue in queues:
        assert await client.positions.committed(queue, env.group) == await client.positions.next(queue)
    await client.close()


def bodies(member: ReadingMember) -> set[bytes]:
    return {body for _, _, body in member.received}


def send(env: Environment, name: str, brokers: int = 2) -> set[bytes]:
    """Send one message to each of the two queues of the first `brokers` brokers, and return their bodies."""
    sent = set()
    for broker in range(brokers):
        for number in range(2):
            body = f"{name} {broker} {number}".encode()
            env.server.send(env.topic, body, queue=number, broker=broker)
            sent.add(body)
    return sent
