"""Pulsar to TubeMQ on the real servers with the shipped configuration: fields that TubeMQ lacks are carried, and restored."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share, split_origin
from tests.e2e.support import environment, opened, pulsar_settings, read, tubemq_settings
from tests.kit.gateway import CONFIG, GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.tubemq import TubeMQ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CORPUS = [
    Message(b"plain"),
    Message(b"", (("empty", ""),)),
    Message(None, key="gone"),
    Message(bytes(range(256)) * 4, key=b"\x00\xff", ordering_key=b"\x01"),
    Message("grün".encode(), (("a,b", "c=d%"), ("a,b", "again"), ("leer", " ")), key="schlüssel", event_time=1795219034805),
    Message(b"typed", (("$msgType$", "t1"), ("k", "v")), msg_type="t1"),
    Message(b"x" * 900_000, tuple((f"p{n}", "v" * 20) for n in range(200))),
    Message(b"later", deliver_at=1795219034805),
]


def comparable_fields(message: Message) -> tuple[object, ...]:
    return (message.payload, message.properties, message.key, message.ordering_key, message.event_time, message.deliver_at)


async def test_every_message_returns_unchanged_from_tubemq(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path) -> None:
    source, target = f"persistent://public/default/back-{time.time_ns()}", tubemq.take_topic(1)
    pulsar.create_topic(source.rpartition("/")[2], 1)
    async with opened("pulsar", pulsar_settings(pulsar)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(source, stamp_origin=False))
        assert not (await outbound.send(0, Share(Batch.of(CORPUS)))).failures
        await outbound.close()
    env = environment(tubemq, pulsar, source, target)
    with GatewayProcess(CONFIG / "pulsar-to-tubemq.yaml", tmp_path, "--until-idle", "3", env=env) as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    got = [message async for _, batch in read("tubemq", tubemq_settings(tubemq), target, "judge") for message in batch]
    assert [comparable_fields(message) for message in got] == [comparable_fields(message) for message in CORPUS]
    assert [message.msg_type for message in got] == [None, None, None, None, None, "t1", None, None]
    assert split_origin(got[0].origin or "")[:3] == ("pulsar", source, "0")
