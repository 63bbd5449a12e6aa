"""Messages are looked up by physical offset, by unique id, by key."""

import time

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.server import lookups as module
from mqbridge.rocketmq.server import physical_offsets
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.query import QueryHeader, QueryResult, ViewHeader
from mqbridge.rocketmq.wire.headers.send import SendResultHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, decode_records
from tests.rocketmq.server.serving import RawRemotingClient, bodies_of, serving

FOREVER = (0, 1 << 50)


def physical_of(result: SendResultHeader) -> int:
    return parse_offset_id(result.msg_id)[1]


async def view(client: RawRemotingClient, offset: int, topic: str | None = None) -> Record | Command:
    answer = await client.ask(Code.VIEW_MESSAGE_BY_ID, ViewHeader(offset, topic))
    return answer if answer.code else decode_records(answer.body)[0]


async def query(
    client: RawRemotingClient, key: str, *, most: int = 32, between=FOREVER, topic: str = "t", unique=None
) -> Command:
    return await client.ask(Code.QUERY_MESSAGE, QueryHeader(topic, key, most, *between, unique))


async def found(client: RawRemotingClient, key: str, **fields) -> list[bytes]:
    answer = await query(client, key, **fields)
    if answer.code == Status.QUERY_NOT_FOUND:
        return []
    assert answer.code == 0, answer
    return bodies_of(decode_records(answer.body))


# --- by id ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_message_is_found_by_its_id_with_and_without_its_topic(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"other", topic="u")
        results = [*(await client.store(b"a", b"b", queue=1, properties=[("KEYS", "k")])), *(await client.store(b"c"))]
        for result, body in zip(results, (b"a", b"b", b"c"), strict=True):
            host, offset = parse_offset_id(result.msg_id)
            assert host == bytes((127, 0, 0, 1)) + served.listener.port.port.to_bytes(4)
            for topic in ("t", None):
                record = await view(client, offset, topic)
                assert isinstance(record, Record)
                assert (record.body, record.topic, record.queue_id) == (body, "t", result.queue_id)
                assert (record.queue_offset, record.physical_offset) == (result.queue_offset, offset)
            missing = await view(client, offset, "u")
            assert isinstance(missing, Command)
            assert (missing.code, missing.remark) == (1, f"there is no message at the physical offset {offset}")


async def test_an_offset_of_nobody_is_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        (result,) = await client.store(b"a")
        for offset in (physical_of(result) + 1, 0, -1, (1 << 63) - 1):
            for topic in ("t", None, "missing"):
                answer = await view(client, offset, topic)
                assert isinstance(answer, Command)
                assert answer.code == Status.SYSTEM_ERROR


async def test_messages_with_the_same_physical_offset_need_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(physical_offsets, "_digest", lambda _, __: 5)
    async with serving() as served:
        client = await served.connect()
        await served.create("u", 2)
        (first,) = await client.store(b"a", properties=[(Name.UNIQ_KEY, "ID1")])
        (second,) = await client.store(b"b", topic="u", properties=[(Name.UNIQ_KEY, "ID2")])
        offset = physical_of(first)
        assert physical_of(second) == offset
        answer = await view(client, offset)
        assert isinstance(answer, Command)
        assert (answer.code, "name the topic" in (answer.remark or "")) == (1, True)
        record = await view(client, offset, "u")
        assert isinstance(record, Record)
        assert record.body == b"b"
        lookups = served.server.lookups
        assert (await lookups.find(offset, None, "ID2")).topic.name == "u"
        await client.store(b"c", topic="u", queue=1, properties=[(Name.UNIQ_KEY, "ID3")])
        answer = await view(client, offset, "u")
        assert isinstance(answer, Command), "two queues of the topic have it now"
        assert (await lookups.find(offset, "u", "ID3")).queue == 1


async def test_a_message_of_another_system_is_found_by_its_id() -> None:
    async with serving() as served:
        client = await served.connect()
        topic = await served.create()
        await served.append(Message(b"foreign", (("a", "b"),)))
        offset = physical_offsets.physical_offset(module.queue_name(topic, 0), 0)
        record = await view(client, offset)
        assert isinstance(record, Record)
        assert record.body == b"foreign"


