"""Count words like word_count.py, but start with the first message of the topic."""

import re

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Topology

PROPERTIES = {StreamConfig.CONSUME_FROM_WHERE: "CONSUME_FROM_FIRST_OFFSET"}


def build() -> Topology:
    """Return the topology of the job."""
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
