"""Locks of queues that this gateway does not have yet."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.rocketmq.server.log_serving import CLIENT, frame, heartbeat, next_frame, serving_log

MEMBERS_CHANGED, LOCK = 40, 41


async def test_a_client_that_could_not_lock_a_queue_is_told_when_it_is_here(tmp_path: Path) -> None:
    async with serving_log(tmp_path, owns_groups=False) as (cluster, address):
        await cluster.create("t", 1)
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        queue = {"topic": "t", "brokerName": "mqbridge-app", "queueId": 0}
        request = json.dumps({"consumerGroup": "g", "clientId": CLIENT, "mqSet": [queue]}).encode()
        route = frame(105, {"topic": "t"}, b"", opaque=1)
        writer.write(route + heartbeat("t", opaque=2) + frame(LOCK, {}, request, opaque=3))

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
