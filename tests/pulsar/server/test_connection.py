"""The connection of a client: its states, requests in any order, and clients that do not keep to the protocol."""

import asyncio
import itertools
import socket
import struct

import pytest

from mqbridge.pulsar.server import connection as connections
from mqbridge.pulsar.server.connection import ConnectionState
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from tests.patience import PATIENCE_S
from tests.pulsar.server.serving import TOPIC, entry_frame, serving, until

CONNECT = client_commands.connect("test", "none", b"", None)


async def test_ping_is_answered_before_connect_and_the_handshake_tells_limits():
    async with serving() as served:
        client = await served.connect(handshake=False)
        await client.ping()
        connected = await client.handshake()
        assert connected.server_version
        assert connected.protocol_version == 21
        assert connected.max_message_size == 5 << 20
        assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
        assert not connected.feature_flags.supports_topic_watchers


@pytest.mark.parametrize(
    "frames",
    [
        [client_commands.lookup(1, TOPIC, False)],
        [CONNECT, CONNECT],
        [CONNECT, encode_command(BaseCommand(type=BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=1)))],
        [CONNECT, entry_frame(b"x", producer=7)],
        [CONNECT, encode_command(BaseCommand(type=BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=0)))],
        [struct.pack(">I", 1 << 31)],
        [CONNECT, struct.pack(">I", (5 << 20) + (10 << 10) + 1)],
        [CONNECT, b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff"],
        [CONNECT, b"GET / HTTP/1.1\r\n\r\n"],
    ],
    ids=[
        "before connect",
        "connect twice",
        "server's command",
        "unknown producer",
        "no permits",
        "2 GB",
        "too large",
        "garbage",
        "http",
    ],
)
async def test_a_violation_closes_only_this_connection(frames):
    async with serving() as served:
        other, client = await served.connect(), await served.connect(handshake=False)
        await other.produce()
        client.send(*frames)
        await client.wait_ended()
        assert await other.store(b"x")
        assert len(served.listener.port.connections) == 1


async def test_half_a_frame_is_waited_for():
    async with serving() as served:
        client = await served.connect()
        frame = client_commands.lookup(5, TOPIC, False)
        for byte in frame:
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer(5)).authoritative


NAMES = [
    "a/b",
    "persistent://public/default/",
    "persistent://public/default/x-partition-9999999999",
    "persistent://public/default/x-partition-2147483648",
    "x-partition-7",
    "non-persistent://public/default/t",
    "persistent://other/default/t",
    "persistent://public/default/" + "n" * (4 << 20),
    "n" * (4 << 20),
    "-partition-" * 300_000,
    "persistent://public/default/\u00e9\u4e2d\U0001f600",
    "persistent://public/default/\0",
    "persistent://public/default/mqbridge-dead-app",
    "",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_every_name_gets_an_answer_to_every_request(name, caplog):
    async with serving() as served:
        client = await served.connect()
        client.send(client_commands.partition_metadata(1, name, create=False))
        client.send(client_commands.lookup(2, name, False))
        client.send(client.producer_frame(3, topic=name))
        client.send(client.subscribe_frame(4, topic=name))
        client.send(client.subscribe_frame(5, consumer=2, topic=name, durable=False))
        client.send(
            encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA, getSchema=pb.CommandGetSchema(request_id=6, topic=name)))
        )
        for request in range(1, 7):
            await client.answer(request)
        await client.ping()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert all(len(record.getMessage()) < 3000 for record in caplog.records), "a name of a client floods the log"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("start_message_rollback_duration_sec", (1 << 63) - 1),
        ("start_message_rollback_duration_sec", (1 << 64) - 1),
        ("subscription", "s" * 100_000),
        ("subscription", ""),
        ("consumer_name", "c" * 100_000),
        ("priority_level", -(1 << 31)),
        ("consumer_epoch", (1 << 64) - 1),
        ("start_message_id", pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=5)),
        ("start_message_id", pb.MessageIdData(ledgerId=0, entryId=0)),
        ("start_message_id", pb.MessageIdData(ledgerId=1, entryId=(1 << 63) - 2)),
        ("start_message_id", pb.MessageIdData(ledgerId=1, entryId=(1 << 64) - 1)),
        ("start_message_id", pb.MessageIdData(ledgerId=1, entryId=0, ack_set=[0] * 1000)),
    ],
)
@pytest.mark.parametrize("durable", [True, False])
async def test_strange_values_of_subscribe_are_no_bugs(field, value, durable, caplog):
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.store(b"1", b"2")
        await client.subscribe(durable=durable, **{field: value})
        await client.ping()
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


