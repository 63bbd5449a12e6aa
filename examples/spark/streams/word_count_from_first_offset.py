"""The same over all that the topic holds, from its first message."""

import re

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Topology

PROPERTIES = {StreamConfig.CONSUME_FROM_WHERE: "CONSUME_FROM_FIRST_OFFSET"}


def build() -> Topology:
    """The topology of the job."""
    builder = StreamBuilder("wordCountFromFirstOffset")
    (
        builder.source("sourceTopic", lambda source: source.decode())
        .flatMap(lambda value: re.findall(r"\w+", value.lower()))
        .keyBy(lambda value: value)
        .count()
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
