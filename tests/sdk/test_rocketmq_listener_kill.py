"""A listener for RocketMQ clients is killed and its disk is deleted, or its cluster is away for a minute."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import opened
from tests.kit import java
from tests.kit.listener import ListenerProcess
from tests.kit.rocketmq import RocketMQ
from tests.kit.tcp_proxy import Network
from tests.sdk.listener import Backing
from tests.sdk.rocketmq import Line, body, sequence, until
from tests.sdk.rocketmq_listener import GroupMember, OffsetWatch, backing_topic, numbers_of, serving, stored_in

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(500)]

QUEUES = 4
RETRIED, DELAYED, HALVES = 200, 1000, 100
FIRST_DELAYED, FIRST_HALF = 100_000, 200_000
"""Numbers of the first delayed message, and of the first message of a transaction."""
DELAY_LEVEL, RETRY_LEVEL = 5, 4
"""The levels of a minute and of 30 s: what waits for longer is sent first."""
DOWN_S = 2.0
AWAY_S, AROUND_S, RATE = 60, 6, 50
"""Time for which the cluster is away, time before and after that, and messages in a second."""
NO_ANSWER = -1
"""What `RocketPace` prints instead of the code of an answer, if there was none."""
CLIENT_TIMEOUT_MS = 3000
"""A client that has no answer by then gives up, and closes its connection."""


def accepted(member: GroupMember) -> set[int]:
    """Return the numbers of the messages that the member has accepted."""
    member.seen()
    return {sequence(body(line)) for line in member.lines if line["accepted"]}


async def test_what_waits_survives_a_kill_and_the_loss_of_the_disk(
    backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    cluster = await stack.enter_async_context(opened(*backing))
    topic = await backing_topic(cluster, QUEUES)
    listener = stack.enter_context(ListenerProcess("one", serving(backing), tmp_path / "one"))
    watch = await stack.enter_async_context(OffsetWatch(cluster, topic).running())
    member = GroupMember(listener.address, topic, tmp_path, "java", fail=1, retry_level=RETRY_LEVEL)
    stack.enter_context(member.program)
    at: dict[str, Any] = {"name_servers": listener.address, "topic": topic, "size": 200}
    await asyncio.to_thread(java.run, "RocketProduce", messages=DELAYED, start=FIRST_DELAYED, delay_level=DELAY_LEVEL, **at)
    await asyncio.to_thread(java.run, "RocketProduce", messages=RETRIED, **at)
    await until(lambda: len(member.seen()) == RETRIED, member.program.stderr)
    halves = stack.enter_context(
        java.spawn("RocketTransact", group="transacting", messages=HALVES, start=FIRST_HALF, outcomes="unknown", **at)
    )
    await until(lambda: sum("outcome" in line for line in halves.lines()) == HALVES, halves.stderr)
    listener.kill()
    began = time.monotonic()
    waiting = {"delayed": DELAYED, "retried": RETRIED - len(accepted(member)), "half": HALVES - _checks(halves)}
    for file in listener.folder.glob("groups.db*"):
        file.unlink()
    await asyncio.sleep(DOWN_S)
    await asyncio.to_thread(listener.start)
    expected = {
        *range(RETRIED), *range(FIRST_DELAYED, FIRST_DELAYED + DELAYED), *range(FIRST_HALF, FIRST_HALF + HALVES),
    }  # fmt: skip
    await until(lambda: accepted(member) == expected, lambda: _missing(expected - accepted(member)), patience_s=240)
    again = len(member.seen()) - 2 * len(expected)
    print(f"{backing[0]}: waiting {waiting}, all arrived {time.monotonic() - began:.1f} s after the kill, {again} came once more")
    assert all(waiting.values()), waiting
    assert await asyncio.to_thread(halves.wait)
    assert watch.moved_back() == []


def _checks(program: java.JavaProgram) -> int:
    return sum("check" in line for line in program.lines())


def _missing(numbers: set[int]) -> str:
    counts = {
        "retried": sum(number < FIRST_DELAYED for number in numbers),
        "delayed": sum(FIRST_DELAYED <= number < FIRST_HALF for number in numbers),
        "half": sum(number >= FIRST_HALF for number in numbers),
    }
    return f"missing: {counts}, such as {sorted(numbers)[:10]}"


@pytest.mark.parametrize("fault", ["refused", "silent"])
async def test_sends_are_answered_while_the_cluster_is_away(
    fault: str, rocketmq: RocketMQ, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Either all connections end, and new ones are refused, or no byte arrives any more."""
    backing = "rocketmq", {"name_servers": [rocketmq.name_server], "refresh": "2s", "heartbeat": "2s"}
    cluster = await stack.enter_async_context(opened(*backing))
    topic = await backing_topic(cluster, QUEUES)
    network = await stack.enter_async_context(Network(map(_address, (rocketmq.name_server, rocketmq.broker_address))))
    listener = ListenerProcess("one", serving(backing), tmp_path / "one", network=network)
    stack.callback(listener.kill)
    await asyncio.to_thread(listener.start)
    member = GroupMember(listener.address, topic, tmp_path, "java")
    stack.enter_context(member.program)
    messages = (AWAY_S + 2 * AROUND_S) * RATE
    producer = stack.enter_context(
        java.spawn(
            "RocketPace", name_servers=listener.address, topic=topic, messages=messages, rate=RATE, timeout=CLIENT_TIMEOUT_MS
        )
    )
    await until(lambda: len(member.seen()) > AROUND_S * RATE, producer.stderr)
    for link in network.links.values():
        link.away = fault == "refused"
        if fault == "silent":
            link.passes.clear()
    if fault == "refused":
        network.cut()
    await asyncio.sleep(AWAY_S)
    before = len(member.seen())
    network.heal()
    healed = time.monotonic()
    *lines, _ = await asyncio.to_thread(producer.wait, 60)
    acknowledged = {line["seq"] for line in lines if "status" in line}
    stored = await stored_in(cluster, topic)
    await until(lambda: numbers_of([member]) >= acknowledged, lambda: f"{len(acknowledged - numbers_of([member]))} not delivered")
    print(
        f"{fault}: {len(lines)} sent, {len(acknowledged)} acknowledged, {len(stored)} stored",
        f"answers of the others: {_codes(lines)}",
        f"the slowest after {max(line['ms'] for line in lines)} ms; {before} delivered when the cluster came back,",
        f"all {time.monotonic() - healed:.1f} s later, {len(member.seen()) - len(numbers_of([member]))} twice", sep="\n  ",
    )  # fmt: skip
    assert acknowledged <= set(stored)
    assert len(acknowledged) > AROUND_S * RATE
    assert [line for line in lines if line.get("code") == NO_ANSWER] == []
    assert max(line["ms"] for line in lines) < CLIENT_TIMEOUT_MS


def _codes(lines: list[Line]) -> dict[int, int]:
    codes = [line["code"] for line in lines if "code" in line]
    return {code: codes.count(code) for code in sorted(set(codes))}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