@pytest.mark.parametrize(
    "target",
    [
        {"message_publish_time": (1 << 64) - 1},
        {"message_publish_time": 0},
        {"message_id": pb.MessageIdData(ledgerId=1, entryId=(1 << 63) - 2, ack_set=[0, 0, 4])},
        {"message_id": pb.MessageIdData(ledgerId=1, entryId=(1 << 63) - 2)},
        {"message_id": pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)},
        {"message_id": pb.MessageIdData(ledgerId=(1 << 64) - 5, entryId=3)},
        {"message_id": pb.MessageIdData(ledgerId=9, entryId=3)},
        {"message_id": pb.MessageIdData(ledgerId=0, entryId=0)},
        {"message_id": pb.MessageIdData(ledgerId=1, entryId=0, ack_set=[-(1 << 63)] * 3000)},
        {},
    ],
)
async def test_seeks_to_strange_positions_are_answered(target, caplog):
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.store(b"1", b"2")
        await client.subscribe(permits=10)
        await client.messages(2)
        client.send(
            encode_command(BaseCommand(type=BaseCommand.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=99, **target)))
        )
        await client.answer(99)
        await client.ping()
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


def requests(consumer: int) -> dict[str, bytes]:
    """Return frames of requests about a consumer; their request ids are those of the names."""
    return {
        "subscribe": client_commands.subscribe(
            1, CommandSubscribe(topic=TOPIC, subscription="s", subType=CommandSubscribe.Shared, consumer_id=consumer)
        ),
        "seek": client_commands.seek(2, consumer, to=(1, 0)),
        "unsubscribe": client_commands.unsubscribe(3, consumer),
        "close": client_commands.close_consumer(4, consumer),
    }


async def test_requests_in_every_order_leave_nothing_behind(caplog):
    async with serving() as served:
        other = await served.connect()
        await other.produce()
        await other.store(b"1", b"2", b"3")
        for size in (2, 3, 4):
            for names in itertools.permutations(requests(1), size):
                client = await served.connect()
                client.send(*(requests(1)[name] for name in names))
                for request in ("subscribe", "seek", "unsubscribe", "close"):
                    if request in names:
                        await client.answer(1 + list(requests(1)).index(request))
                await client.close()
        await until(lambda: not served.broker.subscriptions)
        assert not served.broker._partition_of
        assert not served.broker._locks
        await until(lambda: len(served.listener.port.connections) == 1)
        await other.subscribe(subscription="s", permits=10)
        await other.store(b"4")
        while (await other.message())[1] != b"4":
            pass
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}], caplog.text


async def test_a_producer_is_closed_before_the_next_command_is_handled():
    """CLOSE_PRODUCER and PRODUCER in one read: the second one opens a new producer."""
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        client.send(client_commands.close_producer(50, 1), client.producer_frame(51))
        await client.answer(50)
        assert (await client.answer(51)).producer_name
        assert await client.store(b"x")


async def test_requests_about_a_producer_in_every_order_leave_nothing_behind(caplog):
    frames = {
        1: lambda client: client.producer_frame(1, producer_name="n", user_provided_producer_name=True),
        2: lambda client: client.producer_frame(2, producer_name="n", user_provided_producer_name=True, epoch=1),
        3: lambda _: client_commands.close_producer(3, 1),
        4: lambda _: client_commands.close_producer(4, 1),
    }
    async with serving() as served:
        for size in (1, 2, 3, 4):
            for order in itertools.permutations(frames, size):
                client = await served.connect()
                client.send(*(frames[request](client) for request in order))
                for request in order:
                    await client.answer(request)
                await client.close()
                await until(lambda: not served.listener.port.connections)
        await until(lambda: not served.broker.producers)
        assert not served.broker._owned
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}], caplog.text


async def test_keep_alive_does_not_close_a_connection_that_was_asked_just_now():
    """Another client's wish for a name asks this client; the next tick of keep-alive waits for its own PING."""
    async with serving() as served:
        client = await served.connect()
        client.silent = True
        (session,) = served.listener.server._connections  # type: ignore[attr-defined]
        probe = asyncio.ensure_future(session.is_alive())
        await asyncio.sleep(0.01)
        session._tick()
        assert session._endpoint.alive
        client.send(client_commands.PONG)
        async with asyncio.timeout(PATIENCE_S):
            assert await probe


async def test_keep_alive_closes_a_connection_that_answers_nothing():
    async with serving() as served:
        client = await served.connect()
        client.silent = True
        (session,) = served.listener.server._connections  # type: ignore[attr-defined]
        await client.ping()
        session._tick()
        await asyncio.sleep(0.01)
        assert session._endpoint.alive
        session._tick()
        await client.wait_ended()
        assert session.state is ConnectionState.CLOSED


