"""Count orders of each type in windows of 30 seconds, with a new window every 10 seconds.

Also sum the prices per customer and type in windows of 100 seconds.
"""

import json

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def build() -> Topology:
    """Return the topology of the job. It has two outputs, so Spark runs two queries."""
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
