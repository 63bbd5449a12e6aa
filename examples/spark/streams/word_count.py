"""Count each word since the start of the job, and print the changed counts of each batch."""

import re

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, TimeType, Topology

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.PROCESS_TIME}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("wordCount")
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
