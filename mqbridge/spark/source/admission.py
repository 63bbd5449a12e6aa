"""How much of what is there a batch may have.

Every partition that lags gets one unit, so that none starves; what is left of the limits is shared in proportion to lag. Units
are what a system counts by (`Cluster.measure`); how many messages and bytes they have is estimated from samples.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.spark.source.offsets import Key


class Density(NamedTuple):
    """What units are made of, on average."""

    rows_per_unit: float = 1.0
    bytes_per_row: float = 0.0


class Lag(NamedTuple):
    """What lies before a partition."""

    units: int
    density: Density = Density()

    @property
    def rows(self) -> float:
        """About so many messages."""
        return self.units * self.density.rows_per_unit

    @property
    def size(self) -> float:
        """About so many bytes."""
        return self.rows * self.density.bytes_per_row

    def first(self, units: int) -> "Lag":
        """The first so many units of it."""
        return self._replace(units=units)


def admit(lags: Mapping[Key, Lag], max_rows: float | None, max_bytes: float | None) -> dict[Key, int]:
    """How many units of each partition a batch takes: at least one of each that has any, all of them where the limits allow."""
    lagging = {key: lag for key, lag in lags.items() if lag.units > 0}
    ones = [lag.first(1) for lag in lagging.values()]
    rests = [lag.first(lag.units - 1) for lag in lagging.values()]
    share = min(
        _share(max_rows, sum(one.rows for one in ones), sum(rest.rows for rest in rests)),
        _share(max_bytes, sum(one.size for one in ones), sum(rest.size for rest in rests)),
    )
    return {key: 1 + (lag.units - 1 if share >= 1 else int((lag.units - 1) * share)) for key, lag in lagging.items()}


def _share(limit: float | None, base: float, rest: float) -> float:
    """What part of the rest fits into the limit beside the base."""
    if limit is None or base + rest <= limit:
        return 1.0
    return max(0.0, (limit - base) / rest) if rest > 0 else 1.0
