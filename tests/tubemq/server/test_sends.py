"""Sends: each message is stored in its partition, in the order in which it came, and answered when it is."""

import asyncio
from typing import Any

import pytest

from mqbridge.net.tasks import spawn
from mqbridge.tubemq.wire.payload import checksum
from tests.tubemq.server.serving import serving, until


async def test_sends_that_come_while_the_producer_is_opened_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        await served.create()
        client = await served.connect("p")
        found, find = asyncio.Event(), served.broker.partition_topic
        asked = 0

        async def held(*place: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                await found.wait()
            return await find(*place)

        monkeypatch.setattr(served.broker, "partition_topic", held)
        sending = [spawn(client.send(b"%d" % number), "send") for number in range(3)]
        await until(lambda: served.server.broker.totals["received_messages"] == 3)
        found.set()
        assert [(await each).errCode for each in sending] == [200] * 3
        assert [message.payload for message in await served.stored()] == [b"0", b"1", b"2"]
        assert not served.server.sends.is_any_pending


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": "missing"}, 403, "does not exist"),
        ({"partition": 5}, 403, "no partition 5"),
        ({"body": b""}, 400, "empty"),
        ({"body": bytes((8 << 20) + (10 << 10) + 1)}, 400, "at most"),
        ({"checkSum": 5}, 403, "checksum"),
        ({"clientId": " "}, 400, "clientId"),
    ],
)
async def test_what_no_broker_accepts_is_refused(fields: dict[str, object], code: int, text: str) -> None:
    async with serving(create_partitions=None) as served:
        await served.create()
        client = await served.connect("p")
        response = await client.send(**({"body": b"a"} | fields))  # type: ignore[arg-type]
        assert (response.success, response.errCode) == (False, code)
        assert text in response.errMsg
        assert not await served.stored()
        assert not served.server.sends.is_any_pending


async def test_a_right_checksum_and_a_flag_without_attributes_are_accepted() -> None:
    async with serving() as served:
        await served.create()
        client = await served.connect("p")
        assert (await client.send(b"abc", checkSum=checksum(b"abc"))).errCode == 200
        assert (await client.send(b"abc", flag=1)).errCode == 200
        assert [message.payload for message in await served.stored()] == [b"abc", b"abc"]


async def test_message_ids_differ_and_are_the_same_when_a_message_is_consumed() -> None:
    async with serving() as served:
        await served.create()
        client = await served.connect("c")
        ids = [(await client.send(b"a")).messageId for _ in range(3)]
        await client.join()
        await client.assigned()
        await client.own()
        assert [each.messageId for each in (await client.pack()).messages] == ids
        assert len(set(ids)) == 3
