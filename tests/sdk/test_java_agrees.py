"""The official Java clients read messages that mqbridge wrote, and mqbridge reads theirs, with every field."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import config, opened, pulsar_settings, read, tubemq_settings
from tests.kit import java
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(600)]

COUNT = 300
PARTITIONS = 8
ROUND = 1000
RATE = 250
IDLE_S = 50
"""A Java consumer ends when it has received nothing for this long, counted from before it subscribes."""


async def run_java(name: str, **arguments: Any) -> list[dict[str, Any]]:
    """Run a Java program; return the lines that it prints, without the summary at the end."""
    return (await asyncio.to_thread(java.run, name, **arguments))[:-1]


def body(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line["body"])


def pairs(attributes: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in attributes.split(","))


async def test_from_the_java_producer_of_tubemq_to_the_java_consumer_of_pulsar(
    tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path
) -> None:
    source, target = tubemq.take_topic(3), f"sdk-{time.time_ns()}"
    sent = await run_java(
        "TubeProduce",
        master=tubemq.masters,
        topic=source,
        messages=COUNT,
        size=200,
        types="t1,t2",
        time="202611202350",
        attributes={"k": "v{n}", "name": "grün"},
        window=1,
        print=True,
    )
    settings = config(tubemq, pulsar, source, target)
    with GatewayProcess(settings, tmp_path, "--until-idle", "4") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    got = await run_java("PulsarConsume", url=pulsar.service_url, topic=target, subscription="s", messages=COUNT, idle=IDLE_S)

    assert len(sent) == len(got) == COUNT
    by_seq = {body(line): line for line in got}
    for line in sent:
        arrived = by_seq[body(line)]
        properties = arrived["properties"]
        attributes = pairs(line["attributes"])
        assert attributes["$msgType$"] == ("t1", "t2")[line["seq"] % 2]
        # See docs/reference/mapping.md: every pair by name, the string byte for byte, the minute as event time, the origin.
        assert {key: properties[key] for key in attributes} == attributes
        assert properties["mqbridge.attributes"] == line["attributes"]
        assert arrived["eventTime"] == 1795218600000
        cluster, topic, partition, _ = properties["mqbridge.origin"].split("|")
        assert (cluster, topic) == ("tube", source)
        assert set(properties) == {*attributes, "mqbridge.attributes", "mqbridge.origin"}
        assert arrived["id"]["partition"] == int(partition.split(":")[-1])


async def test_java_reads_our_messages_from_tubemq(tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    attributes = "$msgType$=t1,$msgTime$=202611202350,k=v,name=grün".encode()
    properties = tuple((key, value) for key, value in pairs(attributes.decode()).items())
    messages = [
        Message(b"native", properties, msg_type="t1", attributes=attributes),
        Message(b"no attributes"),
        Message(b"foreign", (("a,b", "c=d"), ("empty", "")), key="key", msg_type="t2", event_time=1795218600123),
    ]
    async with opened("tubemq", tubemq_settings(tubemq)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        receipt = await outbound.send(0, Share(Batch.of(messages)))
        assert not receipt.failures
        await outbound.close()
    native, plain, foreign = await run_java(
        "TubeConsume", master=tubemq.masters, topic=topic, group=f"j_{topic}", messages=3, idle=IDLE_S
    )
    assert (body(native), native["attributes"], native["msgType"]) == (b"native", attributes.decode(), "t1")
    assert (body(plain), plain["attributes"]) == (b"no attributes", None)
    assert (body(foreign), foreign["msgType"]) == (b"foreign", "t2")
    attributes = pairs(foreign["attributes"])
    assert attributes["$msgTime$"] == "202611202350"
    assert (attributes["a%2Cb"], attributes["mqbridge.key"], attributes["mqbridge.event_time"]) == (
        "c%3Dd",
        "key",
        "1795218600123",
    )


async def test_java_reads_our_messages_from_pulsar(pulsar: Pulsar) -> None:
    topic = pulsar.create_topic(f"sdk-{time.time_ns()}", 1)
    messages = [
        Message(b"first", (("a", "1"), ("ü", "ö")), key="key", ordering_key=b"\x00\x01", event_time=1234),
        Message(b"binary key", key=b"\xff\x00"),
        Message(None, key="gone"),
        Message(b""),
        Message(b"later", deliver_at=1),
    ]
    async with opened("pulsar", pulsar_settings(pulsar)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        assert not (await outbound.send(0, Share(Batch.of(messages)))).failures
        await outbound.close()
    got = await run_java("PulsarConsume", url=pulsar.service_url, topic=topic, subscription="s", messages=5, idle=IDLE_S)
    first, binary, gone, empty, later = got
    assert (body(first), first["key"], first["eventTime"], first["properties"]) == (b"first", "key", 1234, {"a": "1", "ü": "ö"})
    assert base64.b64decode(first["orderingKey"]) == b"\x00\x01"
    assert base64.b64decode(binary["keyBytes"]) == b"\xff\x00"
    assert gone["null"] is True
    assert (body(empty), empty["null"]) == (b"", False)
    assert (body(later), later["id"]["batch"]) == (b"later", -1)


@pytest.mark.parametrize(
    ("compression", "batching"),
    [
        ("NONE", False),
        ("LZ4", True),
        *(
            pytest.param(compression, batching, marks=pytest.mark.thorough)
            for compression, batching in (("NONE", True), ("ZLIB", True), ("ZSTD", False), ("SNAPPY", True))
        ),
    ],
)
async def test_we_read_messages_that_java_wrote_to_pulsar(pulsar: Pulsar, compression: str, batching: bool) -> None:
    topic = pulsar.keep(pulsar.create_topic(f"sdk-{time.time_ns()}", 1))
    sent = await run_java(
        "PulsarProduce",
        url=pulsar.service_url,
        topic=topic,
        messages=50,
        size=300,
        key="k{n}",
        ordering_key="o{n}",
        properties={"n": "{n}", "name": "grün"},
        event_time=1234,
        batching=batching,
        compression=compression,
        print=True,
    )
    got = [m async for _, batch in read("pulsar", pulsar_settings(pulsar), topic, "ours") for m in batch]
    assert [m.payload for m in got] == [body(line) for line in sent]
    for number, m in enumerate(got):
        assert (m.key, m.ordering_key, m.event_time) == (f"k{number}", f"o{number}".encode(), 1234)
        assert dict(m.properties) == {"n": str(number), "name": "grün"}


@pytest.mark.thorough
async def test_a_java_consumer_and_the_gateway_share_a_tubemq_group(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path) -> None:
    source, target, leave = tubemq.take_topic(PARTITIONS), f"sdk-{time.time_ns()}", tmp_path / "leave"
    settings = config(tubemq, pulsar, source, target)
    topic_options = {"master": tubemq.masters, "topic": source}
    group = settings["routes"][0]["from"]["group"]
    sent: list[dict[str, Any]] = []
    with GatewayProcess(settings, tmp_path) as gateway:
        with java.spawn("TubeConsume", group=group, idle=0, until=str(leave), **topic_options) as other:

            async def send() -> None:
                options = {"messages": ROUND, "start": len(sent), "size": 100, "rate": RATE, "window": 50, "print": True}
                sent.extend(await run_java("TubeProduce", **topic_options, **options))

            def shared() -> bool:
                return 0 < len(gateway.route().get("lanes", {})) < PARTITIONS and bool(other.lines())

            async with asyncio.timeout(SERVER_PATIENCE_S):
                while not await asyncio.to_thread(shared):
                    await send()
            await send()
            leave.touch()
            theirs = (await asyncio.to_thread(other.wait))[:-1]
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    with GatewayProcess(settings, tmp_path, "--until-idle", "4") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    ours = [m.payload or b"" async for _, batch in read("pulsar", pulsar_settings(pulsar), target, "j") for m in batch]
    assert theirs, "the Java consumer never got a partition"
    assert ours, "the gateway never got a partition"
    assert set(ours) | {body(line) for line in theirs} == {body(line) for line in sent}
