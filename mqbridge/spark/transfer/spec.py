"""What a transfer writes and how, in a form that Spark sends to its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.filter import FilterRules
from mqbridge.config.options.route import Route
from mqbridge.config.options.target import Target
from mqbridge.message import Position
from mqbridge.spark.cluster_ref import ClusterRef

WRITE_TIMEOUT_S = 120.0

TopicKey = tuple[str, str]
"""Cluster and topic."""
Ends = Mapping[TopicKey, Mapping[int, Position]]
"""Positions in target partitions, by topic and partition index."""
Placing = Literal["rule", "auto", "column"]
"""How rows are placed: by the target's own rule, or by their column `partition` (see `placing`)."""


@dataclass(frozen=True, slots=True)
class TargetsSpec:
    """The targets of a route, or of the sink's options. Picklable.

    `clusters` has every cluster that `targets` and `delivery.dead_letter` name. `source_topics` are the names and patterns that
    give their words to the templates of target topics. Topics are not made here: that is done before tasks begin.
    """

    name: str
    clusters: Mapping[str, ClusterRef]
    targets: tuple[Target, ...]
    source_topics: tuple[str, ...] = ()
    msg_types: frozenset[str] = frozenset()
    filter: FilterRules = field(default_factory=FilterRules)
    delivery: Delivery = field(default_factory=Delivery)
    placing: Placing = "rule"
    deduplicate: bool = True
    """Store each message once, whatever fails or is repeated; for messages with a source, in the order of their positions."""
    write_timeout_s: float = WRITE_TIMEOUT_S
    """How long failures that may pass are tried again while nothing is stored."""
    max_dead_letters: int | None = None
    """More refused messages than these end a transfer."""
    by_rows: bool = False
    """The topic is what rows say: no template, and what is for one that is not there is refused as a bad message is."""

    @classmethod
    def of_route(cls, route: Route, clusters: Mapping[str, ClusterRef]) -> "TargetsSpec":
        """What this route of a configuration writes."""
        return cls(
            route.name,
            {name: ref for name, ref in clusters.items() if name in route.clusters},
            route.targets,
            route.source.wanted,
            route.source.msg_types,
            route.filter,
            route.delivery,
        )

    @property
    def used_clusters(self) -> list[str]:
        """The names of those that are written to."""
        letters = self.delivery.dead_letter
        names = dict.fromkeys(target.cluster for target in self.targets)
        return list(names if letters is None else {**names, letters.cluster: None})

    def into(self, topic: str) -> "TargetsSpec":
        """The same with this exact target topic, which rows say."""
        return replace(self, by_rows=True, targets=tuple(target.model_copy(update={"topic": topic}) for target in self.targets))


@dataclass(frozen=True, slots=True)
class Replay:
    """Some of what comes may be stored already, but nothing of it before `since` (what is left out there: anywhere)."""

    since: Ends = field(default_factory=dict)
