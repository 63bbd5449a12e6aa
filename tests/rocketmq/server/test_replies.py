"""Replies to request messages."""

import pytest

from mqbridge.rocketmq.server import connection
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.send import ReplyPushHeader, SendResultHeader
from mqbridge.rocketmq.wire.properties import Name
from tests.rocketmq.server.serving import RawRemotingClient, send_header, serving

TO_ASKER = [(Name.REPLY_TO_CLIENT, "asker"), (Name.UNIQ_KEY, "R1"), ("CORRELATION_ID", "7")]
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def start_reply(client: RawRemotingClient, code: int = Code.SEND_REPLY_MESSAGE_V2, **fields) -> int:
    header = send_header(REPLY_TOPIC, 0, **({"properties": TO_ASKER} | fields))
    ext = header.encode_v1() if code == Code.SEND_REPLY_MESSAGE else header.encode()
    return client.start(code, ext, b"the reply")


@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_passed_on_to_the_client_that_has_asked(code: int) -> None:
    async with serving() as served:
        asker, replier = await served.connect("asker"), await served.connect("replier")
        await asker.produce()
        waiting = start_reply(replier, code, flag=3, reconsume_times=1)
        push = await asker.pushed(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
        header = ReplyPushHeader.decode(push.ext)
        assert push.body == b"the reply"
        assert not push.is_oneway
        assert (header.topic, header.producer_group, header.flag, header.reconsume_times) == (REPLY_TOPIC, "p", 3, 1)
        assert header.born_host == replier.address
        assert header.store_host == f"127.0.0.1:{served.listener.port.port}"
        assert header.properties == send_header(properties=TO_ASKER).properties
        assert header.store_timestamp > 1_700_000_000_000 == header.born_timestamp
        assert not replier.has(waiting), "it is answered when the client has taken it"
        asker.write(push.answer())
        answer = await replier.answer(waiting)
        result = SendResultHeader.decode(answer.ext)
        assert (answer.code, result.transaction_id, result.queue_id) == (0, "R1", 0)
        assert await served.listener.topics.names() == [], "replies are not stored"


async def refused(client: RawRemotingClient, **fields) -> tuple[int, str]:
    answer = await client.answer(start_reply(client, **fields))
    return answer.code, answer.remark or ""


async def test_replies_that_cannot_be_passed_on_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        asker, replier = await served.connect("asker"), await served.connect("replier")
        assert await refused(replier, properties=[]) == (1, "the reply does not say to whom it goes (REPLY_TO_CLIENT)")
        missing = (Status.SYSTEM_ERROR, "the client asker that has asked is not connected to this gateway")
        assert await refused(replier) == missing
        await asker.join("t")
        waiting = start_reply(replier)
        push = await asker.pushed(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
        asker.write(push.answer(Status.SYSTEM_ERROR, remark="too late"))
        answer = await replier.answer(waiting)
        assert (answer.code, "too late" in (answer.remark or "")) == (1, True)
        waiting = start_reply(replier)
        await asker.pushed(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
        await asker.close()
        answer = await replier.answer(waiting)
        assert (answer.code, "does not take the reply" in (answer.remark or "")) == (1, True)
        assert await refused(replier) == missing


async def test_a_client_that_does_not_take_its_replies_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def ask(_: connection.ServedConnection, __: int, ___: Header, ____: bytes = b"", timeout_s: float = 99.0) -> None:
        asked.append(timeout_s)
        raise TimeoutError

    async with serving() as served:
        asker, replier = await served.connect("asker"), await served.connect("replier")
        await asker.produce()
        monkeypatch.setattr(connection.ServedConnection, "ask", ask)
        code, text = await refused(replier)
        assert (code, "does not take the reply" in text, len(asked)) == (1, True, 1)
