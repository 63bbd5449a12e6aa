"""Faults for the suite: while they last, nothing that this process sends arrives."""

import asyncio
import contextlib
import gc
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mqbridge.errors import ConnectionLost
from mqbridge.memory.broker import Broker
from mqbridge.net.endpoint import Endpoint


@contextlib.asynccontextmanager
async def network() -> AsyncIterator[None]:
    """End every connection of this process, and fail new ones: for clients that use the connections of `mqbridge.net`."""
    loop = asyncio.get_running_loop()

    async def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("the network is cut")

    loop.create_connection = refuse  # type: ignore[method-assign]
    try:
        ends = [one for one in gc.get_objects() if isinstance(one, Endpoint) and one.alive]
        assert ends, "there was no connection to cut"
        for end in ends:
            end.abort(ConnectionLost("the network is cut"))
        yield
    finally:
        del loop.create_connection


@contextlib.asynccontextmanager
async def file(path: Path) -> AsyncIterator[None]:
    """Lock the SQLite file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=20)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def memory(broker: Broker) -> AsyncIterator[None]:
    """Let the broker store nothing."""
    broker.connected.clear()
    try:
        yield
    finally:
        broker.connected.set()
