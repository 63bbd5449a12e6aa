"""Count numbers in session windows that end after five seconds without a number."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("sessionWindowCount")
    (
        builder.source("windowCount", json.loads)
        .filter(lambda value: value > 0)
        .keyBy(lambda _: "key")
        .window(WindowBuilder.sessionWindow(Time.seconds(5)))
        .count()
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
