"""Options of the data source: each is declared once, with its meaning, its default, and where it holds.

Options are checked against the table, readers and writers take their values from it, and the page of options is made
of it. Names are Kafka's where the meaning is the same. Spark gives the names in lower case, and the values as text.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError
from mqbridge.spark import option_values as values


class Usage(Flag):
    """What an option holds for."""

    BATCH = auto()
    """`spark.read`"""
    STREAM = auto()
    """`spark.readStream`"""
    WRITE = auto()
    """`df.write` and `df.writeStream`"""
    READ = BATCH | STREAM
    ANY = READ | WRITE


_SPOKEN = {
    Usage.BATCH: "batch reads",
    Usage.STREAM: "streaming reads",
    Usage.READ: "reads",
    Usage.WRITE: "writes",
    Usage.ANY: "reads and writes",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    parse    makes its value of the text, raises ValueError with what is wrong
    form     what the text looks like, for people
    default  as a person would write it; None where there is none, then the value is None
    """

    name: str
    meaning: str
    where: Usage
    form: str
    parse: Callable[[str], Any]
    default: str | None = None

    @property
    def usage_text(self) -> str:
        """In words."""
        return _SPOKEN[self.where]


CLUSTER_OPTIONS = (
    Option("config", "The gateway's configuration file, on the driver.", Usage.ANY, "path", values.nonempty),
    Option("cluster", "The cluster's name in it; not needed if there is one.", Usage.ANY, "name", values.nonempty),
    Option("url", "Instead of both: `SYSTEM://HOST:PORT[,HOST:PORT]`, or `log:///PATH`.", Usage.ANY, "URL", values.nonempty),
)

TOPIC_OPTIONS = (
    Option(
        "route",
        "A route of `config`: its source says the cluster and the topics to read, its targets where to write.",
        Usage.ANY,
        "name",
        values.nonempty,
    ),
    Option("subscribe", "Topics to read.", Usage.READ, "names, with commas between", values.names),
    Option(
        "subscribePattern",
        "Topics to read whose whole name matches; those made later are found too.",
        Usage.READ,
        "Python regular expression",
        values.pattern,
    ),
    Option(
        "assign",
        "Partitions to read, by name or index.",
        Usage.READ,
        '`{"orders": [0, 1]}`',
        values.assignment,
    ),
)

OFFSET_OPTIONS = (
    Option(
        "startingOffsets",
        "Where to begin: the first message, the next one, or a position per partition, where -2 is earliest, -1 is latest and a "
        "partition that is left out is read from its first message. Streams ask it once: after that the checkpoint says it. "
        "Default: earliest for batch reads, latest for streams.",
        Usage.READ,
        '`earliest`, `latest` (streams), or `{"orders": {"0": 23, "1": "12:3:0", "2": -2}}`',
        values.edge,
    ),
    Option(
        "endingOffsets",
        "Where to end (not included).",
        Usage.BATCH,
        '`latest`, or `{"orders": {"0": 50, "1": -1}}`',
        values.edge,
        "latest",
    ),
    Option(
        "startingTimestamp",
        "Begin with the first message stored at this time or later. It goes before `startingOffsets`.",
        Usage.READ,
        "ms since the epoch, or `2026-01-31T12:00:00Z`",
        values.time_ms,
    ),
    Option(
        "endingTimestamp",
        "End before the first message stored at this time or later. It goes before `endingOffsets`.",
        Usage.BATCH,
        "ms since the epoch, or `2026-01-31T12:00:00Z`",
        values.time_ms,
    ),
)

LIMIT_OPTIONS = (
    Option(
        "maxOffsetsPerTrigger",
        "About how many messages a batch may have: exact where each message has an offset of its own, estimated from samples "
        "where messages are stored in packs. Partitions share it by their lag; each that lags gets something.",
        Usage.STREAM,
        "number",
        values.count,
    ),
    Option("maxBytesPerTrigger", "About how many bytes of messages a batch may have.", Usage.STREAM, "size", values.size),
    Option(
        "minOffsetsPerTrigger",
        "Wait until about so many messages are there. Not with `availableNow`.",
        Usage.STREAM,
        "number",
        values.count,
    ),
    Option(
        "maxTriggerDelay",
        "How long `minOffsetsPerTrigger` may hold a batch up.",
        Usage.STREAM,
        "duration",
        values.duration,
        "15m",
    ),
    Option(
        "minPartitions",
        "Cut ranges so that there are about so many tasks. Rows of a partition are in no order then: a sink takes them "
        "with `deduplicate=false`.",
        Usage.READ,
        "number",
        values.count,
    ),
    Option(
        "maxRecordsPerPartition",
        "Cut ranges so that a task reads about so many messages at most. As with `minPartitions`, order is lost.",
        Usage.READ,
        "number",
        values.count,
    ),
    Option(
        "metadataInterval",
        "How often the cluster is asked what there is to read.",
        Usage.STREAM,
        "duration",
        values.duration,
        "1s",
    ),
    Option(
        "newTopicsInterval",
        "How often `subscribePattern` looks for new topics.",
        Usage.STREAM,
        "duration",
        values.duration,
        "30s",
    ),
)

