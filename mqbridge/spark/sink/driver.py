"""What the sink does on the driver: finds the ends of topics, and sees to it that no source was written by two tasks."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from mqbridge.errors import ClusterError, ConfigError
from mqbridge.message import Position
from mqbridge.spark.sink.task import TaskResult
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.resume import find_ends
from mqbridge.spark.transfer.spec import TargetsSpec, TopicKey
from mqbridge.spark.transfer.targets import FindCluster

log = logging.getLogger(__name__)


def known_topics(spec: TargetsSpec) -> set[TopicKey]:
    """The topics that every batch may write to, as far as they do not depend on its rows."""
    found = {(target.cluster, target.topic) for target in spec.targets if "{" not in target.topic}
    letters = spec.delivery.dead_letter
    return found if letters is None else found | {(letters.cluster, letters.topic)}


def written_topics(spec: TargetsSpec, counts: Counts) -> set[TopicKey]:
    """Those that were written to."""
    found = known_topics(spec)
    for label in counts.by_target:
        for cluster in spec.used_clusters:
            if label.startswith(f"{cluster}/") and len(label) > len(cluster) + 1:
                found.add((cluster, label[len(cluster) + 1 :]))
    return found


async def find_topic_ends(
    spec: TargetsSpec, topics: Collection[TopicKey], find_cluster: FindCluster
) -> dict[TopicKey, Mapping[int, Position]]:
    """Where these topics end now. One that does not say is left out: an end of before holds as well."""

    async def find(key: TopicKey) -> Mapping[int, Position]:
        try:
            async with find_cluster(spec.clusters[key[0]]) as cluster:
                return await find_ends(cluster, key[1])
        except ClusterError as error:
            log.warning("where %s/%s ends is not known: %s", *key, error)
            return {}

    wanted = [key for key in topics if key[0] in spec.clusters]
    ends = await asyncio.gather(*map(find, wanted))
    return {key: found for key, found in zip(wanted, ends, strict=True) if found}


def check_streams(results: Iterable[TaskResult]) -> None:
    """Raise ConfigError when rows of one source went to one topic in several tasks."""
    seen: set[tuple[str, str | None]] = set()
    for result in results:
        if both := seen & result.streams:
            source, topic = min(both, key=str)
            where = "" if topic is None else f" for {topic!r}"
            raise ConfigError(
                f"rows of {source}{where} were written by several tasks, in no order: nobody could tell what of them is stored",
                hint='Write .repartition("source").sortWithinPartitions("source", "position"), or set deduplicate=false',
            )
        seen |= result.streams
