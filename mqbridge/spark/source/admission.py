"""Divides the limits of a batch (messages, bytes) among the partitions.

A unit is the smallest amount that a system counts, for example a message or a Pulsar entry, see `UnitRange`. Its messages and
bytes are estimated from samples. A batch contains at least one unit of every lagging partition, so none starves. What the limits
allow beyond these units is shared in proportion to lag.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.spark.source.offsets import PartitionKey


class Density(NamedTuple):
    """Average number of messages (rows) per unit, and of bytes per message. The defaults apply until a sample is taken."""

    rows_per_unit: float = 1.0
    bytes_per_row: float = 0.0


class Lag(NamedTuple):
    """The unread units of a partition, and their density."""

    units: int
    density: Density = Density()

    @property
    def rows(self) -> float:
        """Estimated number of unread messages."""
        return self.units * self.density.rows_per_unit

    @property
    def size(self) -> float:
        """Estimated number of unread bytes."""
        return self.rows * self.density.bytes_per_row

    def with_units(self, units: int) -> "Lag":
        """Return a lag of this many units with the same density."""
        return self._replace(units=units)


def admit(lags: Mapping[PartitionKey, Lag], max_rows: float | None, max_bytes: float | None) -> dict[PartitionKey, int]:
    """Return how many units of each lagging partition a batch contains: at least one, and all units if the limits allow it.

    None means no limit. If one unit of each partition already exceeds a limit, the batch exceeds it too.
    """
    lagging = {key: lag for key, lag in lags.items() if lag.units > 0}
    first_units = [lag.with_units(1) for lag in lagging.values()]
    other_units = [lag.with_units(lag.units - 1) for lag in lagging.values()]
    fraction = min(
        _fitting_fraction(max_rows, sum(lag.rows for lag in first_units), sum(lag.rows for lag in other_units)),
        _fitting_fraction(max_bytes, sum(lag.size for lag in first_units), sum(lag.size for lag in other_units)),
    )
    return {key: 1 + (lag.units - 1 if fraction >= 1 else int((lag.units - 1) * fraction)) for key, lag in lagging.items()}


def _fitting_fraction(limit: float | None, minimum: float, remainder: float) -> float:
    """Return the fraction (0 to 1) of `remainder` that fits into the limit beside `minimum` (all in rows, or all in bytes)."""
    if limit is None or minimum + remainder <= limit:
        return 1.0
    return max(0.0, (limit - minimum) / remainder) if remainder > 0 else 1.0
