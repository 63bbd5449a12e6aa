"""Generates docs/reference/spark-options.md from the declared options.

python -m tools.spark_options_page --check     exits with 1 if the file is not current
python -m tools.spark_options_page --write     writes the file
"""

import sys
from collections.abc import Sequence

from mqbridge.spark.options import (
    CLUSTER_OPTIONS,
    LIMIT_OPTIONS,
    MIRROR_OPTIONS,
    OFFSET_OPTIONS,
    READ_OPTIONS,
    SINK_OPTIONS,
    TOPIC_OPTIONS,
    Option,
)
from mqbridge.spark.schema import message_schema
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "spark-options.md"

_INTRODUCTION = """\
# Options and columns of the Spark source and sink

<!-- Written by `python -m tools.spark_options_page --write` from the code. Do not edit. -->

`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("mqbridge")` take these options. Options with the
same meaning as in Spark's Kafka source have the same name. Names are case-insensitive. An unknown option, or an option that does
not apply to the operation, is an error. Durations have a unit (`250ms`, `30s`, `15m`), sizes may have one (`64MiB`).
"""

_BATCHES = """
## Content of a stream's batches

- Every `metadataInterval`, the source requests from the cluster where the stored messages of each partition begin and end. A
  batch goes from the offsets in the checkpoint up to these ends, or ends earlier if limits are set. The two offsets of a batch
  define its content: a batch that is repeated after a crash contains the same messages.
- `maxOffsetsPerTrigger` and `maxBytesPerTrigger` can be combined. A batch contains at least one message of each partition that
  has unread messages, in TubeMQ and Pulsar at least one entry, which may hold several messages. The rest of the
  limits is divided among the partitions in proportion to their lag. The size of messages, and the number of messages per entry,
  are estimated from small samples, which are repeated from time to time. In RocketMQ and the embedded log, the number of
  messages needs no estimate.
- With `trigger(availableNow=True)`, the query ends at the positions that were the latest when it started. It may take several
  batches.
- A task reads one partition's range of a batch in order, and checks that positions ascend and that no message is missing. After
  a transient failure of a server it resumes at its last position. With `minPartitions` or `maxRecordsPerPartition` several tasks
  read one partition. The column `source` then ends with `part`, and a sink accepts such rows only with `deduplicate=false`.
"""

_LOSS = """
## Data loss and recreated partitions

When a stream plans a batch, it compares the offsets in its checkpoint with the positions that the cluster stores. The stream
fails, and the error names the partition and the positions, in these cases:

- the partition does not exist any more
- the partition ends before the offset in the checkpoint, because it was deleted and created again
- the partition begins after the offset in the checkpoint, because retention deleted unread messages

A task also fails if messages of its range were deleted after the batch was planned. With `failOnDataLoss=false` each of these
cases is logged once, and the stream continues with the stored messages: with the first message of a partition that was created
again, and with a missing partition as soon as it is available again. A partition never leaves the checkpoint.

- Partitions and topics that are created while a query runs are read from their first message, in the next batch.
- A stream that begins with the latest messages runs one empty batch first, which writes the initial offsets into the checkpoint.
- The option `startingOffsets` also accepts the offsets of a checkpoint or a progress report. With them, a query without the old
  checkpoint continues at these offsets.
- Partitions can be missing for a while, for example while a broker restarts. A stream that plans a batch waits up to a minute for
  them before it fails. A task waits up to one hour for the partition that it reads; then it fails, or skips the rest of its range
  with `failOnDataLoss=false`. A `retryTimeout` that is shorter than one of these limits replaces it.
- A recreated partition of RocketMQ, TubeMQ or the embedded log is noticed only while it has fewer messages than the checkpoint
  has read. If it has more when the next batch is planned, the stream skips those before the offset in the checkpoint: start it
  with a new checkpoint.
- The positions of a recreated partition start again from the beginning. A Pulsar target with deduplication treats its messages as
  duplicates of the old messages at the same positions, and drops them. Use a new `checkpointLocation` in that case.
- The source creates no subscription in Pulsar, so a topic without retention deletes each ledger when it is closed. The
  source then cannot tell whether it had read the whole ledger, so the stream fails even if it had. Set a retention, or create a
  subscription that keeps the messages.
- The source commits nothing to the cluster and creates no consumer group. Only the checkpoint records what was read.
"""

_COLUMNS = """
## Columns

| column | type | meaning |
|---|---|---|
"""

_COLUMN_MEANINGS = {
    "payload": "null means a tombstone",
    "key": "routing key",
    "key_is_text": "whether the key is text in the source system",
    "ordering_key": "Pulsar's ordering key",
    "keys": "index keys",
    "msg_type": "TubeMQ's message type, RocketMQ's tag",
    "attributes": "TubeMQ's attribute string, unchanged",
    "properties": "with `propertiesFormat=binary` one binary value",
    "event_time": "time of the event, set by the producer. NULL also if no timestamp can hold it (after the year 294,247), as in "
    "the next two columns: a copy by rows lacks such a time, a copy by ranges has it",
    "publish_time": "time when the message was produced or stored",
    "deliver_at": "scheduled delivery time",
    "delivery_count": "number of earlier deliveries, at most 2,147,483,647",
    "topic": "source topic",
    "partition": "index of the source partition",
    "position": "position in the source partition; sorts in message order",
    "source": "source partition, `cluster|topic|partition|index`. A cluster given by `url` is called after its addresses; for "
    "any other name, `at=` and the addresses follow. `part` is at the end if a task read only a part of the partition's range",
    "origin": "where an earlier mqbridge route read the message",
    "hops": "number of mqbridge routes that the message passed, at most 2,147,483,647",
    "defect": "why the message could not be decoded; the payload is then the stored message, in the form that the property"
    " `mqbridge.raw` names",
}


def page() -> str:
    """Return the text of the page."""
    sections = [
        _INTRODUCTION,
        _section("Cluster", CLUSTER_OPTIONS),
        _section("Topics (set exactly one of these for reads)", TOPIC_OPTIONS),
        _section("Begin and end", OFFSET_OPTIONS),
        _section("Size and interval of batches", LIMIT_OPTIONS),
        _section("Reading", READ_OPTIONS),
        _section("Writing", SINK_OPTIONS),
        _section("Mirrors (set by `mqbridge spark mirror`)", MIRROR_OPTIONS),
        _BATCHES,
        _LOSS,
        _COLUMNS,
        *(
            f"| `{field.name}` | {field.dataType.simpleString()} | {_COLUMN_MEANINGS[field.name]} |\n"
            for field in message_schema()
        ),
    ]
    return "".join(sections)


def _section(title: str, options: Sequence[Option]) -> str:
    return f"\n## {title}\n\n| option | usage | value | default | meaning |\n|---|---|---|---|---|\n" + "".join(
        map(_row, options)
    )


def _row(option: Option) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    cells = (f"`{option.name}`", option.usage_text, option.value_form, default, option.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.exit(check_or_write("tools.spark_options_page", PAGE, page()))
