"""Writes docs/reference/spark-options.md from the table of options, so that the page and the program agree.

python -m mqbridge.spark.options_page --check     exits 1 when the file is not current
python -m mqbridge.spark.options_page --write
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from mqbridge.config.generated_page import check_or_write
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

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md"

_BEGINNING = """\
# Options and columns of the Spark source and sink

<!-- Written by `python -m mqbridge.spark.options_page --write` from the code. Do not edit. -->

`spark.read`, `spark.readStream`, `df.write` and `df.writeStream` with `.format("mqbridge")` take these options. Names are
those of Spark's Kafka source where the meaning is the same, and may be written in any case. An option that does not exist,
or is not for the use that is made of it, is an error. Durations have a unit (`250ms`, `30s`, `15m`), sizes may have one
(`64MiB`).
"""

_BATCHES = """
## What a batch of a stream has

- The source asks the cluster for the first and the next position of each partition, every `metadataInterval`. A batch goes
  from the offsets of the checkpoint up to the next positions, or less where limits are set. Its two offsets say all of it:
  repeated after a crash, it holds the same messages.
- `maxOffsetsPerTrigger` and `maxBytesPerTrigger` may both be set. Each partition that lags gets something, and the rest is
  shared in proportion to lag. RocketMQ and the log number each message, so there a limit of messages is not exceeded. TubeMQ
  and Pulsar store packs and batches: what is in them is estimated from a small sample, which is taken again now and then.
- With `trigger(availableNow=True)` what is there at the beginning is the target, however many batches it takes.
- A task reads one partition's part of a batch, in order, and sees to it that positions ascend and nothing is missing. Where
  a server fails for a while, it goes on where it was. With `minPartitions` or `maxRecordsPerPartition` several tasks share a
  partition: the column `source` says `part` then, and a sink takes such rows with `deduplicate=false`.
"""

_LOSS = """
## What is lost, and what begins anew

A stream compares what its checkpoint says with what the cluster holds, each time it plans a batch. It fails, and names the
partition and both positions, when a partition vanished, when its messages end before the position that was reached (it was
made anew), or begin behind it (retention deleted messages that were never read); a task fails when messages of its range
went between planning and reading. With `failOnDataLoss=false` each of these is logged once, and the reading goes on with
what there is: a partition that was made anew from its first message, one that vanished when it is there again. A partition
of the checkpoint is never dropped.

- Partitions and topics that come while a query runs are read from their first message, by the next batch.
- A stream that begins with the latest messages runs one empty batch first: it brings the beginning into the checkpoint.
- The option `startingOffsets` also takes the offsets that a checkpoint or a progress report has, to go on without the checkpoint.
- Partitions that are missing for less than a minute (a broker that restarts) are waited for before anything is called lost.
  A batch that was planned waits for its own for `retryTimeout`, an hour at most; with `failOnDataLoss=false` it then goes on
  without them.
- Positions of a partition that was made anew begin from the start. A Pulsar target with deduplication takes such messages for
  those that it has under the same positions and drops them: begin with a new `checkpointLocation` there.
- No subscription is made in Pulsar, so a topic without retention loses each ledger as soon as it is closed. Nobody can tell then
  whether it was read to its end: the stream fails although it may have been. Set a retention, or a subscription that keeps.
- Nothing is committed to the cluster: no group is made, and the checkpoint alone says what was read.
"""

_COLUMNS = """
## Columns

| column | type | what |
|---|---|---|
"""

_MEANINGS = {
    "payload": "null is a tombstone",
    "key": "routing key",
    "key_is_text": "whether the key is text at its source",
    "ordering_key": "Pulsar's ordering key",
    "keys": "index keys",
    "msg_type": "TubeMQ's message type, RocketMQ's tag",
    "attributes": "TubeMQ's attribute string, byte for byte",
    "properties": "with `propertiesFormat=binary` one binary value",
    "event_time": "when it happened, as its producer said",
    "publish_time": "when it was produced or stored",
    "deliver_at": "when it is to be delivered",
    "delivery_count": "how often it was delivered before",
    "topic": "the source topic",
    "partition": "index of the source partition",
    "position": "position in the source partition; sorts as messages do",
    "source": "the source partition, and `part` behind it where a task read a part of its range only",
    "origin": "where an earlier pass through mqbridge read it",
    "hops": "how many passes there were",
    "defect": "why the message could not be read; the payload has its bytes",
}


def page() -> str:
    """The page."""
    sections = [
        _BEGINNING,
        _section("Which cluster", CLUSTER_OPTIONS),
        _section("Which topics (one of these)", TOPIC_OPTIONS),
        _section("Where to begin and to end", OFFSET_OPTIONS),
        _section("How much at once", LIMIT_OPTIONS),
        _section("Reading", READ_OPTIONS),
        _section("Writing", SINK_OPTIONS),
        _section("Mirrors (set by `mqbridge spark mirror`)", MIRROR_OPTIONS),
        _BATCHES,
        _LOSS,
        _COLUMNS
        + "".join(f"| `{one.name}` | {one.dataType.simpleString()} | {_MEANINGS[one.name]} |\n" for one in message_schema()),
    ]
    return "".join(sections)


def _section(title: str, options: Sequence[Option]) -> str:
    return f"\n## {title}\n\n| option | for | value | default | meaning |\n|---|---|---|---|---|\n" + "".join(map(_row, options))


def _row(option: Option) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    cells = (f"`{option.name}`", option.usage_text, option.form, default, option.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.exit(check_or_write("mqbridge.spark.options_page", PAGE, page()))
