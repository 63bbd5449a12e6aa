"""The servers without sockets."""

from collections.abc import AsyncIterator

import pytest_asyncio

from mqbridge.rocketmq.client.cluster_client import ClusterClient
from tests.rocketmq.client.broker import Cluster, cluster, scripted_client

__all__ = ["cluster"]


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    """Connected to one name server."""
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()
