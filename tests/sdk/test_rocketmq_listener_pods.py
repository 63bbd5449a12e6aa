"""Three listeners share a group of a cluster, each with a client of another language: one joins, and one is killed."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.cluster import Cluster
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.listener import ListenerProcess
from tests.sdk import rocketmq_features
from tests.sdk.listener import Backing, now_us
from tests.sdk.rocketmq import until
from tests.sdk.rocketmq_listener import (
    GroupMember,
    MovedQueue,
    OffsetSample,
    OffsetWatch,
    all_deliveries,
    backing_topic,
    judge_moves,
    numbers_of,
    serving,
)

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(500)]

QUEUES = 6
BACKLOG, MESSAGES, RATE = 9000, 9000, 200
"""Messages before the first member, messages that come after these, and how many of these in a second."""
HOLD_MS, THREADS = 20, 4
"""Time that a client's listener takes for a message, and threads of the Java client: clients have full caches at first."""
PULL = 32
"""Number of messages that clients pull at once."""
SETTLED_S = 12.0
"""Time after which what a join or a kill has caused is over."""
MOVED_S = 120.0
"""A broker of RocketMQ keeps the locks of a dead member for a minute."""
LANGUAGES = ("java", "go", "cpp")
KILLED = 1
"""Index in `members` of the one whose listener is killed: the second that was started, at the first listener."""


class RocketmqPods:
    """Three listeners over one cluster, and a member of the group at each."""

    def __init__(self, backing: Backing, cluster: Cluster, topic: str, folder: Path, stack: AsyncExitStack) -> None:
        self._topic, self._folder, self._stack = topic, folder, stack
        self.listeners = [ListenerProcess(f"pod-{name}", serving(backing), folder / f"pod-{name}") for name in "abc"]
        self.members: list[GroupMember] = []
        self.watch = OffsetWatch(cluster, topic)

    async def add(self, number: int) -> None:
        """Start a listener, and the member at it."""
        listener = self._stack.enter_context(self.listeners[number])
        language = LANGUAGES[number] if rocketmq_features.missing(LANGUAGES[number]) is None else "java"
        options: dict[str, Any] = {"threads": THREADS} if language == "java" else {}
        member = GroupMember(
            listener.address, self._topic, self._folder, f"{language}-{number}", language, hold=HOLD_MS, **options
        )
        self._stack.enter_context(member.program)
        self.members.append(member)

    def queues_of(self, member: GroupMember) -> set[int]:
        """Return the queues of which the member got the last message."""
        last = {each.partition: each.who for each in all_deliveries(self.members)}
        return {queue for queue, who in last.items() if who == member.name}

    async def settled_moves(self, cause: OffsetSample, least: set[int] | None = None) -> list[MovedQueue]:
        """Wait until these queues, or any, have moved because of a cause, and for a while longer; return what became of all."""

        def moves() -> list[MovedQueue]:
            return judge_moves(all_deliveries(self.members), cause, now_us())

        def have_moved() -> bool:
            moved = {each.queue for each in moves()}
            return bool(moved) if least is None else moved >= least

        await until(have_moved, lambda: f"{least or 'any'} have not moved, but {moves()}", MOVED_S)
        await asyncio.sleep(SETTLED_S)
        return moves()


async def test_three_listeners_share_a_group(backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    cluster = await stack.enter_async_context(opened(*backing))
    topic = await backing_topic(cluster, QUEUES)
    pods = RocketmqPods(backing, cluster, topic, tmp_path, stack)
    await stack.enter_async_context(pods.watch.running())
    await pods.add(1)
    at = pods.listeners[1].address
    await asyncio.to_thread(java.run, "RocketProduce", name_servers=at, topic=topic, messages=BACKLOG, size=200, keys="{n}")
    producer = stack.enter_context(
        java.spawn("RocketPace", name_servers=at, topic=topic, start=BACKLOG, messages=MESSAGES, rate=RATE, again=True)
    )
    await pods.add(0)
    await until(lambda: all(len(member.seen()) > RATE for member in pods.members), producer.stderr)

    joined = await pods.watch.sample()
    await pods.add(2)
    by_join = await pods.settled_moves(joined)

    of_killed = pods.queues_of(pods.members[KILLED])
    pods.listeners[0].kill()
    by_kill = await pods.settled_moves(await pods.watch.sample(), of_killed)
    await asyncio.to_thread(pods.listeners[0].start)

    await asyncio.to_thread(producer.wait, 200)
    expected = set(range(BACKLOG + MESSAGES))
    began = time.monotonic()
    await until(lambda: numbers_of(pods.members) == expected, lambda: f"lost: {_some(expected - numbers_of(pods.members))}", 150)
    seen = all_deliveries(pods.members)
    total = len(seen) - len({(each.partition, each.position) for each in seen})
    print(f"{backing[0]}: {len(expected)} messages, all after {time.monotonic() - began:.1f} s, {total} handed out twice")
    print("joined:", *by_join, "killed:", *by_kill, sep="\n  ")
    assert pods.watch.moved_back() == []
    for moved in (*by_join, *by_kill):
        assert not moved.too_early, moved
        assert moved.twice <= moved.uncommitted + PULL, moved
    for moved in by_join:
        assert moved.late <= PULL, moved


def _some(numbers: set[int]) -> str:
    return f"{len(numbers)}: {sorted(numbers)[:20]}"
