"""A producer of an official client that sends to one topic through a listener, with the methods of a flow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.chaos.flow import LARGE_BYTES, LARGE_EVERY, SMALL_BYTES
from tests.chaos.layout import KEYS
from tests.chaos.schedule import Load
from tests.kit import java
from tests.kit.java import JavaProgram
from tests.patience import SERVER_PATIENCE_S

POLL_S = 0.2


class SdkFlow:
    """Runs a Java program, PulsarFlow or RocketFlow. See `Flow`: sends are repeated until the listener answers them."""

    def __init__(self, program: str, address: dict[str, str], topic: str, partitions: int, load: Load, control: Path) -> None:
        """`address` is the argument of the program that has the address of the listener, and `topic` its name for clients.

        `control` is the file that controls the program.
        """
        self.topic, self.load, self.sent, self.first = topic, load, [0] * partitions, [0] * partitions
        self._name, self._address, self._control = program, address, control
        self._program: JavaProgram | None = None
        self._pauses = self._burst = 0

    async def start(self) -> None:
        """Start to send."""
        self._write()
        self._program = await asyncio.to_thread(self._spawn)
        await self._until(bool)

    def _spawn(self) -> JavaProgram:
        return java.spawn(
            self._name,
            **self._address,
            topic=self.topic,
            partitions=len(self.sent),
            control=str(self._control),
            per_second=int(self.load.per_second),
            delay=int(self.load.first_s),
            small=SMALL_BYTES,
            large=LARGE_BYTES,
            large_every=LARGE_EVERY,
            keys=KEYS,
            producer="chaos",
        )

    async def burst(self, per_partition: int) -> None:
        """Send this number of messages to each partition at once."""
        self._burst += per_partition
        self._write()

    async def pause(self) -> None:
        """Pause the sending and wait until every message is stored."""
        self._pauses += 1
        self._write()
        await self._until(lambda line: line["paused"] and line["burst"] == self._burst and line["sent"] == line["stored"])

    def resume(self) -> None:
        """End one pause."""
        self._pauses -= 1
        self._write()

    async def grow(self, partitions: int) -> None:
        """Not drawn for topics of listeners."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def deletion(self, *, opens_again: bool) -> AsyncIterator[None]:
        """Not drawn for topics of listeners."""
        raise NotImplementedError
        yield

    async def end(self) -> None:
        """Wait until every message is stored, then stop."""
        program, self._program = self._program, None
        if program is None:
            return
        self._program = program
        try:
            await self.pause()
            self._write(ended=True)
            await asyncio.to_thread(program.wait)
        finally:
            self._program = None
            program.kill()

    def check(self) -> None:
        """Raise an error if the program has ended."""
        if self._program is not None and not self._program.running:
            raise RuntimeError(f"the producer of {self.topic} has ended: {self._program.stderr()}")

    def _write(self, *, ended: bool = False) -> None:
        text = json.dumps({"paused": self._pauses > 0, "burst": self._burst, "ended": ended})
        new = self._control.with_suffix(".new")
        new.write_text(text)
        new.replace(self._control)

    async def _until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the newest line of the program fulfils a condition; take over its numbers."""
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while True:
            self.check()
            assert self._program is not None
            lines = await asyncio.to_thread(self._program.lines)
            if lines:
                self.sent = list(lines[-1]["sent"])
                if condition(lines[-1]):
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the producer of {self.topic} is stuck at {lines[-1:]}: {self._program.stderr()}")
            await asyncio.sleep(POLL_S)
