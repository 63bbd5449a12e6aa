"""Sum the ages of the users of each name in windows of five seconds."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("windowSum")
    (
        builder.source("user", json.loads)
        .filter(lambda user: user["age"] > 0)
        .keyBy(lambda user: user["name"])
        .window(WindowBuilder.tumblingWindow(Time.seconds(5)))
        .sum(lambda user: user["age"])
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
