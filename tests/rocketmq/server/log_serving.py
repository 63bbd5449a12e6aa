"""A log that is served to RocketMQ clients, and frames of requests that are independent of the code under test."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings

ONE_WAY = 2
HEART_BEAT = 34
CLIENT = "c"


@asynccontextmanager
async def serving_log(folder: Path, *, owns_groups: bool = True) -> AsyncIterator[tuple[LogCluster, str]]:
    """Serve a log to RocketMQ clients; yield it, and the address for clients."""
    cluster = LogCluster("store", LogSettings(path=str(folder / "log.db")))
    await cluster.connect()
    store = GroupStore(folder / "groups.db")
    settings = ListenerSettings(
        name="app", system="rocketmq", host="127.0.0.1", port=0, web=None, advertise=None, cluster="store", topics="{topic}",
        owns_groups=owns_groups, group="{group}", parking="mqbridge-app", create_partitions=1, manage=True, deduplicate=False,
        dead_letter_cluster="store", dead_letter_topic="mqbridge-dead-app", connections=1000, in_flight_bytes=64 << 20,
        unacknowledged_bytes=64 << 20, unacknowledged_span=10_000,
    )  # fmt: skip
    listener = Listener(settings, load_servers()["rocketmq"], cluster, cluster, store, "me")
    listener.bind()
    await listener.start()
    yield cluster, f"127.0.0.1:{listener.port.port}"
    await listener.close(asyncio.get_running_loop().time() + 5)
    await store.close()
    await cluster.close()


def frame(code: int, fields: dict[str, str], body: bytes, *, opaque: int = 1, flag: int = 0) -> bytes:
    """Return a request."""
    header = {"code": code, "language": "JAVA", "version": 479, "opaque": opaque, "flag": flag, "extFields": fields}
    packed = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(packed) + len(body), len(packed)) + packed + body


def heartbeat(*topics: str, opaque: int = 1) -> bytes:
    """Return the heartbeat of a push consumer of group g."""
    consumer = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics],
    }  # fmt: skip
    body = {"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [consumer]}
    return frame(HEART_BEAT, {}, json.dumps(body).encode(), opaque=opaque)


async def next_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of the next request or answer."""
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    data = await reader.readexactly(size)
    header_size = int.from_bytes(data[1:4])
    return json.loads(data[4 : 4 + header_size]), data[4 + header_size :]
