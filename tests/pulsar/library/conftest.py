"""A client that is connected to the scripted broker without sockets."""

from collections.abc import AsyncIterator

import pytest_asyncio

from mqbridge.pulsar.client.cluster_client import ClusterClient
from tests.pulsar.client.broker import Broker, broker, scripted_client

__all__ = ["broker"]


@pytest_asyncio.fixture
async def client(broker: Broker) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    yield client
    await client.close()
