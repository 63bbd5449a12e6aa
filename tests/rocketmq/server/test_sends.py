"""Sends: messages and batches are stored in their queue, and answered when they are."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.listener import publish_queues
from mqbridge.listener.publish_queues import PendingSend, PublishQueue
from mqbridge.listener.publisher import Publisher, Stored
from mqbridge.rocketmq.server import broker as broker_module
from mqbridge.rocketmq.server import connection as connection_module
from mqbridge.rocketmq.server import sends as module
from mqbridge.rocketmq.server.physical_offsets import physical_offset
from mqbridge.rocketmq.server.sends import properties_of, refused, unique_id_of
from mqbridge.rocketmq.server.support import NO_DELAY
from mqbridge.rocketmq.wire.batch import encode_element
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendResultHeader
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name, find, join
from tests.rocketmq.server.serving import (
    PULL_FREE,
    PULL_HELD,
    RocketMQServing,
    batch_of,
    bodies_of,
    rounds,
    send_header,
    serving,
    until,
)


class HeldPublications:
    """Publications that are stored when a test lets them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[Any, ...]] = []
        self.withdrawn: list[Any] = []
        self._patch, self._publish = patch, Publisher.publish
        held = self

        def publish(publisher: Publisher, partition: int, batch: Any, done: Any, *, deliver_at: int | None = None) -> Any:
            held.held.append((publisher, partition, batch, done, deliver_at))
            return held.held[-1]

        patch.setattr(Publisher, "publish", publish)
        patch.setattr(Publisher, "withdraw", lambda _, publication: held.withdrawn.append(publication))

    def release(self) -> None:
        """Store what was held, and hold nothing more."""
        self._patch.setattr(Publisher, "publish", self._publish)
        held, self.held = self.held, []
        for publisher, partition, batch, done, deliver_at in held:
            self._publish(publisher, partition, batch, done, deliver_at=deliver_at)

    def answer(self, stored: Stored) -> None:
        for *_, done, _deliver_at in self.held:
            done(stored)
        self.held.clear()


async def remark_of(
    served: RocketMQServing, body: bytes = b"x", topic: str = "t", queue: int = 0, **fields: Any
) -> tuple[int, str]:
    client = served.clients[0] if served.clients else await served.connect()
    answer = await client.send(body, topic, queue, **fields)
    return answer.code, answer.remark or ""


# --- messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
async def test_a_message_comes_back_as_it_was_sent(code: int) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        properties = [(Name.UNIQ_KEY, "ID"), (Name.TAGS, "A"), (Name.KEYS, "k"), ("mine", "ü")]
        header = send_header("t", 1, properties=properties, flag=7, sys_flag=1 | 0x300)
        ext = header.encode_v1() if code == Code.SEND_MESSAGE else header.encode()
        answer = await client.ask(code, ext, b"compressed")
        result = SendResultHeader.decode(answer.ext)
        assert (answer.code, result.queue_id, result.queue_offset, result.transaction_id) == (0, 1, 0, "ID")
        assert (result.region, result.trace_on) == ("DefaultRegion", True)
        pulled = await client.pull(0, queue=1)
        from mqbridge.rocketmq.wire.neutral_record import _split

        content = _split(pulled.body, 0).content
        assert (content.body, content.flag, content.sys_flag, content.born_timestamp) == (
            b"compressed",
            7,
            0x301,
            1_700_000_000_000,
        )
        assert [find(content.properties, name) for name, _ in properties] == ["ID", "A", "k", "ü"]
        assert [find(content.properties, name) for name in (Name.CLUSTER, Name.MSG_REGION)] == ["DefaultCluster", "DefaultRegion"]
        host, offset = parse_offset_id(result.msg_id)
        assert host == bytes((127, 0, 0, 1)) + served.listener.port.port.to_bytes(4)
        assert offset == served.broker.services.numbering.number((0,)) + physical_offset(
            module.queue_name(await served.broker.readable_topic("t"), 1), 0
        )


