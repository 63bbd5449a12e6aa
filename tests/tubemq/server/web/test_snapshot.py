"""The last messages of a partition."""

import base64
from typing import Any

import pytest

from mqbridge.message import Message
from mqbridge.tubemq.server.web import snapshot
from tests.tubemq.server.serving import GROUP, TOPIC
from tests.tubemq.server.web.web_bench import web_bench


def shown(answer: dict[str, Any]) -> list[tuple[bytes, str]]:
    """Return the bodies and the attributes of an answer."""
    assert [each["index"] for each in answer["dataSet"]] == list(range(len(answer["dataSet"])))
    return [(base64.b64decode(each["data"]), each["attr"]) for each in answer["dataSet"]]


async def test_the_last_messages_are_shown() -> None:
    async with web_bench() as web:
        await web.served.create()
        producer = await web.served.connect("p")
        await producer.store(b"a", b"b", b"c")
        typed = b"k=v,$msgType$=t1,$msgTime$=202601010000"
        await producer.send(b"d", attributes=typed, msgType="t1", msgTime="202601010000")
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC, partitionId=0)
        assert (answer["result"], answer["errCode"], answer["errMsg"]) == (True, 0, "Success!")
        assert shown(answer) == [(b"b", "null"), (b"c", "null"), (b"d", typed.decode())]
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC, msgCount=50)
        assert [body for body, _ in shown(answer)] == [b"a", b"b", b"c", b"d"]
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC, msgCount=50, filterConds="t0,t1")
        assert [body for body, _ in shown(answer)] == [b"d"]
        assert (await web.broker("admin_query_offset", groupName=GROUP))["dataSet"] == []


async def test_messages_of_other_systems_are_shown_as_clients_get_them() -> None:
    async with web_bench() as web:
        await web.served.create()
        await web.served.append(Message(b"x", properties=(("a", "b"),)))
        assert shown(await web.broker("admin_snapshot_message", topicName=TOPIC)) == [(b"x", "a=b")]


async def test_only_so_many_bytes_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_SHOWN_BYTES", 2500)
    async with web_bench() as web:
        await web.served.create()
        producer = await web.served.connect("p")
        await producer.store(*(b"%d" % number * 1000 for number in range(4)))
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC, msgCount=50)
        assert [body[:1] for body, _ in shown(answer)] == [b"2", b"3"]
        await producer.store(b"x" * 5000)
        assert [len(body) for body, _ in shown(await web.broker("admin_snapshot_message", topicName=TOPIC))] == [5000]


@pytest.mark.parametrize(
    ("asked", "code", "text"),
    [
        ({"topicName": ""}, 400, "Parameter topicName is missing or value is blank!"),
        ({"msgCount": 2}, 400, "Parameter msgCount value must >= 3"),
        ({"msgCount": 51}, 400, "Over max allowed msgCount value, allowed count is 50!"),
        ({}, 401, "Could not find message at position by topic (demo)!"),
        ({"partitionId": 7}, 501, "Get Message failure, exception is Wrong partition value 7,valid partitions in (0,1)"),
        ({"topicName": "none"}, 501, "Get Message failure, exception is Wrong partition value 0,valid partitions in (0,0)"),
    ],
)
async def test_no_messages_are_refused_as_by_a_broker(asked: dict[str, object], code: int, text: str) -> None:
    async with web_bench() as web:
        await web.served.create(TOPIC, 2)
        answer = await web.broker("admin_snapshot_message", **({"topicName": TOPIC} | asked))
        assert answer == {"result": False, "errCode": code, "errMsg": text}
