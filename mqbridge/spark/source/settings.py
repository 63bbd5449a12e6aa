"""The settings of a source, made from its options. Spark sends them to executors."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mqbridge.adapter.inbound import Start
from mqbridge.config.patterns import compile_name_pattern, is_pattern
from mqbridge.errors import ConfigError
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.config_lookup import ResolvedRoute
from mqbridge.spark.option_values import AtTimestamp, OffsetSpec
from mqbridge.spark.options import OptionValues, Usage
from mqbridge.spark.ranges.rows import RANGES_MODE
from mqbridge.wire.bounded_pattern import BoundedPattern

TOPIC_OPTION_NAMES = ("subscribe", "subscribePattern", "assign", "route")
"""The options that select topics, of which a read needs exactly one."""


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics to read: topic names, a pattern, assigned partitions, or the topics of a route. None: the option is not set.

    names         topics that are given by name, in the option `subscribe`, `assign` or `route`
    pattern       option `subscribePattern`
    assigned      option `assign`: partitions by topic
    route_topics  the source topics of a route: names, and patterns that begin with `~`; empty without the option `route`
    """

    names: tuple[str, ...] = ()
    pattern: BoundedPattern | None = None
    assigned: Mapping[str, tuple[str, ...]] | None = None
    route_topics: tuple[str, ...] = ()
    route: ResolvedRoute | None = field(default=None, compare=False)
    """The route that selects the topics; None without the option `route`."""

    @property
    def has_pattern(self) -> bool:
        """Whether topics are selected by a pattern, so that topics that are created later can match."""
        return self.pattern is not None or any(map(is_pattern, self.route_topics))

    def readable(self, topics: Collection[str]) -> list[str]:
        """Return these topics, sorted, without those that a route must not read because it writes them itself."""
        if self.route is None:
            return sorted(topics)
        judgement = self.route.graph.judge(self.route.route, topics)
        return sorted(set(topics) - judgement.excluded.keys() - judgement.refused.keys())

    def includes(self, topic: str) -> bool:
        """Return whether the selection includes this topic, whether the topic exists or not."""
        if self.route_topics:
            return topic in self.route_topics or any(
                compile_name_pattern(name).fullmatch(topic) for name in self.route_topics if is_pattern(name)
            )
        return topic in self.names if self.pattern is None else self.pattern.fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options of a source; `source_settings` shows which option each field comes from.

    Names with `_s` are durations in seconds, `rows` are messages. None: the option is not set, which for limits means no limit.
    """

    cluster: ClusterRef
    topics: TopicSelection
    starting: OffsetSpec
    ending: OffsetSpec
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float
    min_partitions: int | None
    max_task_rows: int | None
    metadata_s: float
    """Interval between two requests for the bounds of partitions."""
    new_topics_s: float
    """Interval between two searches for new topics that match the pattern."""
    fail_on_data_loss: bool
    retry_s: float
    """How long requests to an unreachable cluster are retried."""
    binary_properties: bool
    reads_ranges: bool
    """True: the rows are ranges of positions, from which the tasks of a mirror read; False: the rows are messages."""
    range_tasks: int | None = None
    """Maximum number of tasks that share the ranges of a batch."""
    stop_file: str | None = None
    """Path on the driver; no batch begins while this file exists."""
    target_route: ResolvedRoute | None = None
    """With the option `makeTargets`: the route whose missing targets are created before new topics and partitions are read."""

    @property
    def may_split_ranges(self) -> bool:
        """Whether several tasks may share the range of a partition."""
        return self.min_partitions is not None or self.max_task_rows is not None


def source_settings(
    values: OptionValues, cluster: ClusterRef, usage: Usage, route: ResolvedRoute | None = None
) -> SourceSettings:
    """Make the settings from option values. Raises ConfigError for options that contradict each other."""
    starting = _offsets(values, "starting", Start.LATEST if usage is Usage.STREAM else Start.EARLIEST)
    ending = _offsets(values, "ending", Start.LATEST)
    if usage is Usage.BATCH and starting is Start.LATEST:
        raise ConfigError("option startingOffsets: a batch read cannot begin at latest", hint="Use earliest, or read a stream")
    if ending is Start.EARLIEST:
        raise ConfigError("option endingOffsets: there is nothing before earliest", hint="Use latest, or positions")
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
        reads_ranges=values["mode"] == RANGES_MODE,
        range_tasks=values["rangeTasks"],
        stop_file=values["stopFile"],
        target_route=route if values["makeTargets"] else None,
    )


def _topics(values: OptionValues, route: ResolvedRoute | None) -> TopicSelection:
    set_options = [name for name in TOPIC_OPTION_NAMES if values[name] is not None]
    if len(set_options) != 1:
        problem = "no option selects topics" if not set_options else f"several options select topics: {' and '.join(set_options)}"
        raise ConfigError(problem, hint=f"Set one of {', '.join(TOPIC_OPTION_NAMES)}")
    if route is not None:
        route_topics = route.route.source.configured_topics
        names = tuple(name for name in route_topics if not is_pattern(name))
        return TopicSelection(names, route_topics=route_topics, route=route)
    assigned = values["assign"]
    return TopicSelection(values["subscribe"] or tuple(assigned or ()), values["subscribePattern"], assigned)


def _offsets(values: OptionValues, prefix: str, default: OffsetSpec) -> OffsetSpec:
    """Return the value of `startingTimestamp` or `startingOffsets`, or of the two options with prefix "ending"."""
    time_ms, offsets = values[f"{prefix}Timestamp"], values[f"{prefix}Offsets"]
    if time_ms is not None:
        return AtTimestamp(time_ms)
    return default if offsets is None else offsets
