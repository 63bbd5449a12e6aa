"""Orders: how many of each type in 30 seconds, every 10; and what each customer pays for each type in 100 seconds."""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """The topology of the job: two ends, so two queries."""
    builder = StreamBuilder("windowOrderCount")
    orders = builder.source("order", json.loads)
    (
        orders.keyBy(lambda order: order["type"])
        .window(WindowBuilder.slidingWindow(Time.seconds(30), Time.seconds(10)))
        .count()
        .toRStream()
        .print()
    )
    (
        orders.keyBy(lambda order: order["customer"] + "@" + order["type"])
        .window(WindowBuilder.tumblingWindow(Time.seconds(100)))
        .sum(lambda order: order["price"])
        .toRStream()
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
