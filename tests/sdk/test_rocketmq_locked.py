"""Java's clients and ours in one group of a cluster with TLS and access control, with the same certificate and keys."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.adapter.registration import ADAPTER
from tests.kit import java
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import APP
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.rocketmq import body, run_java, sequence, until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(300), pytest.mark.thorough]

QUEUES = 4
OF_JAVA, OF_OURS = 120, 120


@pytest.mark.parametrize(
    ("kind", "client"),
    [("rocketmq_locked", "5.3.3"), ("rocketmq_old_locked", "4.9.8"), ("rocketmq_locked", "4.9.8")],
    ids=["acl2", "acl1", "acl2-old-client"],
)
async def test_a_group_of_java_and_our_members_receives_every_message(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, client: str
) -> None:
    server: RocketMQ = request.getfixturevalue(kind)
    assert server.lock is not None
    topic, group, leave = server.take_topic(QUEUES), f"g_{time.time_ns()}", tmp_path / "leave"
    common: dict[str, Any] = {
        "name_servers": server.name_server, "topic": topic, "client": client, "tls": True, "access_key": APP.name,
        "secret_key": APP.secret, "flags": (*java.FLAGS, *server.lock.java_options),
    }  # fmt: skip
    cluster = ADAPTER.make_cluster(
        "ours", ADAPTER.cluster_model(name_servers=server.name_server, heartbeat="2s", **server.lock.settings(APP))
    )
    await cluster.connect()
    inbound = await cluster.inbound(InboundSpec((topic,), group))
    ours: list[int] = []
    held: set[str] = set()

    async def lane(one: Any) -> None:
        held.add(one.partition.name)
        try:
            while True:
                batch = await one.receive()
                ours.extend(sequence(message.payload) for message in batch.messages)
                one.acknowledge(batch)
        except LaneRevoked:
            held.discard(one.partition.name)
            await one.release()

    async def lanes() -> None:
        async for one in inbound.lanes():
            tasks.append(spawn(lane(one), "lane"))  # noqa: PERF401 - it never ends

    tasks = [spawn(lanes(), "lanes")]
    stack = contextlib.ExitStack()
    try:
        theirs = stack.enter_context(java.spawn("RocketConsume", group=group, idle=0, until=str(leave), **common))
        await until(lambda: len(held) == QUEUES // 2, theirs.stderr)
        outbound = await cluster.outbound(OutboundSpec(topic))
        sent = [
            outbound.send(number % QUEUES, Share(Batch.of([Message((OF_JAVA + number).to_bytes(8, "big"))])))
            for number in range(OF_OURS)
        ]
        assert all([not (await receipt).failures for receipt in sent])
        await run_java("RocketProduce", messages=OF_JAVA, size=50, **common)

        def got() -> set[int]:
            return {*ours, *(sequence(body(line)) for line in theirs.lines() if "body" in line)}

        await until(lambda: got() == {*range(OF_JAVA + OF_OURS)}, lambda: (len(got()), theirs.stderr()), SERVER_PATIENCE_S)
        assert ours
        assert any("body" in line for line in theirs.lines())
        leave.touch()
        await asyncio.to_thread(theirs.wait)
        await outbound.close()
    finally:
        stack.close()
        await cancel(*tasks)
        await inbound.close()
        await cluster.close()