READ_OPTIONS = (
    Option(
        "failOnDataLoss",
        "Fail when messages are gone that were never read: deleted by retention, or with their topic. Otherwise warn, and go on "
        "with what there is.",
        Usage.READ,
        "`true`, `false`",
        values.truth,
        "true",
    ),
    Option(
        "retryTimeout",
        "How long a cluster that does not answer is asked again, before the query or the task fails.",
        Usage.READ,
        "duration",
        values.duration,
        "5m",
    ),
    Option(
        "propertiesFormat",
        "`map`, or `binary`: one value per message, which is faster, for sinks that pass it on.",
        Usage.READ,
        "`map`, `binary`",
        values.one_of("map", "binary"),
        "map",
    ),
    Option(
        "mode",
        "`rows` of messages, or `ranges`: a row says only which part of a partition to move, for a pump.",
        Usage.READ,
        "`rows`, `ranges`",
        values.one_of("rows", "ranges"),
        "rows",
    ),
)

MIRROR_OPTIONS = (
    Option(
        "rangeTasks",
        "With `mode=ranges`: at most so many tasks have the ranges of a batch between them. Without it each has one.",
        Usage.STREAM,
        "number",
        values.count,
    ),
    Option(
        "makeTargets",
        "With `route`: topics and partitions that come later are read once the targets of the route are made for them.",
        Usage.STREAM,
        "`true`, `false`",
        values.truth,
        "false",
    ),
    Option(
        "stopFile",
        "While there is such a file on the driver, no batch begins; it is answered by one with `.obeyed` behind its name.",
        Usage.STREAM,
        "path",
        values.nonempty,
    ),
)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("topic", "The topic to write to; without it, the column `topic` says it.", Usage.WRITE, "name", values.nonempty),
    Option(
        "partitions",
        "Which target partition a row goes to. `auto`: its column `partition`, where that is not what the source said, else the "
        "number of its source partition modulo theirs, else by its key, else in turn. `column`: the column, always. `modulo`, "
        "`identity`, `key`: as a route's `partitions.by`.",
        Usage.WRITE,
        "`auto`, `column`, `modulo`, `identity`, `key`",
        values.one_of("auto", "column", "modulo", "identity", "key"),
        "auto",
    ),
    Option("createTopics", "Make missing topics, with so many partitions.", Usage.WRITE, "number", values.count),
    Option(
        "deadLetterTopic",
        "The topic of the same cluster for messages that the target refuses; without it the first one fails the query.",
        Usage.WRITE,
        "name",
        values.nonempty,
    ),
    Option(
        "maxDeadLetters",
        "A task fails that has more messages of one source partition for the dead-letter topic.",
        Usage.WRITE,
        "number",
        values.count,
    ),
    Option(
        "deduplicate",
        "Store each row once, whatever fails or is repeated. Rows of a source partition come in one task, in the order of their "
        "positions; rows without the columns `source` and `position` are stored at least once.",
        Usage.WRITE,
        "`true`, `false`",
        values.truth,
        "true",
    ),
    Option(
        "jobId",
        "The name of the job, for batch writes: one that is repeated under the same name goes on where it stopped. For streams, "
        "instead of the id of the query.",
        Usage.WRITE,
        "name",
        values.nonempty,
    ),
    Option(
        "stampOrigin",
        "Write where a row came from (`mqbridge.origin`); `deduplicate` needs it.",
        Usage.WRITE,
        "`true`, `false`",
        values.truth,
        "true",
    ),
    Option(
        "writeTimeout",
        "How long failures that may pass are tried again while nothing can be stored, before the task fails.",
        Usage.WRITE,
        "duration",
        values.duration,
        "2m",
    ),
    Option(
        "inFlightBytes",
        "How much a task holds that is not stored yet. With `route`: as the route says.",
        Usage.WRITE,
        "size",
        values.size,
        "32MiB",
    ),
    Option("checkpointLocation", "Where a streaming write keeps its progress.", Usage.WRITE, "path", values.nonempty),
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
"""Options that Spark adds by itself: `queryName(...)` of a stream is one."""
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


class OptionValues(Mapping[str, Any]):
    """The values by the names of options, however they are cased; an option that was not given has its default, or None."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def __getitem__(self, name: str) -> Any:
        option = _BY_KEY[name.lower()]
        if option.name.lower() in self._given:
            return self._given[option.name.lower()]
        return None if option.default is None else option.parse(option.default)

    def __iter__(self) -> Iterator[str]:
        return iter(option.name for option in OPTIONS)

    def __len__(self) -> int:
        return len(OPTIONS)

    def is_set(self, name: str) -> bool:
        """Whether somebody wrote it."""
        return name.lower() in self._given


def parse_options(given: Mapping[str, str], where: Usage) -> OptionValues:
    """Read the options that were given for this use. Raises ConfigError naming the first that is wrong, with what is right."""
    found: dict[str, Any] = {}
    for key, text in given.items():
        option = _BY_KEY.get(key.lower())
        if option is None and key.lower() in SPARK_INTERNAL_OPTIONS:
            continue
        if option is None:
            names = [option.name for option in OPTIONS if option.where & where]
            raise ConfigError(f"there is no option {key!r}", hint=nearest(key, names))
        if not option.where & where:
            raise ConfigError(f"the option {option.name} is for {option.usage_text}", hint="Leave it out here")
        try:
            found[option.name] = option.parse(text)
        except ValueError as error:
            raise ConfigError(f"option {option.name}: {error}") from error
    return OptionValues(found)
