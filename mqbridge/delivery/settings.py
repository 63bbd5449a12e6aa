"""The settings and shared objects that a route passes to its lanes. A lane delivers one source partition."""

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
    """Limits the bytes in flight of the route."""
    counters: Counters
    filter: Filter | None = None
    """None: every message passes."""
    dead_letters: DeadLetters | None = None
    """None: a refused message ends its lane."""
    skip_gaps: bool = False
    """True: continue after a gap (messages deleted before they were read). Without a known position after it, the lane ends."""
    rates: list[tuple[str, RateLimit]] = field(default_factory=list)
    """Rate limits, as pairs (name of the attribute of `Batch` that is limited: `count` or `size`, limit)."""
    on_progress: Callable[[Batch, bool], None] | None = None
    """Called with each batch when it and all batches before it are stored.

    The second argument is False if the partition was revoked by then: the partition's new consumer may have stored later batches
    already.
    """
