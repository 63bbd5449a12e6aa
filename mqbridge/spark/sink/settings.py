"""What the sink's options say: read once, on the driver, and sent to the tasks."""

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


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Picklable.

    spec             the targets; of `column` rows their topic is still to be filled in
    topic_from       `spec`: the spec says the target topics; `column`: each row does
    create           with how many partitions missing topics are made; None where they are not
    job              the name that was given to the job
    are_ranges       rows say what is to be moved (see `mqbridge.spark.ranges`)
    """

    spec: TargetsSpec
    topic_from: Literal["spec", "column"]
    create: int | None
    job: str | None
    checkpoint: str | None
    are_ranges: bool


def sink_settings(values: OptionValues, schema: StructType) -> SinkSettings:
    """Raises ConfigError for options or columns that cannot be used."""
    are_ranges = is_range_schema(schema)
    if not are_ranges:
        check_columns(schema)
    spec = _route_spec(values) or _option_spec(values, schema)
    if spec.deduplicate and not spec.delivery.stamp_origin:
        raise ConfigError(
            "what is stored is told by the origins of messages, which stampOrigin=false leaves out",
            hint="Set deduplicate=false too, or stamp them",
        )
    if are_ranges and not spec.source_topics:
        raise ConfigError("rows are ranges, which go into the targets of a route", hint="Give the options config and route")
    by_column = values["route"] is None and values["topic"] is None
    if by_column and "topic" not in schema.fieldNames():
        raise ConfigError("no topic is named", hint="Give the option topic, or a column topic")
    return SinkSettings(
        spec, "column" if by_column else "spec", values["createTopics"], values["jobId"], values["checkpointLocation"], are_ranges
    )


def _route_spec(values: OptionValues) -> TargetsSpec | None:
    chosen = resolve_route(values)
    if chosen is None:
        return None
    for name in ("topic", "partitions", "createTopics", "deadLetterTopic", "stampOrigin", "inFlightBytes"):
        if values.is_set(name):
            raise ConfigError(f"the route {chosen.route.name!r} says it, not the option {name}", hint="Leave one of them out")
    return _common(TargetsSpec.of_route(chosen.route, chosen.clusters), values)


def _option_spec(values: OptionValues, schema: StructType) -> TargetsSpec:
    cluster = resolve_cluster(values)
    wanted = values["partitions"]
    partition_mode: PartitionMode = wanted if wanted in ("auto", "column") else "rule"
    if partition_mode == "column" and "partition" not in schema.fieldNames():
        raise ConfigError("partitions=column needs a column partition")
    rule = PartitionRule(by=cast("By", wanted if partition_mode == "rule" else "modulo"))
    letters = values["deadLetterTopic"]
    delivery = Delivery(
        in_flight_bytes=values["inFlightBytes"],
        dead_letter=None if letters is None else DeadLetter(cluster=cluster.name, topic=letters),
        stamp_origin=values["stampOrigin"],
        prevent_loops=False,  # whoever writes a row somewhere means it
    )
    target = Target.model_construct(
        cluster=cluster.name, topic=values["topic"] or ANY_TOPIC, partitions=rule, create=False, edit=None, options=None
    )
    spec = TargetsSpec(
        values["jobId"] or "spark", {cluster.name: cluster}, (target,), delivery=delivery, partition_mode=partition_mode
    )
    return _common(spec, values)


def _common(spec: TargetsSpec, values: OptionValues) -> TargetsSpec:
    return replace(
        spec,
        deduplicate=values["deduplicate"],
        write_timeout_s=values["writeTimeout"],
        max_dead_letters=values["maxDeadLetters"],
    )
