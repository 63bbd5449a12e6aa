"""A subscription with Java members and our members, and a log of the actions of each member; shared by the Pulsar SDK tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.topic_consumer import TopicConsumer, open_topic_consumer
from mqbridge.pulsar.library.topic_producer import TopicProducer, open_topic_producer
from mqbridge.pulsar.mapping.stored import decode_plain
from tests.kit import java
from tests.kit.java import JavaProgram
from tests.kit.pulsar import Pulsar
from tests.pulsar.conftest import client_of
from tests.sdk.rocketmq import Line, body, sequence, until

SUBSCRIPTION = "s"
STRANDED_S = 10.0
"""After this time, check if the broker has stopped reading a partition. If the active consumer of a failover subscription changes
while messages arrive, brokers (seen with 4.0.8) may wait forever for an entry that is already stored."""
REDELIVERY_DELAY_S = 0.1
PAUSE_S = 0.02
"""Pause between two messages while members join and leave."""
KEYS = 16
ALONE = Batching(max_messages=1)
"""Batching settings with which every message is an entry of its own."""


class Handled(NamedTuple):
    """A message that a member received: time (microseconds since 1970), number, member, and outcome."""

    at: int
    number: int
    who: str
    key: str | None
    partition: int
    redelivered: int
    done: str
    batch: int
    """Number of messages in its entry; -1 if the entry is not a batch."""


Judge = Callable[[int, int], str]
"""Decides the outcome of a message, given its number and redelivery count: acknowledged, refused or kept."""


def acknowledge_all(number: int, redelivered: int) -> str:
    return "acknowledged"


class OurMember:
    """A member that reads with our client; `judge` decides what to do with each message."""

    def __init__(self, name: str, consumer: TopicConsumer, cumulative: bool, judge: Judge = acknowledge_all) -> None:
        self.handled: list[Handled] = []
        self._name, self._consumer, self._cumulative, self._judge = name, consumer, cumulative, judge
        self._task = spawn(self._run(), f"test member {name}")

    async def _run(self) -> None:
        while True:
            owner, entry = await self._consumer.receive()
            for message in decode_plain(entry):
                _, _, index = message.position
                number = sequence(message.payload)
                done = self._judge(number, entry.redelivery_count)
                key = message.key if isinstance(message.key, str) else None
                count = entry.count if entry.is_batch else -1
                at = time.time_ns() // 1000
                self.handled.append(Handled(at, number, self._name, key, entry.partition, entry.redelivery_count, done, count))
                if done == "refused":
                    owner.negative_acknowledge(entry.id, REDELIVERY_DELAY_S)
                elif done == "acknowledged" and self._cumulative:
                    owner.acknowledge_up_to(entry.id, index, entry.count)
                elif done == "acknowledged":
                    owner.acknowledge_message(entry.id, index, entry.count)

    async def leave(self) -> None:
        await cancel(self._task)
        await self._consumer.close()


class JavaMember:
    """A member that runs the Java program PulsarConsume."""

    def __init__(self, name: str, program: JavaProgram, leave: Path) -> None:
        self.program = program
        self._name, self._leave = name, leave

    @property
    def handled(self) -> list[Handled]:
        return [self._read(line) for line in self.program.lines() if "done" in line]

    def _read(self, line: Line) -> Handled:
        number, message_id, batch = sequence(body(line)), line["id"], line["id"]["batchSize"] or -1
        redelivered, done = line["redeliveryCount"], line["done"]
        return Handled(line["at"], number, self._name, line["key"], message_id["partition"], redelivered, done, batch)

    async def leave(self) -> None:
        """Stop the program: it acknowledges the handled messages and closes its consumer."""
        self._leave.touch()
        await asyncio.to_thread(self.program.wait)


class Group:
    """A subscription to a topic; `members` are its present members, `former_members` its former ones."""

    def __init__(
        self,
        pulsar: Pulsar,
        type_: str,
        partitions: int,
        folder: Path,
        open_client: Callable[[], ClusterClient] | None = None,
        java_options: Mapping[str, str] | None = None,
    ) -> None:
        self.pulsar, self.type = pulsar, type_
        self._open_client = open_client or (lambda: client_of(pulsar.service_url))
        self._java_options = java_options or {}
        self.client = self._open_client()
        self.topic = pulsar.take_topic(partitions)
        self.members: dict[str, OurMember | JavaMember] = {}
        self.former_members: list[OurMember | JavaMember] = []
        self.sent: list[int] = []
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()

    async def open(self) -> None:
        self._stack.push_async_callback(self.client.close)
        self.producer: TopicProducer = await open_topic_producer(self.client, self.topic, batching=ALONE)
        self._stack.push_async_callback(self.producer.close)

    async def join(self, name: str, judge: Judge = acknowledge_all) -> OurMember:
        """Open one of our members, with its own client: consumers of one client would share a connection."""
        client = self._open_client()
        self._stack.push_async_callback(client.close)
        type_ = Types.SubType.Value(self.type)
        subscription = Subscription(SUBSCRIPTION, type_, consumer_name=name)
        consumer = await open_topic_consumer(client, self.topic, subscription)
        self._stack.push_async_callback(consumer.close)
        member = self.members[name] = OurMember(name, consumer, type_ == Types.Failover, judge)
        self._stack.push_async_callback(cancel, member._task)
        return member

    def spawn_java(self, name: str, **options: Any) -> None:
        """Start a Java member. It joins the subscription some time later; `wait_until_joined` waits for it."""
        leave = self._folder / f"{name}-leaves"
        program = java.spawn(
            "PulsarConsume", url=self.pulsar.service_url, topic=self.topic, subscription=SUBSCRIPTION, type=self.type, name=name,
            idle=0, live=True, until=str(leave), **self._java_options, **options,
        )  # fmt: skip
        self._stack.enter_context(program)
        self.members[name] = JavaMember(name, program, leave)

    async def leave(self, name: str) -> None:
        member = self.members.pop(name)
        self.former_members.append(member)
        await member.leave()

    def kill(self, name: str) -> None:
        member = self.members.pop(name)
        assert isinstance(member, JavaMember)
        member.program.kill()
        self.former_members.append(member)

    # --- state at the broker ----------------------------------------------------------------------------------------

    async def wait_until_joined(self) -> None:
        """Wait until the subscription has exactly the members as consumers, at every partition."""
        await until(lambda: all(names == self.members.keys() for names, _ in self._state()), self._state)

    async def wait_until_acknowledged(self) -> None:
        """Wait until the subscription has exactly the members as consumers, and all sent messages are acknowledged."""
        wanted, began = self.members.keys(), time.monotonic()

        def rests() -> bool:
            if time.monotonic() - began > STRANDED_S:
                self._free_stranded()
            return all(names == wanted and not backlog for names, backlog in self._state())

        await until(rests, self._state)

    def _free_stranded(self) -> None:
        """Unload partitions that the broker has stopped reading; the consumers then connect again."""
        for name in self._stats():
            path = name.replace("://", "/")
            topic = self.pulsar.admin("GET", f"{path}/internalStats")
            cursor = topic["cursors"].get(SUBSCRIPTION)
            if cursor and cursor["waitingReadOp"] and _position(cursor["readPosition"]) <= _position(topic["lastConfirmedEntry"]):
                self.pulsar.admin("PUT", f"{path}/unload")

    def _stats(self) -> dict[str, Any]:
        """Return the broker's statistics of each partition."""
        path = self.topic.replace("://", "/")
        stats = self.pulsar.admin("GET", f"{path}/partitioned-stats?perPartition=true&getPreciseBacklog=true")
        found: dict[str, Any] = stats["partitions"]
        return found

    def _state(self) -> list[tuple[set[str], int]]:
        """Return, for each partition, the names of its consumers and the number of unacknowledged messages."""
        subscriptions = [partition["subscriptions"].get(SUBSCRIPTION) for partition in self._stats().values()]
        return [
            ({each["consumerName"] for each in one["consumers"]}, one["msgBacklog"]) if one else (set(), -1)
            for one in subscriptions
        ]

    # --- messages ---------------------------------------------------------------------------------------------------

    async def send(self, count: int) -> list[int]:
        """Send messages with all keys, round robin; return their numbers."""
        numbers = list(range(len(self.sent), len(self.sent) + count))
        self.sent += numbers
        await asyncio.gather(*(self.producer.send(number.to_bytes(8), key=f"k{number % KEYS}") for number in numbers))
        return numbers

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send messages as long as the context is open."""
        over = False

        async def send() -> None:
            while not over:
                await self.send(1)
                await asyncio.sleep(PAUSE_S)

        task = spawn(send(), "test sending")
        try:
            yield
            over = True
            await task
        finally:
            await cancel(task)

    def events(self) -> list[Handled]:
        """Return the events of all present and former members, by time."""
        return sorted(event for member in (*self.former_members, *self.members.values()) for event in member.handled)

    def times(self, numbers: Sequence[int]) -> Counter[int]:
        """Return how often each of these messages was acknowledged."""
        wanted = set(numbers)
        return Counter(event.number for event in self.events() if event.done == "acknowledged" and event.number in wanted)

    async def close(self) -> None:
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def group(
    pulsar: Pulsar,
    type_: str,
    partitions: int,
    folder: Path,
    open_client: Callable[[], ClusterClient] | None = None,
    java_options: Mapping[str, str] | None = None,
) -> AsyncIterator[Group]:
    """Yield a Group for a new topic, without members yet.

    `open_client` and `java_options` let our members and the Java members connect to a cluster with access control.
    """
    made = Group(pulsar, type_, partitions, folder, open_client, java_options)
    try:
        await made.open()
        yield made
    finally:
        await made.close()


def _position(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(":")))


def in_order(numbers: Sequence[int]) -> bool:
    """Return True if the first deliveries are in order; redeliveries may repeat."""
    seen = list(dict.fromkeys(numbers))
    return seen == sorted(seen)
