"""What a route demands of each of its lanes."""

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
    """Go on behind what the source has lost, if it says where that is."""
    rates: list[tuple[str, RateLimit]] = field(default_factory=list)
    """Limits in units of a batch's attribute: (`count` or `size`, limit)."""
    on_progress: Callable[[Batch, bool], None] | None = None
    """Told of each batch when it and all before it are stored, and whether its partition is still the lane's: whoever has it
    since may be further by then."""
