"""The Java programs of these tests send to existing queues, even if the first route query is not answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import decode
from tests.kit.rocketmq import RocketMQ
from tests.sdk.rocketmq import Clients, run_java

pytestmark = [pytest.mark.cluster, pytest.mark.sdk]

MESSAGES = 40


class ForgetfulNameServer:
    """Proxy of a name server that closes the connection of the first query for the route of `topic`."""

    def __init__(self, topic: str, address: str) -> None:
        self.topic, (self._host, _, self._port) = topic, address.partition(":")
        self.refused = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(self._host, int(self._port))
        copying = asyncio.ensure_future(self._copy(answers, writer))
        try:
            while not await self._request(reader, requests):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            copying.cancel()
            for each in (requests, writer):
                each.close()
            await asyncio.gather(copying, requests.wait_closed(), writer.wait_closed(), return_exceptions=True)

    async def _request(self, reader: asyncio.StreamReader, requests: asyncio.StreamWriter) -> bool:
        size = await reader.readexactly(4)
        frame = size + await reader.readexactly(int.from_bytes(size))
        request = decode(frame)
        if request.code == Code.GET_ROUTEINFO_BY_TOPIC and request.ext.get("topic") == self.topic and not self.refused:
            self.refused = True
            return True
        requests.write(frame)
        return False

    async def _copy(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await answers.read(65536):
                writer.write(data)


@contextlib.asynccontextmanager
async def forgetful(rocketmq: RocketMQ, topic: str) -> AsyncIterator[tuple[ForgetfulNameServer, str]]:
    proxy = ForgetfulNameServer(topic, rocketmq.name_server)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        yield proxy, "{}:{}".format(*server.sockets[0].getsockname())


@Clients
async def test_a_producer_without_a_route_at_first_sends_to_existing_queues(rocketmq: RocketMQ, client: str) -> None:
    topic = rocketmq.take_topic(2)
    async with forgetful(rocketmq, topic) as (proxy, name_server):
        options = {"name_servers": name_server, "topic": topic, "client": client, "messages": MESSAGES}
        lines = await run_java("RocketProduce", **options, print=True)
    assert proxy.refused
    assert {line["queue"] for line in lines} == {0, 1}
    assert len(lines) == MESSAGES
