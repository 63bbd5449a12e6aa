"""Transactions of producers: half messages, their ends, and checks."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.rocketmq.server import half_messages
from mqbridge.rocketmq.server import transactions as module
from mqbridge.rocketmq.server.half_messages import HalfMessages, OpenHalf
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from mqbridge.rocketmq.wire.headers.transactions import (
    COMMIT,
    ROLLBACK,
    STATE_UNKNOWN,
    CheckTransactionHeader,
    EndTransactionHeader,
)
from mqbridge.rocketmq.wire.ids import parse_offset_id
from mqbridge.rocketmq.wire.properties import Name, find, join
from mqbridge.rocketmq.wire.record import decode_records
from tests.patience import PATIENCE_S
from tests.rocketmq.server.serving import (
    DEAD_LETTERS,
    HALF,
    RawRemotingClient,
    RocketMQServing,
    bodies_of,
    gateway,
    log_cluster,
    rounds,
    serving,
    until,
)


class VirtualTime:
    """Stands for the module `time` in the module of half messages: time passes when a test says so."""

    def __init__(self) -> None:
        self.passed = 0.0

    def time(self) -> float:
        return time.time() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """A clock for checks, which are looked for all the time."""
    virtual = VirtualTime()
    monkeypatch.setattr(half_messages, "time", virtual)
    monkeypatch.setattr(half_messages, "LOOK_S", 0.002)
    return virtual


async def prepare(client: RawRemotingClient, body: bytes = b"x", unique_id: str = "ID", **fields: Any) -> SendResultHeader:
    """Send a heartbeat of the producer, and store a half message."""
    await client.produce()
    properties = [(Name.UNIQ_KEY, unique_id), ("TRAN_MSG", "true"), ("PGROUP", "p"), *fields.pop("more", [])]
    answer = await client.send(body, properties=properties, sys_flag=HALF, **fields)
    assert answer.code == 0, answer
    return SendResultHeader.decode(answer.ext)


async def end(client: RawRemotingClient, half: SendResultHeader, how: int, **fields: Any) -> Command:
    values = {"msg_id": "ID", "transaction_id": half.transaction_id} | fields
    header = EndTransactionHeader("p", half.queue_offset, parse_offset_id(half.msg_id)[1], how, **values)
    return await client.ask(Code.END_TRANSACTION, header)


def halves_of(served: RocketMQServing, group: str = "p") -> HalfMessages:
    return served.server.transactions._groups[group]


async def until_open(served: RocketMQServing, *unique_ids: str) -> HalfMessages:
    """Wait until this gateway follows these half messages, and no others."""
    await until(
        lambda: "p" in served.server.transactions._groups and [key.id for key in halves_of(served)._open] == [*unique_ids]
    )
    return halves_of(served)


def the_open(halves: HalfMessages, unique_id: str = "ID") -> OpenHalf:
    """Return the one open half message with this id."""
    (found,) = [each for each in halves._open.values() if each.half.id == unique_id]
    return found


async def delivered(client: RawRemotingClient) -> list[bytes]:
    answer = await client.pull(0)
    return bodies_of(decode_records(answer.body))


# --- the end --------------------------------------------------------------------------------------------------------------


async def test_a_half_message_is_delivered_when_it_is_committed() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        half = await prepare(client, b"x", queue=1, more=[("k", "v")], flag=3)
        assert (half.queue_id, half.transaction_id) == (1, "ID")
        assert (await client.pull(0, queue=1)).code == Status.PULL_NOT_FOUND
        assert (await end(client, half, COMMIT)).code == 0
        (record,) = await client.read(0, queue=1)
        assert (record.body, record.flag, record.sys_flag, find(record.properties, "k")) == (b"x", 3, 0, "v")
        assert find(record.properties, Name.UNIQ_KEY) == "ID"
        assert (await end(client, half, COMMIT)).code == 0
        assert len(await client.read(0, queue=1)) == 1, "the same end, told twice, has one effect"


async def test_a_half_message_that_is_rolled_back_is_never_delivered() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        assert (await end(client, half, ROLLBACK)).code == 0
        assert (await end(client, half, COMMIT)).code == 0
        assert await delivered(client) == []


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
async def test_a_message_that_is_sent_in_a_second_transaction_is_committed_again(first: int) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        assert (await end(client, await prepare(client, b"x"), first)).code == 0
        second = await prepare(client, b"x")
        await until_open(served, "ID")
        assert (await end(client, second, COMMIT)).code == 0
        assert (await end(client, second, COMMIT)).code == 0
        assert await delivered(client) == [b"x"] * (1 + (first == COMMIT))
        await until_open(served)


async def test_an_earlier_half_message_of_the_same_id_ends_as_the_client_says() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        halves = [await prepare(client, body) for body in (b"1", b"2", b"3")]
        assert (await end(client, halves[1], COMMIT)).code == 0
        await until_open(served, "ID", "ID")
        assert (await end(client, halves[0], COMMIT)).code == 0
        assert (await end(client, halves[0], COMMIT)).code == 0
        assert (await end(client, halves[2], ROLLBACK)).code == 0
        await until_open(served)
        assert await delivered(client) == [b"2", b"1"]


async def test_a_transaction_whose_end_is_unknown_stays_open() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        assert (await end(client, half, STATE_UNKNOWN)).code == 0
        assert (await end(client, half, 77)).code == 0
        await until_open(served, "ID")
        assert await delivered(client) == []
        assert (await end(client, half, COMMIT)).code == 0
        assert await delivered(client) == [b"x"]
        await until_open(served)


async def test_an_end_for_what_is_no_half_message_of_the_group_is_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        wrong = [
            end(client, half, COMMIT, transaction_id="another"),
            end(client, SendResultHeader(half.msg_id, 0, 99), COMMIT),
            end(client, SendResultHeader(half.msg_id, 0, -4), COMMIT),
            client.ask(Code.END_TRANSACTION, EndTransactionHeader("q", half.queue_offset, 0, COMMIT, "ID", "ID")),
        ]
        for each in wrong:
            assert (await each).code == Status.SYSTEM_ERROR
        assert await delivered(client) == []
        note = SendResultHeader(half.msg_id, 0, half.queue_offset + 1)
        assert (await end(client, half, COMMIT, transaction_id=None)).code == 0, "some clients do not tell the id"
        assert (await end(client, note, COMMIT)).code == Status.SYSTEM_ERROR, "it is the note"
        assert await delivered(client) == [b"x"]


async def test_half_messages_that_cannot_be_are_refused() -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        assert (await client.send(b"x", sys_flag=HALF)).code == Status.TOPIC_NOT_EXIST
        await served.create()
        assert (await client.send(b"x", queue=5, sys_flag=HALF)).code == Status.INVALID_PARAMETER
        assert (await client.send(b"", sys_flag=HALF)).code == Status.MESSAGE_ILLEGAL
        assert (await prepare(client, queue=-1)).queue_id == 0
        assert not served.server.sends.is_any_pending


async def test_an_end_that_cannot_be_stored_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        await until_open(served, "ID")

        async def fail(*_: object) -> None:
            raise ClusterError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(halves_of(served), "_commit", fail)
            assert (await end(client, half, COMMIT)).code == Status.SYSTEM_BUSY
        await until_open(served, "ID")
        assert (await end(client, half, COMMIT)).code == 0
        assert await delivered(client) == [b"x"]


async def test_two_ends_at_once_store_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        halves = halves_of(served)
        commit, calls, gate = halves._commit, [], asyncio.Event()

        async def slow(*args: Any) -> None:
            calls.append(args)
            await gate.wait()
            await commit(*args)

        monkeypatch.setattr(halves, "_commit", slow)
        ends = [asyncio.create_task(end(client, half, how)) for how in (COMMIT, COMMIT, ROLLBACK)]
        await until(lambda: len(calls) == 1)
        await client.settle()
        gate.set()
        assert [each.code for each in await asyncio.gather(*ends)] == [0, 0, 0]
        assert len(calls) == 1
        assert await delivered(client) == [b"x"]
        assert len(halves._ending) == 0


async def test_a_message_goes_to_the_first_queue_if_its_own_is_gone() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        half = await prepare(client, queue=1)
        await served.listener.topics.delete("t")
        served.broker.forget_topic("t")
        await served.create()
        assert (await end(client, half, COMMIT)).code == 0
        assert bodies_of(await client.read_all(1)) == [b"x"]


# --- checks ---------------------------------------------------------------------------------------------------------------


async def test_a_producer_is_asked_about_a_transaction_that_is_old(clock: VirtualTime) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        half = await prepare(client)
        halves = await until_open(served, "ID")
        await rounds()
        assert not client.was_pushed(Code.CHECK_TRANSACTION_STATE)
        clock.passed = half_messages.FIRST_CHECK_S + 1
        check = await client.pushed(Code.CHECK_TRANSACTION_STATE)
        header = CheckTransactionHeader.decode(check.ext)
        (record,) = decode_records(check.body)
        assert check.is_oneway
        assert (header.tran_state_table_offset, header.topic) == (half.queue_offset, "t")
        assert (header.msg_id, header.transaction_id, header.offset_msg_id) == ("ID", "ID", half.msg_id)
        assert header.commit_log_offset == parse_offset_id(half.msg_id)[1] == record.physical_offset
        assert (record.body, record.topic, record.queue_offset) == (b"x", "t", half.queue_offset)
        assert find(record.properties, Name.UNIQ_KEY) == "ID"
        await until(lambda: the_open(halves).checks == 1)
        await rounds(200)
        assert not client.was_pushed(Code.CHECK_TRANSACTION_STATE), "not before the pause has passed"
        clock.passed += half_messages.CHECK_PAUSE_S + 1
        await client.pushed(Code.CHECK_TRANSACTION_STATE)
        answer = EndTransactionHeader("p", header.tran_state_table_offset, header.commit_log_offset, COMMIT, "ID", "ID", True)
        client.oneway(Code.END_TRANSACTION, answer)
        assert bodies_of(await client.read_all(1)) == [b"x"]


async def test_a_producer_says_how_long_it_does_not_want_to_be_asked(clock: VirtualTime) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        await prepare(client, more=[(Name.CHECK_IMMUNITY_TIME_IN_SECONDS, "100")])
        await prepare(client, unique_id="NONE", more=[(Name.CHECK_IMMUNITY_TIME_IN_SECONDS, "-1x")])
        await prepare(client, unique_id="LONG", more=[(Name.CHECK_IMMUNITY_TIME_IN_SECONDS, "999999999")])
        halves = await until_open(served, "ID", "NONE", "LONG")
        assert [each.half.immune_s for each in halves._open.values()] == [100, 0, module.MAX_IMMUNE_S]
        clock.passed = 50
        check = CheckTransactionHeader.decode((await client.pushed(Code.CHECK_TRANSACTION_STATE)).ext)
        assert check.msg_id == "NONE"
        clock.passed = 105
        await until(lambda: the_open(halves).checks == 1)


async def test_a_transaction_that_nobody_ends_is_a_dead_letter(clock: VirtualTime, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        await prepare(client)
        halves = await until_open(served, "ID")
        for count in range(half_messages.MAX_CHECKS):
            clock.passed += half_messages.CHECK_PAUSE_S + 1
            await client.pushed(Code.CHECK_TRANSACTION_STATE)
            await until(lambda n=count: the_open(halves).checks == n + 1)
        assert await served.stored(DEAD_LETTERS) == []
        clock.passed += half_messages.CHECK_PAUSE_S + 1
        await until_open(served)
        (letter,) = await served.stored(DEAD_LETTERS)
        assert b"x" in (letter.payload or b"")
        assert "transaction ID of group p was not ended after 15 checks" in caplog.text
        assert await delivered(client) == []
        assert not client.was_pushed(Code.CHECK_TRANSACTION_STATE)


async def test_reading_that_was_stopped_goes_on_when_a_transaction_that_nobody_ends_is_a_dead_letter(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_messages, "MAX_WAITING", 4)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await prepare(client, unique_id="STUCK")
        await until_open(served, "STUCK")
        for number in range(5):
            assert (await end(client, await prepare(client, unique_id=f"ID{number}"), COMMIT, msg_id="")).code == 0
        await prepare(client, unique_id="LAST")
        halves = await until_open(served, "STUCK")
        await until(lambda: halves._waiting >= 4)
        for count in range(half_messages.MAX_CHECKS):
            assert "LAST" not in halves._open
            clock.passed += half_messages.CHECK_PAUSE_S + 1
            check = CheckTransactionHeader.decode((await client.pushed(Code.CHECK_TRANSACTION_STATE)).ext)
            assert check.msg_id == "STUCK"
            await until(lambda n=count: the_open(halves, "STUCK").checks == n + 1)
        clock.passed += half_messages.CHECK_PAUSE_S + 1
        await until_open(served, "LAST")
        assert len(await served.stored(DEAD_LETTERS)) == 1


async def test_a_half_message_that_was_deleted_is_not_open_any_more(
    clock: VirtualTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await prepare(client)
        halves = await until_open(served, "ID")

        async def nothing(_: object) -> None:
            return None

        monkeypatch.setattr(halves.topic, "read", nothing)
        clock.passed = half_messages.CHECK_PAUSE_S
        await until_open(served)
        assert "the half message of transaction ID of group p was deleted" in caplog.text


async def test_checks_do_not_count_without_a_producer(clock: VirtualTime) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await prepare(client)
        halves = await until_open(served, "ID")
        waiting = the_open(halves)
        served.broker.clients.unregister(client.client_id, "p", None)
        for _ in range(3):
            clock.passed += half_messages.CHECK_PAUSE_S + 10
            await until(lambda: waiting.next_check > clock.time())
        assert waiting.checks == 0
        await client.produce()
        clock.passed += half_messages.CHECK_PAUSE_S + 10
        await client.pushed(Code.CHECK_TRANSACTION_STATE)


async def test_the_producers_of_a_group_are_asked_in_turn(clock: VirtualTime) -> None:
    async with serving() as served:
        clients = [await served.connect(str(index)) for index in range(2)]
        await served.create()
        for client in clients:
            await client.produce()
        await prepare(clients[0])
        halves = await until_open(served, "ID")
        for count in range(4):
            clock.passed += half_messages.CHECK_PAUSE_S + 10
            await clients[count % 2].pushed(Code.CHECK_TRANSACTION_STATE)
            await until(lambda n=count: the_open(halves).checks == n + 1)


async def test_a_check_that_fails_is_made_again(clock: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        await prepare(client)
        halves = await until_open(served, "ID")
        failed = []

        async def fail(*_: object) -> None:
            failed.append(True)
            raise ClusterError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(halves.topic, "read", fail)
            clock.passed += half_messages.CHECK_PAUSE_S
            await until(lambda: bool(failed))
        clock.passed += half_messages.CHECK_PAUSE_S + 1
        await client.pushed(Code.CHECK_TRANSACTION_STATE)


# --- gateways -------------------------------------------------------------------------------------------------------------


async def test_another_gateway_takes_over_what_is_open(tmp_path: Path, clock: VirtualTime) -> None:
    async with log_cluster(tmp_path) as cluster:
        async with gateway(cluster, tmp_path, "one") as one:
            client = await one.connect()
            await one.create()
            await client.produce()
            first = await prepare(client, b"1", "ID1")
            await prepare(client, b"2", "ID2")
            await until_open(one, "ID1", "ID2")
            assert (await end(client, first, COMMIT)).code == 0
        async with gateway(cluster, tmp_path, "two") as two:
            client = await two.connect()
            await client.produce()
            halves = await until_open(two, "ID2")
            assert await delivered(client) == [b"1"]
            clock.passed += half_messages.FIRST_CHECK_S + 1
            check = CheckTransactionHeader.decode((await client.pushed(Code.CHECK_TRANSACTION_STATE)).ext)
            header = EndTransactionHeader("p", check.tran_state_table_offset, check.commit_log_offset, COMMIT, "ID2", "ID2", True)
            assert (await client.ask(Code.END_TRANSACTION, header)).code == 0
            assert await delivered(client) == [b"1", b"2"]
            assert halves._open == {}


async def test_one_of_two_gateways_asks(tmp_path: Path, clock: VirtualTime) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(log_cluster(tmp_path))
        one = await stack.enter_async_context(gateway(cluster, tmp_path, "one"))
        two = await stack.enter_async_context(gateway(cluster, tmp_path, "two"))
        first, second = await one.connect(), await two.connect()
        await one.create()
        await first.produce()
        half = await prepare(first)
        await until_open(one, "ID")
        await second.produce()
        await prepare(second, b"y", "ID2")
        await until_open(one, "ID", "ID2")
        assert halves_of(two)._open == {}, "it follows, and another reads"
        clock.passed += half_messages.CHECK_PAUSE_S
        for _ in range(2):
            await first.pushed(Code.CHECK_TRANSACTION_STATE)
        assert not second.was_pushed(Code.CHECK_TRANSACTION_STATE)
        assert (await end(second, half, COMMIT)).code == 0, "either gateway ends it"
        await until_open(one, "ID2")
        await first.close()
        await until_open(two, "ID2")
        clock.passed += half_messages.CHECK_PAUSE_S
        await second.pushed(Code.CHECK_TRANSACTION_STATE)


async def test_a_gateway_that_dies_between_a_message_and_its_note_has_it_delivered_again(
    tmp_path: Path, clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log_cluster(tmp_path) as cluster:
        async with gateway(cluster, tmp_path, "one") as one:
            client = await one.connect()
            await one.create()
            half = await prepare(client)
            await until_open(one, "ID")

            def die(_: object) -> None:
                raise ClusterError("the gateway was killed")

            with monkeypatch.context() as patch:
                patch.setattr(halves_of(one), "_note_ended", die)
                assert (await end(client, half, COMMIT)).code == Status.SYSTEM_BUSY
            assert await delivered(client) == [b"x"]
        async with gateway(cluster, tmp_path, "two") as two:
            client = await two.connect()
            await client.produce()
            await until_open(two, "ID")
            clock.passed += half_messages.FIRST_CHECK_S + 1
            await client.pushed(Code.CHECK_TRANSACTION_STATE)
            assert (await end(client, half, COMMIT)).code == 0
            assert await delivered(client) == [b"x", b"x"], "at least once"
            await until_open(two)


async def test_half_messages_are_left_to_others_without_producers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    async with serving(folder=tmp_path) as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        await prepare(client)
        halves = await until_open(served, "ID")
        await client.close()
        await until(lambda: not halves._is_following and halves._lane is None)
        assert halves._open == {}
        other = await served.connect()
        await other.produce("another")
        await rounds()
        assert "another" not in served.server.transactions._groups, "it has no half messages"
        await other.produce()
        await until_open(served, "ID")


async def prepare_without_heartbeat(client: RawRemotingClient, group: str = "p", unique_id: str = "ID") -> SendResultHeader:
    header = SendHeader(group, "t", 0, 1_700_000_000_000, join([(Name.UNIQ_KEY, unique_id)]), sys_flag=HALF)
    answer = await client.ask(Code.SEND_MESSAGE_V2, header, b"x")
    assert answer.code == 0, answer
    return SendResultHeader.decode(answer.ext)


class OutboundCounter:
    """Counts the outbounds to topics of half messages that are open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.open = 0, set[LogOutbound]()
        begin, close = LogOutbound.__init__, LogOutbound.close

        def count(outbound: LogOutbound, *args: Any, **kwargs: Any) -> None:
            begin(outbound, *args, **kwargs)
            if "half" in outbound._spec.topic:
                self.opened += 1
                self.open.add(outbound)

        async def count_closed(outbound: LogOutbound, *args: Any, **kwargs: Any) -> None:
            await close(outbound, *args, **kwargs)
            self.open.discard(outbound)

        monkeypatch.setattr(LogOutbound, "__init__", count)
        monkeypatch.setattr(LogOutbound, "close", count_closed)


