"""A client of the library whose servers are a model in memory."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.tubemq.library import client as client_module
from mqbridge.tubemq.library.client import TubeMQClient
from tests.tubemq.client.model import Model
from tests.tubemq.client.quick import shorten_pauses


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Model:
    """One Broker with the topics `demo` (3 partitions) and `single` (1 partition)."""
    shorten_pauses(monkeypatch)
    model = Model({"demo": 3, "single": 1})
    monkeypatch.setattr(client_module, "ConnectionPool", lambda **_: model)
    return model


@pytest_asyncio.fixture
async def client(cluster: Model) -> AsyncIterator[TubeMQClient]:
    async with TubeMQClient("tubemq://10.0.0.1", heartbeat_s=0.005) as client:
        yield client
