"""The connection of a client: requests and answers, requests of the server, and what a client may use."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.errors import ConnectionLost, PeerSilent
from mqbridge.listener.limits import InFlightBytes
from mqbridge.rocketmq.server import connection as module
from mqbridge.rocketmq.server.connection import ConnectionState, ServedConnection, host_of
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.wire.bodies.groups import ConsumerList
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import MAX_FRAME_BYTES, ONEWAY, RESPONSE, Command, decode, encode
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from tests.rocketmq.server.serving import GROUP, PULL_FREE, PULL_HELD, RocketMQServing, rounds, serving, until


class FakeRemotingEndpoint:
    """An endpoint without a socket."""

    def __init__(self) -> None:
        self.peer, self.local_address = "10.0.0.9:1000", "10.0.0.1:9876"
        self.alive, self.is_writable, self.is_reading_paused = True, True, False
        self.received_at = asyncio.get_running_loop().time()
        self.written: list[bytes] = []
        self.paused: list[str] = []
        self.error: Exception | None = None
        self.handshakes = 0
        self.room = asyncio.Event()

    def handshake_done(self) -> None:
        self.handshakes += 1

    def reply(self, *pieces: bytes) -> None:
        self.written.append(b"".join(pieces))

    def try_send(self, *pieces: bytes) -> bool:
        self.reply(*pieces)
        return True

    def send(self, *pieces: bytes) -> None:
        if not self.alive:
            raise ConnectionLost("it has ended")
        self.reply(*pieces)

    def pause_reading(self, reason: str) -> None:
        if reason not in self.paused:
            self.paused.append(reason)

    def resume_reading(self, reason: str) -> None:
        if reason in self.paused:
            self.paused.remove(reason)

    async def wait_for_room(self) -> None:
        await self.room.wait()

    def abort(self, error: Exception) -> None:
        self.alive, self.error = False, error

    async def close(self) -> None:
        self.alive = False

    @property
    def commands(self) -> list[Command]:
        return [decode(each) for each in self.written]


class Opened:
    """A connection over a fake endpoint, with handlers that a test sets."""

    def __init__(self, handlers: dict[int, Any], patient: frozenset[int] = frozenset()) -> None:
        self.changes: list[bool] = []
        self.endpoint = FakeRemotingEndpoint()
        self.in_flight = InFlightBytes(1000)
        self.connection = ServedConnection(handlers, patient, self._on_change, self.in_flight)
        self.connection.on_connected(self.endpoint)  # type: ignore[arg-type]

    def _on_change(self, _: ServedConnection, is_open: bool) -> None:
        self.changes.append(is_open)

    def receive(self, *commands: Command, binary: bool = False) -> None:
        self.connection.on_frames([encode(each, binary=binary) for each in commands])

    async def answers(self, count: int) -> list[Command]:
        await until(lambda: len(self.endpoint.written) >= count)
        return self.endpoint.commands


def echo(_: ServedConnection, request: Command) -> Command:
    return request.answer(0, {"seen": "1"}, request.body)


# --- requests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
async def test_a_request_is_answered_with_its_number_and_in_its_encoding(binary: bool) -> None:
    opened = Opened({7: echo})
    opened.receive(Command(7, {}, b"body", opaque=31), binary=binary)
    (data,) = opened.endpoint.written
    answer = decode(data)
    assert data[4] == binary
    assert (answer.code, answer.opaque, answer.flag, answer.ext, answer.body) == (0, 31, RESPONSE, {"seen": "1"}, b"body")
    assert opened.endpoint.handshakes == 1


@pytest.mark.parametrize("binary", [False, True])
async def test_clients_are_answered_over_a_socket_in_either_encoding(binary: bool) -> None:
    async with serving() as served:
        client = await served.connect()
        client.binary = binary
        answer = await client.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))
        assert (answer.code, answer.binary) == (Status.SYSTEM_ERROR, binary)


async def test_an_unknown_request_is_refused_with_its_number() -> None:
    async with serving() as served:
        client = await served.connect()
        answer = await client.ask(987)
        assert (answer.code, answer.remark) == (Status.REQUEST_CODE_NOT_SUPPORTED, "request 987 is not supported")
        assert served.server.counts.refused_requests == 1
        await client.close()
        await until(lambda: not served.server._connections)
        assert served.server.counts.refused_requests == 1, "a connection that has ended still counts"


def fail(error: Exception) -> Any:
    def handler(_: ServedConnection, __: Command) -> Command:
        raise error

    return handler


async def test_errors_are_answered_whether_a_handler_waits_or_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_later(_: ServedConnection, __: Command) -> Command:
        raise CodedRefusal("no", Status.NO_PERMISSION)

    opened = Opened({1: fail(CodedRefusal("no", Status.NO_PERMISSION)), 2: fail_later, 3: fail(ZeroDivisionError("bug"))})
    opened.receive(Command(1, opaque=1), Command(2, opaque=2), Command(3, opaque=3))
    answers = {each.opaque: (each.code, each.remark) for each in await opened.answers(3)}
    assert answers == {1: (16, "no"), 2: (16, "no"), 3: (1, "bug")}
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]
    assert opened.connection.refused_requests == 3


async def test_oneway_requests_are_never_answered() -> None:
    async def later(_: ServedConnection, request: Command) -> Command:
        return request.answer()

    opened = Opened({1: echo, 2: later, 3: fail(CodedRefusal("no", 1)), 7: echo})
    opened.receive(*(Command(code, flag=ONEWAY, opaque=code) for code in (1, 2, 3, 4)), Command(7, opaque=7))
    await until(lambda: not opened.connection._tasks)
    assert [each.opaque for each in opened.endpoint.commands] == [7]
    assert opened.connection.refused_requests == 2, "they count as refused all the same"


async def test_an_answer_that_does_not_fit_becomes_an_error() -> None:
    opened = Opened({7: lambda _, request: request.answer(body=bytes(MAX_FRAME_BYTES))})
    opened.receive(Command(7, opaque=5))
    (answer,) = opened.endpoint.commands
    assert (answer.code, answer.opaque) == (Status.SYSTEM_ERROR, 5)
    assert "exceeds" in (answer.remark or "")


async def test_a_remark_that_is_no_text_becomes_an_error_in_both_encodings() -> None:
    opened = Opened({7: lambda _, request: request.answer(remark="\ud800")})
    opened.receive(Command(7, opaque=5))
    opened.receive(Command(7, opaque=6), binary=True)
    assert [(each.code, each.opaque) for each in opened.endpoint.commands] == [(1, 5), (1, 6)]


async def test_a_request_that_is_not_done_in_time_is_answered_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    gate = asyncio.Event()

    async def wait(_: ServedConnection, request: Command) -> Command:
        await gate.wait()
        return request.answer()

    opened = Opened({1: wait, 2: wait}, frozenset({2}))
    opened.receive(Command(1, opaque=1), Command(2, opaque=2))
    (busy,) = await opened.answers(1)
    assert (busy.opaque, busy.code) == (1, Status.SYSTEM_BUSY)
    gate.set()
    assert [(each.opaque, each.code) for each in await opened.answers(2)][1] == (2, 0), "this one limits its time itself"


async def test_the_end_of_a_connection_ends_its_pulls() -> None:
    ended = []

    async def wait(_: ServedConnection, __: Command) -> Command:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    opened = Opened({Code.PULL_MESSAGE: wait}, frozenset({Code.PULL_MESSAGE}))
    opened.receive(Command(Code.PULL_MESSAGE))
    await rounds()
    opened.connection.on_lost(ConnectionLost("gone"))
    await until(lambda: ended == [True])
    assert opened.changes == [True, False]
    assert opened.connection.state is ConnectionState.CLOSED
    assert opened.connection._idle is not None
    assert opened.connection._idle.cancelled()
    assert not opened.connection.alive
    assert opened.endpoint.written == []


async def test_what_is_no_frame_ends_the_connection() -> None:
    async with serving() as served:
        client = await served.connect()
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await client.wait_ended()
        other = await served.connect()
        other.writer.write((20).to_bytes(4) + (4).to_bytes(4) + b"{]  " + bytes(12))
        await other.wait_ended()
        await until(lambda: not served.server._connections)


async def test_the_language_and_version_of_a_client_are_those_of_its_requests() -> None:
    opened = Opened({7: echo})
    opened.receive(Command(7, language="GO", version=317))
    opened.receive(Command(1, flag=RESPONSE, language="CPP", version=1))
    assert (opened.connection.language, opened.connection.version) == ("GO", 317)
    assert (opened.connection.peer, opened.connection.address) == ("10.0.0.9:1000", "10.0.0.1:9876")
    assert opened.connection.host == bytes((10, 0, 0, 1)) + (9876).to_bytes(4)


def test_an_address_that_is_no_ip_address_becomes_the_unknown_host() -> None:
    assert host_of("/run/socket") == bytes(8)
    assert host_of("[::1]:5") == bytes(15) + b"\1" + (5).to_bytes(4)


# --- our own requests -----------------------------------------------------------------------------------------------------


async def test_a_request_to_the_client_is_answered_by_its_number() -> None:
    opened = Opened({})
    first, second = (asyncio.create_task(opened.connection.ask(307, GroupHeader(GROUP))) for _ in range(2))
    sent = await opened.answers(2)
    assert len({each.opaque for each in sent}) == 2
    assert not any(each.is_oneway or each.is_response for each in sent)
    opened.receive(Command(0, body=b"second", flag=RESPONSE, opaque=sent[1].opaque))
    opened.receive(Command(0, flag=RESPONSE, opaque=4711), Command(0, body=b"first", flag=RESPONSE, opaque=sent[0].opaque))
    assert ((await first).body, (await second).body) == (b"first", b"second")
    opened.receive(Command(0, flag=RESPONSE, opaque=sent[0].opaque))
    assert opened.connection._forwarded == {}
    assert len(opened.endpoint.written) == 2, "answers are not answered"


async def test_a_request_to_the_client_ends_with_its_time_or_the_connection() -> None:
    opened = Opened({})
    with pytest.raises(TimeoutError):
        await opened.connection.ask(307, GroupHeader(GROUP), timeout_s=0.0)
    assert opened.connection._forwarded == {}
    waiting = asyncio.create_task(opened.connection.ask(307, GroupHeader(GROUP)))
    await opened.answers(2)
    opened.connection.on_lost(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await waiting


async def test_a_client_that_does_not_answer_gets_no_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FORWARDED", 1)
    opened = Opened({})
    waiting = asyncio.create_task(opened.connection.ask(307, GroupHeader(GROUP)))
    (sent,) = await opened.answers(1)
    with pytest.raises(CodedRefusal) as refused:
        await opened.connection.ask(307, GroupHeader(GROUP))
    assert refused.value.code == Status.SYSTEM_BUSY
    opened.receive(Command(0, flag=RESPONSE, opaque=sent.opaque))
    await waiting


async def test_a_notice_is_oneway() -> None:
    opened = Opened({})
    opened.connection.notify(40, GroupHeader(GROUP), b"x")
    opened.connection.notify(40, GroupHeader(GROUP))
    first, second = opened.endpoint.commands
    assert (first.code, first.is_oneway, first.is_response, first.body) == (40, True, False, b"x")
    assert first.opaque != second.opaque


# --- limits ---------------------------------------------------------------------------------------------------------------


async def test_a_client_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.04)
    opened = Opened({7: echo})
    await until(lambda: opened.endpoint.error is not None)
    assert isinstance(opened.endpoint.error, PeerSilent)
    assert "sent nothing" in str(opened.endpoint.error)


async def test_a_client_that_sends_is_not_disconnected() -> None:
    opened = Opened({})
    timer = opened.connection._idle
    opened.connection._check_idle()
    assert opened.endpoint.error is None
    assert opened.connection._idle is not timer, "it is looked at again"
    opened.endpoint.received_at -= module.IDLE_S + 1
    opened.endpoint.is_reading_paused = True
    opened.connection._check_idle()
    assert opened.endpoint.error is None, "we do not read what it sends"
    opened.endpoint.is_writable = False
    opened.connection._check_idle()
    assert "read nothing" in str(opened.endpoint.error)


async def test_nothing_is_read_while_too_many_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 4)
    gates = [asyncio.Event() for _ in range(4)]

    async def wait(_: ServedConnection, request: Command) -> Command:
        await gates[request.opaque].wait()
        return request.answer()

    opened = Opened({1: wait}, frozenset({1}))
    opened.receive(*(Command(1, opaque=index) for index in range(3)))
    assert opened.endpoint.paused == []
    opened.receive(Command(1, opaque=3))
    assert opened.endpoint.paused == ["requests"]
    gates[0].set()
    gates[1].set()
    await opened.answers(2)
    await rounds()
    assert opened.endpoint.paused == ["requests"], "half of them still run"
    gates[2].set()
    await until(lambda: opened.endpoint.paused == [])
    gates[3].set()
    await opened.answers(4)


async def test_nothing_is_read_from_a_client_that_does_not_read() -> None:
    opened = Opened({7: echo})
    opened.endpoint.is_writable = False
    opened.receive(Command(7))
    assert opened.endpoint.paused == ["unread"]
    await rounds()
    opened.receive(Command(7))
    assert opened.endpoint.paused == ["unread"]
    opened.endpoint.is_writable = True
    opened.endpoint.room.set()
    await until(lambda: opened.endpoint.paused == [])


def queued(served: RocketMQServing) -> int:
    (connection,) = served.server._connections
    return connection._endpoint.queued_bytes


async def test_a_client_that_reads_nothing_cannot_grow_memory() -> None:
    """It may have many pulls out at once, each of which gets as much as an answer has."""
    async with serving() as served:
        client, producer = await served.connect("c"), await served.connect("p")
        await producer.store(*[bytes(1 << 20)] * 2)
        await producer.close()
        await until(lambda: len(served.server._connections) == 1)
        client.stop_reading()
        for _ in range(100):
            client.start_pull(0, max_msg_bytes=4 << 20)
        (connection,) = served.server._connections
        await until(lambda: not connection.has_room)
        for _ in range(5):
            await rounds(100)
            client.start_pull(0, max_msg_bytes=4 << 20)
        assert queued(served) < 24 << 20


async def test_pulls_that_wait_cannot_grow_the_memory_for_a_client_that_reads_nothing() -> None:
    async with serving() as served:
        client, producer = await served.connect("c"), await served.connect("p")
        await served.create()
        for _ in range(100):
            client.start_pull(0, sys_flag=PULL_FREE | PULL_HELD, max_msg_bytes=4 << 20)
        await client.settle()
        pulls = served.server.pulls.all_of(GROUP, "t")
        await until(lambda: len(pulls[0]._waiting) == 100)
        client.stop_reading()
        connection = next(each for each in served.server._connections if each.peer == client.address)
        await producer.store(bytes(1 << 20))
        await until(lambda: not connection.has_room)
        await rounds(500)
        assert connection._endpoint.queued_bytes < 24 << 20


async def test_too_many_bytes_in_flight_stop_the_reading() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.settle()
        (connection,) = served.server._connections
        served.listener.in_flight.add(served.listener.in_flight.limit)
        waiting = client.start(987)
        await until(lambda: connection._endpoint.is_reading_paused)
        again = client.start(987)
        await client.answer(waiting)
        await rounds(200)
        assert not client.has(again)
        served.listener.in_flight.release(served.listener.in_flight.limit)
        await client.answer(again)


async def test_the_answer_to_a_client_that_is_gone_is_dropped() -> None:
    opened = Opened({})
    opened.endpoint.alive = False
    opened.connection.answer(Command(1), Command(1).answer())
    assert opened.endpoint.written == []


async def test_members_are_listed_in_json() -> None:
    async with serving() as served:
        client = await served.connect("me")
        await client.join("t")
        answer = await client.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))
        assert ConsumerList.decode(answer.body) == ConsumerList(("me",))
        assert SimpleNamespace(**served.server.describe()).subscriptions[0]["consumers"][0]["name"] == "me"