async def test_a_message_without_a_unique_id_gets_one() -> None:
    async with serving() as served:
        client = await served.connect()
        first, second = await client.store(b"a", b"b", properties=[("k", "v")])
        (third,) = await client.store(b"c")
        records = await client.read(0)
        made = [find(record.properties, Name.UNIQ_KEY) for record in records]
        assert made == [first.transaction_id, second.transaction_id, third.transaction_id]
        assert len(set(made)) == 3
        assert all(each is not None and len(each) == 32 for each in made)
        assert find(records[0].properties, "k") == "v"


async def test_a_property_string_without_an_end_gets_one_before_the_id() -> None:
    requests = module.SendRequests(Mock())
    assert requests.with_id(b"a\x01b").startswith(b"a\x01b\x02UNIQ_KEY\x01")
    assert requests.with_id(b"a\x01b\x02").startswith(b"a\x01b\x02UNIQ_KEY\x01")
    assert requests.with_id(b"").startswith(b"UNIQ_KEY\x01")
    assert requests.with_id(b"UNIQ_KEY\x01x\x02") == b"UNIQ_KEY\x01x\x02"


async def test_a_client_that_has_not_chosen_gets_any_queue() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        chosen = {SendResultHeader.decode((await client.send(b"x", queue=-1)).ext).queue_id for _ in range(40)}
        assert chosen == {0, 1}


async def test_a_batch_is_stored_together_and_has_the_ids_of_all() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"before")
        for code, fields in ((Code.SEND_BATCH_MESSAGE, {}), (Code.SEND_MESSAGE_V2, {"batch": True})):
            answer = await client.send(batch_of(b"a", b"b", b"c"), code=code, **fields)
            result = SendResultHeader.decode(answer.ext)
            ids = [parse_offset_id(each)[1] for each in result.msg_id.split(",")]
            assert (answer.code, result.transaction_id, len(ids)) == (0, None, 3)
            assert [each - ids[0] for each in ids] == [0, 1, 2]
            records = await client.read(result.queue_offset)
            assert bodies_of(records) == [b"a", b"b", b"c"]
            assert [record.physical_offset for record in records] == ids
            assert [find(record.properties, Name.UNIQ_KEY) for record in records] == ["B0", "B1", "B2"]
        assert served.server.counts.received_messages == 7


async def test_a_batch_of_one_has_its_unique_id() -> None:
    async with serving() as served:
        client = await served.connect()
        answer = await client.send(batch_of(b"a"), code=Code.SEND_BATCH_MESSAGE)
        assert SendResultHeader.decode(answer.ext).transaction_id == "B0"


async def test_oneway_messages_are_stored() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        client.oneway(Code.SEND_MESSAGE_V2, send_header(), b"a")
        assert bodies_of(await client.read_all(1)) == [b"a"]
        await client.settle()
        assert not served.server.sends.is_any_pending


# --- errors ---------------------------------------------------------------------------------------------------------------


async def test_what_no_broker_accepts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "MAX_MESSAGE_BYTES", 100)
    illegal = Status.MESSAGE_ILLEGAL
    async with serving(create_partitions=None) as served:
        await served.create(queues=2)
        assert await remark_of(served, b"") == (illegal, "the message has no body")
        assert await remark_of(served, bytes(101)) == (illegal, "the body has 101 bytes, and at most 100 are accepted")
        assert (await remark_of(served, bytes(100)))[0] == 0
        over = "k\x01" + "v" * MAX_BYTES
        assert (await remark_of(served, properties=over))[0] == illegal
        assert (await remark_of(served, queue=2)) == (Status.INVALID_PARAMETER, "topic t has no queue 2: its queues are 0 to 1")
        assert (await remark_of(served, topic="x")) == (Status.TOPIC_NOT_EXIST, "topic x does not exist")
        assert (await remark_of(served, topic="TBW102"))[0] == illegal
        batch = {"code": Code.SEND_BATCH_MESSAGE}
        assert (await remark_of(served, batch_of(bytes(90)), **batch))[0] == illegal
        assert (await remark_of(served, b"", **batch)) == (illegal, "the batch has no messages")
        assert (await remark_of(served, b"xxxx", **batch))[0] == Status.SYSTEM_ERROR
        assert (await remark_of(served, batch_of(b"x"), topic="%RETRY%g", **batch))[0] == illegal
        assert (await remark_of(served, properties="DELAY\x01x\x02"))[0] == illegal
        assert not served.server.sends.is_any_pending
        await until(lambda: served.server.sends._pending == {})


