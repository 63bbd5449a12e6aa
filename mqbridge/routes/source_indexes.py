"""Keeps the indexes of a source topic's partitions as they are, for the rules that choose target partitions by index."""

from collections.abc import Iterable

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.known_brokers import HasBrokers, brokers_of
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.errors import ConfigError
from mqbridge.message import NO_INDEX
from mqbridge.routing.partitions import needs_index, uses_indexes


def index_problem(route: str, cluster: Cluster, topic: Topic, rule: PartitionRule) -> ConfigError | None:
    """Return an error if the rule uses indexes that are not certain, or that partitions of the topic do not have; else None."""
    indexes = topic.index_by_partition
    if not isinstance(cluster, HasBrokers) or not uses_indexes(rule):
        return None
    known = cluster.known_brokers
    problem = known.why_uncertain(topic.name, indexes.keys())
    hint = f"Name all brokers in `brokers` of cluster {cluster.name!r}"
    if problem is not None:
        hint += ", or set `state`, in which the gateway keeps what it has seen"
    elif unknown := [name for name, index in indexes.items() if index == NO_INDEX and needs_index(rule, name)]:
        problem = known.why_no_index(topic.name, unknown[0])
    if problem is None:
        return None
    text = f"route {route!r}: `by: {rule.by}` uses the indexes of source partitions, but {problem}"
    return ConfigError(text, hint=f"{hint}; or use `by: modulo`, or a `table` with the names of the partitions")


def record_partitions(cluster: Cluster, topic: Topic, rules: Iterable[PartitionRule]) -> None:
    """Record the brokers of a topic that a route reads, and keep its indexes as they are if one of the rules uses them."""
    if isinstance(cluster, HasBrokers):
        cluster.known_brokers.record(topic.name, brokers_of(topic.index_by_partition))
        if any(map(uses_indexes, rules)):
            cluster.known_brokers.fix_layout(topic.name, topic.index_by_partition.keys())


def why_no_index(cluster: Cluster, topic: str, partition: str) -> str:
    """Return a text to append to the reason why a partition without an index is not read; empty if there is nothing to say."""
    return f": {cluster.known_brokers.why_no_index(topic, partition)}" if isinstance(cluster, HasBrokers) else ""
