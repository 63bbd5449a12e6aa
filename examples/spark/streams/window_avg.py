"""Compute the average of numbers in windows of five seconds."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("WindowAvg")
    (
        builder.source("avgSource", json.loads)
        .foreach(lambda value: print("input:", value))
        .filter(lambda value: value > 0)
        .keyBy(lambda _: "key")
        .window(WindowBuilder.tumblingWindow(Time.seconds(5)))
        .avg()
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
