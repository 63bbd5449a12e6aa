"""Messages that Java consumers send back: ours are redelivered like Java's, and a route can read the dead letters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.corpus import assert_same
from tests.e2e.sides import side
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.sdk.rocketmq import IDLE_S, Clients, Line, body, config, everything, make_group, run_java, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(300)]

MESSAGES_PER_PRODUCER = 8
"""Number of messages that each of the two producers, Java's and ours, sends."""
TOTAL = 2 * MESSAGES_PER_PRODUCER
ONE_SECOND = 1
"""Delay level 1."""


async def fill(request: pytest.FixtureRequest, rocketmq: RocketMQ, client: str) -> str:
    """Return a new topic with messages of Java's producer and of ours."""
    topic = rocketmq.take_topic(1)
    common: dict[str, Any] = {"name_servers": rocketmq.name_server, "topic": topic, "client": client, "window": 1}
    await run_java(
        "RocketProduce",
        messages=MESSAGES_PER_PRODUCER,
        size=20,
        tags="j",
        keys="j{n}",
        properties={"n": "{n}", "b": "x"},
        **common,
    )
    ours = [
        Message(b"ours %d" % n, (("n", str(n)), ("b", "x")), keys=(f"o{n}",), msg_type="o") for n in range(MESSAGES_PER_PRODUCER)
    ]
    rocket = side("rocketmq", request)
    async with opened(rocket.system, rocket.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        assert not (await outbound.send(0, Share(Batch.of(ours[:-1])))).failures
        assert not (await outbound.send(0, Share(Batch.of(ours[-1:])))).failures
        await outbound.close()
    return topic


def check_redeliveries(lines: Sequence[Line], times: int) -> None:
    """Check that each message was delivered this number of times, with the same content and ascending delivery counts."""
    seen = [(body(line), line["tags"], line["keys"], line["properties"]["n"], line["properties"]["b"], line["messageId"])
            for line in lines]  # fmt: skip
    assert set(Counter(seen).values()) == {times}
    assert len(set(seen)) == TOTAL
    assert Counter(line["reconsumeTimes"] for line in lines) == dict.fromkeys(range(times), TOTAL)


@Clients
async def test_a_message_that_java_sends_back_is_redelivered(
    client: str, request: pytest.FixtureRequest, rocketmq: RocketMQ
) -> None:
    topic, group = await fill(request, rocketmq, client), await make_group(rocketmq)
    lines = await run_java(
        "RocketConsume", name_servers=rocketmq.name_server, client=client, topic=topic, group=group,
        fail=1, retry_level=ONE_SECOND, messages=TOTAL, idle=IDLE_S,
    )  # fmt: skip
    check_redeliveries(lines, 2)
    # The retry topic, read as an ordinary topic: each message has its delivery count, and no property that hides it.
    rocket = side("rocketmq", request)
    (original,), (again,) = await asyncio.gather(everything(rocket, topic, 1), everything(rocket, f"%RETRY%{group}", 1))
    assert [message.delivery_count for message in original] == [0] * TOTAL
    assert [message.delivery_count for message in again] == [1] * TOTAL
    assert_same(sorted(map(plain, original), key=payload), sorted(map(plain, again), key=payload), "the retry topic")


def payload(message: Message) -> bytes:
    return message.payload or b""


def plain(message: Message) -> Message:
    """Return the message without the id that a broker adds to a copy, and with sorted properties: a copy changes their order."""
    pairs = sorted(pair for pair in message.properties if pair[0] != "UNIQ_KEY" or (message.msg_type == "j"))
    return message.replace(properties=tuple(pairs))


@Clients
async def test_dead_letters_of_a_java_group_are_a_source(
    client: str, request: pytest.FixtureRequest, rocketmq: RocketMQ, pulsar: Pulsar, tubemq: TubeMQ, tmp_path: Path
) -> None:
    topic, group = await fill(request, rocketmq, client), await make_group(rocketmq)
    dead = f"%DLQ%{group}"
    with java.spawn(
        "RocketConsume", name_servers=rocketmq.name_server, client=client, topic=topic, group=group,
        fail=1000, retry_level=ONE_SECOND, max_reconsume=1, idle=0,
    ) as program:  # fmt: skip
        await until(lambda: rocketmq.queues(dead) and rocketmq.message_count(dead) == TOTAL, program.stderr)
        await until(lambda: len(program.lines()) >= 2 * TOTAL)  # a line is printed a moment after the message is refused
        check_redeliveries(program.lines(), 2)

    rocket = side("rocketmq", request)
    targets = [(side("pulsar", request), pulsar.keep(pulsar.take_topic(1))), (side("tubemq", request), tubemq.take_topic(1))]
    with GatewayProcess(config(rocket, dead, f"g_{time.time_ns()}", *targets), tmp_path, "--until-idle", "3") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    (original,), (letters,), *arrived = await asyncio.gather(
        everything(rocket, topic, 1),
        everything(rocket, dead, 1),
        *(everything(where, name, 1) for where, name in targets),
    )
    assert all(message.delivery_count >= 2 for message in letters)
    kept = [[one for one in message.properties if not one[0].startswith("DLQ_")] for message in letters]
    stripped = [plain(message.replace(properties=tuple(pairs))) for message, pairs in zip(letters, kept, strict=True)]
    assert_same(sorted(map(plain, original), key=payload), sorted(stripped, key=payload), "the dead letters")
    for (where, _), (messages,) in zip(targets, arrived, strict=True):
        assert_same(letters, messages, where.system)
