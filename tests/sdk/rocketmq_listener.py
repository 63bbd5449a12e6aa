"""Members of groups and producers of the official RocketMQ clients at listeners, shared by the tests of listeners."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.net.tasks import cancel, spawn
from tests.kit import java
from tests.kit.java import JavaProgram
from tests.kit.listener import ListenerOptions
from tests.kit.subscription_oracle import Seen
from tests.sdk.features.programs import go_program
from tests.sdk.listener import Backing
from tests.sdk.rocketmq import Line, body, sequence, until
from tests.sdk.rocketmq_features.programs import command_of

CPP_MEMBER = Path(__file__).with_name("rocketmq_member_cpp.py")
SAMPLE_S = 0.2
"""Pause between two questions for the offsets of a group."""
GROUP = "g"


def serving(backing: Backing, **options: object) -> ListenerOptions:
    """Return the options of a listener for RocketMQ clients whose groups are those of the cluster."""
    return ListenerOptions(*backing, **{"serves": "rocketmq", "group": "{group}", **options})  # type: ignore[arg-type]


async def backing_topic(cluster: Cluster, queues: int) -> str:
    """Create a topic, and return its name."""
    topic = f"listener_{time.time_ns()}"
    await cluster.create(topic, queues)
    return topic


class GroupMember:
    """A push consumer of the group, in one of the languages. As a context manager of `program`, it is killed at the end."""

    def __init__(self, address: str, topic: str, folder: Path, name: str, language: str = "java", **options: Any) -> None:
        self.name, self.language = name, language
        self._until = folder / f"{name}.stop"
        arguments: dict[str, Any] = {
            "name_servers": address, "topic": topic, "group": GROUP, "until": str(self._until), **options,
        }  # fmt: skip
        self.program = java.spawn("RocketConsume", idle=0, **arguments) if language == "java" else _spawn(language, arguments)
        self.lines: list[Line] = []
        """What was delivered so far, by `read`."""
        self._seen: list[Seen] = []

    def seen(self) -> list[Seen]:
        """Return what it got so far."""
        for line in self.program.new_lines():
            if "offset" in line:
                self.lines.append(line)
                self._seen.append(self._delivery(line))
        return self._seen

    def _delivery(self, line: Line) -> Seen:
        if self.language != "java":
            return Seen(line["at"], line["number"], line["queue"], line["offset"], self.name)
        return Seen(line["time"] * 1000, sequence(body(line)), line["queue"], line["offset"], self.name)

    async def leave(self) -> None:
        """Let the program leave the group and end."""
        self._until.touch()
        await until(lambda: not self.program.running, self.program.stderr)


def _spawn(language: str, arguments: dict[str, Any]) -> JavaProgram:
    """Start the member for a language other than Java."""
    if language == "go":
        argv = [str(go_program("./rocketmq_member", "rocketmq-member"))]
    else:
        argv = [*command_of("cpp")[:-1], str(CPP_MEMBER)]
    for key, value in arguments.items():
        argv += [f"--{key.replace('_', '-')}", str(value)]
    return JavaProgram(argv, f"{language}-member")


def all_deliveries(members: Iterable[GroupMember]) -> list[Seen]:
    """Return what all members got, by time."""
    return sorted(each for member in members for each in member.seen())


def numbers_of(members: Iterable[GroupMember]) -> set[int]:
    """Return the numbers of the messages that members got."""
    return {each.number for member in members for each in member.seen()}


class OffsetSample(NamedTuple):
    """The committed offsets of a group at a time (microseconds since 1970), by queue."""

    at: int
    offsets: dict[int, int]


class OffsetWatch:
    """Asks for the committed offsets of the group again and again."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.samples: list[OffsetSample] = []
        self._cluster, self._topic = cluster, topic
        self._asking = asyncio.Lock()
        """Held by a question: samples are in the order of their answers."""

    async def sample(self) -> OffsetSample:
        """Ask now."""
        async with self._asking:
            described = await self._cluster.describe(self._topic)
            assert described is not None
            committed = await self._cluster.committed(self._topic, GROUP)
            offsets = {described.index_by_partition[name]: position[0] for name, position in committed.items()}
            self.samples.append(OffsetSample(time.time_ns() // 1000, offsets))
            return self.samples[-1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[OffsetWatch]:
        """Ask until the end of the block."""
        task = spawn(self._run(), "offsets")
        try:
            yield self
        finally:
            await cancel(task)

    async def _run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    def moved_back(self) -> list[tuple[int, int, int]]:
        """Return the queue and the two offsets of each sample that was smaller than the one before."""
        return [
            (queue, before.offsets[queue], offset)
            for before, after in itertools.pairwise(self.samples)
            for queue, offset in after.offsets.items()
            if offset < before.offsets.get(queue, 0)
        ]


class MovedQueue(NamedTuple):
    """What became of a queue that moved from one member to another.

    twice        messages that the new member got and the old one had got, or got later
    uncommitted  messages from the committed offset to the newest that the old member got before the new one got any
    late         messages that the old member got after the new one had got its first
    too_early    those of `twice` that lie before the committed offset
    """

    queue: int
    old: str
    new: str
    twice: int
    uncommitted: int
    late: int
    too_early: int


def judge_moves(seen: Sequence[Seen], cause: OffsetSample, until_us: int) -> list[MovedQueue]:
    """Return what became of the queues that have moved after a cause, up to this time."""
    queues: dict[int, list[Seen]] = defaultdict(list)
    for delivery in seen:
        if delivery.at <= until_us:
            queues[delivery.partition].append(delivery)
    return [moved for queue, deliveries in sorted(queues.items()) if (moved := _judge_move(queue, deliveries, cause)) is not None]


def _judge_move(queue: int, deliveries: Sequence[Seen], cause: OffsetSample) -> MovedQueue | None:
    before = [each for each in deliveries if each.at <= cause.at]
    if not before:
        return None
    old, committed = before[-1].who, cause.offsets.get(queue, 0)
    news = [each for each in deliveries if each.at > cause.at and each.who != old]
    if not news:
        return None
    of_old = {each.position for each in deliveries if each.who == old}
    known = [each.position for each in deliveries if each.who == old and each.at < news[0].at]
    twice = {each.position for each in news} & of_old | _repeated(news)
    late = [each for each in deliveries if each.who == old and each.at >= news[0].at]
    uncommitted = max(0, max(known) + 1 - committed)
    too_early = sum(position < committed for position in twice)
    return MovedQueue(queue, old, news[0].who, len(twice), uncommitted, len(late), too_early)


def _repeated(deliveries: Iterable[Seen]) -> set[int]:
    seen: set[int] = set()
    return {each.position for each in deliveries if each.position in seen or seen.add(each.position)}  # type: ignore[func-returns-value]


async def stored_in(cluster: Cluster, topic: str) -> list[int]:
    """Return the numbers of the stored messages of a topic, by partition and in order."""
    found: list[int] = []
    for name, one in (await cluster.bounds(topic)).items():
        async with contextlib.aclosing(reading.read(cluster, topic, name, one.first, one.next)) as batches:
            async for batch in batches:
                found += [sequence(message.payload) for message in batch.messages]
    return found
