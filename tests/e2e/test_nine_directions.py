"""Every direction between real servers with its shipped configuration: copying from A to B and back returns the same messages.

Two gateways run in a chain: the first copies from A to B, the second from B to A. The messages in B, and those that returned to
A, are compared field by field and in order with the sent ones.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share, split_origin
from tests.e2e.corpus import assert_same, odd, ordinary
from tests.e2e.sides import SYSTEMS, Side, side
from tests.e2e.support import opened, read
from tests.kit.gateway import CONFIG, GatewayProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS = 2
DUE_S = 3
"""Delay of a delayed message: RocketMQ delivers it after this time, the other systems carry the time as a property."""
DELAYED = b"delayed"


def corpus(largest: int) -> list[list[Message]]:
    """Return the messages to send, by partition."""
    return [[*odd(largest), *ordinary(0)], list(ordinary(1))]


async def send(source: Side, topic: str, partitions: Sequence[Sequence[Message]]) -> None:
    async with opened(source.system, source.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        for partition, messages in enumerate(partitions):
            assert [f.reason for f in (await outbound.send(partition, Share(Batch.of(messages)))).failures] == []
        await outbound.close()


async def everything(where: Side, topic: str) -> list[list[Message]]:
    """Return all messages of a topic, by partition."""
    messages_of: list[list[Message]] = [[] for _ in range(PARTITIONS)]
    async for partition, messages in read(where.system, where.settings, topic, f"judge_{time.time_ns()}"):
        messages_of[partition] += messages
    return messages_of


def split_delayed(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Divide messages into the ordinary and the delayed ones; the system decides when it delivers delayed messages."""
    return [m for m in messages if m.payload != DELAYED], [m for m in messages if m.payload == DELAYED]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SYSTEMS, SYSTEMS)))
async def test_a_message_returns_unchanged_from_every_target(
    first: str, second: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    a, b = side(first, request), side(second, request)
    here, there, back = [await asyncio.to_thread(each.take_topic, PARTITIONS) for each in (a, b, a)]
    sent = corpus(min(a.max_payload, b.max_payload))
    delayed = Message(DELAYED, deliver_at=int(time.time() + DUE_S) * 1000)
    await send(a, here, [[*sent[0], delayed], sent[1]])

    def gateway(source: Side, target: Side, topics: tuple[str, str], name: str) -> GatewayProcess:
        env = source.environment | target.environment
        env |= {"SOURCE_TOPIC": topics[0], "TARGET_TOPIC": topics[1], "GROUP": f"g_{time.time_ns()}", "START": "earliest"}
        path = CONFIG / f"{source.system}-to-{target.system}.yaml"
        return GatewayProcess(path, tmp_path / name, env=env)

    total = sum(map(len, sent)) + 1
    with gateway(a, b, (here, there), "there") as going, gateway(b, a, (there, back), "back") as coming:
        for process in (going, coming):
            await asyncio.to_thread(process.wait_stored, total)
            assert await asyncio.to_thread(process.terminate) == 0, process.log

    for where, topic, hops in ((b, there, 1), (a, back, 2)):
        for partition, messages in enumerate(await everything(where, topic)):
            ordinary_messages, delayed_messages = split_delayed(messages)
            assert_same(sent[partition], ordinary_messages, f"{first} to {second}, {where.system}/{topic}/{partition}")
            assert_same([delayed] if partition == 0 else [], delayed_messages, f"{where.system}/{topic}/{partition}, delayed")
            assert {message.hops for message in messages} == {hops}
            came_from = here if hops == 1 else there
            assert {split_origin(message.origin or "")[1] for message in messages} == {came_from}
