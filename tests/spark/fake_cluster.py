"""A cluster in memory whose messages lie in packs, for readers that are tested without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from mqbridge.adapter.cluster import Capabilities
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.adapter.unit_ranges import unit_ranges_from_offsets
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
    """Packs from `first` on, each with so many messages of `size` bytes; positions are packs."""

    packs: list[int] = field(default_factory=list)
    first: int = 0
    size: int = 100

    @property
    def next(self) -> int:
        return self.first + len(self.packs)


class FakeCluster:
    """The next questions raise `errors`, where None is an answer; `asked` counts questions."""

    name = "fake"
    capabilities = Capabilities()
    operations = None

    def __init__(self, **topics: Sequence[FakePartition]) -> None:
        self.held = {topic: dict(enumerate(partitions)) for topic, partitions in topics.items()}
        self.asked: Counter[str] = Counter()
        self.errors: list[Exception | None] = []
        self.per_batch = 3

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def topics(self) -> list[str]:
        self._ask("topics")
        return list(self.held)

    async def describe(self, topic: str) -> Topic | None:
        return Topic(topic, tuple(map(str, self.held[topic]))) if topic in self.held else None

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        self._ask("bounds")
        if topic not in self.held:
            raise ClusterError(f"no {topic}", Failure.FATAL)
        return {str(name): Bounds((one.first,), (one.next,)) for name, one in reversed(self.held[topic].items())}

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        self._ask("measure")
        return unit_ranges_from_offsets(begin, end)

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        self._ask("read")
        held = self.held.get(topic, {}).get(int(partition))
        if held is None:
            raise ClusterError(f"no {partition} of {topic}", Failure.FATAL)
        at, until = begin[0], held.next if end is None else min(end[0], held.next)
        if at < held.first:
            raise GapError(f"it begins at {held.first}", (held.first,))
        while at < until:
            behind = min(at + self.per_batch, until)
            rows = [(pack, row) for pack in range(at, behind) for row in range(held.packs[pack - held.first])]
            messages = [Message(bytes(held.size), position=(pack,)) for pack, _ in rows]
            source = Partition(self.name, topic, partition, int(partition))
            yield Batch(source, messages, count=len(rows), size=len(rows) * held.size, first=(at,), next=(behind,))
            self._ask("went on")
            at = behind


def use_fake_cluster(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> Connect:
    """Every question goes to this cluster, on the loop of the test."""

    @asynccontextmanager
    async def reached() -> AsyncIterator[Any]:
        yield cluster

    class BackgroundLoop:
        cluster = staticmethod(lambda _: reached())

    monkeypatch.setattr(cluster_queries, "background_loop", BackgroundLoop)
    return reached


def settings(where: Usage = Usage.STREAM, **options: str) -> SourceSettings:
    """Of a source that reads the topic `orders`, unless the options say otherwise."""
    choice = {} if options.keys() & {"subscribePattern", "assign"} else {"subscribe": "orders"}
    return source_settings(parse_options(choice | options, where), REF, where)
