"""The options of the data source, each declared once with its meaning, its default and its usage.

The declarations validate options, provide their values, and generate the reference page. Options with the same meaning as in
Spark's Kafka source have the same name. Spark passes the names in lower case and the values as text.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError
from mqbridge.spark import option_values as parsers


class Usage(Flag):
    """The operations of Spark that an option applies to."""

    BATCH = auto()
    """`spark.read`"""
    STREAM = auto()
    """`spark.readStream`"""
    WRITE = auto()
    """`df.write` and `df.writeStream`"""
    READ = BATCH | STREAM
    ANY = READ | WRITE


_USAGE_TEXTS = {
    Usage.BATCH: "batch reads",
    Usage.STREAM: "streaming reads",
    Usage.READ: "reads",
    Usage.WRITE: "writes",
    Usage.ANY: "reads and writes",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    value_form  what the text must look like, for the reference page
    parse       converts the text to the value; raises ValueError with the problem
    default     the text to parse if the user does not set the option; None: the value of the option is then None
    """

    name: str
    meaning: str
    usage: Usage
    value_form: str
    parse: Callable[[str], Any]
    default: str | None = None

    @property
    def usage_text(self) -> str:
        """The usage in words, for errors and the reference page."""
        return _USAGE_TEXTS[self.usage]


CLUSTER_OPTIONS = (
    Option("config", "The gateway's configuration file, on the driver.", Usage.ANY, "path", parsers.parse_text),
    Option(
        "cluster",
        "Name of the cluster in `config`; optional if `config` contains only one.",
        Usage.ANY,
        "name",
        parsers.parse_text,
    ),
    Option(
        "url",
        "Replaces `config` and `cluster`: `SYSTEM://HOST:PORT[,HOST:PORT]`, or `log:///PATH`.",
        Usage.ANY,
        "URL",
        parsers.parse_text,
    ),
)

TOPIC_OPTIONS = (
    Option(
        "route",
        "A route of `config`. Its source defines the cluster and the topics to read, its targets define where to write.",
        Usage.ANY,
        "name",
        parsers.parse_text,
    ),
    Option("subscribe", "Topics to read.", Usage.READ, "comma-separated names", parsers.parse_names),
    Option(
        "subscribePattern",
        "Topics to read: the pattern must match the whole name. A stream also finds topics that are created later.",
        Usage.READ,
        "Python regular expression",
        parsers.parse_pattern,
    ),
    Option(
        "assign",
        "Partitions to read, by name or index.",
        Usage.READ,
        '`{"orders": [0, 1]}`',
        parsers.parse_assignment,
    ),
)

OFFSET_OPTIONS = (
    Option(
        "startingOffsets",
        "Where to begin: at the first stored message, after the last one, or at a position per partition. -2 means earliest, "
        "-1 means latest; partitions without a position begin at their first message. A stream with a checkpoint ignores it. "
        "Default: earliest for batch reads, latest for streams.",
        Usage.READ,
        '`earliest`, `latest` (streams), or `{"orders": {"0": 23, "1": "12:3:0", "2": -2}}`',
        parsers.parse_offsets,
    ),
    Option(
        "endingOffsets",
        "Where to end (exclusive). -1 means latest; partitions without a position end after their last message.",
        Usage.BATCH,
        '`latest`, or `{"orders": {"0": 50, "1": -1}}`',
        parsers.parse_offsets,
        "latest",
    ),
    Option(
        "startingTimestamp",
        "Begin with the first message stored at this time or later; a partition without such a message begins at its end. Takes "
        "precedence over `startingOffsets`.",
        Usage.READ,
        "ms since the epoch, or `2026-01-31T12:00:00Z`",
        parsers.parse_time_ms,
    ),
    Option(
        "endingTimestamp",
        "End before the first message stored at this time or later. Takes precedence over `endingOffsets`.",
        Usage.BATCH,
        "ms since the epoch, or `2026-01-31T12:00:00Z`",
        parsers.parse_time_ms,
    ),
)

