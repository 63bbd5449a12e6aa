"""What unmodified clients do at the edges of a listener: equal subscriptions, too large messages, delays, prefetched messages."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit import java
from tests.sdk.listener import TOPIC, Backing, JavaConsumer, PythonProgram, new_topic, start, stored_numbers
from tests.sdk.rocketmq import until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(400)]

COUNT = 300
TAKEN = 10
MORE_S = 3.0
"""Time in which more than the expected messages would come."""
DELAY_MS = 25_000
TOO_LARGE = 9 << 20
"""More than any backing of these tests stores in a message."""


def produce(url: str, topic: str, messages: int, first: int = 0, **options: java.Value) -> None:
    """Send numbered messages, and wait until they are stored."""
    java.run("PulsarProduce", url=url, topic=TOPIC + topic, messages=messages, start=first, size=100, **options)


async def test_one_subscription_name_on_two_topics_is_two_groups(backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    topics = [await new_topic(backing, 2) for _ in range(2)]
    listener = start(backing, tmp_path, stack)
    consumers = [JavaConsumer(listener.url, topic, tmp_path, f"java-{number}") for number, topic in enumerate(topics)]
    for consumer in consumers:
        stack.enter_context(consumer.program)
    for number, topic in enumerate(topics):
        await asyncio.to_thread(produce, listener.url, topic, COUNT, number * COUNT)
    for number, consumer in enumerate(consumers):
        expected = set(range(number * COUNT, (number + 1) * COUNT))
        await until(lambda: {each.number for each in consumer.seen()} == expected, consumer.program.stderr)  # noqa: B023
    await asyncio.sleep(MORE_S)
    assert [len(consumer.seen()) for consumer in consumers] == [COUNT, COUNT]


async def test_a_batch_with_a_message_that_is_too_large_is_not_sent_again_for_ever(
    backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """It is compressed, so that the client itself does not find it too large."""
    pytest.importorskip("pulsar", reason="the official Python client is not installed")
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack)
    program = PythonProgram(tmp_path, "batch", listener.url, TOPIC + topic, 100, TOO_LARGE, 100)
    with program.running():
        await asyncio.to_thread(program.wait, 120)
    results = [line["result"] for line in program.lines()]
    stored = await stored_numbers(backing, topic)
    print(f"{backing[0]}: results {results}, stored {stored}")
    assert len(set(results)) == 1, "the batch is answered as one"
    assert stored in ([], [0, 1, 2]), "it is stored whole or not at all, and once"
    await asyncio.to_thread(produce, listener.url, topic, 1, 7)
    assert await stored_numbers(backing, topic) == [*stored, 7]


async def test_java_fails_a_message_that_is_too_large_or_it_is_stored(
    backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack)
    arguments: dict[str, java.Value] = {"messages": 1, "size": TOO_LARGE, "compression": "LZ4", "timeout": 100}
    try:
        await asyncio.to_thread(java.run, "PulsarProduce", url=listener.url, topic=TOPIC + topic, **arguments)
        expected = [0]
    except java.JavaError as error:
        assert "NotAllowed" in str(error)  # noqa: PT017 - it may be stored, too
        expected = []
    assert await stored_numbers(backing, topic) == expected


async def test_what_a_client_had_prefetched_comes_again(backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack)
    await asyncio.to_thread(produce, listener.url, topic, COUNT, batching=False)
    first = JavaConsumer(listener.url, topic, tmp_path, "first", messages=TAKEN)
    stack.enter_context(first.program)
    await asyncio.to_thread(first.program.wait)
    second = JavaConsumer(listener.url, topic, tmp_path, "second")
    stack.enter_context(second.program)
    await until(lambda: len(second.seen()) >= COUNT - TAKEN, second.program.stderr)
    await asyncio.sleep(MORE_S)
    assert [each.number for each in second.seen()] == list(range(TAKEN, COUNT))


@pytest.mark.parametrize("owns_groups", [False, True], ids=["backing", "own"])
async def test_a_delayed_message_does_not_hold_the_acknowledgement_of_later_ones(
    owns_groups: bool, backing: Backing, tmp_path: Path, stack: AsyncExitStack
) -> None:
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack, owns_groups=owns_groups)
    first = JavaConsumer(listener.url, topic, tmp_path, "first")
    stack.enter_context(first.program)
    await asyncio.to_thread(produce, listener.url, topic, 1, deliver_after=DELAY_MS)
    await asyncio.to_thread(produce, listener.url, topic, COUNT, 1)
    await until(lambda: len(first.confirmed()) >= COUNT, first.program.stderr)
    listener.kill()
    first.program.kill()
    before = {each.number for each in first.seen()}
    await asyncio.to_thread(listener.start)
    second = JavaConsumer(listener.url, topic, tmp_path, "second")
    stack.enter_context(second.program)
    if 0 not in before:
        await until(second.seen, second.program.stderr)
    await asyncio.sleep(MORE_S)
    print(f"{backing[0]}: {len(before)} before the kill, again: {[each.number for each in second.seen()][:10]}")
    assert before >= set(range(1, COUNT + 1))
    assert [each.number for each in second.seen()] == ([] if 0 in before else [0])
