"""Requests whose client closes its connection at once: they are done all the same."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mqbridge.log.adapter.cluster import LogCluster
from tests.kit import rocketmq_remoting as remoting
from tests.patience import PATIENCE_S
from tests.rocketmq.server.log_serving import ONE_WAY, frame, serving_log


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[LogCluster, str]]:
    async with serving_log(tmp_path) as (cluster, address):
        yield cluster, address


async def test_a_message_that_was_sent_one_way_is_stored(served: tuple[LogCluster, str]) -> None:
    """The first message of a queue waits until the queue is open, and its client does not."""
    cluster, address = served
    host, _, port = address.rpartition(":")
    fields = {
        "a": "p", "b": "t", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "", "j": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame(remoting.SEND_MESSAGE_V2, fields, b"body", flag=ONE_WAY))
    writer.close()
    await writer.wait_closed()

    async def stored() -> int:
        described = await cluster.describe("t")
        return 0 if described is None else sum(one.next[0] for one in (await cluster.bounds("t")).values())

    async with asyncio.timeout(PATIENCE_S):
        while not await stored():
            await asyncio.sleep(0.01)
