"""The requests of a source to its cluster: topics, bounds, positions, units. Each request is retried after transient failures.

A unit is the smallest amount that a system counts, for example a message or a Pulsar entry, see `UnitRange`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.tools.unit_ranges import count_units, position_after
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError
from mqbridge.message import Position, format_position
from mqbridge.net.backoff import Backoff
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.option_values import AtTimestamp, ExplicitOffsets, OffsetSpec
from mqbridge.spark.source.admission import Density
from mqbridge.spark.source.data_loss import Loss, LossKind
from mqbridge.spark.source.offsets import PartitionKey, describe_partition
from mqbridge.spark.source.retries import DELETED_TIMEOUT_S, RESTART_TIMEOUT_S, request_with_retries
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.single_requests import (
    describe_topic,
    find_bounds,
    has_gap,
    matching_topics,
    positions_at_time,
    sample_density,
)

T = TypeVar("T")
S = TypeVar("S")

log = logging.getLogger(__name__)

MAX_CONCURRENT_REQUESTS = 16
"""Maximum number of requests for single topics or partitions that a source sends at the same time."""
FIRST_SAMPLE_UNITS = 8
"""Number of units in the first sample of a range."""
SAMPLE_GROWTH = 32
"""If a sample contains no message, the next sample of the range has this many times as many units."""

MISSING_TEXT = "cluster %s: %d partitions to read are missing, %s among them, checking again for up to %.0f s"
"""Log text; the arguments are the cluster, the number of missing partitions, one of them, and the seconds until the deadline."""


class ClusterQueries:
    """Sends the requests of one source. The methods run on the background event loop."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._request_slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def topics(self) -> tuple[str, ...]:
        """Return the topics to read; for a pattern, the topics that exist now.

        Raises ClusterError, and ConfigError if the cluster cannot list its topics.
        """
        selection = self._settings.topics
        if not selection.has_pattern:
            return selection.names
        return await self._request(lambda cluster: matching_topics(cluster, selection), operation="listing topics")

    async def bounds(self, topics: Iterable[str]) -> dict[PartitionKey, Bounds]:
        """Return the bounds of all partitions of these topics; topics that do not exist are left out. Raises ClusterError."""
        bounds_by_topic = await self._request_each(topics, find_bounds, operation="requesting bounds")
        return {
            (topic, name): bounds for topic, partitions in bounds_by_topic.items() for name, bounds in (partitions or {}).items()
        }

    async def selected_bounds(self, topics: Iterable[str]) -> dict[PartitionKey, Bounds]:
        """Return the bounds of the partitions to read. Raises ClusterError, ConfigError if an assigned partition is missing."""
        bounds, assigned = await self.bounds(topics), await self.assigned_partitions()
        return bounds if assigned is None else {key: bounds[key] for key in bounds if key in assigned}

    async def missing_partitions(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Return which of these partitions the cluster does not list now. Raises ClusterError."""
        expected = set(keys)
        return expected - (await self.bounds(sorted({topic for topic, _ in expected}))).keys()

    async def missing_after_wait(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Wait for missing partitions, and return those that stay missing. Raises ClusterError.

        The partitions of a restarting server are missing for a while. With failOnDataLoss=false the wait is longer, because the
        messages of partitions that stay missing are skipped instead of reported in an error. retryTimeout limits either wait.
        """
        expected = set(keys)
        timeout_s = RESTART_TIMEOUT_S if self._settings.fail_on_data_loss else DELETED_TIMEOUT_S
        backoff, deadline = Backoff(), time.monotonic() + min(timeout_s, self._settings.retry_s)
        while (missing := await self.missing_partitions(expected)) and time.monotonic() < deadline:
            rest_s = deadline - time.monotonic()
            log.warning(MISSING_TEXT, self._settings.cluster.name, len(missing), describe_partition(min(missing)), rest_s)
            await asyncio.sleep(backoff.delay())
        return missing

    async def assigned_partitions(self) -> frozenset[PartitionKey] | None:
        """Return the partitions of the option `assign`, None without that option. Raises like `selected_bounds`."""
        assigned = self._settings.topics.assigned
        if assigned is None:
            return None
        topics = await self.describe(assigned)
        return frozenset((topic, _partition_name(topics[topic], name)) for topic, names in assigned.items() for name in names)

    async def describe(self, topics: Collection[str]) -> dict[str, Topic]:
        """Return the metadata of topics by name. Raises ClusterError, FATAL for a topic that does not exist."""
        return await self._request_each(topics, describe_topic, operation="describing topics")

    async def positions(
        self, offsets: OffsetSpec, bounds: Mapping[PartitionKey, Bounds], default: Start
    ) -> dict[PartitionKey, Position]:
        """Resolve `offsets` to a position in each partition of `bounds`.

        Explicit offsets may omit partitions: these get `default`. For a time after the last message, the position is the end.
        Raises ClusterError, and ConfigError if `offsets` names an unread topic, a missing partition or a malformed position.
        """
        if isinstance(offsets, Start):
            return {key: _bound_position(bounds[key], offsets) for key in bounds}
        topics = list(dict.fromkeys(topic for topic, _ in bounds))
        if isinstance(offsets, AtTimestamp):
            find = partial(positions_at_time, time_ms=offsets.time_ms)
            by_topic = await self._request_each(topics, find, operation="finding positions by time")
            return {(topic, name): by_topic[topic].get(name, bounds[topic, name].next) for topic, name in bounds}
        explicit = await self._resolve_explicit(offsets, bounds)
        starts = {key: explicit.get(key, default) for key in bounds}
        return {key: _bound_position(bounds[key], start) if isinstance(start, Start) else start for key, start in starts.items()}

    async def measure(self, ranges: Mapping[PartitionKey, tuple[Position, Position]]) -> dict[PartitionKey, Sequence[UnitRange]]:
        """Divide each range into ranges of countable units, see `Cluster.measure`. Raises ClusterError."""
        return await self._request_each(
            ranges, lambda cluster, key: cluster.measure(*key, *ranges[key]), operation="measuring ranges"
        )

    async def density(
        self, key: PartitionKey, begin: Position, end: Position, unit_ranges: Sequence[UnitRange]
    ) -> Density | None:
        """Estimate the density of a range from its first units; None if it has no messages any more. Raises ClusterError."""
        units, total_units = FIRST_SAMPLE_UNITS, count_units(unit_ranges)
        while True:  # the first units may contain no message
            until = position_after(unit_ranges, min(units, total_units), end)
            sample = partial(sample_density, key=key, begin=begin, until=until, unit_ranges=unit_ranges)
            density = await self._request(sample, operation=f"sampling {describe_partition(key)}")
            if density is not None or units >= total_units:
                return density
            units *= SAMPLE_GROWTH

    async def is_harmless(self, loss: Loss) -> bool:
        """Return whether there was no message between the required position and the first stored one. Raises ClusterError.

        False without a request if the partition is missing or was created again.
        """
        if loss.kind is not LossKind.EXPIRED or loss.bounds is None:
            return False
        first = loss.bounds.first
        return not await self._request(
            lambda cluster: has_gap(cluster, loss.key, loss.position, first),
            operation=f"checking for a gap in {describe_partition(loss.key)}",
        )

    async def _resolve_explicit(
        self, offsets: ExplicitOffsets, bounds: Mapping[PartitionKey, Bounds]
    ) -> dict[PartitionKey, Start | Position]:
        """Return the position, or earliest or latest, of each partition that `offsets` names. Raises like `positions`."""
        read_topics = {topic for topic, _ in bounds}
        if unread := sorted(offsets.topics.keys() - read_topics):
            raise ConfigError(
                f"offsets are given for topic {unread[0]!r}, which is not read", hint=nearest(unread[0], read_topics)
            )
        topics = await self.describe(offsets.topics.keys())
        explicit = {
            (topic, _partition_name(topics[topic], partition)): position
            for topic, positions in offsets.topics.items()
            for partition, position in positions.items()
        }
        for key, position in explicit.items():
            # All positions of a partition have the same number of components.
            if key in bounds and not isinstance(position, Start) and len(position) != len(bounds[key].first):
                raise ConfigError(
                    f"{format_position(position)!r} is not a position of {describe_partition(key)}",
                    hint=f"Positions there look like {format_position(bounds[key].first)!r}",
                )
        return explicit

    async def _request_each(self, keys: Iterable[S], request: Callable[[Cluster, S], Awaitable[T]], operation: str) -> dict[S, T]:
        """Send one request per key, several at a time, and return the responses by key."""
        keys = list(keys)

        async def request_one(key: S) -> T:
            async with self._request_slots:
                return await self._request(lambda cluster: request(cluster, key), operation)

        return dict(zip(keys, await asyncio.gather(*map(request_one, keys)), strict=True))

    async def _request(self, request: Callable[[Cluster], Awaitable[T]], operation: str) -> T:
        """Send one request, and retry after transient failures. `operation` names it in log lines and errors."""

        async def attempt() -> T:
            async with background_loop().cluster(self._settings.cluster) as cluster:
                return await request(cluster)

        name = self._settings.cluster.name
        return await request_with_retries(attempt, self._settings.retry_s, f"{operation} in cluster {name!r}")


def _bound_position(bounds: Bounds, start: Start) -> Position:
    """Return the first stored position, or for latest the position that the next message will get."""
    return bounds.first if start is Start.EARLIEST else bounds.next


def _partition_name(topic: Topic, partition: str) -> str:
    """Return the name of a partition that is given by its name or its index. Raises ConfigError if it does not exist."""
    if partition in topic.partitions:
        return partition
    if partition.isdecimal() and int(partition) < len(topic.partitions):
        return topic.partitions[int(partition)]
    raise ConfigError(f"topic {topic.name!r} has no partition {partition!r}", hint=nearest(partition, topic.partitions))
