"""Find the element with the lowest score of each grade in windows of five seconds; use .max(...) for the highest."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("windowMinGrade")
    (
        builder.source("grade", json.loads)
        .keyBy(lambda grade: grade["grade"])
        .window(WindowBuilder.tumblingWindow(Time.seconds(5)))
        .min(lambda grade: grade["score"])  # .max(lambda grade: grade["score"])
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
