"""A producer and a group of the official TubeMQ client move from real servers to a listener over Pulsar; all they notice is where
the name of their Master leads to. A native consumer of Pulsar reads the same topic.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import pulsar as sdk
import pytest

from mqbridge.net.addresses import split_address
from mqbridge.net.tasks import cancel, spawn
from tests.kit import java
from tests.kit.listener import ListenerProcess
from tests.kit.pulsar import Pulsar
from tests.kit.tcp_proxy import Link
from tests.kit.tubemq import TubeMQ
from tests.sdk.rocketmq import body, sequence, until
from tests.sdk.test_tubemq_listener import TubeMember, numbers_of, serving, some

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(400)]

PARTITIONS = 4
MESSAGES, RATE, BEFORE = 12_000, 300, 600
"""Messages in all, in a second, and before the first part moves."""
MOVED_S = 120.0
GROUP = "moving"


class MasterName:
    """The name of a Master: an address behind which is one server, and later another one."""

    def __init__(self, server: str) -> None:
        self._link = Link(split_address(server, 0))
        self._listening: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._link.serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    async def lead_to(self, server: str) -> None:
        """Lead to another server; connections to the one before end."""
        self._link.server = split_address(server, 0)
        self._link.cut()

    async def close(self) -> None:
        assert self._listening is not None
        self._listening.close()
        self._link.cut()


class NativeReader:
    """A native consumer of Pulsar; `numbers` are those of the messages, by partition."""

    def __init__(self, url: str, topic: str) -> None:
        self._client = sdk.Client(url)
        self._consumer = self._client.subscribe(
            topic, "native", consumer_type=sdk.ConsumerType.Exclusive, initial_position=sdk.InitialPosition.Earliest
        )
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self._task = spawn(self._run(), "native reader")

    async def _run(self) -> None:
        while True:
            try:
                message = await asyncio.to_thread(self._consumer.receive, 500)
            except sdk.Timeout:
                continue
            self.numbers[message.topic_name()].append(sequence(message.data()))
            self._consumer.acknowledge(message)

    async def close(self) -> None:
        await cancel(self._task)
        await asyncio.to_thread(self._client.close)


@pytest.mark.parametrize("first", ["producers", "consumers"])
async def test_clients_move_by_the_name_of_their_master(
    first: str, tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, stack: AsyncExitStack
) -> None:
    topic = tubemq.take_topic(PARTITIONS)
    full = pulsar.keep(pulsar.create_topic(topic, PARTITIONS))
    backing = "pulsar", {"service_url": pulsar.service_url, "admin_url": pulsar.admin_url}
    listener = stack.enter_context(ListenerProcess("one", serving(backing), tmp_path / "one"))
    reader = NativeReader(pulsar.service_url, full)
    stack.push_async_callback(reader.close)
    names = {part: MasterName(tubemq.masters) for part in ("producers", "consumers")}
    for name in names.values():
        await name.open()
        stack.push_async_callback(name.close)
    member = TubeMember(names["consumers"].address, topic, tmp_path, "a", group=GROUP)
    stack.enter_context(member.program)
    at = {"master": names["producers"].address, "topic": topic}
    producer = stack.enter_context(
        java.spawn("TubeProduce", messages=MESSAGES, rate=RATE, size=200, types="a,b", resend=True, print=True, **at)
    )
    await until(lambda: len(member.seen()) > BEFORE, member.program.stderr, MOVED_S)
    second = "consumers" if first == "producers" else "producers"
    await names[first].lead_to(listener.address)
    if first == "producers":
        await until(lambda: sum(map(len, reader.numbers.values())) > BEFORE, producer.stderr, MOVED_S)
    else:
        await until(lambda: len(member.seen()) > 3 * BEFORE, member.program.stderr, MOVED_S)
    await names[second].lead_to(listener.address)
    await asyncio.to_thread(producer.wait, 200)
    expected = set(range(MESSAGES))
    await until(lambda: numbers_of([member]) >= expected, lambda: some(expected - numbers_of([member])), MOVED_S)
    moved = set().union(*reader.numbers.values())
    assert 0 < len(moved) < MESSAGES
    for numbers in reader.numbers.values():
        assert numbers == sorted(numbers)
    by_partition = defaultdict(list)
    for line in member.lines:
        by_partition[line["partition"]].append(sequence(body(line)))
    assert len(by_partition) == 2 * PARTITIONS, "those of the real Broker, and those of the listener"
    for numbers in by_partition.values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    twice = len(member.lines) - len(numbers_of([member]))
    print(f"{first} first: {len(moved)} of {MESSAGES} messages went to the listener, {twice} handed out twice")
