"""Join the latest user and the latest number of each name."""

import json
from typing import Any

from running import run

from mqbridge.spark.streams import StreamBuilder, StreamConfig, TimeType, Topology

PROPERTIES = {StreamConfig.TIME_TYPE: TimeType.EVENT_TIME, StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000}


def union(user: dict[str, Any] | None, num: dict[str, Any] | None) -> dict[str, Any]:
    """Merge a user and a number, of which one may be missing."""
    user, num = user or {}, num or {}
    return {"name": user.get("name", num.get("name")), "age": user.get("age", 0), "num": num.get("num", 0)}


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("JoinWithoutWindow")
    user = builder.source("user", json.loads)
    num = builder.source("num", json.loads)
    (user.join(num).where(lambda user: user["name"]).equalTo(lambda num: num["name"]).apply(union).print())
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
