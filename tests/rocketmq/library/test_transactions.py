"""Transactions: half messages, outcomes, and the checks of brokers that did not receive an outcome."""

import asyncio

import pytest

from mqbridge.errors import ClusterError, LocalProtocolError, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.transactions import MAX_CHECKS, Half, State, TransactionProducer
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.groups import Heartbeat
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.transactions import CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record
from mqbridge.wire.javahash import java_string_hash
from tests.rocketmq.client.broker import TOPIC, A, B, Cluster, hangs_up, refuses, stored_with, until

SINGLE, END, CHECK = Code.SEND_MESSAGE_V2, Code.END_TRANSACTION, Code.CHECK_TRANSACTION_STATE


def fail_on_check(half: Half) -> State:
    raise AssertionError(half)


def end_transactions(cluster: Cluster) -> list[EndTransactionHeader]:
    return [EndTransactionHeader.decode(command.ext) for command in cluster.requests[END]]


def check_request(group: str = "G", topic: str = TOPIC, **more: str) -> Command:
    properties = props.encode([("UNIQ_KEY", "ID1"), ("PGROUP", group), ("TRAN_MSG", "true"), *more.items()])
    record = Record(topic, b"half", properties, queue_id=1, queue_offset=5, physical_offset=1000)
    header = CheckTransactionHeader(5, 1000, "ID1", "ID1", topic=topic)
    return Command(CHECK, header.encode(), encode_record(record), opaque=3, flag=ONEWAY)


@pytest.mark.parametrize("state", State)
async def test_the_outcome_is_sent_after_the_local_transaction(cluster: Cluster, client: ClusterClient, state: State):
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    ran = []

    async def execute(message: OutgoingMessage, transaction_id: str) -> State:
        assert len(cluster.requests[SINGLE]) == 1, "the half is stored by now"
        assert cluster.requests[END] == []
        ran.append((message.payload, transaction_id))
        return state

    result = await producer.send(OutgoingMessage(b"x", msg_type="tag", delay_level=3), execute)
    await until(lambda: cluster.requests[END])
    assert ran == [(b"x", result.transaction_id)]
    assert result.state is state
    (header,) = cluster.headers(SINGLE)
    pairs = dict(props.decode(header.properties.encode()))
    assert (pairs.pop("mqbridge.v"), pairs.pop("mqbridge.order")) == ("1", "-"), "as the gateway writes it"
    assert pairs == {"UNIQ_KEY": result.transaction_id, "TAGS": "tag", "TRAN_MSG": "true", "PGROUP": "G"}, "and no DELAY"
    assert header.sys_flag == SysFlag.PREPARED
    (told,) = end_transactions(cluster)
    assert (told.producer_group, told.topic, told.commit_or_rollback, told.msg_id) == (
        "G",
        TOPIC,
        state.value,
        result.transaction_id,
    )
    assert told.tran_state_table_offset == result.half.offset
    assert told.commit_log_offset == int(result.half.message_id[16:], 16)
    assert told.transaction_id == "TX"
    assert not told.from_transaction_check
    assert cluster.requests[END][0].is_oneway
    assert cluster.requests[END][0] in cluster.requests_to[result.half.address]
    await producer.close()


async def test_a_heartbeat_precedes_the_first_half_message(cluster: Cluster, client: ClusterClient):
    await client.pool.get(A)
    await client.pool.get(B)
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    result = await producer.send(OutgoingMessage(b"x"), lambda *_: State.COMMIT)
    asked = [command.code for command in cluster.requests_to[result.half.address]]
    assert asked.index(Code.HEART_BEAT) < asked.index(SINGLE)
    assert Heartbeat.decode(cluster.requests[Code.HEART_BEAT][0].body).producers == ("G",)
    await producer.close()


@pytest.mark.parametrize("code", [Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_SLAVE_TIMEOUT])
async def test_a_half_message_that_may_get_lost_is_rolled_back(cluster: Cluster, client: ClusterClient, code: int):
    cluster.on[SINGLE] = stored_with(code)
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    result = await producer.send(OutgoingMessage(b"x"), lambda *_: pytest.fail("it must not run"))
    await until(lambda: cluster.requests[END])
    assert (result.state, result.half.status) == (State.ROLLBACK, code)
    assert end_transactions(cluster)[0].commit_or_rollback == State.ROLLBACK.value
    await producer.close()


async def test_a_refused_half_message_runs_no_local_transaction(cluster: Cluster, client: ClusterClient):
    cluster.on[SINGLE] = refuses(Status.MESSAGE_ILLEGAL)
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    with pytest.raises(ServerRefused):
        await producer.send(OutgoingMessage(b"x"), lambda *_: pytest.fail("it must not run"))
    assert cluster.requests[END] == []
    await producer.close()


async def test_a_half_message_with_a_key_waits_for_its_queue(cluster: Cluster, client: ClusterClient):
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    key = next(key for key in map(str, range(100)) if java_string_hash(key) % 4 == 0)  # of queue 0, at broker A

    async def send(payload: bytes, key: str | None = None) -> str:
        result = await producer.send(OutgoingMessage(payload, key=key), lambda *_: State.COMMIT)
        return result.half.address

    assert await send(b"first", key) == A
    cluster.unreachable.add(A)
    cluster.at[A, SINGLE] = hangs_up
    waiting = asyncio.ensure_future(send(b"second", key))
    await until(lambda: len(cluster.requests[SINGLE]) >= 2)
    assert {await send(b"%d" % number) for number in range(8)} == {B}
    assert not waiting.done()
    cluster.unreachable.clear()
    del cluster.at[A, SINGLE]
    assert await waiting == A
    await producer.close()


