"""The official TubeMQ client at listeners: it produces and consumes, shares groups, and survives kills of all sorts."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit import java
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.sdk.listener import Backing
from tests.sdk.rocketmq import Line, body, sequence, until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(400)]

PARTITIONS = 6
MESSAGES, RATE = 6000, 300
GROUP = "group"
HEARTBEAT_MS = 1000
HANDED_OVER_S = 90.0
"""Time in which partitions of a killed member, or of a killed listener, reach another one."""


@pytest.fixture(params=["log", "pulsar", "rocketmq"])
def tube_backing(request: pytest.FixtureRequest, tmp_path: Path) -> Backing:
    if request.param == "log":
        return "log", {"path": str(tmp_path / "log.db"), "lease": "3s", "max_message_bytes": "8MiB"}
    if request.param == "pulsar":
        pulsar: Pulsar = request.getfixturevalue("pulsar")
        return "pulsar", {"service_url": pulsar.service_url, "admin_url": pulsar.admin_url}
    rocketmq: RocketMQ = request.getfixturevalue("rocketmq")
    return "rocketmq", {"name_servers": [rocketmq.name_server], "refresh": "2s", "heartbeat": "2s"}


def serving(backing: Backing, **options: Any) -> ListenerOptions:
    """Return the options of a listener for TubeMQ clients."""
    values: dict[str, Any] = {"serves": "tubemq", "group": "{group}", "create_partitions": PARTITIONS}
    return ListenerOptions(*backing, **{**values, **options})


def new_name() -> str:
    return f"listener_{time.time_ns()}"


class TubeMember:
    """A pull consumer of the group that confirms each pack after it was printed."""

    def __init__(self, address: str, topic: str, folder: Path, name: str, **options: Any) -> None:
        self.name = name
        self._until = folder / f"{name}.stop"
        values = {"heartbeat": HEARTBEAT_MS, "idle": 0, "until": str(self._until), "group": GROUP, **options}
        self.program = java.spawn("TubeConsume", master=address, topic=topic, **values)
        self.lines: list[Line] = []

    def seen(self) -> list[Line]:
        """Return what it got so far."""
        self.lines += [line for line in self.program.new_lines() if "partition" in line]
        return self.lines

    async def leave(self) -> None:
        """Let the program leave the group and end."""
        self._until.touch()
        await until(lambda: not self.program.running, self.program.stderr)


def numbers_of(members: Iterable[TubeMember]) -> set[int]:
    """Return the numbers of the messages that these members got."""
    return {sequence(body(line)) for member in members for line in member.seen()}


def some(numbers: set[int]) -> str:
    return f"{len(numbers)}: {sorted(numbers)[:20]}"


async def wait_all(members: Sequence[TubeMember], count: int) -> None:
    """Wait until the members have got all messages."""
    expected = set(range(count))
    await until(
        lambda: numbers_of(members) >= expected,
        lambda: f"lost: {some(expected - numbers_of(members))} {[member.program.stderr()[-600:] for member in members]}",
        HANDED_OVER_S,
    )


def check_order(member: TubeMember) -> None:
    """Check that each partition's messages came in order, apart from packs that came again."""
    last: dict[str, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    for line in member.seen():
        offset, number = line["offset"], sequence(body(line))
        if offset > last[line["partition"]][0]:
            assert number > last[line["partition"]][1], line
        last[line["partition"]] = max(last[line["partition"]], (offset, number))


@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
async def test_messages_arrive_once_after_a_restart_of_the_consumer_and_with_a_filter(
    tube_backing: Backing, owns_groups: bool, tmp_path: Path, stack: AsyncExitStack
) -> None:
    listener = ListenerProcess("one", serving(tube_backing, owns_groups=owns_groups), tmp_path / "one")
    stack.enter_context(listener)
    topic, at = new_name(), {"master": listener.address}
    produced = {"types": "a,b", "attributes": "k=v{n}", "time": "202611202350", "topic": topic, **at}
    await asyncio.to_thread(java.run, "TubeProduce", messages=1000, **produced)
    consumed: dict[str, Any] = {"topic": topic, "heartbeat": 13_000, "idle": 30, **at}
    first = (await asyncio.to_thread(java.run, "TubeConsume", group=GROUP, messages=1000, **consumed))[:-1]
    assert sorted(sequence(body(line)) for line in first) == list(range(1000))
    for line in first:
        number = sequence(body(line))
        assert line["attributes"] == f"$msgType$={'ab'[number % 2]},$msgTime$=202611202350,k=v{number}"
    assert len({line["messageId"] for line in first}) == 1000
    await asyncio.to_thread(java.run, "TubeProduce", messages=500, start=1000, **produced)
    second = (await asyncio.to_thread(java.run, "TubeConsume", group=GROUP, messages=500, **consumed))[:-1]
    assert sorted(sequence(body(line)) for line in second) == list(range(1000, 1500))
    filtered = await asyncio.to_thread(java.run, "TubeConsume", group="filtering", messages=750, types="a", **consumed)
    assert sorted(sequence(body(line)) for line in filtered[:-1]) == list(range(0, 1500, 2))


@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
async def test_members_that_join_leave_and_die_hand_their_partitions_over(
    tube_backing: Backing, owns_groups: bool, tmp_path: Path, stack: AsyncExitStack
) -> None:
    listener = ListenerProcess("one", serving(tube_backing, owns_groups=owns_groups), tmp_path / "one")
    stack.enter_context(listener)
    topic = new_name()
    at = {"master": listener.address, "topic": topic}
    await asyncio.to_thread(java.run, "TubeProduce", messages=100, **at)
    producer = java.spawn("TubeProduce", start=100, messages=MESSAGES - 100, rate=RATE, size=200, **at)
    stack.enter_context(producer)
    members = []
    for name in "abc":
        member = TubeMember(listener.address, topic, tmp_path, name)
        stack.enter_context(member.program)
        members.append(member)
        await until(lambda member=member: len(member.seen()) > 20, member.program.stderr, HANDED_OVER_S)  # type: ignore[misc]
    members[0].program.kill()
    await members[1].leave()
    await asyncio.to_thread(producer.wait, 200)
    await wait_all(members, MESSAGES)
    for member in members:
        check_order(member)
    twice = sum(len(member.lines) for member in members) - MESSAGES
    print(f"{tube_backing[0]} {'own' if owns_groups else 'backing'}: {MESSAGES} messages, {twice} handed out twice")
    assert twice <= 600, "no more than what the killed one had, and packs that moved"


@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
async def test_a_listener_that_is_killed_and_started_again_loses_nothing(
    tube_backing: Backing, owns_groups: bool, tmp_path: Path, stack: AsyncExitStack
) -> None:
    listener = ListenerProcess("one", serving(tube_backing, owns_groups=owns_groups), tmp_path / "one")
    stack.enter_context(listener)
    topic = new_name()
    at = {"master": listener.address, "topic": topic}
    await asyncio.to_thread(java.run, "TubeProduce", messages=100, **at)
    producer = java.spawn("TubeProduce", start=100, messages=MESSAGES - 100, rate=RATE, size=200, resend=True, **at)
    stack.enter_context(producer)
    member = TubeMember(listener.address, topic, tmp_path, "a")
    stack.enter_context(member.program)
    await until(lambda: len(member.seen()) > 1000, member.program.stderr, HANDED_OVER_S)
    listener.kill()
    await asyncio.to_thread(listener.start)
    before = len(member.seen())
    await until(lambda: len(member.seen()) > before + RATE, member.program.stderr, HANDED_OVER_S)
    await asyncio.to_thread(listener.terminate)
    await asyncio.to_thread(listener.start)
    await asyncio.to_thread(producer.wait, 200)
    await wait_all([member], MESSAGES)


async def test_three_listeners_share_a_group(tube_backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    listeners = [ListenerProcess(f"pod-{name}", serving(tube_backing), tmp_path / f"pod-{name}") for name in "abc"]
    for listener in listeners:
        stack.enter_context(listener)
    topic = new_name()
    at = {"master": listeners[2].address, "topic": topic}
    await asyncio.to_thread(java.run, "TubeProduce", messages=100, **at)
    producer = java.spawn("TubeProduce", start=100, messages=MESSAGES - 100, rate=RATE, size=200, resend=True, **at)
    stack.enter_context(producer)
    members = []
    for listener, name in zip(listeners, "abc", strict=True):
        member = TubeMember(listener.address, topic, tmp_path, name)
        stack.enter_context(member.program)
        members.append(member)
        await until(lambda member=member: len(member.seen()) > 20, member.program.stderr, HANDED_OVER_S)  # type: ignore[misc]
    listeners[0].kill()
    await asyncio.to_thread(producer.wait, 200)
    await wait_all(members, MESSAGES)
    twice = sum(len(member.lines) for member in members) - MESSAGES
    print(f"{tube_backing[0]}: {MESSAGES} messages, {twice} handed out twice")
