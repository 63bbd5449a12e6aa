"""Count users of each age in windows of five seconds, by the timestamp in the message."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, Topology, WindowBuilder

PROPERTIES = {StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("windowCountUser")
    (
        builder.source("user", json.loads)
        .selectTimestamp(lambda user: user["timestamp"])
        .filter(lambda user: user["age"] > 0)
        .keyBy(lambda user: user["age"])
        .window(WindowBuilder.tumblingWindow(Time.seconds(5)))
        .count()
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
