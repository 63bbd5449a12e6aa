"""Bytes in flight: no more is read from clients while too much waits to be stored, whatever they send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.message import Share
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import SysFlag
from tests.rocketmq.server.serving import RocketMQServing, rounds, serving, until

SENDS, BODY_BYTES = 60, 500_000
LIMIT_BYTES = 1 << 20
MAX_READ_BYTES = 4 << 20
"""The limit, and what was read already when it was reached."""


class StallingOutbounds:
    """Outbounds of the log that confirm nothing while they are stalled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_stalled = False
        send = LogOutbound.send

        def stalling(outbound: LogOutbound, partition: int, share: Share) -> asyncio.Future[Any]:
            return asyncio.get_running_loop().create_future() if self.is_stalled else send(outbound, partition, share)

        monkeypatch.setattr(LogOutbound, "send", stalling)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[RocketMQServing]:
    async with serving(in_flight_bytes=LIMIT_BYTES) as served:
        await served.create()
        yield served


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"properties": [(Name.DELAY, "3")]},
    "half": {"sys_flag": SysFlag.PREPARED, "properties": [("PGROUP", "p")]},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_more_is_read_while_too_much_waits(
    served: RocketMQServing, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbounds = StallingOutbounds(monkeypatch)
    client = await served.connect()
    await client.produce()
    assert (await client.send(b"x", **KINDS[kind])).code == Status.SUCCESS
    await until(lambda: served.listener.in_flight.used == 0)
    outbounds.is_stalled = True

    async def flood() -> None:
        with suppress(ConnectionError):
            for _ in range(SENDS):
                client.start_send(b"z" * BODY_BYTES, **KINDS[kind])
                await client.writer.drain()

    flooding = spawn(flood(), "flood")
    (connection,) = served.server._connections
    await until(lambda: connection._endpoint.is_reading_paused or flooding.done())
    await rounds(500)
    assert served.broker.totals["received_bytes"] <= MAX_READ_BYTES
    assert not flooding.done()
    await cancel(flooding)