async def test_the_properties_of_a_message_are_as_long_as_clients_can_read() -> None:
    unique, most = f"{Name.UNIQ_KEY}\x01I\x02", MAX_BYTES - len("k\x01\x02")
    async with serving() as served:
        client = await served.connect()
        await served.create()
        for properties, code in (
            (unique + "k\x01" + "v" * (most - len(unique)) + "\x02", 0),
            (unique + "k\x01" + "v" * (most - len(unique) + 1) + "\x02", Status.MESSAGE_ILLEGAL),
            ("k\x01" + "v" * most + "\x02", Status.MESSAGE_ILLEGAL),  # the unique id has no room
        ):
            assert (await client.send(b"x", properties=properties)).code == code
        longer = encode_element(b"y", b"")[:-2] + (MAX_BYTES + 1).to_bytes(2) + b"k\1" + b"v" * (MAX_BYTES - 2) + b"\2"
        longer = len(longer).to_bytes(4) + longer[4:]
        answer = await client.send(batch_of(b"x") + longer, code=Code.SEND_BATCH_MESSAGE)
        assert (answer.code, "properties" in (answer.remark or "")) == (Status.MESSAGE_ILLEGAL, True)
        assert bodies_of(await client.read_all(1)) == [b"x"]
        assert await served.stored("mqbridge-dead-app") == []


async def test_a_message_without_a_header_is_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await client.ask(Code.SEND_MESSAGE_V2, {"b": "t"}, b"x")).code == Status.SYSTEM_ERROR
        assert not served.server.sends.is_any_pending


async def test_delays_that_nothing_can_do_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        await served.create()
        monkeypatch.setattr(type(served.listener.parking), "is_supported", property(lambda _: False))
        client = await served.connect()
        answer = await client.send(b"x", properties=[(Name.DELAY, "3")])
        assert (answer.code, answer.remark) == (Status.MESSAGE_ILLEGAL, NO_DELAY)
        assert (await client.send(b"x", properties=[(Name.DELAY, "0")])).code == 0
        assert not served.server.sends.is_any_pending


async def test_a_delayed_message_waits_and_is_answered_before() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        answer = await client.send(b"late", properties=[(Name.TIMER_DELAY_MS, "300"), (Name.UNIQ_KEY, "ID")])
        result = SendResultHeader.decode(answer.ext)
        assert (answer.code, result.transaction_id, result.queue_offset) == (0, "ID", 0)
        await client.store(b"early")
        assert bodies_of(await client.read_all(2)) == [b"early", b"late"]
        assert not served.server.sends.is_any_pending


async def test_a_delayed_message_that_is_not_stored_in_time_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    deposits = []
    async with serving() as served:
        client = await served.connect()
        await served.create()
        monkeypatch.setattr(served.listener.parking, "deposit", lambda *args: deposits.append(args))
        answer = await client.send(b"late", properties=[(Name.DELAY, "1")])
        assert answer.code == Status.SYSTEM_BUSY
        deposits[0][-1](None)
        await client.settle()
        assert client.received == [], "it is answered once"
        assert not served.server.sends.is_any_pending


