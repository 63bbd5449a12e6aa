"""Clients of real servers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.tubemq import TubeMQ
from tests.tubemq.real import Client


@pytest_asyncio.fixture
async def open_client() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    async with AsyncExitStack() as stack:

        async def make(server: TubeMQ, **settings: Any) -> Client:
            client = Client(server, stack, **settings)
            stack.push_async_callback(client.sessions.close)
            await client.routes.start()
            stack.push_async_callback(client.routes.close)
            return client

        yield make


@pytest_asyncio.fixture
async def client(tubemq: TubeMQ, open_client: Callable[..., Awaitable[Client]]) -> Client:
    return await open_client(tubemq)


@pytest.fixture
def own() -> Iterator[TubeMQ]:
    """A cluster that a test may stop."""
    with TubeMQ({"demo": 2}, pool={}) as server:
        yield server
