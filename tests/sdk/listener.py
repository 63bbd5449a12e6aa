"""Consumers and producers of the official clients at listeners, shared by the tests of listeners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit import java
from tests.kit.java import JavaProgram
from tests.kit.subscription_oracle import Confirmed, Seen
from tests.sdk.rocketmq import Line, body, sequence

TOPIC = "persistent://public/default/"
FIRST_PARTITION = -1
"""Partition of the messages of topics that are not partitioned, as clients number it."""


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

    def seen(self) -> list[Seen]:
        """Return what it got so far."""
        return [
            Seen(line["at"], sequence(body(line)), _partition(line), _position(line["id"]), self.name)
            for line in self.program.lines()
            if "done" in line
        ]

    def confirmed(self) -> list[Confirmed]:
        """Return the confirmed acknowledgements so far."""
        return [
            Confirmed(line["at"], line["confirmed"]["partition"], _position(line["confirmed"]))
            for line in self.program.lines()
            if "confirmed" in line
        ]

    async def leave(self) -> None:
        """Let the program close its consumer."""
        self.until.touch()
        await asyncio.to_thread(self.program.wait)


def _partition(line: Line) -> int:
    partition: int = line["id"]["partition"]
    return partition


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
