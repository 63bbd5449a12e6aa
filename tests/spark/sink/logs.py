"""Topics of an embedded log on disk, filled and read by tests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.message import Batch, Message, Share

T = TypeVar("T")


class Log:
    """One log; every call opens it and closes it again, as others do at the same time."""

    def __init__(self, path: Path) -> None:
        self.url = f"log://{path}"

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self._run(lambda cluster: cluster.create(topic, partitions))

    def fill(self, topic: str, messages: Sequence[Sequence[Message]]) -> None:
        """Make a topic with these messages, by partition."""
        self._run(lambda cluster: _fill(cluster, topic, messages))

    def read(self, topic: str) -> list[list[Message]]:
        """All messages, by partition."""
        return self._run(lambda cluster: _read(cluster, topic))

    def payloads(self, topic: str) -> list[list[bytes | None]]:
        """All payloads, by partition."""
        return [[message.payload for message in messages] for messages in self.read(topic)]

    def _run(self, ask: Callable[[Cluster], Awaitable[T]]) -> T:
        async def run() -> T:
            adapter = load_adapters()["log"]
            cluster = adapter.make_cluster("test", adapter.cluster_model.from_url(self.url))
            await cluster.connect()
            try:
                return await ask(cluster)
            finally:
                await cluster.close()

        return asyncio.run(run())


async def _fill(cluster: Cluster, topic: str, messages: Sequence[Sequence[Message]]) -> None:
    await cluster.create(topic, len(messages))
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
    sends = [outbound.send(number, Share(Batch.of(some))) for number, some in enumerate(messages) if some]
    for receipt in await asyncio.gather(*sends):
        assert not receipt.failures
    await outbound.close()


async def _read(cluster: Cluster, topic: str) -> list[list[Message]]:
    described, bounds = await cluster.describe(topic), await cluster.bounds(topic)
    assert described is not None
    found: list[list[Message]] = []
    for name in described.partitions:
        batches = cluster.read(topic, name, bounds[name].first, bounds[name].next)
        found.append([message async for batch in batches for message in batch.messages])
    return found