async def test_a_backing_that_delays_gets_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        monkeypatch.setattr(type(served.listener.parking), "is_supported", property(lambda _: False))
        object.__setattr__(served.broker.services, "delays", lambda: True)
        held = HeldPublications(monkeypatch)
        waiting = client.start_send(b"x", properties=[(Name.DELAY, "1")])
        await until(lambda: len(held.held) == 1)
        assert held.held[0][-1] > 1_700_000_000_000
        held.answer(Stored(problem=ClusterError("no", Failure.REFUSED)))
        assert (await client.answer(waiting)).code == Status.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("failure", "code"),
    [(Failure.REFUSED, Status.MESSAGE_ILLEGAL), (Failure.RETRY, Status.SYSTEM_BUSY), (Failure.FATAL, Status.SYSTEM_ERROR)],
)
def test_a_problem_of_the_cluster_has_its_code(failure: Failure, code: int) -> None:
    answer = refused(Command(310, opaque=4), ClusterError("why", failure))
    assert (answer.code, answer.remark, answer.opaque) == (code, "why", 4)


# --- gathering ------------------------------------------------------------------------------------------------------------


async def test_sends_of_several_connections_are_stored_together_and_answered_each_with_its_own_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as served:
        clients = [await served.connect(str(index)) for index in range(2)]
        await clients[0].store(b"first")
        held = HeldPublications(monkeypatch)
        for client in clients:
            await client.settle()
        connections = {each.peer: each for each in served.server._connections}
        sent = [(0, [b"a"]), (1, [b"b", b"c"]), (0, [b"d"])]
        for index, (owner, bodies) in enumerate(sent):
            body = bodies[0] if len(bodies) == 1 else batch_of(*bodies)
            header = send_header(batch=len(bodies) > 1, properties=[] if len(bodies) > 1 else [(Name.UNIQ_KEY, f"S{index}")])
            command = Command(Code.SEND_MESSAGE_V2, header.encode(), body, opaque=900 + index)
            served.server.sends.serve(connections[clients[owner].address], command)
        await until(lambda: len(held.held) == 1)
        await rounds()
        assert len(held.held) == 1, "one publication for all"
        assert served.server.sends.is_any_pending
        held.release()
        answers = [
            SendResultHeader.decode((await clients[owner].answer(900 + index)).ext) for index, (owner, _) in enumerate(sent)
        ]
        assert [answer.queue_offset for answer in answers] == [1, 2, 4]
        assert [answer.transaction_id for answer in answers] == ["S0", None, "S2"]
        records = await clients[0].read(0)
        assert bodies_of(records) == [b"first", b"a", b"b", b"c", b"d"]
        for answer, count in zip(answers, (1, 2, 1), strict=True):
            offsets = [parse_offset_id(each)[1] for each in answer.msg_id.split(",")]
            assert offsets == [record.physical_offset for record in records[answer.queue_offset :][:count]]
        assert not served.server.sends.is_any_pending


async def test_large_sends_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_queues, "GATHERED_BYTES", 1000)
    async with serving() as served:
        client = await served.connect()
        await client.store(b"first")
        held = HeldPublications(monkeypatch)
        waiting = [client.command(Code.SEND_MESSAGE_V2, send_header(), bytes(400)) for _ in range(4)]
        client.write(*waiting)
        await until(lambda: sum(batch.count for _, _, batch, *_ in held.held) == 4)
        assert max(batch.count for _, _, batch, *_ in held.held) == 1, "each has 100 bytes more than its body"
        held.release()
        for index, command in enumerate(waiting):
            assert SendResultHeader.decode((await client.answer(command.opaque)).ext).queue_offset == index + 1


# --- time and room --------------------------------------------------------------------------------------------------------


async def test_what_is_not_stored_in_time_is_answered_as_busy_and_withdrawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"first")
        held = HeldPublications(monkeypatch)
        monkeypatch.setattr(module, "ANSWER_S", 0.02)
        waiting = client.start_send(b"slow")
        answer = await client.answer(waiting)
        assert (answer.code, "in time" in (answer.remark or "")) == (Status.SYSTEM_BUSY, True)
        assert held.withdrawn == held.held
        assert len(held.withdrawn) == 1
        assert not served.server.sends.is_any_pending
        held.answer(Stored(((5,),)))
        await client.settle()
        assert client.received == [], "it is answered once"
        assert not served.server.sends.is_any_pending


