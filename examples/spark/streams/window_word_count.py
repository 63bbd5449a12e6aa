"""Count each word in windows of five seconds."""

import re

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("windowWordCount")
    (
        builder.source("sourceTopic", lambda source: source.decode())
        .flatMap(lambda value: re.findall(r"\w+", value.lower()))
        .keyBy(lambda value: value)
        .window(WindowBuilder.tumblingWindow(Time.seconds(5)))
        .count()
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
