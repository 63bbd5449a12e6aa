"""What readers ask of a cluster: topics, bounds, positions, measures. Each question is repeated while failures may pass."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.adapter.unit_ranges import count_units, position_after
from mqbridge.config.problems import nearest
from mqbridge.errors import ClusterError, ConfigError, Failure, GapError
from mqbridge.message import Position, format_position
from mqbridge.net.backoff import Backoff
from mqbridge.spark.background_loop import portal
from mqbridge.spark.option_values import AtTime, Edge, Exact
from mqbridge.spark.source.admission import Density
from mqbridge.spark.source.data_loss import Kind, Loss
from mqbridge.spark.source.offsets import Key, spoken
from mqbridge.spark.source.retries import AWAY_S, GONE_S, persist
from mqbridge.spark.source.settings import SourceSettings, TopicChoice

T = TypeVar("T")
S = TypeVar("S")

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Questions to a cluster at the same time."""
SAMPLE_UNITS, SAMPLE_ROWS = 8, 256
"""A sample ends with either; what was read is let go at once."""
SAMPLE_GROWTH = 32
"""How many times more units are looked at where those before held nothing."""


class ClusterView:
    """The cluster of a source. Its methods run on the portal's loop."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def topics(self) -> tuple[str, ...]:
        """The names that are read, those of a pattern as the cluster has them now. Raises ConfigError, ClusterError."""
        choice = self._settings.topics
        return await self._ask(lambda one: _matching(one, choice), "listing topics") if choice.is_open else choice.names

    async def bounds(self, topics: Iterable[str]) -> dict[Key, Bounds]:
        """Of all partitions of these topics; a topic that is not there is left out. Raises ClusterError."""
        found = await self._each(topics, bounds_of, "asking for bounds")
        return {(topic, name): bounds for topic, held in found.items() for name, bounds in (held or {}).items()}

    async def chosen_bounds(self, topics: Iterable[str]) -> dict[Key, Bounds]:
        """Of the partitions that are read. Raises ClusterError, ConfigError for one that is assigned and not there."""
        bounds, assigned = await self.bounds(topics), await self.assigned()
        return bounds if assigned is None else {key: one for key, one in bounds.items() if key in assigned}

    async def missing(self, keys: Iterable[Key]) -> set[Key]:
        """Those of these partitions that are not there at the moment. Raises ClusterError."""
        wanted = set(keys)
        return wanted - (await self.bounds(sorted({topic for topic, _ in wanted}))).keys()

    async def gone(self, keys: Iterable[Key]) -> set[Key]:
        """Those that do not come back either: servers that restart are missing for a while. Raises ClusterError."""
        wanted, patience_s = set(keys), AWAY_S if self._settings.fail_on_data_loss else GONE_S
        backoff, until = Backoff(), time.monotonic() + min(patience_s, self._settings.retry_s)
        while (missing := await self.missing(wanted)) and time.monotonic() < until:
            log.warning("%s and %d others are not there, looking again", spoken(min(missing)), len(missing) - 1)
            await asyncio.sleep(backoff.delay())
        return missing

    async def assigned(self) -> frozenset[Key] | None:
        """The partitions that the options assign, None where they assign none. Raises as `chosen_bounds` does."""
        assigned = self._settings.topics.assigned
        if assigned is None:
            return None
        described = await self.described(assigned)
        return frozenset((topic, _named(described[topic], name)) for topic, names in assigned.items() for name in names)

    async def described(self, topics: Collection[str]) -> dict[str, Topic]:
        """Raises ClusterError, FATAL for a topic that is not there."""
        return await self._each(topics, _describe, "describing topics")

    async def positions(self, edge: Edge, bounds: Mapping[Key, Bounds], otherwise: Start) -> dict[Key, Position]:
        """The positions that an edge has in these partitions; `otherwise` where it leaves one out.

        Raises ClusterError, ConfigError where it names what is not there or is of another system.
        """
        if isinstance(edge, Start):
            return {key: _end(one, edge) for key, one in bounds.items()}
        topics = list(dict.fromkeys(topic for topic, _ in bounds))
        if isinstance(edge, AtTime):
            times = await self._each(topics, lambda one, topic: _at_time(one, topic, edge.time_ms), "finding a time")
            return {(topic, name): times[topic].get(name, one.next) for (topic, name), one in bounds.items()}
        exact = await self._exact(edge, bounds)
        return {
            key: _end(one, found) if isinstance(found := exact.get(key, otherwise), Start) else found
            for key, one in bounds.items()
        }

    async def measure(self, ranges: Mapping[Key, tuple[Position, Position]]) -> dict[Key, Sequence[UnitRange]]:
        """The units of ranges. Raises ClusterError."""
        return await self._each(ranges, lambda one, key: one.measure(*key, *ranges[key]), "measuring")

    async def density(self, key: Key, begin: Position, end: Position, unit_ranges: Sequence[UnitRange]) -> Density | None:
        """What the first units of a range are made of, None where there is nothing any more. Raises ClusterError."""
        units, most = SAMPLE_UNITS, count_units(unit_ranges)
        while True:  # the first units may hold nothing
            until = position_after(unit_ranges, min(units, most), end)
            sample = partial(_sample, key=key, begin=begin, until=until, unit_ranges=unit_ranges)
            found = await self._ask(sample, f"sampling {spoken(key)}")
            if found is not None or units >= most:
                return found
            units *= SAMPLE_GROWTH

    async def has_gap(self, key: Key, begin: Position, end: Position) -> bool:
        """Whether messages from `begin` on are gone; `end` is the first position that is held. Raises ClusterError."""
        return await self._ask(lambda one: _has_gap(one, key, begin, end), f"looking at {spoken(key)}")

    async def is_harmless(self, loss: Loss) -> bool:
        """Whether nothing lay between the position and what is held first. Raises ClusterError."""
        if loss.kind is not Kind.OVERTAKEN or loss.held is None:
            return False
        return not await self.has_gap(loss.key, loss.position, loss.held.first)

    async def _exact(self, edge: Exact, bounds: Mapping[Key, Bounds]) -> dict[Key, Start | Position]:
        topics = {topic for topic, _ in bounds}
        if unknown := sorted(edge.topics.keys() - topics):
            raise ConfigError(f"offsets are given for topic {unknown[0]!r}, which is not read", hint=nearest(unknown[0], topics))
        described = await self.described(edge.topics.keys())
        exact = {
            (topic, _named(described[topic], partition)): found
            for topic, given in edge.topics.items()
            for partition, found in given.items()
        }
        for key, found in exact.items():
            if key in bounds and not isinstance(found, Start) and len(found) != len(bounds[key].first):
                raise ConfigError(
                    f"{format_position(found)!r} is no position of {spoken(key)}",
                    hint=f"Positions there look like {format_position(bounds[key].first)!r}",
                )
        return exact

    async def _each(self, keys: Iterable[S], question: Callable[[Cluster, S], Awaitable[T]], what: str) -> dict[S, T]:
        keys = list(keys)

        async def ask(key: S) -> T:
            async with self._at_once:
                return await self._ask(lambda one: question(one, key), what)

        return dict(zip(keys, await asyncio.gather(*map(ask, keys)), strict=True))

    async def _ask(self, question: Callable[[Cluster], Awaitable[T]], what: str) -> T:
        async def attempt() -> T:
            async with portal().cluster(self._settings.cluster) as cluster:
                return await question(cluster)

        return await persist(attempt, self._settings.retry_s, f"{what} of cluster {self._settings.cluster.name!r}")


async def _matching(cluster: Cluster, choice: TopicChoice) -> tuple[str, ...]:
    if not cluster.capabilities.list_topics:
        raise ConfigError(
            f"option subscribePattern: cluster {cluster.name!r} cannot list its topics",
            hint="Give it its admin_url, or use subscribe",
        )
    return tuple(sorted({*choice.names, *filter(choice.has, await cluster.topics())}))


async def bounds_of(cluster: Cluster, topic: str) -> Mapping[str, Bounds] | None:
    """First and next position by partition name; None where there is no such topic. Raises ClusterError."""
    try:
        return await cluster.bounds(topic)
    except ClusterError as error:
        if error.failure is Failure.FATAL and await cluster.describe(topic) is None:
            return None
        raise


async def _describe(cluster: Cluster, topic: str) -> Topic:
    found = await cluster.describe(topic)
    if found is None:
        raise ClusterError(f"there is no topic {topic!r} in cluster {cluster.name!r}", Failure.FATAL)
    return found


async def _at_time(cluster: Cluster, topic: str, time_ms: int) -> Mapping[str, Position]:
    if cluster.operations is None:
        raise ConfigError(f"cluster {cluster.name!r} finds no times", hint="Give it its admin_url, or use offsets")
    return await cluster.operations.position_at(topic, time_ms)


async def _sample(
    cluster: Cluster, key: Key, begin: Position, until: Position, unit_ranges: Sequence[UnitRange]
) -> Density | None:
    rows = size = 0
    reached = begin
    try:
        async with aclosing(cluster.read(*key, begin, until)) as batches:
            async for batch in batches:
                begin = begin if rows else batch.first  # behind what held nothing
                rows, size, reached = rows + batch.count, size + batch.size, batch.next
                if rows >= SAMPLE_ROWS:
                    break
    except GapError:  # the reading itself will say so
        return None
    ends = (min(reached, until), begin)
    units, before = (sum(_units_before(unit_range, position) for unit_range in unit_ranges) for position in ends)
    units -= before
    return Density(rows / units, size / rows) if rows and units else None


def _units_before(unit_range: UnitRange, position: Position) -> int:
    """Return the number of units of a unit range that begin before a position."""
    low, high = 0, unit_range.count
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if unit_range.position(middle) < position else (low, middle)
    return low


async def _has_gap(cluster: Cluster, key: Key, begin: Position, end: Position) -> bool:
    try:
        async with aclosing(cluster.read(*key, begin, end)) as batches:
            async for _ in batches:
                break
    except GapError:
        return True
    return False


def _end(bounds: Bounds, start: Start) -> Position:
    return bounds.first if start is Start.EARLIEST else bounds.next


def _named(topic: Topic, partition: str) -> str:
    """The name of a partition that is given by its name or its index. Raises ConfigError."""
    if partition in topic.partitions:
        return partition
    if partition.isdigit() and int(partition) < len(topic.partitions):
        return topic.partitions[int(partition)]
    raise ConfigError(f"topic {topic.name!r} has no partition {partition!r}", hint=nearest(partition, topic.partitions))