async def test_what_is_stored_in_time_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = []
    call_at = asyncio.get_running_loop().call_at

    def note(when: float, *args: Any, **context: Any) -> asyncio.TimerHandle:
        timer = call_at(when, *args, **context)
        if getattr(args[0], "__name__", "") == "_on_slow":
            timers.append(timer)
        return timer

    async with serving() as served:
        client = await served.connect()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_at", note)
        await client.store(b"a")
        assert [timer.cancelled() for timer in timers] == [True]


async def test_nothing_is_read_from_a_client_with_many_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_SENDS", 4)
    async with serving() as served:
        client = await served.connect()
        await client.store(b"first")
        held = HeldPublications(monkeypatch)
        (connection,) = served.server._connections
        waiting = [client.start_send(b"x") for _ in range(3)]
        await client.settle()
        assert not connection._endpoint.is_reading_paused
        waiting.append(client.start_send(b"x"))
        await until(lambda: connection._endpoint.is_reading_paused)
        held.release()
        for each in waiting:
            assert (await client.answer(each)).code == 0
        assert not connection._endpoint.is_reading_paused
        await client.settle()


async def test_nothing_is_taken_while_the_listener_is_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"first")
        held = HeldPublications(monkeypatch)
        waiting = client.start_send(b"in flight")
        await until(lambda: len(held.held) == 1)
        drain = asyncio.create_task(served.server.drain(asyncio.get_running_loop().time() + 60))
        await until(lambda: served.broker.is_draining)
        assert (await client.send(b"late")).code == Status.SERVICE_NOT_AVAILABLE
        assert not drain.done()
        held.release()
        assert (await client.answer(waiting)).code == 0, "what was in flight is answered before the connection is closed"
        await drain
        await client.wait_ended()


async def test_the_end_of_a_connection_ends_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client, other = await served.connect(), await served.connect()
        await client.store(b"first")
        held = HeldPublications(monkeypatch)
        client.start_send(b"x")
        await until(lambda: len(held.held) == 1)
        await client.close()
        await until(lambda: not served.server.sends.is_any_pending)
        held.release()
        assert bodies_of(await other.read_all(2)) == [b"first", b"x"]
        assert not served.server.sends.is_any_pending


# --- queues ---------------------------------------------------------------------------------------------------------------


async def test_queues_that_nobody_sends_to_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        queues = served.server.sends.queues
        (queue,) = queues._queues.values()
        queues._close_idle()
        assert list(queues._queues.values()) == [queue]
        queue.used_at -= publish_queues.IDLE_S + 1
        queues._close_idle()
        assert queues._queues == {}
        await until(lambda: queue.state is publish_queues.SendState.CLOSED)
        assert [each.queue_offset for each in await client.store(b"b")] == [1]


async def test_a_publisher_that_has_failed_is_replaced() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        (queue,) = served.server.sends.queues._queues.values()
        await queue.close()
        assert not queue.is_open
        assert [each.queue_offset for each in await client.store(b"b")] == [1]
        assert list(served.server.sends.queues._queues.values()) != [queue]


async def test_a_queue_that_is_closed_before_its_sends_are_stored_answers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        topic = await served.create()
        await client.produce()
        assert (await client.send(b"before")).code == Status.SUCCESS
        add = PublishQueue.add

        def add_and_forget(queue: PublishQueue, send: PendingSend, size: int) -> bool:
            is_first = add(queue, send, size)
            served.server.sends.queues.forget(topic.name)  # the close begins before what was added is stored
            return is_first

        monkeypatch.setattr(PublishQueue, "add", add_and_forget)
        assert (await client.send(b"lost")).code != Status.SUCCESS
        assert not served.server.sends.is_any_pending


async def test_an_error_in_a_publication_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        assert (await client.send(b"before")).code == Status.SUCCESS
        monkeypatch.setattr(PublishQueue, "publish", Mock(side_effect=KeyError("a fault")))
        assert (await client.send(b"lost")).code == Status.SYSTEM_ERROR
        assert not served.server.sends.is_any_pending


