"""Estimates how many messages and bytes the units of a topic have, from small samples that are repeated from time to time.

A unit is the smallest amount that a system counts, for example a message or a Pulsar entry, see `UnitRange`.
"""

import asyncio
from collections.abc import Mapping, Sequence

from mqbridge.adapter.tools.unit_ranges import count_units
from mqbridge.adapter.topics import UnitRange
from mqbridge.message import Position
from mqbridge.spark.source.admission import Density, Lag
from mqbridge.spark.source.cluster_queries import ClusterQueries
from mqbridge.spark.source.offsets import PartitionKey

SAMPLE_MAX_AGE_S = 30.0
"""How long the density of a sample is used: messages of a topic seldom change in size, and an estimate may be inexact."""


class DensityEstimator:
    """Estimates one density per topic, from a sample of its partition with the largest lag."""

    def __init__(self, queries: ClusterQueries) -> None:
        self._queries = queries
        self._samples: dict[str, tuple[Density, float]] = {}
        """By topic, the density and the loop time of its last sample."""

    async def lags(
        self, ranges: Mapping[PartitionKey, tuple[Position, Position]], unit_ranges: Mapping[PartitionKey, Sequence[UnitRange]]
    ) -> dict[PartitionKey, Lag]:
        """Return the estimated content of these ranges; `unit_ranges` contains the units of each. Raises ClusterError.

        A sample without messages changes nothing. Until a topic has a density, the estimate is one message of 0 bytes per unit.
        """
        units = {key: count_units(parts) for key, parts in unit_ranges.items()}
        # By topic, the partition with the most units: a later entry of a topic replaces the earlier one.
        largest = {key[0]: key for key in sorted(ranges, key=lambda key: units[key]) if units[key]}
        await asyncio.gather(*(self._sample_if_old(key, *ranges[key], unit_ranges[key]) for key in largest.values()))
        return {key: Lag(count, self._samples.get(key[0], (Density(), 0.0))[0]) for key, count in units.items()}

    async def _sample_if_old(self, key: PartitionKey, begin: Position, end: Position, unit_ranges: Sequence[UnitRange]) -> None:
        """Sample the partition `key` between two positions, unless its topic has a sample younger than SAMPLE_MAX_AGE_S."""
        now = asyncio.get_running_loop().time()
        last_sample = self._samples.get(key[0])
        if last_sample is not None and now - last_sample[1] < SAMPLE_MAX_AGE_S:
            return
        density = await self._queries.density(key, begin, end, unit_ranges)
        if density is not None:
            self._samples[key[0]] = (density, now)