LIMIT_OPTIONS = (
    Option(
        "maxOffsetsPerTrigger",
        "Approximate maximum number of messages of a batch. The limit is exact if each message has its own offset, and estimated "
        "from samples if one offset holds several messages. Partitions share it in proportion to their lag. Default: no limit.",
        Usage.STREAM,
        "number",
        parsers.parse_count,
    ),
    Option(
        "maxBytesPerTrigger",
        "Approximate maximum number of bytes of a batch. Default: no limit.",
        Usage.STREAM,
        "size",
        parsers.parse_positive_size,
    ),
    Option(
        "minOffsetsPerTrigger",
        "Delay a batch until about this number of messages can be read. Ignored with `availableNow`. Default: no delay.",
        Usage.STREAM,
        "number",
        parsers.parse_count,
    ),
    Option(
        "maxTriggerDelay",
        "How long `minOffsetsPerTrigger` may delay a batch, counted from the last batch that was not empty.",
        Usage.STREAM,
        "duration",
        parsers.parse_seconds,
        "15m",
    ),
    Option(
        "minPartitions",
        "Split the read into about this number of tasks, or more. Several tasks then read one partition, and its rows have no "
        "order: a sink accepts them only with `deduplicate=false`. Default: one task per partition.",
        Usage.READ,
        "number",
        parsers.parse_count,
    ),
    Option(
        "maxRecordsPerPartition",
        "Split the read so that a task reads at most about this number of messages. As with `minPartitions`, order is lost. "
        "Default: no limit.",
        Usage.READ,
        "number",
        parsers.parse_count,
    ),
    Option(
        "metadataInterval",
        "Interval between two requests for the positions where partitions begin and end.",
        Usage.STREAM,
        "duration",
        parsers.parse_seconds,
        "1s",
    ),
    Option(
        "newTopicsInterval",
        "Interval between two searches for new topics that match `subscribePattern`.",
        Usage.STREAM,
        "duration",
        parsers.parse_seconds,
        "30s",
    ),
)

READ_OPTIONS = (
    Option(
        "failOnDataLoss",
        "Fail if unread messages were deleted, by retention or with their topic. If `false`, log a warning and continue with the "
        "stored messages.",
        Usage.READ,
        "`true`, `false`",
        parsers.parse_boolean,
        "true",
    ),
    Option(
        "retryTimeout",
        "How long requests to an unreachable cluster are retried before the query or the task fails.",
        Usage.READ,
        "duration",
        parsers.parse_seconds,
        "5m",
    ),
    Option(
        "propertiesFormat",
        "Type of the column `properties`. `binary` means one binary value per message, faster for a sink that only copies.",
        Usage.READ,
        "`map`, `binary`",
        parsers.make_word_parser("map", "binary"),
        "map",
    ),
    Option(
        "mode",
        "`rows`: one row per message. `ranges`: one row per range of positions in a partition, for mirrors.",
        Usage.READ,
        "`rows`, `ranges`",
        parsers.make_word_parser("rows", "ranges"),
        "rows",
    ),
)