async def test_a_queue_is_opened_once_for_sends_that_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    async with serving() as served:
        client = await served.connect()
        await served.create()
        open_ = served.listener.publishers.open

        async def count(*args: Any) -> Any:
            opened.append(args)
            return await open_(*args)

        monkeypatch.setattr(served.listener.publishers, "open", count)
        commands = [client.command(Code.SEND_MESSAGE_V2, send_header(), b"%d" % index) for index in range(5)]
        client.write(*commands)
        answers = [SendResultHeader.decode((await client.answer(each.opaque)).ext).queue_offset for each in commands]
        assert answers == [0, 1, 2, 3, 4]
        assert len(opened) == 1


async def test_a_queue_that_cannot_be_opened_is_an_error_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()

        async def fail(*_: Any) -> Any:
            raise ClusterError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(served.listener.publishers, "open", fail)
            answer = await client.send(b"a")
            assert (answer.code, answer.remark) == (Status.SYSTEM_BUSY, "not now")
        assert not served.server.sends.is_any_pending
        assert len(await client.store(b"a")) == 1


async def test_sends_that_come_while_the_producer_is_opened_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        found, find = asyncio.Event(), served.broker.writable_topic
        asked = 0

        async def held(name: str) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                await found.wait()
            return await find(name)

        monkeypatch.setattr(served.broker, "writable_topic", held)
        opaques = [client.start_send(b"%d" % number) for number in range(3)]
        await client.settle()
        await rounds()
        found.set()
        for opaque in opaques:
            assert (await client.answer(opaque)).code == Status.SUCCESS
        assert [message.payload for message in await served.stored("t")] == [b"0", b"1", b"2"]
        assert not served.server.sends.is_any_pending


async def test_a_send_that_was_answered_as_busy_while_its_producer_was_opened_is_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_S", 0.02)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        gate, open_ = asyncio.Event(), served.listener.publishers.open

        async def held(*values: Any) -> Any:
            await gate.wait()
            return await open_(*values)

        monkeypatch.setattr(served.listener.publishers, "open", held)
        assert (await client.send(b"late")).code == Status.SYSTEM_BUSY
        gate.set()
        monkeypatch.setattr(connection_module, "ANSWER_S", 2.5)
        assert (await client.send(b"next")).code == Status.SUCCESS
        assert [message.payload for message in await served.stored("t")] == [b"next"]


async def test_the_number_of_queues_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_queues, "MAX_QUEUES", 1)
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a")
        assert (await client.send(b"b", queue=1)).code == Status.SYSTEM_BUSY
        assert (await client.send(b"b")).code == 0


# --- dead letters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "most", "dead"), [(16, None, False), (17, None, True), (3, 3, False), (4, 3, True), (1, 0, True)]
)
async def test_a_message_that_was_redelivered_too_often_is_a_dead_letter(times: int, most: int | None, dead: bool) -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        answer = await client.send(b"x", "%RETRY%g", 0, reconsume_times=times, max_reconsume_times=most)
        assert answer.code == 0
        (record,) = await client.read_all(1, "%DLQ%g" if dead else "%RETRY%g")
        assert (record.body, record.reconsume_times) == (b"x", times)
        assert (await served.broker.find_topic("%RETRY%g" if dead else "%DLQ%g")) is None


async def test_other_topics_have_no_limit_of_redeliveries() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await client.send(b"x", reconsume_times=99, max_reconsume_times=1)).code == 0
        assert len(await client.read(0, sys_flag=PULL_FREE | PULL_HELD)) == 1


async def test_the_properties_of_a_unit_are_found_behind_its_body() -> None:
    unit = module.unit_of_message(
        b"body", join([("a", "b"), (Name.UNIQ_KEY, "I")]).encode(), flag=0, sys_flag=0, born_ms=0, reconsume_times=0
    )
    assert properties_of(unit) == b"a\x01b\x02UNIQ_KEY\x01I\x02"
    assert unique_id_of(unit) == "I"
    assert unique_id_of(module.unit_of_message(b"", b"", flag=0, sys_flag=0, born_ms=0, reconsume_times=0)) is None
