"""The broker without sockets."""

from collections.abc import AsyncIterator

import pytest_asyncio

from mqbridge.pulsar.client.client import PulsarClient
from tests.pulsar.client.broker import Broker, broker, scripted_client

__all__ = ["broker"]


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[PulsarClient]:
    client = scripted_client()
    yield client
    await client.close()
