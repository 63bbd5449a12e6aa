"""Totals of a route: plain integers, incremented once per batch.

A total is declared here and nowhere else: the metrics page, `/routes`, the result of a run and its closing line derive from it.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

from mqbridge.message import Batch

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the histogram buckets: from a broker next door to a backlog that is worked off."""


class Total(NamedTuple):
    """A total: its field, its description, its metric (without `_total`), and its word in the closing line, "" for none."""

    name: str
    text: str
    metric: str
    word: str


def _total(text: str, metric: str = "", word: str = "") -> Any:
    return field(default=0, metadata={"text": text, "metric": metric, "word": word})


class Histogram:
    """A histogram of durations; `counts` has one more element than BUCKETS_S, for longer durations."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class Counters:
    """Totals of a route since it was first started; they survive restarts of the route and reloads of the configuration."""

    received: int = _total("Messages received from the source", word="received")
    stored: int = _total("Messages stored by the targets", word="stored")
    dead: int = _total("Messages stored as dead letters", "mqbridge_dead_letters", "dead letters")
    filtered: int = _total("Messages that the route's filter left out", word="filtered")
    looped: int = _total(
        "Messages not written to a target because they came from it, or passed through too many gateways",
        word="looped",
    )
    returned: int = _total(
        "Messages given back to the source without being stored, to be delivered again",
        word="given back, to be delivered again",
    )
    gaps: int = _total(
        "Times that a partition continued after a gap: messages that its source had lost before they were read",
        "mqbridge_skipped_gaps",
        "gaps passed",
    )
    acknowledged: int = _total("Messages acknowledged to the source", word="acknowledged")
    batches: int = _total("Batches received from the source", "mqbridge_batches")
    bytes: int = _total("Bytes received from the source", "mqbridge_received_bytes")

    last_batch_at: float = 0.0
    """Loop time at which the last batch was received; 0 for never. From here on, the fields are not totals."""
    last_stored_at: float = 0.0
    """Loop time at which the last batch was stored by all targets; 0 for never."""
    delivery: Histogram = field(default_factory=Histogram)
    """Time from receiving a batch until it and all batches before it are stored."""
    end_to_end: Histogram = field(default_factory=Histogram)
    """Time from publishing the first message of a batch until the batch is stored, if the source tells the publish time."""

    def batch_stored(self, batch: Batch, now: float) -> None:
        """Record that a batch, and all before it, are stored; `now` is loop time. Its first message stands for all of it."""
        self.last_stored_at = now
        self.delivery.add(now - batch.received_at)
        if (published_ms := batch.published_ms) is not None:
            self.end_to_end.add(max(0.0, time.time() - published_ms / 1000))  # the clocks of two machines may differ

    def totals(self) -> dict[str, int]:
        """Return every total by name."""
        return {one.name: getattr(self, one.name) for one in declared()}


@cache
def declared() -> Sequence[Total]:
    """Return every declared total."""
    found = [(one.name, one.metadata) for one in fields(Counters) if one.metadata]
    return [Total(name, data["text"], data["metric"] or f"mqbridge_{name}_messages", data["word"]) for name, data in found]