async def test_a_client_that_reads_nothing_does_not_fill_the_memory():
    """Receipts wait in our buffer while a client does not read them: then its sends are not read either."""
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        await client.produce()
        await other.produce(topic=TOPIC + "2")
        sessions = served.listener.server._connections  # type: ignore[attr-defined]
        session = next(each for each in sessions if each.peer == client.address)
        client.stop_reading()
        session._endpoint.limit_queued_bytes(1 << 14, 1 << 12)
        session._endpoint._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        frames = b"".join(entry_frame(b"", sequence) for sequence in range(2000))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(20):
                client.send(frames)
                await asyncio.sleep(0)
            while "unread" not in session._endpoint._reading_paused_by:
                await asyncio.sleep(0.02)
        assert await other.store(b"x")
        session._tick()
        session._tick()
        await until(lambda: not session._endpoint.alive)  # it has read nothing between two ticks


async def test_redeliveries_are_not_written_while_the_client_does_not_read():
    """Each request to deliver everything again costs a client 10 bytes, and would cost us all that it has."""
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.store(*[bytes(1 << 20)] * 12)
        await client.subscribe(permits=1 << 30)
        await client.messages(12)
        (session,) = served.listener.server._connections  # type: ignore[attr-defined]
        client.stop_reading()
        client.send(client_commands.redeliver(1, [], None) * 200)
        highest = 0
        for _ in range(100):
            highest = max(highest, session._endpoint.queued_bytes)
            await asyncio.sleep(0.005)
        assert highest < 64 << 20


@pytest.mark.parametrize("kind", ["producer", "subscribe", "reader"])
async def test_ten_thousand_requests_of_one_client(kind, monkeypatch):
    monkeypatch.setattr(connections, "MAX_HANDLERS", 300)
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        for number in range(400):
            if kind == "producer":
                client.send(client.producer_frame(number, producer=number))
            else:
                client.send(
                    client.subscribe_frame(number, consumer=number, subscription=f"s{number}", durable=kind == "subscribe")
                )
        answers = [await client.answer(number) for number in range(400)]
        assert sum(getattr(answer, "error", None) == codes.NOT_ALLOWED for answer in answers) == 100
        await other.produce(topic=TOPIC + "2")
        assert await other.store(b"x")
        await client.close()
        await until(lambda: not served.broker.subscriptions and not served.broker.readers)
        await until(lambda: len(served.broker._owned) == 1)
        assert not served.broker._locks


async def test_readers_count_as_subscriptions(monkeypatch):
    monkeypatch.setattr("mqbridge.pulsar.server.broker.MAX_SUBSCRIPTIONS", 3)
    async with serving() as served:
        client = await served.connect()
        for number in range(3):
            await client.subscribe(number, subscription=f"r{number}", durable=False)
        assert (await client.subscribe(4, subscription="r4", durable=False)).error == codes.NOT_ALLOWED
        assert (await client.subscribe(5, subscription="r5")).error == codes.NOT_ALLOWED


async def test_producers_that_wait_for_a_slow_backing_stop_the_reading(monkeypatch):
    """PRODUCER and CLOSE_PRODUCER of one id for ever: each opening is a request until it has ended."""
    monkeypatch.setattr(connections, "MAX_PENDING_REQUESTS", 20)
    async with serving() as served:
        client = await served.connect()
        gate = asyncio.Event()
        find = served.broker.services.topics.find

        async def slow(name, **fields):
            await gate.wait()
            return await find(name, **fields)

        monkeypatch.setattr(served.broker.services.topics, "find", slow)
        monkeypatch.setattr(served.broker.services.topics, "find_or_create", slow)
        for request in range(0, 200, 2):
            client.send(client.producer_frame(request), client_commands.close_producer(request + 1, 1))
            await asyncio.sleep(0.001)
        (session,) = served.listener.server._connections  # type: ignore[attr-defined]
        await until(lambda: session._endpoint.is_reading_paused)
        gate.set()
        for request in range(200):
            await client.answer(request)
        await client.ping()


