"""A listener is killed with SIGKILL under the official clients, and started again at the same port."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit import java
from tests.sdk.listener import TOPIC, Backing, JavaConsumer, PythonProgram, new_topic, start, stored_numbers
from tests.sdk.rocketmq import until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(900)]

SENT, ACKNOWLEDGED = 1000, 900
RATE, LOAD_MESSAGES = 300, 6000
KILLS, AWAY_S = 3, 1.0
IDLE_S = 150
"""A consumer may get nothing for a minute after a kill: so long, RocketMQ's broker keeps the queue locks of a dead member."""
MORE_S = 3.0
"""Time in which more than the expected messages would come."""
PYTHON_FIRST = 1_000_000
"""Number of the first message of the Python producer."""


@pytest.mark.parametrize("owns_groups", [False, True], ids=["backing", "own"])
async def test_only_what_was_not_acknowledged_comes_again(
    owns_groups: bool, backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack, owns_groups=owns_groups)
    await asyncio.to_thread(
        java.run, "PulsarProduce", url=listener.url, topic=TOPIC + topic, messages=SENT, size=100, batching=False
    )
    first = JavaConsumer(listener.url, topic, tmp_path, "first", keep_from=ACKNOWLEDGED, messages=SENT)
    stack.enter_context(first.program)
    await until(lambda: len(first.seen()) == SENT and len(first.confirmed()) == ACKNOWLEDGED, first.program.stderr)
    listener.kill()
    first.program.kill()
    listener.start()
    second = JavaConsumer(listener.url, topic, tmp_path, "second")
    stack.enter_context(second.program)
    await until(lambda: len(second.seen()) >= SENT - ACKNOWLEDGED, lambda: f"{len(second.seen())} came again")
    await asyncio.sleep(MORE_S)
    await second.leave()
    again = [each.number for each in second.seen()]
    print(f"{backing[0]}, groups of the {'gateway' if owns_groups else 'cluster'}: {len(again)} came again")
    assert again == list(range(ACKNOWLEDGED, SENT))


@pytest.mark.parametrize("deduplicate", [True, False], ids=["deduplicated", "repeated"])
async def test_clients_survive_kills_under_load(
    deduplicate: bool, backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    pytest.importorskip("pulsar", reason="the official Python client is not installed")
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack, deduplicate=deduplicate)
    full, total = TOPIC + topic, 2 * LOAD_MESSAGES
    consumer = JavaConsumer(listener.url, topic, tmp_path, "java")
    stack.enter_context(consumer.program)
    await consumer.wait_subscribed()
    python_consumer = stack.enter_context(
        PythonProgram(tmp_path, "consume", listener.url, full, "python", "Shared", total, IDLE_S).running()
    )
    producer = stack.enter_context(
        java.spawn(
            "PulsarProduce",
            url=listener.url,
            topic=full,
            messages=LOAD_MESSAGES,
            rate=RATE,
            size=200,
            producer="java-producer",
            send_timeout=0,
        )
    )
    python_producer = stack.enter_context(
        PythonProgram(tmp_path, "produce", listener.url, full, PYTHON_FIRST, LOAD_MESSAGES, RATE, "python-producer").running()
    )
    for kill in range(KILLS):
        wanted = (kill + 1) * total // (KILLS + 2)
        await until(lambda: len(consumer.seen()) > wanted, lambda: f"{len(consumer.seen())}\n{producer.stderr()}")  # noqa: B023
        listener.kill()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(listener.start)
    await asyncio.to_thread(producer.wait)
    await asyncio.to_thread(python_producer.wait, 120)
    expected = {*range(LOAD_MESSAGES), *range(PYTHON_FIRST, PYTHON_FIRST + LOAD_MESSAGES)}
    await until(
        lambda: {each.number for each in consumer.seen()} == expected,
        lambda: f"lost: {sorted(expected - {each.number for each in consumer.seen()})[:20]}",
        patience_s=IDLE_S,
    )
    await asyncio.to_thread(python_consumer.wait, 2 * IDLE_S)
    stored = await stored_numbers(backing, topic)
    twice = sum(Counter(stored).values()) - len(set(stored))
    again = {"java": len(consumer.seen()) - total, "python": len(python_consumer.lines()) - total}
    print(f"{backing[0]}: {total} sent, {twice} stored twice, delivered again: {again}")
    assert set(stored) == expected
    assert {line["number"] for line in python_consumer.lines()} == expected
    for is_python in (False, True):
        numbers = [each for each in dict.fromkeys(stored) if (each >= PYTHON_FIRST) == is_python]
        assert numbers == sorted(numbers), [pair for pair in itertools.pairwise(numbers) if pair[0] > pair[1]][:3]
    if deduplicate:
        assert not twice, [number for number, times in Counter(stored).items() if times > 1][:10]
