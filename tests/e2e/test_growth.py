"""Queues and Brokers are added while the gateway runs, and targets grow with them; two routes form a ring."""

from __future__ import annotations

import asyncio
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.sides import Side, side
from tests.e2e.support import KEPT, opened, read
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import KEEPER
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_more import SecondBroker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PER_PARTITION = 50
"""Number of messages that are sent to each partition."""


def route(name: str, source: str, target: str, topics: tuple[str, str], **delivery: Any) -> dict[str, Any]:
    """Return a route between two clusters, from `topics[0]` to `topics[1]`, that looks for new partitions every second."""
    return {
        "name": name,
        "from": {"cluster": source, "topic": topics[0], "group": f"g_{time.time_ns()}", "refresh": "1s"},
        "to": {"cluster": target, "topic": topics[1]},
        "delivery": delivery,
    }


def clusters(**sides: Side) -> dict[str, Any]:
    refresh = {"tubemq": {}, "pulsar": {"refresh": "1s"}, "rocketmq": {"refresh": "1s"}}
    return {name: {"system": each.system, **each.settings, **refresh[each.system]} for name, each in sides.items()}


async def send(source: Side, topic: str, partitions: range) -> None:
    async with opened(source.system, source.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        for partition in partitions:
            batch = [Message(b"%d/%d" % (partition, number)) for number in range(PER_PARTITION)]
            assert not (await outbound.send(partition, Share(Batch.of(batch)))).failures
        await outbound.close()


async def arrived(where: Side, topic: str) -> dict[int, list[bytes | None]]:
    """Return all payloads of a topic, by partition index."""
    payloads: dict[int, list[bytes | None]] = {}
    async for partition, messages in read(where.system, where.settings, topic, f"judge_{time.time_ns()}"):
        payloads.setdefault(partition, []).extend(message.payload for message in messages)
    return payloads


def expected(partitions: range) -> dict[int, list[bytes | None]]:
    return {partition: [b"%d/%d" % (partition, number) for number in range(PER_PARTITION)] for partition in partitions}


@pytest.mark.thorough
async def test_new_queues_are_read_and_the_target_grows_with_them(
    rocketmq: RocketMQ, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    here, there = side("rocketmq", request), side("pulsar", request)
    source, target = here.take_topic(2), f"grown-{time.time_ns()}"
    config = {"clusters": clusters(here=here, there=there), "routes": [route("r", "here", "there", (source, target))]}
    config["routes"][0]["to"] |= {"partitions": {"by": "identity"}, "create": KEPT}
    await send(here, source, range(2))
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 2 * PER_PARTITION)
        await asyncio.to_thread(rocketmq.create_topic, source, 4)
        await send(here, source, range(2, 4))
        await asyncio.to_thread(gateway.wait_stored, 4 * PER_PARTITION)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    assert await arrived(there, target) == expected(range(4))


@pytest.mark.thorough
async def test_the_partitions_of_a_new_broker_are_read(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    there, target = side("pulsar", request), f"joined-{time.time_ns()}"
    with TubeMQ({"demo": 2}, pool={}) as server:
        here = Side("tubemq", server, 0)
        config = {"clusters": clusters(here=here, there=there), "routes": [route("r", "here", "there", ("demo", target))]}
        config["routes"][0]["to"]["create"] = KEPT
        await send(here, "demo", range(2))
        with GatewayProcess(config, tmp_path) as gateway:
            await asyncio.to_thread(gateway.wait_stored, 2 * PER_PARTITION)
            second = SecondBroker(server)
            try:
                await asyncio.to_thread(second.start)
                await asyncio.to_thread(second.add_topic, "demo", 2)
                await send(here, "demo", range(2, 4))
                await asyncio.to_thread(gateway.wait_stored, 4 * PER_PARTITION)
                assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
            finally:
                second.kill()
    found = await arrived(there, target)
    assert sorted(filter(None, chain(*found.values()))) == sorted(filter(None, chain(*expected(range(4)).values())))


async def test_a_ring_of_two_carries_each_message_once(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    one, other = side("rocketmq", request), side("pulsar", request)
    topic = one.take_topic(1)
    async with opened(other.system, other.settings) as cluster:
        await cluster.create(topic, 1)
        await cluster.operations.create_group(topic, KEEPER)
    ring = [route("there", "one", "other", (topic, topic)), route("back", "other", "one", (topic, f"{topic}"))]
    await send(one, topic, range(1))
    with GatewayProcess({"clusters": clusters(one=one, other=other), "routes": ring}, tmp_path, "--until-idle", "5") as gateway:
        await asyncio.to_thread(gateway.wait_stored, PER_PARTITION)
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    assert await arrived(one, topic) == expected(range(1))
    assert await arrived(other, topic) == expected(range(1))
