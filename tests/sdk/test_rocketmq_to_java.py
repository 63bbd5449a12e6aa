"""The official Java clients read messages that mqbridge writes to RocketMQ like messages of a Java producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.record import Record
from tests.e2e.sides import Side, side
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.sdk.rocketmq import IDLE_S, Clients, Line, body, connected, run_java, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(300)]

QUEUES = 2
COUNT = 90
DELAY_S = 4


def messages_for(queue: int) -> list[Message]:
    """Return many messages that are batched, one that fills a send, one that is sent alone, and a delayed one."""
    many = [
        Message(
            b"%d/%d" % (queue, n),
            (("n", str(n)), ("name", "grün"), ("a b", "c=d,e")),
            key=f"shard-{n % 5}",
            keys=(f"key-{queue}-{n}", "all"),
            msg_type=(None, "t0", "t1")[n % 3],
            event_time=1_795_219_034_000 + n,
        )
        for n in range(COUNT)
    ]
    large = Message(b"x" * ((4 << 20) - 3000), (("n", "large"),), keys=(f"large-{queue}",), msg_type="t0")
    alone = Message(b"y" * (4 << 20), (("z", "1"), ("a", "2")), msg_type="t1")
    late = Message(
        b"late", (("n", "late"),), keys=(f"late-{queue}",), msg_type="late", deliver_at=int(time.time() + DELAY_S) * 1000
    )
    return [*many, large, alone, late]


async def send(rocket: Side, topic: str, partitions: Sequence[Sequence[Message]]) -> None:
    async with opened(rocket.system, rocket.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        receipts = await asyncio.gather(
            *(outbound.send(number, Share(Batch.of(messages))) for number, messages in enumerate(partitions))
        )
        assert not [failure.reason for receipt in receipts for failure in receipt.failures]
        await outbound.close()


def assert_sees(line: Line, message: Message) -> None:
    """Check that a line of a Java consumer shows this message."""
    where = f"{message!r} as {str(line)[:1000]}"
    assert body(line) == message.payload, where
    assert line["tags"] == message.msg_type, where
    assert line["keys"] == (" ".join(message.keys) or None), where
    properties = line["properties"]
    assert {name: properties.get(name) for name, _ in message.properties} == dict(message.properties), where
    assert properties.get("__SHARDINGKEY") == message.key or message.key in message.keys or message.key is None, where
    assert line["reconsumeTimes"] == 0, where


async def wait_until_stored(rocketmq: RocketMQ, topic: str, count: int) -> None:
    await until(lambda: rocketmq.message_count(topic) == count, lambda: f"{rocketmq.message_count(topic)} of {count}")


@Clients
async def test_java_reads_our_messages(client: str, request: pytest.FixtureRequest, rocketmq: RocketMQ, tmp_path: Path) -> None:
    topic, sent = rocketmq.take_topic(QUEUES), [messages_for(queue) for queue in range(QUEUES)]
    total = sum(map(len, sent))
    await send(side("rocketmq", request), topic, sent)
    await wait_until_stored(rocketmq, topic, total)

    async def consumed(program: str, count: int = total, **options: Any) -> list[Line]:
        common = {"name_servers": rocketmq.name_server, "topic": topic, "messages": count, "idle": IDLE_S, "client": client}
        return await run_java(program, group=f"g_{time.time_ns()}", **common, **options)

    wanted = {message.payload: message for messages in sent for message in messages if message.msg_type in {"t0", "late"}}
    chosen = [message for messages in sent for message in messages if message.payload in wanted]
    orderly, tagged, spread, *pulled = await asyncio.gather(
        consumed("RocketConsume", orderly=True),
        consumed("RocketConsume", len(chosen), tags="t0 || late"),
        consumed("RocketConsume", broadcast=True, offsets=str(tmp_path)),
        consumed("RocketPull", mode="subscribe"),
        consumed("RocketPull", mode="assign"),
        consumed("RocketPull", mode="pull"),
    )
    for lines in (orderly, spread, *pulled):
        assert len(lines) == total
        lines_by_position = {(line["queue"], line["offset"]): line for line in lines}
        for queue, messages in enumerate(sent):
            for offset, message in enumerate(messages):
                assert_sees(lines_by_position[queue, offset], message)
        assert len({line["messageId"] for line in lines}) == total, "each message has an id of its own"
    for queue in range(QUEUES):
        offsets = [line["offset"] for line in orderly if line["queue"] == queue]
        assert offsets == sorted(offsets)
    assert len(tagged) == len(chosen)
    assert sorted(map(body, tagged)) == sorted(message.payload or b"" for message in chosen)
    await assert_found(rocketmq, topic, sent, spread)


@Clients
@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_java_reads_our_compressed_messages(
    client: str, compression: str, request: pytest.FixtureRequest, rocketmq: RocketMQ
) -> None:
    topic, rocket = rocketmq.take_topic(1), side("rocketmq", request)
    late = int(time.time() + DELAY_S) * 1000
    messages = [
        Message(b"small", (("n", "0"),)),
        Message(b"large " * 1000, (("n", "1"), ("a b", "c=d,e")), key="shard", keys=("k",), msg_type="t0"),
        Message(b"small again"),
        Message(b"above the limit unless compressed " * (200 << 10), (("n", "2"),)),
        Message(b"last"),
        Message(b"late " * 1000, (("n", "3"),), msg_type="late", deliver_at=late),
    ]
    async with opened(rocket.system, rocket.settings) as cluster:
        options = RocketMQOutboundOptions.model_validate({"compression": compression})
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False, options=options))
        receipt = await outbound.send(0, Share(Batch.of(messages)))
        assert [failure.reason for failure in receipt.failures] == []
        await outbound.close()
    await wait_until_stored(rocketmq, topic, len(messages))
    common = {"name_servers": rocketmq.name_server, "topic": topic, "idle": IDLE_S, "client": client}
    lines = await run_java("RocketConsume", group=f"g_{time.time_ns()}", messages=len(messages), orderly=True, **common)
    for line, message in zip(lines, messages, strict=True):
        assert_sees(line, message)


def named(record: Record) -> dict[str, str]:
    return dict(properties.decode(record.properties))


async def assert_found(rocketmq: RocketMQ, topic: str, sent: Sequence[Sequence[Message]], lines: Sequence[Line]) -> None:
    """Check that queries find our messages by their keys, and by the ids that Java shows for them."""
    async with connected(rocketmq) as client:
        for queue, messages in enumerate(sent):
            for message in (messages[0], messages[COUNT - 1], messages[COUNT], messages[-1]):
                (record,) = await Query(client).by_key(topic, message.keys[0])
                assert (record.queue_id, record.body) == (queue, message.payload)
        for line in (lines[0], lines[len(lines) // 2], lines[-1]):
            found = [await Query(client).by_offset_id(line["offsetMessageId"], topic)]
            if line["messageId"] != line["offsetMessageId"]:
                found += await Query(client).by_unique_key(topic, line["messageId"])
            assert found
            assert all(record is not None and record.body == body(line) for record in found)


async def test_java_consumers_of_rocketmq_read_messages_of_java_producers_of_other_systems(
    request: pytest.FixtureRequest, tubemq: TubeMQ, pulsar: Pulsar, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    sides = {system: side(system, request) for system in ("tubemq", "pulsar", "rocketmq")}
    sources = {"tubemq": tubemq.take_topic(QUEUES), "pulsar": pulsar.take_topic(QUEUES)}
    targets = {system: rocketmq.take_topic(QUEUES) for system in sources}
    common: dict[str, Any] = {"messages": 60, "print": True}
    from_tube, from_pulsar = await asyncio.gather(
        run_java("TubeProduce", master=tubemq.masters, topic=sources["tubemq"], size=200, types="t1,t2", time="202611202350",
                 attributes={"k": "v{n}", "name": "grün"}, **common),
        run_java("PulsarProduce", url=pulsar.service_url, topic=sources["pulsar"], size=9000, key="k{n}", compression="LZ4",
                 properties={"n": "{n}", "name": "grün"}, event_time=1234, **common),
    )  # fmt: skip
    settings = {
        "clusters": {name: {"system": name, **each.settings} for name, each in sides.items()},
        "routes": [
            {
                "name": system,
                "from": {"cluster": system, "topic": topic, "group": f"g_{time.time_ns()}"},
                "to": {"cluster": "rocketmq", "topic": targets[system]},
            }
            for system, topic in sources.items()
        ],
    }
    with GatewayProcess(settings, tmp_path, "--until-idle", "3") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log

    consume: dict[str, Any] = {"name_servers": rocketmq.name_server, "idle": IDLE_S}
    tube, second, whole = await asyncio.gather(
        run_java("RocketConsume", topic=targets["tubemq"], group="j1", messages=60, client="4.9.8", **consume),
        run_java("RocketConsume", topic=targets["tubemq"], group="j2", messages=30, client="5.3.3", tags="t2", **consume),
        run_java("RocketConsume", topic=targets["pulsar"], group="j3", messages=60, client="5.3.3", **consume),
    )
    by_body = {body(line): line for line in tube}
    assert len(tube) == len(by_body) == len(from_tube)
    for line in from_tube:
        got, number = by_body[body(line)], line["seq"]
        assert got["tags"] == ("t1", "t2")[number % 2]
        assert (got["properties"]["k"], got["properties"]["name"]) == (f"v{number}", "grün")
        assert got["properties"]["mqbridge.event_time"] == "1795218600000"
        assert got["properties"]["mqbridge.origin"].startswith(f"tubemq|{sources['tubemq']}|")
    assert sorted(body(line) for line in second) == sorted(body(line) for line in from_tube if line["seq"] % 2 == 1)

    by_body = {body(line): line for line in whole}
    assert len(whole) == len(by_body) == len(from_pulsar)
    for line in from_pulsar:
        got, number = by_body[body(line)], line["seq"]
        assert (got["properties"]["__SHARDINGKEY"], got["properties"]["n"]) == (f"k{number}", str(number))
        assert got["properties"]["mqbridge.event_time"] == "1234"
        assert got["queue"] == int(got["properties"]["mqbridge.origin"].split("|")[2])
