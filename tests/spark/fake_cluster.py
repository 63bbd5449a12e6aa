"""An in-memory cluster that stores messages in packs, for tests of readers without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.tools.unit_ranges import unit_ranges_from_offsets
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.source import cluster_queries
from mqbridge.spark.source.read import Connect
from mqbridge.spark.source.settings import SourceSettings, source_settings

REF = ClusterRef("fake", "log", LogSettings(path="unused.db"))


@dataclass
class FakePartition:
    """A partition whose positions are the numbers of packs.

    packs  number of messages of each stored pack
    first  position of the first stored pack
    size   bytes of each message
    """

    packs: list[int] = field(default_factory=list)
    first: int = 0
    size: int = 100

    @property
    def next(self) -> int:
        """The number of the next pack."""
        return self.first + len(self.packs)


class FakeCluster:
    """Raises `errors` in the next requests, one in each; None lets a request succeed. `request_counts` counts all requests."""

    name = "fake"
    capabilities = Capabilities()
    operations = None

    def __init__(self, **topics: Sequence[FakePartition]) -> None:
        self.partitions_by_topic = {topic: dict(enumerate(partitions)) for topic, partitions in topics.items()}
        self.request_counts: Counter[str] = Counter()
        self.errors: list[Exception | None] = []
        self.packs_per_batch = 3

    def _begin_request(self, kind: str) -> None:
        self.request_counts[kind] += 1
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def topics(self) -> list[str]:
        self._begin_request("topics")
        return list(self.partitions_by_topic)

    async def describe(self, topic: str) -> Topic | None:
        return Topic(topic, tuple(map(str, self.partitions_by_topic[topic]))) if topic in self.partitions_by_topic else None

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        self._begin_request("bounds")
        if topic not in self.partitions_by_topic:
            raise ClusterError(f"no {topic}", Failure.FATAL)
        # In reverse order: users of a cluster must not depend on the order.
        return {
            str(index): Bounds((partition.first,), (partition.next,))
            for index, partition in reversed(self.partitions_by_topic[topic].items())
        }

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        self._begin_request("measure")
        return unit_ranges_from_offsets(begin, end)

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        self._begin_request("read")
        stored = self.partitions_by_topic.get(topic, {}).get(int(partition))
        if stored is None:
            raise ClusterError(f"no {partition} of {topic}", Failure.FATAL)
        first, until = begin[0], stored.next if end is None else min(end[0], stored.next)
        if first < stored.first:
            raise GapError(f"it begins at {stored.first}", (stored.first,))
        while first < until:
            following = min(first + self.packs_per_batch, until)
            packs = [pack for pack in range(first, following) for _ in range(stored.packs[pack - stored.first])]
            messages = [Message(bytes(stored.size), position=(pack,)) for pack in packs]
            source = Partition(self.name, topic, partition, int(partition))
            size = len(messages) * stored.size
            yield Batch(source, messages, count=len(messages), size=size, first=(first,), next=(following,))
            self._begin_request("next batch")
            first = following


def use_fake_cluster(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> Connect:
    """Send all requests of sources to this cluster, on the event loop of the test."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        yield cluster

    class BackgroundLoop:
        cluster = staticmethod(lambda _: connected())

    monkeypatch.setattr(cluster_queries, "background_loop", BackgroundLoop)
    return connected


def settings(usage: Usage = Usage.STREAM, **options: str) -> SourceSettings:
    """Return the settings of a source. It reads the topic `orders` unless the options select other topics."""
    selection = {} if options.keys() & {"subscribePattern", "assign"} else {"subscribe": "orders"}
    return source_settings(parse_options(selection | options, usage), REF, usage)
