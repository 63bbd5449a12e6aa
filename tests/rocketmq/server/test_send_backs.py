"""Messages that a consumer could not process come again."""

from typing import Any

import pytest

from mqbridge.listener.publish_queues import PublishQueues
from mqbridge.rocketmq.server import send_backs as module
from mqbridge.rocketmq.server.send_backs import without
from mqbridge.rocketmq.wire import delay_levels
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.delay_levels import LEVELS_S, MAX_LEVEL
from mqbridge.rocketmq.wire.headers.groups import SendBackHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name, find
from mqbridge.rocketmq.wire.record import Record
from tests.rocketmq.server.serving import GROUP, RawRemotingClient, serving

RETRY, DEAD = "%RETRY%g", "%DLQ%g"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the delays of messages, in seconds, which pass at once."""
    noted: list[int] = []

    def note(level: int) -> int:
        noted.append(delay_levels.delay_s(level))
        return 0

    monkeypatch.setattr(module, "delay_s", note)
    return noted


async def send_back(client: RawRemotingClient, record: Record, level: int = 0, **fields: Any) -> Command:
    values = {"origin_msg_id": find(record.properties, Name.UNIQ_KEY), "origin_topic": record.topic} | fields
    return await client.ask(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(record.physical_offset, GROUP, level, **values))


async def stored_record(client: RawRemotingClient, body: bytes = b"x", **fields: Any) -> Record:
    (result,) = await client.store(body, **fields)
    return (await client.read(result.queue_offset))[0]


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_message_comes_again_from_the_retry_topic(delays: list[int], owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups, create_partitions=1) as served:
        client = await served.connect()
        record = await stored_record(client, properties=[("k", "v"), (Name.TAGS, "A"), (Name.UNIQ_KEY, "ID")], flag=5)
        assert (await send_back(client, record)).code == 0
        (again,) = await client.read_all(1, RETRY)
        assert (again.body, again.flag, again.reconsume_times, again.born_timestamp) == (b"x", 5, 1, record.born_timestamp)
        assert [find(again.properties, name) for name in ("k", Name.TAGS, Name.UNIQ_KEY)] == ["v", "A", "ID"]
        assert find(again.properties, Name.RETRY_TOPIC) == "t"
        assert find(again.properties, Name.DELAY) == "3"
        assert parse_offset_id(find(again.properties, Name.ORIGIN_MESSAGE_ID) or "")[1] == record.physical_offset
        assert delays == [10]


async def test_each_redelivery_waits_longer_and_keeps_its_origin(delays: list[int]) -> None:
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client)
        first = record
        for times in range(1, 4):
            # The client calls the topic of a redelivered message by the one from which it came at first.
            assert (await send_back(client, record, origin_topic="t")).code == 0
            record = (await client.read_all(1, RETRY, offset=times - 1))[0]
            assert (record.reconsume_times, find(record.properties, Name.DELAY)) == (times, str(2 + times))
            assert find(record.properties, Name.RETRY_TOPIC) == "t"
            assert parse_offset_id(find(record.properties, Name.ORIGIN_MESSAGE_ID) or "")[1] == first.physical_offset
            assert record.properties.count(b"DELAY\x01") == 1
        assert delays == [10, 30, 60]


@pytest.mark.parametrize(("level", "delay"), [(1, 1), (5, LEVELS_S[4]), (MAX_LEVEL + 5, LEVELS_S[-1])])
async def test_a_client_chooses_the_delay(delays: list[int], level: int, delay: int) -> None:
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client)
        assert (await send_back(client, record, level)).code == 0
        (again,) = await client.read_all(1, RETRY)
        assert (delays, find(again.properties, Name.DELAY)) == ([delay], str(level))


@pytest.mark.parametrize(
    ("times", "level", "most", "dead"),
    [
        (0, 0, None, False),
        (15, 0, None, False),
        (16, 0, None, True),
        (0, -1, None, True),
        (2, 3, 2, True),
        (1, 3, 2, False),
        (0, 0, 0, True),
    ],
)
async def test_a_message_becomes_a_dead_letter(delays: list[int], times: int, level: int, most: int | None, dead: bool) -> None:
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client, reconsume_times=times)
        assert (await send_back(client, record, level, max_reconsume_times=most)).code == 0
        (again,) = await client.read_all(1, DEAD if dead else RETRY)
        assert again.reconsume_times == times + 1
        assert (find(again.properties, Name.DELAY) is None) == dead
        assert bool(delays) != dead
        assert find(again.properties, Name.RETRY_TOPIC) == "t"


async def test_a_message_is_found_with_and_without_its_topic(delays: list[int]) -> None:
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client)
        for number, fields in enumerate(({"origin_topic": None}, {"origin_topic": "x"}, {"origin_msg_id": None}), 1):
            assert (await send_back(client, record, **fields)).code == 0
            assert len(await client.read_all(number, RETRY)) == number
        assert (await send_back(client, record, origin_msg_id="another")).code == Status.SYSTEM_ERROR
        record.physical_offset += 1
        answer = await send_back(client, record)
        assert (answer.code, "no message" in (answer.remark or "")) == (Status.SYSTEM_ERROR, True)


async def test_a_message_that_waited_before_does_not_wait_by_its_old_delay(delays: list[int]) -> None:
    async with serving() as served:
        client = await served.connect()
        unit = module.unit_of_message(
            b"x", b"DELAY\x015\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02TIMER_DELAY_SEC\x019\x02k\x01v\x02UNIQ_KEY\x01I\x02",
            flag=0, sys_flag=0, born_ms=1, reconsume_times=0,
        )  # fmt: skip
        await served.create()
        await served.append(unit)
        (record,) = await client.read(0)
        assert (await send_back(client, record)).code == 0
        (again,) = await client.read_all(1, RETRY)
        assert find(again.properties, Name.DELAY) == "3"
        assert [find(again.properties, name) for name in (Name.REAL_TOPIC, Name.REAL_QID, Name.TIMER_DELAY_SEC)] == [None] * 3
        assert find(again.properties, "k") == "v"


async def test_a_client_sends_the_message_itself_if_its_request_failed() -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        properties = [(Name.UNIQ_KEY, "ID"), (Name.RETRY_TOPIC, "t"), (Name.TIMER_DELAY_MS, "1")]
        answer = await client.send(b"x", RETRY, 0, properties=properties, reconsume_times=2, max_reconsume_times=16)
        assert answer.code == 0
        (record,) = await client.read_all(1, RETRY)
        assert (record.body, record.reconsume_times, find(record.properties, Name.RETRY_TOPIC)) == (b"x", 2, "t")


async def test_a_message_that_is_not_stored_again_is_refused(monkeypatch: pytest.MonkeyPatch, delays: list[int]) -> None:
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client)
        monkeypatch.setattr(served.listener.parking, "deposit", lambda *args: args[-1](module.ClusterError("no room")))
        answer = await send_back(client, record)
        assert (answer.code, answer.remark) == (Status.SYSTEM_BUSY, "no room")


async def test_a_message_whose_properties_leave_no_room_is_refused(delays: list[int]) -> None:
    """It would be stored as one that nobody can read; the client keeps it and tries again."""
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client, properties=[("k", "v" * (MAX_BYTES - 50)), (Name.UNIQ_KEY, "I")])
        answer = await send_back(client, record)
        assert (answer.code, "properties" in (answer.remark or "")) == (Status.MESSAGE_ILLEGAL, True)


async def test_a_backing_without_parking_delays_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int | None] = []
    async with serving() as served:
        client = await served.connect()
        record = await stored_record(client)
        monkeypatch.setattr(type(served.listener.parking), "is_supported", property(lambda _: False))
        open_queue = PublishQueues.open

        async def open_(self: Any, topic: Any, number: int) -> Any:
            opened = await open_queue(self, topic, number)
            publish = opened.publish

            def note(sends: Any, due_ms: int | None = None) -> None:
                published.append(due_ms)
                publish(sends)

            opened.publish = note
            return opened

        monkeypatch.setattr(PublishQueues, "open", open_)
        assert (await send_back(client, record)).code == 0
        assert published[0] is not None
        assert abs(published[0] - record.store_timestamp - 10_000) < 20_000
        assert len(await client.read_all(1, RETRY)) == 1


def test_entries_are_left_out_by_their_names() -> None:
    assert without(b"a\x01b\x02DELAY\x015\x02c\x01d", ("DELAY",)) == b"a\x01b\x02c\x01d\x02"
    assert without(b"DELAYED\x015\x02", ("DELAY",)) == b"DELAYED\x015\x02"
    assert without(b"", ("DELAY",)) == b""