@pytest.fixture
def outbounds(monkeypatch: pytest.MonkeyPatch) -> OutboundCounter:
    return OutboundCounter(monkeypatch)


async def test_ends_of_a_group_without_heartbeats_share_an_outbound_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, outbounds: OutboundCounter
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        halves = [await prepare(client, unique_id=f"ID{number}") for number in range(20)]
        await client.close()
        await until(lambda: not served.server.transactions._groups and not outbounds.open)
        monkeypatch.setattr(module, "LINGER_S", 5)
        outbounds.opened = 0
        client = await served.connect()
        for half in halves:
            assert (await end(client, half, COMMIT)).code == 0
        assert (outbounds.opened, len(outbounds.open), len(served.server.transactions._lingering)) == (1, 1, 1)
        assert (await end(client, halves[0], COMMIT)).code == 0
        assert len(await delivered(client)) == 20
        monkeypatch.setattr(module, "LINGER_S", 0)
        served.server.transactions._leave_if_idle("p")
        await until(lambda: not outbounds.open)
        assert not served.server.transactions._groups


async def test_an_end_of_a_group_that_has_no_half_messages_keeps_nothing(outbounds: OutboundCounter) -> None:
    async with serving() as served:
        client = await served.connect()
        for number in range(5):
            header = EndTransactionHeader(f"made-up-{number}", 0, 0, COMMIT, "ID", "ID")
            assert (await client.ask(Code.END_TRANSACTION, header)).code == Status.SYSTEM_ERROR
        transactions = served.server.transactions
        assert (outbounds.opened, transactions._groups, transactions._lingering) == (0, {}, {})


