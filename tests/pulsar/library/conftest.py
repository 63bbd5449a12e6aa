"""A client that is connected to the scripted broker without sockets."""

from collections.abc import AsyncIterator

import pytest_asyncio

from mqbridge.pulsar.client.base_client import BaseClient
from tests.pulsar.client.broker import Broker, broker, scripted_client

__all__ = ["broker"]


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[BaseClient]:
    client = scripted_client()
    yield client
    await client.close()