async def test_a_message_that_cannot_be_read_in_time_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 0.0)
    async with serving() as served:
        client = await served.connect()
        (result,) = await client.store(b"a")
        answer = await view(client, physical_of(result), "t")
        assert isinstance(answer, Command)
        assert answer.code == Status.SYSTEM_BUSY


# --- by key ---------------------------------------------------------------------------------------------------------------


async def test_messages_are_found_by_each_of_their_keys_and_by_their_unique_id() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", properties=[(Name.KEYS, "k1 k2"), (Name.UNIQ_KEY, "ID1")])
        await client.store(b"b", queue=1, properties=[(Name.KEYS, "k2"), (Name.UNIQ_KEY, "ID2")])
        await client.store(b"a body with k1 and ID1", properties=[("other", "k1"), (Name.UNIQ_KEY, "ID3")])
        assert await found(client, "k1") == [b"a"]
        assert await found(client, "k2") == [b"a", b"b"]
        assert await found(client, "k2", most=1) == [b"a"]
        assert await found(client, "k") == []
        assert await found(client, "") == []
        assert await found(client, "ID2") == [b"b"]
        assert await found(client, "ID2", unique=True) == [b"b"]
        assert await found(client, "k2", unique=True) == []
        assert await found(client, "k2", topic="missing") == []


async def test_an_answer_tells_where_messages_are() -> None:
    async with serving() as served:
        client = await served.connect()
        begin = round(time.time() * 1000)
        (result,) = await client.store(b"a", properties=[(Name.KEYS, "k")])
        answer = await query(client, "k")
        (record,) = decode_records(answer.body)
        assert (record.topic, record.queue_offset, record.physical_offset) == ("t", 0, physical_of(result))
        assert QueryResult.decode(answer.ext).index_last_update_timestamp == record.store_timestamp >= begin
        assert answer.remark is None


async def test_messages_are_found_between_times() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b", b"c", properties=[(Name.KEYS, "k")])
        times = [record.store_timestamp for record in await client.read(0)]
        every = [b"a", b"b", b"c"]
        for begin, end in ((times[1], times[2]), (times[0], times[0]), (times[2], 1 << 50), (-5, times[1])):
            expected = [body for body, at in zip(every, times, strict=True) if begin <= at <= end]
            assert await found(client, "k", between=(begin, end)) == expected
        assert await found(client, "k", between=(times[2] + 1, 1 << 50)) == []
        assert await found(client, "k", between=(0, times[0] - 1)) == []


async def test_a_search_says_if_it_has_not_seen_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCANNED", 2)
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", b"b", properties=[(Name.KEYS, "k")])
        await client.store(b"c", properties=[(Name.KEYS, "late")])
        await client.store(b"d", queue=1, properties=[(Name.KEYS, "late")])
        answer = await query(client, "late")
        assert bodies_of(decode_records(answer.body)) == [b"d"]
        assert answer.remark == "only the first 2 messages of each queue were searched: name a shorter time"
        answer = await query(client, "none")
        assert (answer.code, "only the first 2 messages" in (answer.remark or "")) == (Status.QUERY_NOT_FOUND, True)


async def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_S", 0.0)
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", properties=[(Name.KEYS, "k")])
        answer = await query(client, "k")
        assert (answer.code, "the search has ended after 0 s" in (answer.remark or "")) == (Status.QUERY_NOT_FOUND, True)


async def test_an_answer_has_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FOUND", 3)
    async with serving() as served:
        client = await served.connect()
        await client.store(*[b"%d" % index for index in range(5)], properties=[(Name.KEYS, "k")])
        assert await found(client, "k", most=1000) == [b"0", b"1", b"2"]
        assert await found(client, "k", most=0) == [b"0"]
        assert await found(client, "k", most=-1) == [b"0"]


async def test_an_answer_has_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FOUND_BYTES", 2500)
    async with serving() as served:
        client = await served.connect()
        await client.store(*[bytes(1000)] * 5, properties=[(Name.KEYS, "k")])
        answer = await query(client, "k")
        assert len(decode_records(answer.body)) == 2
        assert "bytes" in (answer.remark or "")


async def test_a_message_of_another_system_is_found_by_its_key() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await served.append(Message(b"foreign", keys=("k",)))
        await client.store(b"own", properties=[(Name.KEYS, "k")])
        assert await found(client, "k") == [b"foreign", b"own"]
