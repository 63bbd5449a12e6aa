"""A topic is deleted and created again under a running gateway. As a source, nothing is skipped. As a target, the route waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened, tubemq_settings
from tests.kit.gateway import GatewayProcess
from tests.kit.process import ClusterError
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import BROKER_ID, TOKEN
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.rocketmq import connected

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(400)]

COUNT = 10


@pytest.fixture(scope="module")
def server() -> Iterator[TubeMQ]:
    """Start a cluster whose topics these tests may delete."""
    with TubeMQ(pool={1: 6}) as cluster:
        yield cluster


def delete(server: TubeMQ, topic: str) -> None:
    """Delete a topic with its messages; each step needs a reload of the Broker."""
    about = {"topicName": topic, "brokerId": BROKER_ID, "modifyUser": "tests"}
    for method, more in (
        ("admin_modify_topic_info", {"acceptPublish": False, "acceptSubscribe": False}),
        ("admin_delete_topic_info", {}),
        ("admin_remove_topic_info", {}),
    ):
        server.broker.wait_until(server._admin.settled, "completing the last change")
        server.admin(method, **about, **more)
        server.broker.wait_until(server._admin.settled, "completing the last change")
        server.admin("admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="tests")
    server.broker.wait_until(server._admin.settled, "completing the last change")


def create(server: TubeMQ, topic: str) -> None:
    def is_added() -> bool:
        try:
            server._admin.add_topics({topic: 1})
        except ClusterError:  # a record of the deleted topic is left, because the Broker was not ready when it was to be removed
            with contextlib.suppress(ClusterError):
                server.admin("admin_remove_topic_info", topicName=topic, brokerId=BROKER_ID, modifyUser="tests")
                server._admin.reload()
            return False
        return True

    server.broker.wait_until(is_added, f"adding {topic}")
    server._admin.reload()
    server.broker.wait_until(lambda: server._serves([topic]), f"serving {topic}")


def settings(server: TubeMQ, folder: Path, source: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    return settings_of({"system": "tubemq", **tubemq_settings(server), "admin_token": TOKEN}, folder, source, target)


def settings_of(there: dict[str, Any], folder: Path, source: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    return {
        "clusters": {"there": there, "log": {"system": "log", "path": str(folder / "log.db")}},
        "routes": [{"name": "r", "from": {"group": f"g_{time.time_ns()}", **source}, "to": target}],
    }


async def send(system: str, options: dict[str, Any], topic: str, *payloads: bytes) -> None:
    async with opened(system, options) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        assert not (await outbound.send(0, Share(Batch.of(list(map(Message, payloads)))))).failures
        await outbound.close()


async def send_until_refused(gateway: GatewayProcess, options: dict[str, Any]) -> int:
    """Send messages until the target refuses them; return how many there are. The first of them may still be stored."""
    sent = 1
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while "cannot consume, retrying" not in gateway.log:
            await send("log", options, "mine", b"after")
            sent += 1
            await asyncio.sleep(0.5)
    return sent


async def payloads(folder: Path, topic: str) -> list[bytes]:
    async with opened("log", {"path": str(folder / "log.db")}) as cluster:
        end = (await cluster.bounds(topic))["0"].next
        return [message.payload or b"" async for batch in read(cluster, topic, "0", (0,), end) for message in batch.messages]


async def test_a_source_made_anew_is_read_from_its_first_message(server: TubeMQ, tmp_path: Path) -> None:
    """The new topic has more messages than were read of the old one."""
    topic, options = server.take_topic(1), tubemq_settings(server)
    old = [b"old%d" % number for number in range(COUNT)]
    new = [b"new%d" % number for number in range(3 * COUNT)]
    await send("tubemq", options, topic, *old)
    config = settings(server, tmp_path, {"cluster": "there", "topic": topic}, {"cluster": "log", "topic": "copy"})
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, COUNT)
        await asyncio.to_thread(delete, server, topic)
        await asyncio.to_thread(create, server, topic)
        await send("tubemq", options, topic, *new)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while new[-1] not in await payloads(tmp_path, "copy"):
                assert gateway.process.poll() is None, gateway.log
                await asyncio.sleep(0.5)
        assert [each for each in await payloads(tmp_path, "copy") if each in new] == new, gateway.log
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.parametrize("creates", [True, False])
async def test_a_deleted_target_is_created_again_or_waited_for(server: TubeMQ, tmp_path: Path, creates: bool) -> None:
    topic, options = server.take_topic(1), {"path": str(tmp_path / "log.db")}
    async with opened("log", options) as log:
        await log.create("mine", 1)
    await send("log", options, "mine", b"before")
    config = settings(
        server, tmp_path, {"cluster": "log", "topic": "mine"}, {"cluster": "there", "topic": topic, "create": creates}
    )
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 1)
        await asyncio.to_thread(delete, server, topic)
        sent = await send_until_refused(gateway, options)
        if not creates:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                while "does not exist" not in str((await asyncio.to_thread(gateway.route)).get("retrying")):
                    assert gateway.process.poll() is None, gateway.log
                    await asyncio.sleep(0.5)
            await asyncio.to_thread(create, server, topic)
        await asyncio.to_thread(gateway.wait_stored, sent)
        assert (await asyncio.to_thread(gateway.route))["error"] is None
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.parametrize("creates", [True, False])
async def test_a_deleted_rocketmq_target_is_created_again_or_waited_for(
    rocketmq: RocketMQ, tmp_path: Path, creates: bool
) -> None:
    topic, options = rocketmq.take_topic(1), {"path": str(tmp_path / "log.db")}
    async with opened("log", options) as log:
        await log.create("mine", 1)
    await send("log", options, "mine", b"before")
    config = settings_of(
        {"system": "rocketmq", "name_servers": rocketmq.name_server, "refresh": "500ms"},
        tmp_path,
        {"cluster": "log", "topic": "mine"},
        {"cluster": "there", "topic": topic, "create": creates},
    )
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 1)
        async with connected(rocketmq) as client:
            await client.admin.delete_topic(topic)
        sent = await send_until_refused(gateway, options)
        if not creates:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                while topic not in str((await asyncio.to_thread(gateway.route)).get("retrying")):
                    assert gateway.process.poll() is None, gateway.log
                    await asyncio.sleep(0.5)
            await asyncio.to_thread(rocketmq.create_topic, topic, 1)
        await asyncio.to_thread(gateway.wait_stored, sent)
        assert (await asyncio.to_thread(gateway.route))["error"] is None
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
