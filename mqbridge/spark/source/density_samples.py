"""What units of topics are made of: learned from small samples, which are taken again now and then."""

import asyncio
from collections.abc import Mapping, Sequence

from mqbridge.adapter.topics import UnitRange
from mqbridge.adapter.unit_ranges import count_units
from mqbridge.message import Position
from mqbridge.spark.source.admission import Density, Lag
from mqbridge.spark.source.cluster_queries import ClusterView
from mqbridge.spark.source.offsets import Key

FRESH_S = 30.0
"""Messages of a topic change slowly, and an estimate may be wrong."""


class Densities:
    """By topic; a sample is of the partition that lags most."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._known: dict[str, tuple[Density, float]] = {}

    async def lags(
        self, ranges: Mapping[Key, tuple[Position, Position]], unit_ranges: Mapping[Key, Sequence[UnitRange]]
    ) -> dict[Key, Lag]:
        """What lies in these ranges, about. Raises ClusterError."""
        units = {key: count_units(found) for key, found in unit_ranges.items()}
        longest = {key[0]: key for key in sorted(ranges, key=lambda key: units[key]) if units[key]}
        await asyncio.gather(*(self._learn(key, *ranges[key], unit_ranges[key]) for key in longest.values()))
        return {key: Lag(count, self._known.get(key[0], (Density(), 0.0))[0]) for key, count in units.items()}

    async def _learn(self, key: Key, begin: Position, end: Position, unit_ranges: Sequence[UnitRange]) -> None:
        now = asyncio.get_running_loop().time()
        known = self._known.get(key[0])
        if known is not None and now - known[1] < FRESH_S:
            return
        sample = await self._view.density(key, begin, end, unit_ranges)
        if sample is not None:
            self._known[key[0]] = (sample, now)
