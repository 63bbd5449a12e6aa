"""The embedded log."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mqbridge.adapter import reading
from tests.chaos.judge import Stored
from tests.chaos.systems.system import System, writer_in

LEASE = "3s"
LOCK_TIMEOUT_S = 1.0
"""Time to wait for the write lock of a log, which writers hold for milliseconds. The event loop waits too."""


class LogSystem(System):
    """The embedded log: no servers and no network, but two processes that share one file. mqbridge's own client reads it."""

    name = kind = "log"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-chaos-log-"))
        self._is_blocked = False
        self.settings = {"path": str(self.folder / "messages.db"), "lease": LEASE}
        self.brokers = []

    def start(self) -> None:
        pass

    def kill(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Hold the write lock of the file; do nothing if another pause holds it."""
        if self._is_blocked:
            yield
            return
        self._is_blocked = True
        with contextlib.closing(
            sqlite3.connect(self.settings["path"], isolation_level=None, timeout=LOCK_TIMEOUT_S)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield
            finally:
                self._is_blocked = False

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        yield from asyncio.run(self._read(topic))

    async def _read(self, topic: str) -> list[Stored]:
        found = []
        async with self.open() as cluster:
            bounds = await cluster.bounds(topic)
            for name, one in bounds.items():
                async with contextlib.aclosing(reading.read(cluster, topic, name, one.first, one.next)) as batches:
                    async for batch in batches:
                        found += [
                            Stored(int(name), writer_in(f"mqbridge.origin={message.origin}"), message.payload or b"")
                            for message in batch.messages
                        ]
        return found
