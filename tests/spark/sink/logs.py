"""An embedded log on disk. Tests fill and read its topics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.registry import load_adapters
from mqbridge.message import Batch, Message, Share

T = TypeVar("T")


class Log:
    """One log. Every call opens and closes the log, because other processes open it too."""

    def __init__(self, path: Path) -> None:
        self.url = f"log://{path}"

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._run(lambda cluster: cluster.create(topic, partitions))

    def fill(self, topic: str, messages: Sequence[Sequence[Message]]) -> None:
        """Create a topic and store messages in it, one list of messages per partition."""
        self._run(lambda cluster: _fill(cluster, topic, messages))

    def read(self, topic: str) -> list[list[Message]]:
        """Return all messages of a topic, one list per partition."""
        return self._run(lambda cluster: _read(cluster, topic))

    def payloads(self, topic: str) -> list[list[bytes | None]]:
        """Return all payloads of a topic, one list per partition."""
        return [[message.payload for message in messages] for messages in self.read(topic)]

    def _run(self, use: Callable[[Cluster], Awaitable[T]]) -> T:
        async def run() -> T:
            adapter = load_adapters()["log"]
            cluster = adapter.make_cluster("test", adapter.cluster_model.from_url(self.url))
            await cluster.connect()
            try:
                return await use(cluster)
            finally:
                await cluster.close()

        return asyncio.run(run())


async def _fill(cluster: Cluster, topic: str, messages: Sequence[Sequence[Message]]) -> None:
    await cluster.create(topic, len(messages))
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
    sends = [outbound.send(index, Share(Batch.of(to_send))) for index, to_send in enumerate(messages) if to_send]
    for receipt in await asyncio.gather(*sends):
        assert not receipt.failures
    await outbound.close()


async def _read(cluster: Cluster, topic: str) -> list[list[Message]]:
    described, bounds = await cluster.describe(topic), await cluster.bounds(topic)
    assert described is not None
    partitions: list[list[Message]] = []
    for name in described.partitions:
        batches = reading.read(cluster, topic, name, bounds[name].first, bounds[name].next)
        partitions.append([message async for batch in batches for message in batch.messages])
    return partitions
