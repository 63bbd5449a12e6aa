"""Locks of queues that this gateway does not have yet."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.rocketmq.server.log_serving import frame, serving_log

HEART_BEAT, MEMBERS_CHANGED, LOCK = 34, 40, 41
CLIENT = "c"


async def next_frame(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of the next request or answer."""
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    data = await reader.readexactly(size)
    header_size = int.from_bytes(data[1:4])
    return json.loads(data[4 : 4 + header_size]), data[4 + header_size :]


async def test_a_client_that_could_not_lock_a_queue_is_told_when_it_is_here(tmp_path: Path) -> None:
    async with serving_log(tmp_path, owns_groups=False) as (cluster, address):
        await cluster.create("t", 1)
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        subscription = {"topic": "t", "subString": "*", "subVersion": 1}
        consumer = {
            "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
        }  # fmt: skip
        heartbeat = {"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [consumer]}
        queue = {"topic": "t", "brokerName": "mqbridge-app", "queueId": 0}
        request = json.dumps({"consumerGroup": "g", "clientId": CLIENT, "mqSet": [queue]}).encode()
        route = frame(105, {"topic": "t"}, b"", opaque=1)
        writer.write(route + frame(HEART_BEAT, {}, json.dumps(heartbeat).encode(), opaque=2) + frame(LOCK, {}, request, opaque=3))

        async with asyncio.timeout(PATIENCE_S):
            locked: list[list[Any]] = []
            while not locked or not locked[-1]:
                header, body = await next_frame(reader)
                if header["opaque"] >= 3 and header["flag"] & 1:
                    locked.append(json.loads(body)["lockOKMQSet"])
                elif header["code"] == MEMBERS_CHANGED and not header["flag"] & 1:
                    writer.write(frame(LOCK, {}, request, opaque=header["opaque"] + 100))
        assert locked[0] == []
        writer.close()
        await writer.wait_closed()
