"""Settings of a route for its lanes."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mqbridge.delivery.counters import Counters
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.rate import RateLimit
from mqbridge.message import Batch
from mqbridge.net.budget import Budget
from mqbridge.routing.filters import Filter


@dataclass(slots=True)
class LaneSettings:
    """Shared by all lanes of a route."""

    budget: Budget
    counters: Counters
    filter: Filter | None = None
    dead_letters: DeadLetters | None = None
    skip_gaps: bool = False
    """Continue after a gap, if the source tells where."""
    rates: list[tuple[str, RateLimit]] = field(default_factory=list)
    """Rate limits by the attribute of a batch that they count: (`count` or `size`, limit)."""
    on_progress: Callable[[Batch, bool], None] | None = None
    """Called with each batch when it and all before it are stored, and with True while the lane still holds its partition: once
    it is lost, the new consumer may be further."""
