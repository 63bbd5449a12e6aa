"""The picklable settings of a transfer, which Spark sends to its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.filter import FilterRules
from mqbridge.config.options.route import Route
from mqbridge.config.options.target import Target
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.message import Position
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer.selection import Selection

WRITE_TIMEOUT_S = 120.0
"""Default of the option `writeTimeout`."""

TopicKey = tuple[str, str]
"""The name of a target cluster, and of a topic in it."""
TopicEnds = Mapping[TopicKey, Mapping[str, Position]]
"""End positions of target partitions, by topic and partition name. Their indexes may be others in the next attempt: a broker that
was down may be back."""
PartitionMode = Literal["rule", "auto", "column"]
"""How the target partition of a row is chosen: by the target's rule (`rule`), by the row's column `partition` (`column`), or
by the column and, where it is NULL, by the rule (`auto`).
"""


@dataclass(frozen=True, slots=True)
class TargetsSpec:
    """The targets of a route, or of the sink's options. Picklable.

    name           name of the route, or without one the option `jobId`
    clusters       every cluster that `targets` and `delivery.dead_letter` name, by name
    source_topics  topic names and patterns of the route; groups of a pattern fill the templates of target topics. Empty without a
                   route
    msg_types      message types (TubeMQ's type, RocketMQ's tag) to store; empty means all

    A transfer does not create topics: the mirror or the sink's `TaskWriter` does that before the transfer begins.
    """

    name: str
    clusters: Mapping[str, ClusterRef]
    targets: tuple[Target, ...]
    source_topics: tuple[str, ...] = ()
    msg_types: frozenset[str] = frozenset()
    filter: FilterRules = field(default_factory=FilterRules)
    delivery: Delivery = field(default_factory=Delivery)
    partition_mode: PartitionMode = "rule"
    earlier_selection: Selection | None = None
    """The selection with which a repeated batch began, if it is another one: a message must pass both."""
    deduplicate: bool = True
    """Store each message only once and in the order of the positions, even after failures and repeated attempts. This needs a row
    with the columns `source` and `position`; other rows are stored at least once."""
    write_timeout_s: float = WRITE_TIMEOUT_S
    """How many seconds transient failures are retried. A batch acknowledged between two failures restarts the time."""
    cluster_names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """All names that the configuration gives to a target cluster, by each of its names; an origin may contain any of them."""
    max_dead_letters: int | None = None
    """A transfer fails if its targets refuse more messages than this. None: no limit."""
    topic_from_rows: bool = False
    """True: the rows name the target topic. It is no template, and if it does not exist, its messages are refused."""

    @classmethod
    def of_route(cls, route: Route, clusters: Mapping[str, ClusterRef]) -> "TargetsSpec":
        """Return the targets and delivery settings of a route of the configuration, whose clusters are `clusters`."""
        graph = TopicGraph((), {name: ref.settings for name, ref in clusters.items()})
        return cls(
            name=route.name,
            clusters={name: ref for name, ref in clusters.items() if name in route.clusters},
            targets=route.targets,
            source_topics=route.source.configured_topics,
            msg_types=route.source.msg_types,
            filter=route.filter,
            delivery=route.delivery,
            cluster_names={target.cluster: graph.cluster_names(target.cluster) for target in route.targets},
        )

    @property
    def used_clusters(self) -> list[str]:
        """The names of the clusters that are written to, each once."""
        dead_letter = self.delivery.dead_letter
        names = dict.fromkeys(target.cluster for target in self.targets)
        return list(names if dead_letter is None else {**names, dead_letter.cluster: None})

    @property
    def selection(self) -> Selection:
        """The messages to store, by type and filter."""
        return Selection(self.msg_types, self.filter)

    def with_topic(self, topic: str) -> "TargetsSpec":
        """Return a copy for the rows whose column `topic` has this value, which becomes the topic of all targets."""
        return replace(
            self, topic_from_rows=True, targets=tuple(target.model_copy(update={"topic": topic}) for target in self.targets)
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Marks a transfer some of whose messages may be stored already, by an earlier attempt.

    In each target partition they are stored at or after its position in `since`, or anywhere if `since` has no position for the
    partition.

    may_be_unnamed  an earlier version may have stored them, whose origins name no writer
    """

    since: TopicEnds = field(default_factory=dict)
    may_be_unnamed: bool = False
