"""What a route did, in plain integers that are added to once per batch.

A total is declared here and nowhere else: the metrics page, `/routes`, the outcome of a run and its closing line follow.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

from mqbridge.message import Batch

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of what a histogram tells apart: from a broker next door to a backlog that is worked off."""


class Total(NamedTuple):
    """One total: its field, what it counts, its metric (without `_total`), and its word in a closing line, "" for none."""

    name: str
    text: str
    metric: str
    word: str


def _total(text: str, metric: str = "", word: str = "") -> Any:
    return field(default=0, metadata={"text": text, "metric": metric, "word": word})


class Histogram:
    """How often something took how long; `counts` has one more than BUCKETS_S, for what took longer."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Once more."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


@dataclass(slots=True)
class Counters:
    """Totals of a route since it began; they outlive restarts of the route and reloads of the configuration."""

    received: int = _total("Messages received from the source", word="received")
    stored: int = _total("Messages stored by the targets", word="stored")
    dead: int = _total("Messages stored as dead letters", "mqbridge_dead_letters", "dead letters")
    filtered: int = _total("Messages that the route's filter left out", word="filtered")
    looped: int = _total(
        "Messages that were not written to a target because they had come from there, or passed through too many gateways",
        word="looped",
    )
    returned: int = _total(
        "Messages given back to the source without being stored, to be delivered again",
        word="given back, to be delivered again",
    )
    gaps: int = _total(
        "Times that a partition went on without messages that its source had lost before they were read",
        "mqbridge_skipped_gaps",
        "gaps passed",
    )
    acknowledged: int = _total("Messages acknowledged to the source", word="acknowledged")
    batches: int = _total("Batches received from the source", "mqbridge_batches")
    bytes: int = _total("Bytes received from the source", "mqbridge_received_bytes")

    last_batch_at: float = 0.0
    """Loop time at which the last batch was received; 0 for never. Here the totals end."""
    last_stored_at: float = 0.0
    """Loop time at which the last batch was stored by all targets; 0 for never."""
    delivery: Histogram = field(default_factory=Histogram)
    """From receiving a batch to storing it and all before it."""
    end_to_end: Histogram = field(default_factory=Histogram)
    """From publishing the first message of a batch to storing the batch, where the source tells when that was."""

    def passed(self, batch: Batch, now: float) -> None:
        """A batch, and all before it, are stored; `now` is loop time. Its first message stands for all of it."""
        self.last_stored_at = now
        self.delivery.add(now - batch.received_at)
        if (published_ms := batch.published_ms) is not None:
            self.end_to_end.add(max(0.0, time.time() - published_ms / 1000))  # clocks of two machines

    def totals(self) -> dict[str, int]:
        """Every total by name."""
        return {one.name: getattr(self, one.name) for one in declared()}


@cache
def declared() -> Sequence[Total]:
    """Every total there is."""
    abouts = [(one.name, one.metadata) for one in fields(Counters) if one.metadata]
    return [Total(name, about["text"], about["metric"] or f"mqbridge_{name}_messages", about["word"]) for name, about in abouts]
