"""The first pull of a group's member comes before this gateway has joined the group."""

import asyncio
from pathlib import Path

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.patience import PATIENCE_S
from tests.rocketmq.server.log_serving import frame, heartbeat, next_frame, serving_log

PULL, QUERY_OFFSET, UPDATE_OFFSET = 11, 14, 15
HELD = 2 | 4
"""The pull waits for messages, and brings the subscription."""
COUNT = 5


async def test_it_gets_the_messages_of_the_lane(tmp_path: Path) -> None:
    """Read by position, they could be those of another gateway, and their commit would not be known at once."""
    async with serving_log(tmp_path, owns_groups=False) as (cluster, address), asyncio.timeout(PATIENCE_S):
        await cluster.create("t", 1)
        outbound = await cluster.outbound(OutboundSpec("t", stamp_origin=False))
        await outbound.send(0, Share(Batch.of([Message(b"%d" % number) for number in range(COUNT)])))
        await outbound.close()
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def answer_to(opaque: int, *frames: bytes) -> dict[str, str]:
            writer.write(b"".join(frames))
            while True:
                header, _ = await next_frame(reader)
                if header["flag"] & 1 and header["opaque"] == opaque:
                    assert header["code"] == 0
                    fields: dict[str, str] = header["extFields"]
                    return fields

        queue = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
        pull = {
            **queue, "queueOffset": "0", "maxMsgNums": "32", "sysFlag": str(HELD), "commitOffset": "0", "subVersion": "1",
            "suspendTimeoutMillis": "15000", "subscription": "*", "expressionType": "TAG",
        }  # fmt: skip
        first = await answer_to(2, heartbeat("t", "%RETRY%g"), frame(PULL, pull, b"", opaque=2))
        assert first["nextBeginOffset"] == str(COUNT)
        commit = frame(UPDATE_OFFSET, {**queue, "commitOffset": str(COUNT)}, b"", opaque=3)
        assert (await answer_to(4, commit, frame(QUERY_OFFSET, queue, b"", opaque=4)))["offset"] == str(COUNT)
        writer.close()
        await writer.wait_closed()
