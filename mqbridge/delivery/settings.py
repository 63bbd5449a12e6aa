"""The settings and shared objects that a route passes to its lanes."""

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
    """Settings and shared objects of all lanes of a route."""

    budget: Budget
    counters: Counters
    filter: Filter | None = None
    dead_letters: DeadLetters | None = None
    skip_gaps: bool = False
    """True: continue after a gap, if the position after it is known."""
    rates: list[tuple[str, RateLimit]] = field(default_factory=list)
    """Rate limits, as pairs (name of the attribute of `Batch` that is limited: `count` or `size`, limit)."""
    on_progress: Callable[[Batch, bool], None] | None = None
    """Called with each batch when it and all batches before it are stored, and with False if its partition was revoked by then.

    After the revocation, the partition's new consumer may have stored later batches already.
    """
