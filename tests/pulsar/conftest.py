"""Fixtures with clients of a real Pulsar broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge import native
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription
from tests.kit.pulsar import KEEPER, Pulsar
from tests.patience import SERVER_PATIENCE_S


@pytest.fixture(scope="module", params=["compiled", "plain"])
def transcoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test twice: with the compiled module, and with plain Python."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(native, "compiled", None)
        elif native.compiled is None:
            pytest.skip("mqbridge_native is not installed, or switched off")
        yield


Subscribe = Callable[..., Awaitable[EntryConsumer]]


async def no_subscriptions(pulsar: Pulsar, topic: str) -> None:
    """Wait until the topic has no subscription except the one that retains its messages.

    A broker removes that of a closed reader on another thread, perhaps after its answer.
    """
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while set(pulsar.admin("GET", f"{topic.replace('://', '/')}/subscriptions")) - {KEEPER}:
            await asyncio.sleep(0.01)


def client_of(url: str) -> ClusterClient:
    return ClusterClient(parse_service_url(url, tls=False), timing=Timing(operation=20.0, request=10.0))


@pytest_asyncio.fixture
async def client(pulsar: Pulsar) -> AsyncIterator[ClusterClient]:
    client = client_of(pulsar.service_url)
    yield client
    await client.close()


@pytest_asyncio.fixture
async def subscribe(client: ClusterClient) -> AsyncIterator[Subscribe]:
    """Open a consumer that is closed at the end: `subscribe(topic, name=..., type=...)`."""
    async with AsyncExitStack() as stack:

        async def open_one(topic: str, name: str = "", **settings: object) -> EntryConsumer:
            consumer = await client.consumer(topic, Subscription(name or f"s-{uuid4().hex[:8]}", **settings))  # type: ignore[arg-type]
            stack.push_async_callback(consumer.close)
            return consumer

        yield open_one
