"""A listener is killed with SIGKILL under the official clients, and started again at the same port."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from mqbridge.adapter import reading
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.guard import guard
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.kit.rocketmq import RocketMQ
from tests.sdk import pulsar_program
from tests.sdk.listener import TOPIC, JavaConsumer
from tests.sdk.rocketmq import until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(400)]

SENT, ACKNOWLEDGED = 1000, 900
RATE, LOAD_MESSAGES = 300, 6000
KILLS, AWAY_S = 3, 1.0
MORE_S = 3.0
"""Time in which more than the expected messages would come."""
PYTHON_FIRST = 1_000_000
"""Number of the first message of the Python producer."""

Cluster = tuple[str, dict[str, Any]]
"""A system, and the settings of its cluster."""


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened_stack:
        yield opened_stack


@pytest.fixture(params=["log", "rocketmq"])
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "log":
        return "log", {"path": str(tmp_path / "log.db"), "lease": "3s", "max_message_bytes": "8MiB"}
    server: RocketMQ = request.getfixturevalue("rocketmq")
    return "rocketmq", {"name_servers": [server.name_server], "refresh": "2s", "heartbeat": "2s"}


async def new_topic(backing: Cluster, partitions: int) -> str:
    """Create a topic in the backing cluster."""
    topic = f"kill_{time.time_ns()}"
    async with opened(*backing) as cluster:
        await cluster.create(topic, partitions)
    return topic


def start(backing: Cluster, folder: Path, stack: AsyncExitStack, **options: Any) -> ListenerProcess:
    """Start a listener."""
    return stack.enter_context(ListenerProcess("one", ListenerOptions(*backing, **options), folder / "one"))


@pytest.mark.parametrize("owns_groups", [False, True], ids=["backing", "own"])
async def test_only_what_was_not_acknowledged_comes_again(
    owns_groups: bool, backing: Cluster, tmp_path: Path, stack: AsyncExitStack
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


class PythonProgram:
    """A run of `pulsar_program.py`. As a context manager it is killed at the end."""

    def __init__(self, folder: Path, kind: str, *arguments: object) -> None:
        self._out, self._err = folder / f"python-{kind}.out", folder / f"python-{kind}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            argv = [sys.executable, pulsar_program.__file__, kind, *map(str, arguments)]
            self.process = subprocess.Popen(argv, stdout=out, stderr=err, start_new_session=True, env=dict(os.environ))
        guard().process(self.process.pid)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines printed so far."""
        return [orjson.loads(line) for line in self._out.read_bytes().rpartition(b"\n")[0].splitlines()]

    def wait(self, deadline_s: float) -> None:
        """Wait for the end."""
        assert self.process.wait(deadline_s) == 0, self._err.read_text()[-3000:]

    @contextlib.contextmanager
    def running(self) -> Iterator[PythonProgram]:
        """Kill the program at the end."""
        try:
            yield self
        finally:
            self.process.kill()
            self.process.wait()


async def stored_numbers(backing: Cluster, topic: str) -> list[int]:
    """Return the numbers of the stored messages, in order."""
    found: list[int] = []
    async with opened(*backing) as cluster:
        ((name, one),) = (await cluster.bounds(topic)).items()
        async with contextlib.aclosing(reading.read(cluster, topic, name, one.first, one.next)) as batches:
            async for batch in batches:
                found += [int.from_bytes((message.payload or b"")[:8], "big") for message in batch.messages]
    return found


@pytest.mark.parametrize("deduplicate", [True, False], ids=["deduplicated", "repeated"])
async def test_clients_survive_kills_under_load(
    deduplicate: bool, backing: Cluster, tmp_path: Path, stack: AsyncExitStack
) -> None:
    pytest.importorskip("pulsar", reason="the official Python client is not installed")
    topic = await new_topic(backing, 1)
    listener = start(backing, tmp_path, stack, deduplicate=deduplicate)
    full, total = TOPIC + topic, 2 * LOAD_MESSAGES
    consumer = JavaConsumer(listener.url, topic, tmp_path, "java")
    stack.enter_context(consumer.program)
    python_consumer = stack.enter_context(
        PythonProgram(tmp_path, "consume", listener.url, full, "python", "Shared", total, 60).running()
    )
    producer = stack.enter_context(
        java.spawn(
            "PulsarProduce", url=listener.url, topic=full, messages=LOAD_MESSAGES, rate=RATE, size=200, producer="java-producer"
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
        patience_s=90,
    )
    await asyncio.to_thread(python_consumer.wait, 120)
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
