"""Totals of a route: plain integers, incremented once per batch.

Each total is declared only here. The metrics page, `/routes`, the result of a run and its summary line derive from it.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

from mqbridge.message import Batch

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the histogram buckets: from a broker in the same network to a backlog that takes hours."""


class Total(NamedTuple):
    """The declaration of one total of `Counters`."""

    name: str
    description: str
    when_to_look: str
    """When to look at the metric, and what its value then means."""
    metric: str
    """Name of the metric, without `_total`."""
    label: str
    """Its text in the summary line of a run; "" if the line does not contain the total."""


def _total(description: str, when_to_look: str, metric: str = "", label: str = "") -> Any:
    """Return the dataclass field of a total; without `metric`, the metric is named after the field."""
    metadata = {"description": description, "when_to_look": when_to_look, "metric": metric, "label": label}
    return field(default=0, metadata=metadata)


class Histogram:
    """A histogram of durations. `counts` has the count of each bucket of BUCKETS_S, and at its end that of longer durations.

    `seconds` is the sum of all durations.
    """

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
    """Totals of a route since the start of the process; restarts of the route and reloads do not reset them."""

    received: int = _total("Messages received from the source", "Does anything arrive?", label="received")
    stored: int = _total(
        "Messages stored by the targets", "The throughput: compare it with the received messages.", label="stored"
    )
    dead: int = _total(
        "Messages stored as dead letters",
        "Each is a message that nobody sees until somebody reads the dead letters.",
        "mqbridge_dead_letters",
        "dead letters",
    )
    filtered: int = _total(
        "Messages that the route's filter left out", "Messages are missing at the target, and nothing failed.", label="filtered"
    )
    looped: int = _total(
        "Messages not written to a target because they came from it, or passed through too many gateways",
        "Messages are missing at the target, and nothing failed; or two routes feed each other.",
        label="looped",
    )
    returned: int = _total(
        "Messages given back to the source without being stored, to be delivered again",
        "After an outage or a rolling update: the maximum number of messages that may be delivered twice.",
        label="given back, to be delivered again",
    )
    gaps: int = _total(
        "Times that a partition continued after a gap: messages that its source had lost before they were read",
        "Data was lost at the source, and the route continued after it (`on_gap: continue`).",
        "mqbridge_skipped_gaps",
        "gaps passed",
    )
    possible_gaps: int = _total(
        "Times that a source had deleted data and it could not be known whether unread messages were in it",
        "Data may be lost: the WARNING names the partition and the position to compare with the target.",
        "mqbridge_possible_gaps",
        "possible gaps",
    )
    acknowledged: int = _total(
        "Messages acknowledged to the source",
        "It falls behind the stored messages: acknowledgements do not reach the source.",
        label="acknowledged",
    )
    batches: int = _total(
        "Batches received from the source",
        "Small batches are expensive: divide the received messages by it for the mean size.",
        "mqbridge_batches",
    )
    bytes: int = _total("Bytes received from the source", "The bandwidth that the route uses.", "mqbridge_received_bytes")

    last_batch_at: float = 0.0
    """Loop time at which the last batch was received; 0 if none was. This field and those below are not totals."""
    last_stored_at: float = 0.0
    """Loop time at which the last batch was stored by all targets; 0 if none was."""
    delivery: Histogram = field(default_factory=Histogram)
    """Time from sending a batch, after the waits for rate limits and budget, until it and all before it are stored."""
    end_to_end: Histogram = field(default_factory=Histogram)
    """Time from publishing the first message of a batch until the batch is stored; empty if the publish time is unknown."""

    def record_sent(self, stored: int, dead: int) -> None:
        """Count the messages of one send that the target has stored, and those that it refused and that are dead letters now."""
        self.stored += stored
        self.dead += dead

    def record_completed(self, batch: Batch, now: float) -> None:
        """Record that a batch, and all batches before it, are stored; `now` is loop time."""
        self.last_stored_at = now
        self.delivery.add(now - batch.dispatched_at)
        if (published_ms := batch.published_ms) is not None:
            self.end_to_end.add(max(0.0, time.time() - published_ms / 1000))  # 0 if the publisher's clock is ahead of ours

    def totals(self) -> dict[str, int]:
        """Return every total by name."""
        return {total.name: getattr(self, total.name) for total in declared_totals()}


@cache
def declared_totals() -> Sequence[Total]:
    """Return the declarations of all totals."""
    declared = [(each.name, each.metadata) for each in fields(Counters) if each.metadata]
    return [
        Total(name, data["description"], data["when_to_look"], data["metric"] or f"mqbridge_{name}_messages", data["label"])
        for name, data in declared
    ]
