"""A topic of a real broker is deleted and created again while a route reads it: the partition stops, and nothing is skipped."""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import read
from tests.kit import rocketmq_remoting as remoting
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

DELETE_TOPIC_IN_BROKER, DELETE_TOPIC_IN_NAME_SERVER = 215, 216
OLD, NEW = 5, 9
_numbers = itertools.count(1)


async def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 90
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def delete(server: RocketMQ, topic: str) -> None:
    for address in server.broker_addresses:
        remoting.call(address, DELETE_TOPIC_IN_BROKER, {"topic": topic})
    for address in server.name_servers:
        remoting.call(address, DELETE_TOPIC_IN_NAME_SERVER, {"topic": topic})


def configuration(server: RocketMQ, topic: str, folder: Path) -> dict[str, Any]:
    return {
        "clusters": {
            "source": {"system": "rocketmq", "name_servers": server.name_server},
            "target": {"system": "log", "path": str(folder / "target.db")},
        },
        "state": str(folder / "state.db"),
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": topic, "group": f"g-{topic}"},
                "to": {"cluster": "target", "topic": "copies"},
            }
        ],
    }


@pytest.mark.parametrize("is_read_before", [True, False])
async def test_a_topic_made_anew_and_filled_at_once_stops_its_partition_and_is_read_after_a_restart(
    rocketmq: RocketMQ, tmp_path: Path, is_read_before: bool
) -> None:
    topic = f"anew-{next(_numbers)}"
    rocketmq.create_topic(topic, 1)
    for number in range(OLD):
        rocketmq.send(topic, b"old %d" % number)
    config = configuration(rocketmq, topic, tmp_path)
    with GatewayProcess(config, tmp_path, "--until-idle", "1") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    with GatewayProcess(config, tmp_path) as gateway:
        await wait_until(lambda: gateway.route().get("lanes"))
        read_since = 0
        if is_read_before:
            rocketmq.send(topic, b"old %d" % OLD)
            await asyncio.to_thread(gateway.wait_stored, 1)
            read_since = 1
        await asyncio.sleep(6)  # longer than the time between two checks; a held pull waits at the end of the queue
        delete(rocketmq, topic)
        rocketmq.create_topic(topic, 1)
        for number in range(NEW):
            rocketmq.send(topic, b"new %d" % number)
        await wait_until(lambda: gateway.route().get("stopped"))
        route = gateway.route()
        assert "was deleted and created again" in str(route["stopped"])
        assert route["received"] == read_since
        await asyncio.to_thread(gateway.terminate)
    with GatewayProcess(config, tmp_path, "--until-idle", "1") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    payloads = [
        message.payload
        async for _, messages in read("log", {"path": str(tmp_path / "target.db")}, "copies", "judge")
        for message in messages
    ]
    expected = [b"old %d" % number for number in range(OLD + read_since)] + [b"new %d" % number for number in range(NEW)]
    assert payloads == expected