async def test_a_bug_in_a_handler_ends_only_its_connection(monkeypatch, caplog):
    async with serving() as served:
        client, other = await served.connect(), await served.connect()

        def fail(*_):
            raise ZeroDivisionError

        await client.produce()
        await client.subscribe()
        monkeypatch.setattr(served.broker, "make_consumer", fail)
        client.send(client.subscribe_frame(9, consumer=9))
        await client.wait_ended()
        await other.ping()
        await until(lambda: not served.broker.subscriptions and not served.broker.producers)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "command",
    [
        client_commands.ack(1, True, [ids.message_id(-1, -1)], 7),
        client_commands.ack(1, True, [ids.message_id(5, 0)], 7),
        client_commands.ack(1, True, [ids.message_id(1, 1 << 40)], 7),
        client_commands.ack(1, True, [ids.message_id(-5, 3)], 7),
        client_commands.ack(1, True, [ids.message_id(1, -1)], 7),
        client_commands.ack(1, True, [], 7),
        client_commands.ack(1, True, [ids.message_id(1, 0), ids.message_id(1, 2)], 7),
        client_commands.ack(1, False, [], 7),
        client_commands.ack(1, False, [ids.message_id(1, 1 << 40), ids.message_id(-1, -1), ids.message_id(9, 9)], 7),
        client_commands.ack(1, False, [ids.message_id(1, 0, [0, 0, 0, 0, -1])], 7),
        client_commands.ack(1, False, [ids.message_id(1, 0, [-1] * 50_000)], 7),
        client_commands.ack(1, True, [ids.message_id(1, 0, [-1])], 7),
    ],
    ids=range(12),
)
async def test_acknowledgements_of_what_never_existed_lose_nothing(command):
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.subscribe(permits=1)
        stored = await client.store(b"1", b"2", b"3")
        await client.messages(1)
        client.send(command)
        assert not (await client.answer(7)).HasField("error")
        await client.close()
        other = await served.connect()
        await until(lambda: not served.broker.subscriptions)
        await other.subscribe(permits=10)
        assert await other.messages(3) == [b"1", b"2", b"3"]
        assert stored


@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
@pytest.mark.parametrize("is_cumulative", [True, False])
async def test_acknowledgements_right_behind_the_close_of_their_consumer_count(owns_groups: bool, is_cumulative: bool) -> None:
    """So does the client for Java send them when its timer and its close meet."""
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await client.produce()
        await client.subscribe(1, permits=10)
        await client.store(b"1", b"2", b"3")
        entries = [(await client.message())[0] for _ in range(3)]
        acknowledged = entries[1:2] if is_cumulative else [entries[0], entries[1]]
        client.send(
            client_commands.close_consumer(request := client.number(), 1)
            + client_commands.ack(1, is_cumulative, [ids.message_id(*entry) for entry in acknowledged], None)
        )
        await client.answer(request)
        await client.subscribe(2, permits=10)
        assert await client.messages(1) == [b"3"]


async def test_a_late_acknowledgement_leaves_alone_what_another_consumer_has() -> None:
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        await client.produce()
        await client.subscribe(1, permits=10, subType=CommandSubscribe.Shared)
        await client.store(b"1")
        entry, _ = await client.message()
        await other.subscribe(1, permits=10, subType=CommandSubscribe.Shared)
        client.send(client_commands.close_consumer(request := client.number(), 1))
        await client.answer(request)
        assert (await other.message())[0] == entry
        client.send(client_commands.ack(1, False, [ids.message_id(*entry)], None))
        await client.ping()
        other.send(client_commands.redeliver(1, [ids.message_id(*entry)], None))
        assert (await other.message())[0] == entry


async def test_an_acknowledgement_long_after_the_close_of_its_consumer_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LATE_ACK_S", -1.0)
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.subscribe(1, permits=10)
        await client.store(b"1", b"2")
        entry, _ = [(await client.message())[0] for _ in range(2)]
        client.send(client_commands.close_consumer(request := client.number(), 1))
        await client.answer(request)
        client.send(client_commands.ack(1, False, [ids.message_id(*entry)], None))
        await client.subscribe(2, permits=10)
        assert await client.messages(2) == [b"1", b"2"]


async def test_a_late_acknowledgement_leaves_alone_what_comes_again_after_a_seek() -> None:
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        await client.produce()
        await client.subscribe(1, permits=10, subType=CommandSubscribe.Shared)
        await client.store(b"1", b"2")
        _, second = [(await client.message())[0] for _ in range(2)]
        await other.subscribe(1, subType=CommandSubscribe.Shared)
        client.send(client_commands.close_consumer(request := client.number(), 1))
        await client.answer(request)
        other.send(client_commands.seek(request := other.number(), 1, to=(-1, -1)))
        await other.answer(request)
        await other.of(BaseCommand.CLOSE_CONSUMER)
        await other.subscribe(2, permits=1, subType=CommandSubscribe.Shared)
        assert await other.messages(1) == [b"1"]
        client.send(client_commands.ack(1, False, [ids.message_id(*second)], None))
        await client.ping()
        other.send(client_commands.flow(2, 1))
        assert await other.messages(1) == [b"2"]