MIRROR_OPTIONS = (
    Option(
        "rangeTasks",
        "With `mode=ranges`: the maximum number of tasks that share the ranges of a batch. Default: one task per range.",
        Usage.STREAM,
        "number",
        parsers.parse_count,
    ),
    Option(
        "makeTargets",
        "With `route`: create missing target topics and partitions for new source topics and partitions before reading them.",
        Usage.STREAM,
        "`true`, `false`",
        parsers.parse_boolean,
        "false",
    ),
    Option(
        "stopFile",
        "While this file exists on the driver, no batch begins. The source creates a second file, with the suffix `.obeyed`, to "
        "confirm this.",
        Usage.STREAM,
        "path",
        parsers.parse_text,
    ),
)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("topic", "The topic to write to. Default: the column `topic`.", Usage.WRITE, "name", parsers.parse_text),
    Option(
        "partitions",
        "How the target partition of a row is chosen. `auto`: the column `partition` if it differs from the source partition, "
        "else the source partition modulo the number of target partitions, else by key, else round robin. `column`: always the "
        "column. `modulo`, `identity`, `key`: like `partitions.by` of a route.",
        Usage.WRITE,
        "`auto`, `column`, `modulo`, `identity`, `key`",
        parsers.make_word_parser("auto", "column", "modulo", "identity", "key"),
        "auto",
    ),
    Option(
        "createTopics",
        "Create missing topics with this number of partitions. Default: create none.",
        Usage.WRITE,
        "number",
        parsers.parse_count,
    ),
    Option(
        "deadLetterTopic",
        "Topic in the same cluster for messages that the target rejects. Without it, the first rejection fails the query.",
        Usage.WRITE,
        "name",
        parsers.parse_text,
    ),
    Option(
        "unread",
        "`kept`: log a warning after each write to a topic whose cluster deletes messages that nobody has read: on Pulsar, a "
        "topic without subscription and retention. `may_be_deleted`: log no such warnings.",
        Usage.WRITE,
        "`kept`, `may_be_deleted`",
        parsers.make_word_parser("kept", "may_be_deleted"),
        "kept",
    ),
    Option(
        "maxDeadLetters",
        "Maximum number of dead letters per task and source partition. A task with more fails. Default: no limit.",
        Usage.WRITE,
        "number",
        parsers.parse_count,
    ),
    Option(
        "deduplicate",
        "Store each row once, also after failures and repeated tasks. All rows of a source partition must be in one task, in "
        "the order of their positions. Rows without the columns `source` and `position` are stored at least once.",
        Usage.WRITE,
        "`true`, `false`",
        parsers.parse_boolean,
        "true",
    ),
    Option(
        "jobId",
        "The name of the job. A batch write that is repeated under the same name resumes where it stopped. Jobs and queries with "
        "different names never skip messages of each other, so each needs a name of its own. Default: a new name for each batch "
        "write, and the id of the query for streams.",
        Usage.WRITE,
        "name",
        parsers.parse_text,
    ),
    Option(
        "stampOrigin",
        "Add the property `mqbridge.origin`, which records the source of a row. `deduplicate` requires it.",
        Usage.WRITE,
        "`true`, `false`",
        parsers.parse_boolean,
        "true",
    ),
    Option(
        "writeTimeout",
        "How long a task retries after transient failures, while no message is stored, before it fails.",
        Usage.WRITE,
        "duration",
        parsers.parse_seconds,
        "2m",
    ),
    Option(
        "inFlightBytes",
        "Maximum number of bytes that a task buffers until they are stored: one half for rows that wait to be sent, the other "
        "half for messages in flight. With `route`, `in_flight_bytes` of the route applies in the same way.",
        Usage.WRITE,
        "size",
        parsers.parse_positive_size,
        "32MiB",
    ),
    Option(
        "checkpointLocation", "The folder where a streaming write stores its progress.", Usage.WRITE, "path", parsers.parse_text
    ),
)

OPTIONS: tuple[Option, ...] = (
    *CLUSTER_OPTIONS,
    *TOPIC_OPTIONS,
    *OFFSET_OPTIONS,
    *LIMIT_OPTIONS,
    *READ_OPTIONS,
    *MIRROR_OPTIONS,
    *SINK_OPTIONS,
)
SPARK_INTERNAL_OPTIONS = frozenset({"queryname"})
"""Options that Spark adds itself, for example for `queryName(...)` of a stream."""
_BY_LOWERCASE_NAME = {option.name.lower(): option for option in OPTIONS}


class OptionValues(Mapping[str, Any]):
    """Option values by name, in upper or lower case. An option that the user did not set has its default, or None."""

    def __init__(self, values_by_name: Mapping[str, Any]) -> None:
        self._set_values = {name.lower(): value for name, value in values_by_name.items()}

    def __getitem__(self, name: str) -> Any:
        option = _BY_LOWERCASE_NAME[name.lower()]
        if option.name.lower() in self._set_values:
            return self._set_values[option.name.lower()]
        return None if option.default is None else option.parse(option.default)

    def __iter__(self) -> Iterator[str]:
        return iter(option.name for option in OPTIONS)

    def __len__(self) -> int:
        return len(OPTIONS)

    def is_set(self, name: str) -> bool:
        """Return whether the user set the option."""
        return name.lower() in self._set_values


def parse_options(texts: Mapping[str, str], usage: Usage) -> OptionValues:
    """Parse the options of one operation. Raises ConfigError with the first wrong option and a hint."""
    parsed: dict[str, Any] = {}
    for key, text in texts.items():
        option = _BY_LOWERCASE_NAME.get(key.lower())
        if option is None and key.lower() in SPARK_INTERNAL_OPTIONS:
            continue
        if option is None:
            names = [option.name for option in OPTIONS if option.usage & usage]
            raise ConfigError(f"there is no option {key!r}", hint=nearest(key, names))
        if not option.usage & usage:
            raise ConfigError(f"the option {option.name} is for {option.usage_text}", hint=f"Remove {option.name} here")
        try:
            parsed[option.name] = option.parse(text)
        except ValueError as error:
            raise ConfigError(f"option {option.name}: {error}") from error
    return OptionValues(parsed)
