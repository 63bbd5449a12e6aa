"""What the options say of a reading, in the types that readers work with. Travels to executors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mqbridge.adapter.inbound import Start
from mqbridge.config.patterns import compile_name_pattern, is_pattern
from mqbridge.errors import ConfigError
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.config_lookup import ChosenRoute
from mqbridge.spark.option_values import AtTime, Edge
from mqbridge.spark.options import OptionValues, Where
from mqbridge.spark.ranges.rows import RANGES

CHOICES = ("subscribe", "subscribePattern", "assign", "route")


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics to read: some by name, those that match, or some of their partitions. One of the first three is set.

    `wanted` is as in routes: names, and patterns that begin with `~`; those without patterns are in `names` too.
    """

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, tuple[str, ...]] | None = None
    wanted: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether topics that come later may be among them."""
        return self.pattern is not None or any(map(is_pattern, self.wanted))

    def has(self, topic: str) -> bool:
        """Whether the topic is read, if it is there."""
        if self.wanted:
            return topic in self.wanted or any(
                compile_name_pattern(one).fullmatch(topic) for one in self.wanted if is_pattern(one)
            )
        return topic in self.names if self.pattern is None else self.pattern.fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options of a source; durations in seconds, None where there is no limit."""

    cluster: ClusterRef
    topics: TopicChoice
    starting: Edge
    ending: Edge
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float
    min_partitions: int | None
    max_task_rows: int | None
    metadata_s: float
    new_topics_s: float
    fail_on_data_loss: bool
    retry_s: float
    binary_properties: bool
    is_ranges: bool
    range_tasks: int | None = None
    stop_file: str | None = None
    makes_targets_of: ChosenRoute | None = None
    """The route whose targets are made for what comes later."""

    @property
    def may_cut(self) -> bool:
        """Whether the range of a partition may be several tasks'."""
        return self.min_partitions is not None or self.max_task_rows is not None


def source_settings(values: OptionValues, cluster: ClusterRef, where: Where, route: ChosenRoute | None = None) -> SourceSettings:
    """Raises ConfigError where options do not go together."""
    starting = _edge(values, "starting", Start.LATEST if where is Where.STREAM else Start.EARLIEST)
    ending = _edge(values, "ending", Start.LATEST)
    if where is Where.BATCH and starting is Start.LATEST:
        raise ConfigError(
            "option startingOffsets: a batch read cannot begin with the latest", hint="Say earliest, or read a stream"
        )
    if ending is Start.EARLIEST:
        raise ConfigError("option endingOffsets: nothing is before the earliest", hint="Say latest, or positions")
    return SourceSettings(
        cluster=cluster,
        topics=_topics(values, route),
        starting=starting,
        ending=ending,
        max_rows=values["maxOffsetsPerTrigger"],
        max_bytes=values["maxBytesPerTrigger"],
        min_rows=values["minOffsetsPerTrigger"],
        max_delay_s=values["maxTriggerDelay"],
        min_partitions=values["minPartitions"],
        max_task_rows=values["maxRecordsPerPartition"],
        metadata_s=values["metadataInterval"],
        new_topics_s=values["newTopicsInterval"],
        fail_on_data_loss=values["failOnDataLoss"],
        retry_s=values["retryTimeout"],
        binary_properties=values["propertiesFormat"] == "binary",
        is_ranges=values["mode"] == RANGES,
        range_tasks=values["rangeTasks"],
        stop_file=values["stopFile"],
        makes_targets_of=route if values["makeTargets"] else None,
    )


def _topics(values: OptionValues, route: ChosenRoute | None) -> TopicChoice:
    given = [name for name in CHOICES if values[name] is not None]
    if len(given) != 1:
        problem = "no topics are named" if not given else f"topics are named by {' and '.join(given)}"
        raise ConfigError(problem, hint=f"Give one of {', '.join(CHOICES)}")
    if route is not None:
        wanted = route.route.source.wanted
        return TopicChoice(tuple(one for one in wanted if not is_pattern(one)), wanted=wanted)
    assigned = values["assign"]
    return TopicChoice(values["subscribe"] or tuple(assigned or ()), values["subscribePattern"], assigned)


def _edge(values: OptionValues, which: str, otherwise: Edge) -> Edge:
    time_ms, offsets = values[f"{which}Timestamp"], values[f"{which}Offsets"]
    if time_ms is not None:
        return AtTime(time_ms)
    return otherwise if offsets is None else offsets
