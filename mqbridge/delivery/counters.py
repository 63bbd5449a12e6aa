"""What a route did, in plain integers that are added to once per batch.

A total is declared here and nowhere else: the metrics page, `/routes`, the outcome of a run and its closing line follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple


class Total(NamedTuple):
    """One total: its field, what it counts, its metric (without `_total`), and its word in a closing line, "" for none."""

    name: str
    text: str
    metric: str
    word: str


def _total(text: str, metric: str = "", word: str = "") -> Any:
    return field(default=0, metadata={"text": text, "metric": metric, "word": word})


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
    gaps: int = _total(
        "Times that a partition went on without messages that its source had lost before they were read",
        "mqbridge_skipped_gaps",
        "gaps passed",
    )
    acknowledged: int = _total("Messages acknowledged to the source", word="acknowledged")
    batches: int = _total("Batches received from the source", "mqbridge_batches")
    bytes: int = _total("Bytes received from the source", "mqbridge_received_bytes")

    last_batch_at: float = 0.0
    """Loop time; the one that is no total."""

    def totals(self) -> dict[str, int]:
        """Every total by name."""
        return {one.name: getattr(self, one.name) for one in declared()}


@cache
def declared() -> Sequence[Total]:
    """Every total there is."""
    abouts = [(one.name, one.metadata) for one in fields(Counters) if one.metadata]
    return [Total(name, about["text"], about["metric"] or f"mqbridge_{name}_messages", about["word"]) for name, about in abouts]
