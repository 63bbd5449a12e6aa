"""Our consumers and consumers of the official Java client in one Pulsar subscription: no message is lost, order is kept.

While no member joins or leaves, each message is handled once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from tests.kit.pulsar import Pulsar
from tests.sdk.pulsar import KEYS, Group, Handled, group, in_order
from tests.sdk.rocketmq import run_java, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(300)]

PARTITIONS = 4
BURST = 64
BOTH_DIRECTIONS = {("a", "java-1"), ("java-1", "a")}


async def burst(members: Group) -> None:
    """Send messages while no member joins or leaves, and check that each is handled once."""
    await members.wait_until_acknowledged()
    numbers = await members.send(BURST)
    await members.wait_until_acknowledged()
    assert members.times(numbers) == dict.fromkeys(numbers, 1)


@pytest.mark.parametrize("type_", ["Shared", "Failover", "Key_Shared"])
async def test_java_and_our_members_join_leave_and_are_killed(type_: str, pulsar: Pulsar, tmp_path: Path) -> None:
    async with group(pulsar, type_, PARTITIONS, tmp_path) as members:
        await members.join("a")
        members.spawn_java("java-1")
        async with members.sending():
            await members.wait_until_joined()
            await until(lambda: len(members.members["java-1"].handled) > 5)
        await burst(members)
        async with members.sending():
            await members.join("b")
            await members.leave("java-1")
            members.spawn_java("java-2", keep_from=10)
            await members.wait_until_joined()
            await until(lambda: len(members.members["java-2"].handled) > 20)
            members.kill("java-2")
        await burst(members)
        async with members.sending():
            await members.leave("a")
        await burst(members)
        check(members)


def check(members: Group) -> None:
    """Check all events since the start: every message is acknowledged, and the order is that of the subscription type."""
    events = members.events()
    done = [event for event in events if event.done == "acknowledged"]
    assert {event.number for event in done} == set(members.sent)
    assert {event.who for event in done} == {"a", "b", "java-1", "java-2"}
    kept = {event.number for event in events if event.done == "kept"}
    assert kept <= {event.number for event in done if event.who in ("a", "b")}
    assert kept
    # When Failover changes the active consumer, the new one also gets the unacknowledged messages of the previous one.
    if members.type != "Failover":
        twice = {number for number, times in members.times(members.sent).items() if times > 1}
        assert twice <= {event.number for event in done if event.who == "java-2"}, (
            "only messages whose acknowledgement the killed member had not sent"
        )
    if members.type != "Shared":
        by = "partition" if members.type == "Failover" else "key"
        wrong = {name: numbers for name, numbers in grouped(done, by) if not in_order(numbers)}
        assert not wrong


def grouped(events: list[Handled], by: str) -> Iterator[tuple[object, list[int]]]:
    """Yield each partition, or each key, with the numbers of its messages in the order in which they were handled."""
    found: dict[object, list[int]] = defaultdict(list)
    for event in events:
        found[getattr(event, by)].append(event.number)
    return iter(found.items())


@pytest.mark.parametrize("producer", ["ours", "Java"])
async def test_batches_of_one_key_each_stay_with_one_member(producer: str, pulsar: Pulsar, tmp_path: Path) -> None:
    count = 40 * KEYS
    async with group(pulsar, "Key_Shared", 1, tmp_path) as members:
        await members.join("a")
        members.spawn_java("java-1")
        await members.wait_until_joined()
        if producer == "Java":
            await run_java(
                "PulsarProduce", url=pulsar.service_url, topic=members.topic, messages=count, size=8,
                key="k{n}", keys=KEYS, by_key=True,
            )  # fmt: skip
        else:
            ours = await open_topic_producer(members.client, members.topic, batching=Batching(by_key=True))
            for number in range(count):
                ours.send(number.to_bytes(8), key=f"k{number % KEYS}")
            await ours.close()
        members.sent += range(count)
        await members.wait_until_acknowledged()
        events = members.events()
    assert sorted(event.number for event in events) == members.sent
    assert {event.who for event in events} == {"a", "java-1"}
    assert any(event.batch > 1 for event in events)
    for key, numbers in grouped(events, "key"):
        assert numbers == sorted(numbers)
        assert len({event.who for event in events if event.key == key}) == 1
        assert {f"k{number % KEYS}" for number in numbers} == {key}


async def test_a_message_rejected_by_one_client_is_redelivered_to_the_other(pulsar: Pulsar, tmp_path: Path) -> None:
    async with group(pulsar, "Shared", 2, tmp_path) as members:
        await members.join("a", lambda _, redelivered: "acknowledged" if redelivered else "refused")
        members.spawn_java("java-1", refuse=1)
        await members.wait_until_joined()
        histories: dict[int, list[Handled]] = {}
        # The broker dispatches round robin, redeliveries included: bursts of different lengths change which member gets which.
        for length in range(1, BURST):
            await members.send(length)
            await members.wait_until_acknowledged()
            histories = by_number(members.events())
            if {(first.who, *(event.who for event in later)) for first, *later in histories.values()} >= BOTH_DIRECTIONS:
                break
        assert histories.keys() == set(members.sent)
        for events in histories.values():
            assert [(event.done, event.redelivered) for event in events] == [("refused", 0), ("acknowledged", 1)]
        assert {(first.who, second.who) for first, second in histories.values()} >= BOTH_DIRECTIONS


def by_number(events: list[Handled]) -> dict[int, list[Handled]]:
    """Return the events of each message, by its number."""
    found: dict[int, list[Handled]] = defaultdict(list)
    for event in events:
        found[event.number].append(event)
    return found
