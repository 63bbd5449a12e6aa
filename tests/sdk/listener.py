"""Consumers and producers of the official clients at listeners, shared by the tests of listeners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from mqbridge.adapter import reading
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.guard import guard
from tests.kit.java import JavaProgram
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.kit.subscription_oracle import Confirmed, Seen
from tests.sdk.rocketmq import Line, body, sequence, until

TOPIC = "persistent://public/default/"
PYTHON_PROGRAM = Path(__file__).with_name("pulsar_program.py")

Backing = tuple[str, dict[str, Any]]
"""A system, and the settings of its cluster."""


def now_us() -> int:
    """Return the time as the Java programs print it."""
    return time.time_ns() // 1000


class JavaConsumer:
    """A Java consumer that acknowledges each message by itself, and knows which acknowledgements were confirmed."""

    def __init__(self, url: str, topic: str, folder: Path, name: str, *, type_: str = "Shared", **options: java.Value) -> None:
        self.name = name
        self.until = folder / f"{name}.stop"
        arguments: dict[str, java.Value] = {
            "url": url, "topic": TOPIC + topic, "subscription": "s", "type": type_, "name": name,
            "idle": 0, "until": str(self.until), "live": True, "receipts": True, **options,
        }  # fmt: skip
        self.program: JavaProgram = java.spawn("PulsarConsume", **arguments)
        self._seen: list[Seen] = []
        self._confirmed: list[Confirmed] = []
        self._lock = threading.Lock()
        """Held while new lines are read."""

    def seen(self) -> list[Seen]:
        """Return what it got so far."""
        self._read()
        return self._seen

    def confirmed(self) -> list[Confirmed]:
        """Return the confirmed acknowledgements so far."""
        self._read()
        return self._confirmed

    def _read(self) -> None:
        with self._lock:
            for line in self.program.new_lines():
                if "done" in line:
                    message_id = line["id"]
                    number, position = sequence(body(line)), _position(message_id)
                    self._seen.append(Seen(line["at"], number, message_id["partition"], position, self.name))
                elif "confirmed" in line:
                    message_id = line["confirmed"]
                    self._confirmed.append(Confirmed(line["at"], message_id["partition"], _position(message_id)))

    async def wait_subscribed(self) -> None:
        """Wait until the program has subscribed for the first time: the client does not repeat that if it fails."""
        await until(self.program.lines, self.program.stderr)

    async def leave(self) -> None:
        """Let the program close its consumer."""
        self.until.touch()
        await asyncio.to_thread(self.program.wait)


def _position(message_id: Line) -> int:
    """Return the number of a message in its partition: ids are numbers of messages where numbers are dense."""
    entry: int = message_id["entry"]
    return entry + max(0, message_id["batch"])


def all_seen(consumers: Sequence[JavaConsumer]) -> list[Seen]:
    """Return what all consumers got, by time."""
    return sorted(each for consumer in consumers for each in consumer.seen())


def all_confirmed(consumers: Sequence[JavaConsumer]) -> list[Confirmed]:
    """Return all confirmed acknowledgements."""
    return [each for consumer in consumers for each in consumer.confirmed()]


class PythonProgram:
    """A run of `pulsar_program.py`. As a context manager it is killed at the end."""

    def __init__(self, folder: Path, kind: str, *arguments: object) -> None:
        self._out, self._err = folder / f"python-{kind}.out", folder / f"python-{kind}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            argv = [sys.executable, "-P", str(PYTHON_PROGRAM), kind, *map(str, arguments)]
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


async def stored_numbers(backing: Backing, topic: str) -> list[int]:
    """Return the numbers of the stored messages, in order."""
    found: list[int] = []
    async with opened(*backing) as cluster:
        ((name, one),) = (await cluster.bounds(topic)).items()
        async with contextlib.aclosing(reading.read(cluster, topic, name, one.first, one.next)) as batches:
            async for batch in batches:
                found += [int.from_bytes((message.payload or b"")[:8], "big") for message in batch.messages]
    return found


async def new_topic(backing: Backing, partitions: int) -> str:
    """Create a topic in the backing cluster."""
    topic = f"listener_{time.time_ns()}"
    async with opened(*backing) as cluster:
        await cluster.create(topic, partitions)
    return topic


def start(backing: Backing, folder: Path, stack: AsyncExitStack, **options: Any) -> ListenerProcess:
    """Start a listener."""
    return stack.enter_context(ListenerProcess("one", ListenerOptions(*backing, **options), folder / "one"))
