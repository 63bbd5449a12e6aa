"""The sink's settings: read from its options once, on the driver, and sent to the tasks."""

from dataclasses import dataclass, replace
from typing import Literal, cast

from pyspark.sql.types import StructType

from mqbridge.config.options.delivery import DeadLetter, Delivery
from mqbridge.config.options.partition_rule import By, PartitionRule
from mqbridge.config.options.target import Target
from mqbridge.errors import ConfigError
from mqbridge.spark.arrow.columns import check_columns
from mqbridge.spark.config_lookup import resolve_cluster, resolve_route
from mqbridge.spark.options import OptionValues
from mqbridge.spark.ranges.rows import is_range_schema
from mqbridge.spark.transfer.spec import PartitionMode, TargetsSpec

ANY_TOPIC = "{topic}"
"""The target topic in the spec if only the rows name their topics. Tasks replace it, see `TargetsSpec.with_topic`.

It looks like a template, so the driver knows that the topics depend on the rows: it does not look up their end positions before
the first batch (see `driver.fixed_topics`).
"""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of one write. Picklable.

    spec               the targets; with `topic_from="column"` the topic of each row replaces their topic
    topic_from         what names the target topic: the spec, or the rows' column `topic`
    create_partitions  the sink creates missing target topics with this number of partitions; None: it creates no topics
    job                the name of the job, from the option jobId; None without this option: then a batch write makes a
                       unique name, and a streaming query uses its id
    checkpoint         the option checkpointLocation; None without it: then a streaming query stores no progress
    are_ranges         the rows are ranges to move, not messages (see `mqbridge.spark.ranges`)
    """

    spec: TargetsSpec
    topic_from: Literal["spec", "column"]
    create_partitions: int | None
    job: str | None
    checkpoint: str | None
    are_ranges: bool


def sink_settings(values: OptionValues, schema: StructType) -> SinkSettings:
    """Return the settings for these options and columns. Raises ConfigError if they are invalid."""
    are_ranges = is_range_schema(schema)
    if not are_ranges:
        check_columns(schema)
    spec = _route_spec(values) or _option_spec(values, schema)
    if spec.deduplicate and not spec.delivery.stamp_origin:
        raise ConfigError(
            "deduplication needs the origins of messages, and stampOrigin=false does not write them",
            hint="Set deduplicate=false too, or remove stampOrigin=false",
        )
    if are_ranges and not spec.source_topics:  # only the spec of a route has source topics
        raise ConfigError("the rows are ranges, and ranges need the targets of a route", hint="Give the options config and route")
    needs_topic_column = values["route"] is None and values["topic"] is None
    if needs_topic_column and "topic" not in schema.fieldNames():
        raise ConfigError("no target topic is named", hint="Give the option topic, or name a topic in each row's column topic")
    return SinkSettings(
        spec,
        topic_from="column" if needs_topic_column else "spec",
        create_partitions=values["createTopics"],  # the option is a number of partitions
        job=values["jobId"],
        checkpoint=values["checkpointLocation"],
        are_ranges=are_ranges,
    )


def _route_spec(values: OptionValues) -> TargetsSpec | None:
    """Return the spec of the option `route`, or None without that option."""
    resolved = resolve_route(values)
    if resolved is None:
        return None
    for name in ("topic", "partitions", "createTopics", "deadLetterTopic", "unread", "stampOrigin", "inFlightBytes"):
        if values.is_set(name):
            raise ConfigError(
                f"the option {name} cannot be used with a route: the route {resolved.route.name!r} has its own setting",
                hint=f"Remove the option {name}, or the option route",
            )
    return _with_common_options(TargetsSpec.of_route(resolved.route, resolved.clusters), values)


def _option_spec(values: OptionValues, schema: StructType) -> TargetsSpec:
    """Return the spec of the options `topic`, `partitions` and others, without a route."""
    cluster = resolve_cluster(values)
    partitions = values["partitions"]
    partition_mode: PartitionMode = partitions if partitions in ("auto", "column") else "rule"
    if partition_mode == "column" and "partition" not in schema.fieldNames():
        raise ConfigError(
            "partitions=column is set, and the rows have no column partition", hint="Add the column, or choose another value"
        )
    # In the mode `auto` the rule applies to rows whose `partition` is NULL or missing; in the mode `column` it is not used.
    rule = PartitionRule(by=cast("By", partitions if partition_mode == "rule" else "modulo"))
    dead_letter_topic, unread = values["deadLetterTopic"], values["unread"]
    delivery = Delivery(
        in_flight_bytes=values["inFlightBytes"],
        dead_letter=None
        if dead_letter_topic is None
        else DeadLetter(cluster=cluster.name, topic=dead_letter_topic, unread=unread),
        stamp_origin=values["stampOrigin"],
        prevent_loops=False,  # the user chose this target, even if a message came from it
    )
    # Not validated, because the options were checked already. `TaskWriter` creates topics, so `create` is off.
    target = Target.model_construct(
        cluster=cluster.name,
        topic=values["topic"] or ANY_TOPIC,
        partitions=rule,
        create=False,
        unread=unread,
        edit=None,
        options=None,
    )
    spec = TargetsSpec(
        name=values["jobId"] or "spark",
        clusters={cluster.name: cluster},
        targets=(target,),
        delivery=delivery,
        partition_mode=partition_mode,
    )
    return _with_common_options(spec, values)


def _with_common_options(spec: TargetsSpec, values: OptionValues) -> TargetsSpec:
    """Return the spec with the options that apply with a route and without."""
    return replace(
        spec,
        deduplicate=values["deduplicate"],
        write_timeout_s=values["writeTimeout"],
        max_dead_letters=values["maxDeadLetters"],
    )