async def test_half_messages_of_groups_without_heartbeats_are_left(
    monkeypatch: pytest.MonkeyPatch, outbounds: OutboundCounter
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        for number in range(5):
            await prepare_without_heartbeat(client, f"group-{number}")
        await until(lambda: not served.server.transactions._groups and not outbounds.open)
        assert (outbounds.opened, served.server.transactions._lingering) == (5, {})


async def test_a_group_has_one_timer_and_none_while_it_has_producers() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        transactions = served.server.transactions
        for _ in range(3):
            await prepare_without_heartbeat(client)
        (timer,) = transactions._lingering.values()
        await client.produce()
        assert (transactions._lingering, timer.cancelled()) == ({}, True)
        served.broker.clients.unregister(client.client_id, "p", None)
        assert list(transactions._lingering) == ["p"]


async def test_few_groups_without_heartbeats_are_kept(monkeypatch: pytest.MonkeyPatch, outbounds: OutboundCounter) -> None:
    monkeypatch.setattr(module, "MAX_LINGERING", 2)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        for number in range(2):
            await prepare_without_heartbeat(client, f"group-{number}")
        header = SendHeader("group-2", "t", 0, 1_700_000_000_000, join([(Name.UNIQ_KEY, "ID")]), sys_flag=HALF)
        refused = await client.ask(Code.SEND_MESSAGE_V2, header, b"x")
        assert refused.code == Status.SYSTEM_BUSY
        assert "2 producer groups without heartbeats" in refused.remark
        await prepare_without_heartbeat(client, "group-1")
        await prepare(client)
        assert outbounds.opened == 3, "one that sends heartbeats is served"


async def test_half_messages_are_not_left_while_one_is_stored(
    monkeypatch: pytest.MonkeyPatch, outbounds: OutboundCounter
) -> None:
    """The group gets its producer meanwhile, and is followed: what is followed would never be closed if it had been left."""
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    gate, is_appending = asyncio.Event(), asyncio.Event()
    append = InternalTopic.append

    async def slow(topic: InternalTopic, messages: Any) -> Any:
        is_appending.set()
        await gate.wait()
        return await append(topic, messages)

    monkeypatch.setattr(InternalTopic, "append", slow)
    async with serving() as served:
        client = await served.connect()
        await served.create()
        preparing = asyncio.create_task(prepare_without_heartbeat(client))
        await is_appending.wait()
        halves, timer = halves_of(served), served.server.transactions._lingering["p"]
        await until(lambda: served.server.transactions._lingering["p"] is not timer)
        await client.produce()
        gate.set()
        await preparing
        assert await until_open(served, "ID") is halves
        await client.close()
        await until(lambda: not served.server.transactions._groups and not outbounds.open)


async def test_the_end_of_the_server_waits_for_transactions_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        halves = await until_open(served, "ID")
        commit, is_committing, gate = halves._commit, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> None:
            is_committing.set()
            await gate.wait()
            await commit(*args)

        monkeypatch.setattr(halves, "_commit", slow)
        ending = asyncio.create_task(end(client, half, COMMIT))
        await is_committing.wait()
        closing = asyncio.create_task(served.server.transactions.close(asyncio.get_running_loop().time() + PATIENCE_S))
        await rounds()
        assert not halves.topic._is_closed
        gate.set()
        assert (await ending).code == 0
        await closing
        assert halves.idle_s > 0, "there is a note"
        refused = await end(client, half, COMMIT)
        assert (refused.code, served.server.transactions._groups) == (Status.SYSTEM_BUSY, {})


async def test_the_end_of_the_server_ends_transactions() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await client.produce()
        await prepare(client)
        halves = await until_open(served, "ID")
        await served.server.transactions.close(asyncio.get_running_loop().time() + 5)
        assert (halves._lane, served.server.transactions._groups) == (None, {})
        await client.produce("late")
        await rounds()
        assert served.server.transactions._groups == {}


async def test_a_note_that_cannot_be_stored_does_not_make_a_transaction_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        half = await prepare(client)
        halves = await until_open(served, "ID")

        async def fail(*_: object) -> None:
            raise ClusterError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(halves.topic, "append", fail)
            assert (await end(client, half, COMMIT)).code == Status.SYSTEM_BUSY
        assert halves._open == {}
        assert (await end(client, half, COMMIT)).code == 0
        assert await delivered(client) == [b"x"]


async def test_another_gateway_learns_of_an_end_whose_note_could_not_be_stored_at_once(
    tmp_path: Path, clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_messages, "NOTE_AGAIN_S", 0.002)
    async with log_cluster(tmp_path) as cluster:
        async with gateway(cluster, tmp_path, "one") as one:
            client = await one.connect()
            await one.create()
            await prepare(client, b"1", "ID1")
            second = await prepare(client, b"2", "ID2")
            halves = await until_open(one, "ID1", "ID2")

            async def fail(*_: object) -> None:
                raise ClusterError("not now")

            with monkeypatch.context() as patch:
                patch.setattr(halves.topic, "append", fail)
                assert (await end(client, second, COMMIT)).code == Status.SYSTEM_BUSY
            await until(lambda: halves.idle_s > 0)
        async with gateway(cluster, tmp_path, "two") as two:
            client = await two.connect()
            await client.produce()
            await until_open(two, "ID1")
            assert await delivered(client) == [b"2"]
