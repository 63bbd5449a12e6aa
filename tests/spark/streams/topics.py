"""Topics of an embedded log, for jobs that run from topic to topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.spark.data_source import MqbridgeDataSource
from tests.e2e.support import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Topics:
    """An embedded log with methods to create topics, and to send and read messages."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._path = folder / "log.db"
        self._spark = spark
        self.url = f"log://{self._path}"
        spark.dataSource.register(MqbridgeDataSource)

    def create(self, *topics: str, partitions: int = 1) -> None:
        for topic in topics:
            self._run(lambda cluster, topic=topic: cluster.create(topic, partitions))

    def send(self, topic: str, partition: int, *payloads: str, event_time: int | None = None) -> None:
        async def use(cluster: Cluster) -> None:
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            messages = [Message(text.encode(), event_time=event_time) for text in payloads]
            receipt = await outbound.send(partition, Share(Batch.of(messages)))
            assert not receipt.failures
            await outbound.close()

        self._run(use)

    def payloads(self, topic: str) -> list[str]:
        rows = self._spark.read.format("mqbridge").options(url=self.url, subscribe=topic).load().select("payload").collect()
        return [bytes(row.payload).decode() for row in rows]

    def _run(self, use: Callable[[Cluster], Awaitable[Any]]) -> None:
        async def run() -> None:
            async with opened("log", {"path": str(self._path), "retention": None}) as cluster:
                await use(cluster)

        asyncio.run(run())
