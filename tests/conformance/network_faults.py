"""Faults for the suite: while their contexts are open, no message that this process sends is stored."""

import asyncio
import contextlib
import gc
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mqbridge.errors import ConnectionLost
from mqbridge.net.endpoint import Endpoint
from mqbridge.testing.memory.broker import Broker


@contextlib.asynccontextmanager
async def network() -> AsyncIterator[None]:
    """End every connection of this process, and fail new ones: for clients that use the connections of `mqbridge.net`."""
    loop = asyncio.get_running_loop()

    async def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("the network is cut")

    loop.create_connection = refuse  # type: ignore[method-assign]
    try:
        # Tests that end a loop under its clients leave connections, which are no longer closed.
        found = [item for item in gc.get_objects() if isinstance(item, Endpoint) and item.alive]
        endpoints = [endpoint for endpoint in found if endpoint._loop is loop]
        assert endpoints, "there was no connection to cut"
        for endpoint in endpoints:
            endpoint.abort(ConnectionLost("the network is cut"))
        yield
    finally:
        del loop.create_connection


@contextlib.asynccontextmanager
async def file(path: Path) -> AsyncIterator[None]:
    """Lock the SQLite file of a log for writing."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=20)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def memory(broker: Broker) -> AsyncIterator[None]:
    """Make the memory broker store no message."""
    broker.connected.clear()
    try:
        yield
    finally:
        broker.connected.set()
