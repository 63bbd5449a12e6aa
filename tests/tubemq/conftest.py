"""Clients of real servers, and a gateway cluster over an in-memory model (each test file defines its own `model`)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.tubemq.adapter import cluster as adapter
from mqbridge.tubemq.adapter.config import TubeMQCluster
from tests.kit.tubemq import TubeMQ
from tests.tubemq.client.model import Model
from tests.tubemq.client.quick import shorten_pauses
from tests.tubemq.real import Client


@pytest_asyncio.fixture
async def open_client() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    async with AsyncExitStack() as stack:

        async def make(server: TubeMQ, **settings: Any) -> Client:
            client = Client(server, stack, **settings)
            stack.push_async_callback(client.connections.close)
            await client.routes.start()
            stack.push_async_callback(client.routes.close)
            return client

        yield make


@pytest_asyncio.fixture
async def client(tubemq: TubeMQ, open_client: Callable[..., Awaitable[Client]]) -> Client:
    return await open_client(tubemq)


@pytest.fixture
def own() -> Iterator[TubeMQ]:
    """A TubeMQ server that a test may stop."""
    with TubeMQ({"demo": 2}, pool={}) as server:
        yield server


@pytest.fixture
def unconnected(model: Model, monkeypatch: pytest.MonkeyPatch) -> adapter.TubeMQ:
    """A gateway cluster, not connected yet, whose servers are the test file's model."""
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(adapter, "ConnectionPool", lambda **_: model)
    return adapter.TubeMQ("c", TubeMQCluster(masters=("10.0.0.1",), heartbeat="5ms"))


@pytest_asyncio.fixture
async def cluster(unconnected: adapter.TubeMQ) -> AsyncIterator[adapter.TubeMQ]:
    """The cluster `unconnected`, connected."""
    await unconnected.connect()
    yield unconnected
    await unconnected.close()
