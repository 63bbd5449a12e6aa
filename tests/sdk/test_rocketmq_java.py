"""Messages of RocketMQ's official Java producers arrive through the gateway in every system: completely, and once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.query import ViewHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from tests.e2e.corpus import assert_same
from tests.e2e.sides import SYSTEMS, Side, side
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ
from tests.sdk.rocketmq import IDLE_S, Clients, Line, body, config, connected, everything, run_java, sequence, until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(300)]

QUEUES = 2

SINGLE, BIG, BATCHED, TRANSACTED, LEVEL, TIMED = range(0, 600, 100)
"""The first number of each kind of message."""
BIG_BYTES = 5000
TRANSACTION = 4 | 8
"""Bits of sysFlag that mark half messages and their outcomes."""
MARKERS = {"DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "TRAN_MSG", "PGROUP", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC"}
"""Properties that would make a broker delay or hide a copy, or make a client take it for a redelivery."""


async def produce(rocketmq: RocketMQ, client: str, topic: str) -> tuple[set[int], dict[int, str]]:
    """Send every kind of message; return the numbers that consumers must receive, and the ids of the messages in batches."""

    async def sent(program: str, start: int, count: int, **options: Any) -> list[Line]:
        common = {"name_servers": rocketmq.name_server, "topic": topic, "client": client, "start": start, "messages": count}
        if program == "RocketProduce":
            common["window"] = 1  # concurrent first sends may find no route yet, and then use the route of the template topic
        return await run_java(program, **common, **options)

    pairs = {"n": "{n}", "name": "grün"}
    outcomes = {"outcomes": "commit,rollback,unknown", "answers": "commit,rollback", "group": f"transacting-{topic}"}
    results = await asyncio.gather(
        sent("RocketProduce", SINGLE, 40, size=100, tags="a,b", keys="k{n} l{n}", properties=pairs, sharding_key="s{n}"),
        sent("RocketProduce", BIG, 6, size=BIG_BYTES, keys="big", properties={"n": "{n}"}),
        sent("RocketProduce", BATCHED, 60, size=50, batch=20, tags="a", properties=pairs, print=True),
        sent("RocketTransact", TRANSACTED, 12, size=60, tags="t", keys="k{n}", properties={"n": "{n}"}, **outcomes),
        sent("RocketProduce", LEVEL, 4, size=40, delay_level=1, properties={"n": "{n}"}),
        sent("RocketProduce", TIMED, 4, size=40, deliver_after=4000, tags="late"),
    )
    transactions = results[3]
    committed = {line["seq"] for line in transactions if line.get("outcome") == "COMMIT_MESSAGE"}
    committed |= {line["check"] for line in transactions if line.get("answer") == "COMMIT_MESSAGE"}
    assert 4 < len(committed) < 12, "some were rolled back, some committed at once and some by a check"
    ranges = {SINGLE: 40, BIG: 6, BATCHED: 60, LEVEL: 4, TIMED: 4}
    ids = {line["seq"]: line["messageId"] for line in results[2]}
    return committed.union(*(range(start, start + count) for start, count in ranges.items())), ids


def expected_message(line: Line, ids: dict[int, str]) -> Message:
    """Return the message that the gateway should have delivered, from a line of a Java consumer that received it.

    A message of a batch has two ids: its own, and after it the id of the whole batch, which Java consumers show for all its
    messages. The producer reported its own id.
    """
    properties, number = line["properties"], sequence(body(line))
    kind = number // 100 * 100
    pairs = [("n", str(number))] if kind != TIMED else []
    if kind in (SINGLE, BATCHED):
        pairs.append(("name", "grün"))
    pairs.append(("UNIQ_KEY", ids.get(number, properties["UNIQ_KEY"])))
    # Clients and brokers set them for transactions, and the 5.3 client lets applications set them too.
    pairs += [(name, properties[name]) for name in ("__transactionId__", "TRANSACTION_CHECK_TIMES") if name in properties]
    keys = {SINGLE: f"k{number} l{number}", BIG: "big", TRANSACTED: f"k{number}"}.get(kind)
    tags = {SINGLE: "ab"[number % 2], BATCHED: "a", TRANSACTED: "t", TIMED: "late"}
    return Message(
        body(line),
        tuple(sorted(pairs)),
        key=f"s{number}" if kind == SINGLE else keys,
        keys=tuple(keys.split()) if keys else (),
        msg_type=tags.get(kind),
        event_time=line["bornTime"],
        deliver_at=int(properties["TIMER_DELIVER_MS"]) if kind == TIMED else None,
    )


async def assert_compressed(rocketmq: RocketMQ, lines: list[Line]) -> None:
    """Check that the stored records are shorter than the bodies; clients do not show that they have decompressed a body."""
    async with connected(rocketmq) as client:
        for line in lines:
            offset = parse_offset_id(line["offsetMessageId"])[1]
            answer = await client.request(rocketmq.broker_address, Code.VIEW_MESSAGE_BY_ID, ViewHeader(offset).encode())
            assert len(answer.body) < BIG_BYTES == len(body(line))


def plain(message: Message) -> Message:
    """Return the message with sorted properties, because the Java client keeps them in a map without order."""
    return message.replace(properties=tuple(sorted(message.properties)))


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> dict[str, Side]:
    return {system: side(system, request) for system in SYSTEMS}


@Clients
async def test_messages_written_by_java_arrive_complete_in_every_target(
    client: str, sides: dict[str, Side], tmp_path: Path
) -> None:
    rocket = sides["rocketmq"]
    rocketmq = rocket.server
    assert isinstance(rocketmq, RocketMQ)
    topic = rocket.take_topic(QUEUES)
    targets = {system: await asyncio.to_thread(where.take_topic, QUEUES) for system, where in sides.items()}
    numbers, batch_ids = await produce(rocketmq, client, topic)
    await until(lambda: rocketmq.message_count(topic) == len(numbers))  # including the delayed messages

    settings = config(rocket, topic, f"g_{time.time_ns()}", *((sides[system], name) for system, name in targets.items()))
    with GatewayProcess(settings, tmp_path, "--until-idle", "3") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log

    common = {"name_servers": rocketmq.name_server, "client": client, "messages": len(numbers), "idle": IDLE_S}
    original, copy, source, *arrived = await asyncio.gather(
        run_java("RocketConsume", topic=topic, group=f"j_{topic}", **common),
        run_java("RocketConsume", topic=targets["rocketmq"], group=f"j_{targets['rocketmq']}", **common),
        everything(rocket, topic, QUEUES),
        *(everything(sides[system], name, QUEUES) for system, name in targets.items()),
    )
    # We read what Java reads, ...
    by_position = {(line["queue"], line["offset"]): line for line in original}
    assert sorted(sequence(body(line)) for line in original) == sorted(numbers)
    ours = [plain(message) for messages in source for message in messages]
    theirs = [
        expected_message(by_position[queue, message.position[0]], batch_ids)
        for queue, messages in enumerate(source)
        for message in messages
    ]
    assert_same(theirs, ours, "the source")
    await assert_compressed(rocketmq, [line for line in original if sequence(body(line)) in range(BIG, BIG + 6)])
    # ... every target has it, once and in order, ...
    for system, partitions in zip(targets, arrived, strict=True):
        for partition, messages in enumerate(partitions):
            assert_same(source[partition], messages, f"{system}, partition {partition}")
    # ... and Java reads a copy as the same message with the same id, not delayed and in no transaction.
    ids = {sequence(body(line)): line["messageId"] for line in original} | batch_ids
    assert {sequence(body(line)): line["messageId"] for line in copy} == ids
    assert len(copy) == len(numbers)
    for line in copy:
        assert not line["properties"].keys() & MARKERS
        assert not line["sysFlag"] & TRANSACTION
        assert line["reconsumeTimes"] == 0
