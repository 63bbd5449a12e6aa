"""Join users and numbers that have the same name and are in the same window of 30 seconds."""

import json
from typing import Any

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, Time, TimeType, Topology, WindowBuilder

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def union(user: dict[str, Any] | None, num: dict[str, Any] | None) -> dict[str, Any]:
    """Merge a user and a number, of which one may be missing."""
    user, num = user or {}, num or {}
    return {"name": user.get("name", num.get("name")), "age": user.get("age", 0), "num": num.get("num", 0)}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("joinWindow")
    user = builder.source("user", json.loads)
    num = builder.source("num", json.loads)
    (
        user.join(num)
        .where(lambda user: user["name"])
        .equalTo(lambda num: num["name"])
        .window(WindowBuilder.tumblingWindow(Time.seconds(30)))
        .apply(union)
        .print()
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
