"""The sink's work on the driver: finds the ends of topics and topics that keep nothing, and checks the streams of tasks."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from mqbridge.errors import ClusterError, ConfigError
from mqbridge.message import Position
from mqbridge.routes.retention_warnings import TopicUse
from mqbridge.routes.unprotected import unprotected_targets
from mqbridge.spark.sink.task import TaskResult
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.resume import find_ends
from mqbridge.spark.transfer.spec import TargetsSpec, TopicKey
from mqbridge.spark.transfer.targets import FindCluster

log = logging.getLogger(__name__)


def fixed_topics(spec: TargetsSpec) -> set[TopicKey]:
    """Return the target and dead-letter topics whose names do not depend on the rows. A template contains `{`."""
    topics = {(target.cluster, target.topic) for target in spec.targets if "{" not in target.topic}
    dead_letter = spec.delivery.dead_letter
    return topics if dead_letter is None else topics | {(dead_letter.cluster, dead_letter.topic)}


def written_topics(spec: TargetsSpec, counts: Counts) -> set[TopicKey]:
    """Return the fixed topics, and the topics for which `counts` has messages."""
    topics = fixed_topics(spec)
    for label in counts.by_target:  # `cluster/topic`, and `cluster/` for rows without a topic
        for cluster in spec.used_clusters:
            if label.startswith(f"{cluster}/") and len(label) > len(cluster) + 1:
                topics.add((cluster, label[len(cluster) + 1 :]))
    return topics


async def find_topic_ends(
    spec: TargetsSpec, topics: Collection[TopicKey], find_cluster: FindCluster
) -> dict[TopicKey, Mapping[str, Position]]:
    """Return the current end positions of these topics, without topics that cannot be read or whose cluster is not in `spec`.

    Callers then use an earlier end instead, which is correct too: a repeated attempt only searches more of the topic for stored
    messages.
    """

    async def find(key: TopicKey) -> Mapping[str, Position]:
        try:
            async with find_cluster(spec.clusters[key[0]]) as cluster:
                return await find_ends(cluster, key[1])
        except ClusterError as error:
            message = "cannot read the end positions of %s/%s, so a repeated attempt searches more of it for stored messages: %s"
            log.warning(message, *key, error)
            return {}

    keys = [key for key in topics if key[0] in spec.clusters]
    ends = await asyncio.gather(*map(find, keys))
    return {key: partition_ends for key, partition_ends in zip(keys, ends, strict=True) if partition_ends}


async def find_unprotected(spec: TargetsSpec, topics: Collection[TopicKey], find_cluster: FindCluster) -> dict[str, str]:
    """Return why clusters delete messages of these written topics before anybody has read them, by `CLUSTER/TOPIC`.

    Topics for which the spec allows it, and those that cannot be checked, are left out.
    """

    async def find(key: TopicKey) -> dict[str, str]:
        try:
            async with find_cluster(spec.clusters[key[0]]) as cluster:
                return await unprotected_targets([TopicUse(*key)], {key[0]: cluster})
        except ClusterError as error:
            log.warning("cannot find out whether %s/%s keeps unread messages: %s", *key, error)
            return {}

    found = await asyncio.gather(*(find(key) for key in sorted(topics) if key[0] in spec.clusters and _must_keep(spec, key)))
    return {label: reason for reasons in found for label, reason in reasons.items()}


def _must_keep(spec: TargetsSpec, key: TopicKey) -> bool:
    """Return True unless every target that may have written the topic has `unread: may_be_deleted`."""
    dead_letter = spec.delivery.dead_letter
    if dead_letter is not None and key == (dead_letter.cluster, dead_letter.topic):
        return dead_letter.unread == "kept"
    return any(target.unread == "kept" for target in spec.targets if target.cluster == key[0])


def check_streams(results: Iterable[TaskResult]) -> None:
    """Raise ConfigError if several tasks wrote the same stream: the rows of one source for one topic.

    The topic is None if the options name it instead of the rows.
    """
    streams: set[tuple[str, str | None]] = set()
    for result in results:
        if shared := streams & result.streams:
            source, topic = min(shared, key=str)
            target = "" if topic is None else f" for {topic!r}"
            raise ConfigError(
                f"rows of {source}{target} were written by several tasks, so their order is unknown, and the sink cannot know "
                "which of them are stored",
                hint='Write .repartition("source").sortWithinPartitions("source", "position"), or set deduplicate=false',
            )
        streams |= result.streams