async def test_a_local_transaction_that_raises_sends_unknown(cluster: Cluster, client: ClusterClient):
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)

    def fails(_message: OutgoingMessage, _id: str) -> State:
        raise ValueError("no such account")

    with pytest.raises(ValueError, match="no such account"):
        await producer.send(OutgoingMessage(b"x"), fails)
    await until(lambda: cluster.requests[END])
    assert end_transactions(cluster)[0].commit_or_rollback == State.UNKNOWN.value
    assert "no such account" in (cluster.requests[END][0].remark or "")
    await producer.close()


async def test_an_outcome_that_cannot_be_sent_is_logged(cluster: Cluster, client: ClusterClient, caplog):
    caplog.set_level("INFO")
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)

    def execute(_message: OutgoingMessage, _id: str) -> State:
        for address in (A, B):
            cluster.unreachable.add(address)
            for link in cluster.links_to(address):
                link.open = False
                link.endpoint.connection_lost(None)
        return State.COMMIT

    result = await producer.send(OutgoingMessage(b"x"), execute)
    assert result.state is State.COMMIT
    assert "on topic T to broker" in caplog.text
    assert "the broker will ask" in caplog.text
    await producer.close()


async def test_an_invalid_message_id_of_a_half_message_is_an_error(cluster: Cluster, client: ClusterClient):
    answer = {"msgId": "nonsense", "queueId": "0", "queueOffset": "0"}

    def stores(link, request):
        link.answer(request, ext={**answer, "queueId": request.ext["e"]})

    cluster.on[SINGLE] = stores
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    with pytest.raises(ClusterError, match="returned an invalid message id"):
        await producer.send(OutgoingMessage(b"x"), lambda *_: State.COMMIT)
    await producer.close()


# --- checks by brokers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
async def test_a_check_is_answered_at_the_broker_that_sent_it(cluster: Cluster, client: ClusterClient, state: State):
    asked: list[Half] = []

    async def check(half: Half) -> State:
        asked.append(half)
        return state

    producer = TransactionProducer(client, "G", TOPIC, check)
    await client.pool.get(A)
    cluster.link_to(A).send(check_request(own="1"))
    await until(lambda: cluster.requests[END])
    (half,) = asked
    assert (half.transaction_id, half.record.body, half.properties["own"]) == ("ID1", b"half", "1")
    (told,) = end_transactions(cluster)
    assert (told.tran_state_table_offset, told.commit_log_offset, told.commit_or_rollback) == (5, 1000, state.value)
    assert (told.from_transaction_check, told.msg_id, told.producer_group) == (True, "ID1", "G")
    assert [command.code for command in cluster.requests_to[A]][-1] == END
    await producer.close()


async def test_checks_of_other_groups_and_invalid_checks_are_ignored(cluster: Cluster, client: ClusterClient, caplog):
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    await client.pool.get(A)
    link = cluster.link_to(A)
    link.send(check_request(group="other"))
    link.send(Command(CHECK, {}, b"", flag=ONEWAY))
    link.send(Command(CHECK, check_request().ext, b"garbage", flag=ONEWAY))
    link.send(Command(CHECK, check_request().ext, b"", flag=ONEWAY))
    await asyncio.sleep(0.01)
    assert "no transaction producer of group" in caplog.text
    assert caplog.text.count("could not be handled") == 3
    assert cluster.requests[END] == []
    assert link.open
    await producer.close()
    link.send(check_request())
    await asyncio.sleep(0.01)
    assert cluster.requests[END] == [], "a closed producer is not asked"


async def test_a_check_that_raises_is_logged_and_not_answered(cluster: Cluster, client: ClusterClient, caplog):
    def check(half: Half) -> State:
        raise LookupError("the database is down")

    producer = TransactionProducer(client, "G", TOPIC, check)
    await client.pool.get(A)
    cluster.link_to(A).send(check_request())
    await until(lambda: "the database is down" in caplog.text)
    assert cluster.requests[END] == []
    await producer.close()


async def test_the_number_of_concurrent_checks_is_limited(cluster: Cluster, client: ClusterClient, caplog):
    gate = asyncio.Event()

    async def check(half: Half) -> State:
        await gate.wait()
        return State.COMMIT

    producer = TransactionProducer(client, "G", TOPIC, check)
    await client.pool.get(A)
    for _ in range(MAX_CHECKS + 5):
        cluster.link_to(A).send(check_request())
    gate.set()
    await until(lambda: len(cluster.requests[END]) == MAX_CHECKS)
    assert "the broker will ask again" in caplog.text
    cluster.link_to(A).send(check_request())
    await until(lambda: len(cluster.requests[END]) == MAX_CHECKS + 1)
    await producer.close()


async def test_a_client_has_one_producer_per_group_and_topic(cluster: Cluster, client: ClusterClient):
    producer = TransactionProducer(client, "G", TOPIC, fail_on_check)
    with pytest.raises(LocalProtocolError, match="already"):
        TransactionProducer(client, "G", TOPIC, fail_on_check)
    other = TransactionProducer(client, "G", "other", fail_on_check)
    await other.close()
    await producer.close()
    again = TransactionProducer(client, "G", TOPIC, fail_on_check)
    await producer.close()
    with pytest.raises(LocalProtocolError, match="already"):  # the second `close` of the first producer changed nothing
        TransactionProducer(client, "G", TOPIC, fail_on_check)
    await again.close()
