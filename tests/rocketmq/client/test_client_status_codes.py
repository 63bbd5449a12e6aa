"""Every response code to every request: the work continues, or the caller gets an error with the remedy; nothing hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, GapError, MqbridgeError, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.client.consumer.subscription import everything, sql92
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_request import SendResult
from mqbridge.rocketmq.library import pop as pops
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.library.transactions import State, TransactionProducer
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status, failure_of
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.ids import offset_id
from mqbridge.rocketmq.wire.receipts import ReceiptHandle
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Answer, refuses, responds_with, success
from tests.rocketmq.client.cutting_cluster import Cutting, cutting, new_client, retry_temporary_errors, short_pauses

__all__ = ["short_pauses"]

STATUSES = [*sorted(value for name, value in vars(Status).items() if name.isupper()), 777, -1]
"""All known response codes, and two unknown ones."""
QUEUE = Queue("T", "broker-a", 0)
PERMANENT = {Failure.FATAL, Failure.REFUSED}


async def for_each_status(patch: pytest.MonkeyPatch, code: int, converse: Callable[[Cutting, int], Awaitable[None]]) -> None:
    """Run the conversation once for each status, with which the first request of this code is answered; later ones succeed."""
    for status in STATUSES:
        cluster = cutting(patch, "none", -1)
        cluster.hit = code
        cluster.topics["T"] = {"broker-a": 1}
        cluster.on |= {Code.CONSUMER_SEND_MSG_BACK: success}
        healthy, count = cluster.on[code], [0]
        cluster.on[code] = once(status, healthy, count)
        async with asyncio.timeout(PATIENCE_S):
            await converse(cluster, status)
        assert count[0]


def once(status: int, healthy: Answer, count: list[int]) -> Answer:
    """Return a handler that refuses the first request with this status; `healthy` answers the others, `count` counts all."""

    def answer(link: Any, request: Any) -> None:
        count[0] += 1
        (refuses(status) if count[0] == 1 else healthy)(link, request)

    return answer


# --- producing ------------------------------------------------------------------------------------------------------------


async def produce(cluster: Cutting, status: int) -> None:
    client = new_client(cluster)
    await client.connect()
    producer = client.producer("P", "T")
    try:
        await retry_temporary_errors(producer.queues)
    except ClusterError as error:
        assert error.failure in PERMANENT  # noqa: PT017 - an error is one of two good results
    else:
        await send_all(cluster, producer)
    await producer.close()
    await client.close()


async def send_all(cluster: Cutting, producer: QueueProducer) -> None:
    """All messages are stored in order, except possibly the refused one."""
    sent: list[asyncio.Future[SendResult]] = []
    for number in range(6):
        element = batch.encode_element(b"%d" % number, b"")
        sent.append(producer.send_batch(QUEUE, element, 1, 0) if number % 2 else producer.send_single(QUEUE, b"%d" % number, b""))
    results = await asyncio.gather(*sent, return_exceptions=True)
    failed = [at for at, result in enumerate(results) if not isinstance(result, SendResult)]
    assert len(failed) <= 1
    for at in failed:
        error = results[at]
        assert isinstance(error, ClusterError)
        assert error.failure in PERMANENT
    assert [body for body, _ in cluster.stored[A, 0]] == [b"%d" % at for at in range(6) if at not in failed]


@pytest.mark.parametrize(
    "code", [Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.UNREGISTER_CLIENT]
)
async def test_sends_handle_every_response_code(short_pauses: pytest.MonkeyPatch, code: int) -> None:
    await for_each_status(short_pauses, code, produce)


async def transact(cluster: Cutting, status: int) -> None:
    """The local transaction runs once, and only for a half message that is certainly stored."""
    ran = []
    client = new_client(cluster)
    await client.connect()
    producer = TransactionProducer(client, "TG", "T", lambda _: State.UNKNOWN)

    def execute(*_: object) -> State:
        ran.append(len(cluster.stored[A, 0]))
        return State.COMMIT

    try:
        result = await producer.send(OutgoingMessage(b"x"), execute)
    except ServerRefused as error:
        assert error.failure in PERMANENT  # noqa: PT017 - an error is one of two good results
        assert ran == []
    else:
        assert (result.state, ran) == (State.COMMIT, [1])
    await producer.close()
    await client.close()


async def test_half_messages_handle_every_response_code(short_pauses: pytest.MonkeyPatch) -> None:
    await for_each_status(short_pauses, Code.SEND_MESSAGE_V2, transact)


# --- consuming ------------------------------------------------------------------------------------------------------------

BODIES = [b"%d" % at for at in range(9)]


async def consume(cluster: Cutting, status: int) -> None:
    """Everything is read in order and committed, unless joining or pulling was refused for good."""
    log = cluster.groups.log()
    log.limit = 4
    log.append(*BODIES)
    client = new_client(cluster)
    await client.connect()
    try:
        consumer = await retry_temporary_errors(
            lambda: join(client, ConsumerSettings("G", (everything("T"),), orderly=True, retries=False))
        )
    except ClusterError as error:
        assert error.failure in PERMANENT  # noqa: PT017 - an error is one of two good results
    else:
        await read_all(cluster, client, consumer, status)
    await client.close()


async def read_all(cluster: Cutting, client: ClusterClient, consumer: PullConsumer, status: int) -> None:
    assigned = await anext(consumer.assigned_queues())
    read: list[bytes] = []
    ended: MqbridgeError | None = None
    while len(read) < len(BODIES) and ended is None:
        ended = await read_on(client, assigned, read)
    await consumer.close()
    assert read == BODIES or isinstance(ended, GapError | ServerRefused)
    if ended is not None:
        assert cluster.requests[Code.PULL_MESSAGE]
        assert failure_of(status) is Failure.FATAL
    if cluster.hit != Code.UPDATE_CONSUMER_OFFSET:
        assert cluster.groups.committed("G") == len(read)


async def read_on(client: ClusterClient, assigned: AssignedQueue, read: list[bytes]) -> MqbridgeError | None:
    """Read one more pull response and send message 5 back; return the error that ended the queue, if any."""
    try:
        pulled = await assigned.receive()
    except (GapError, ServerRefused) as error:
        return error
    for record in pulled.records:
        if record.body == b"5":
            await SendBack(client, "G").redeliver(assigned.queue, record)
        read.append(record.body)
    assigned.commit(pulled.next)
    return None


@pytest.mark.parametrize(
    "code",
    [
        Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.LOCK_BATCH_MQ,
        Code.QUERY_CONSUMER_OFFSET, Code.GET_MIN_OFFSET, Code.PULL_MESSAGE, Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ,
        Code.UNREGISTER_CLIENT,
    ],
)  # fmt: skip
async def test_members_handle_every_response_code(short_pauses: pytest.MonkeyPatch, code: int) -> None:
    await for_each_status(short_pauses, code, consume)


async def test_sending_back_handles_every_response_code(short_pauses: pytest.MonkeyPatch) -> None:
    """For every response, the broker has made a copy, or the client sends a copy to the retry topic."""

    async def send_back(cluster: Cutting, status: int) -> None:
        cluster.topics["%RETRY%G"] = {"broker-a": 1}
        client = new_client(cluster)
        await client.connect()
        await SendBack(client, "G").redeliver(QUEUE, Record("T", b"x", store_host=bytes(8)))
        # SUCCESS is accepted; after GO_AWAY the broker is asked a second time.
        assert len(cluster.stored[A, 0]) == (status not in {Status.SUCCESS, Status.GO_AWAY})
        await client.close()

    await for_each_status(short_pauses, Code.CONSUMER_SEND_MSG_BACK, send_back)


@pytest.mark.parametrize("code", [Code.POP_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME])
async def test_pops_handle_every_response_code(short_pauses: pytest.MonkeyPatch, code: int) -> None:
    short_pauses.setattr(pops, "POLLING_FULL_PAUSE_S", 0.0)
    record = encode_record(Record("T", b"x"))
    receipt = ReceiptHandle(0, 1000, 60000, 0, "0", "broker-a", 0, 0)
    pop_fields = PopResult(1000, 60000, 0, 0, "0 0 0", "0 0 0").encode()
    changed_fields = {"popTime": "1", "invisibleTime": "2", "reviveQid": "3"}

    async def pop(cluster: Cutting, status: int) -> None:
        client = new_client(cluster)
        await client.connect()
        popper = Popper(client, "G", everything("T"), poll_ms=0)
        for call in (
            lambda: popper.pop("broker-a"),
            lambda: popper.acknowledge([receipt]),
            lambda: popper.acknowledge([receipt, receipt._replace(offset=1)]),
            lambda: popper.change_invisible(receipt, 1000),
        ):
            await expect_result_or_error(call)
        await client.close()

    for status in STATUSES:
        cluster = cutting(short_pauses, "none", -1)
        cluster.on |= {
            Code.POP_MESSAGE: lambda link, request: link.answer(request, ext=pop_fields, body=record),
            Code.BATCH_ACK_MESSAGE: success,
            Code.ACK_MESSAGE: success,
            Code.CHANGE_MESSAGE_INVISIBLETIME: lambda link, request: link.answer(request, ext=changed_fields),
        }
        cluster.on[code] = refuses(status)
        async with asyncio.timeout(PATIENCE_S):
            await pop(cluster, status)
        assert cluster.requests[code]


async def expect_result_or_error(call: Callable[[], Awaitable[object]]) -> None:
    """The call succeeds, or raises one of mqbridge's errors."""
    try:
        await call()
    except MqbridgeError as error:
        assert str(error)  # noqa: PT017 - an error is one of two good results


# --- single requests ------------------------------------------------------------------------------------------------------

CALLS: dict[int, Callable[[ClusterClient], Awaitable[object]]] = {
    Code.GET_BROKER_CLUSTER_INFO: lambda client: client.admin.cluster(),
    Code.GET_BROKER_CONFIG: lambda client: client.admin.broker_config(A),
    Code.UPDATE_BROKER_CONFIG: lambda client: client.admin.update_broker_config(A, {"a": 1}),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda client: client.admin.topics(),
    Code.GET_TOPICS_BY_CLUSTER: lambda client: client.admin.topics("C"),
    Code.UPDATE_AND_CREATE_TOPIC: lambda client: client.admin.create_topic("T", 1, timeout=0.02),
    Code.DELETE_TOPIC_IN_BROKER: lambda client: client.admin.delete_topic("T", timeout=0.02),
    Code.DELETE_TOPIC_IN_NAMESRV: lambda client: client.admin.delete_topic("T", timeout=0.02),
    Code.GET_TOPIC_CONFIG: lambda client: client.admin.topic_config("T"),
    Code.GET_TOPIC_STATS_INFO: lambda client: client.admin.topic_stats("T"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda client: client.groups.create(GroupConfig("G")),
    Code.DELETE_SUBSCRIPTIONGROUP: lambda client: client.groups.delete("G"),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda client: client.groups.configs(),
    Code.GET_CONSUMER_CONNECTION_LIST: lambda client: client.groups.consumers("G"),
    Code.GET_PRODUCER_CONNECTION_LIST: lambda client: client.groups.producers("G"),
    Code.QUERY_TOPICS_BY_CONSUMER: lambda client: client.groups.topics_of("G"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: lambda client: client.groups.groups_of("T"),
    Code.GET_CONSUME_STATS: lambda client: client.groups.progress("G"),
    Code.GET_ALL_CONSUMER_OFFSET: lambda client: client.groups.offsets(),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: lambda client: client.groups.reset("G", "T", 0),
    Code.UPDATE_CONSUMER_OFFSET: lambda client: client.groups.write("G", {QUEUE: 1}),
    Code.QUERY_CONSUMER_OFFSET: lambda client: client.positions.committed(QUEUE, "G"),
    Code.GET_MIN_OFFSET: lambda client: client.positions.first(QUEUE),
    Code.GET_MAX_OFFSET: lambda client: client.positions.next(QUEUE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: lambda client: client.positions.at(QUEUE, 0),
    Code.GET_EARLIEST_MSG_STORETIME: lambda client: client.positions.earliest_time(QUEUE),
    Code.QUERY_MESSAGE: lambda client: Query(client).by_key("T", "k"),
    Code.VIEW_MESSAGE_BY_ID: lambda client: Query(client).by_offset_id(offset_id(bytes.fromhex("7f00000100002a9f"), 5)),
    Code.QUERY_ASSIGNMENT: lambda client: Popper(client, "G", everything("T")).assignments(),
    Code.CHECK_CLIENT_CONFIG: lambda client: join(client, ConsumerSettings("G", (sql92("T", "a = 1"),))),
}
ACCEPTED = {
    Code.GET_TOPIC_CONFIG: {Status.TOPIC_NOT_EXIST},
    Code.GET_CONSUMER_CONNECTION_LIST: {Status.CONSUMER_NOT_ONLINE},
    Code.QUERY_CONSUMER_OFFSET: {Status.QUERY_NOT_FOUND},
    Code.QUERY_MESSAGE: {Status.QUERY_NOT_FOUND},
}
"""Refusals that mean "there is none", so that no error is raised."""
HANDLED = {*CALLS, Code.GET_ALL_TOPIC_CONFIG}
"""All requests of CALLS, and one that a call sends afterwards."""
CLUSTER_INFO = {
    "brokerAddrTable": {"broker-a": {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "C"}},
    "clusterAddrTable": {"C": ["broker-a"]},
}


@pytest.mark.parametrize("code", CALLS)
async def test_single_requests_handle_every_response_code(short_pauses: pytest.MonkeyPatch, code: int) -> None:
    for status in STATUSES:
        cluster = cutting(short_pauses, "none", -1)
        cluster.topics["T"] = {"broker-a": 1}
        cluster.on = dict.fromkeys(HANDLED, refuses(Status.SYSTEM_ERROR)) | cluster.on
        cluster.on[Code.GET_BROKER_CLUSTER_INFO] = responds_with(CLUSTER_INFO)
        cluster.on |= dict.fromkeys((Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV), success)
        cluster.on[code] = refuses(status)
        client = new_client(cluster)
        await client.connect()
        async with asyncio.timeout(PATIENCE_S):
            if status == Status.SUCCESS or status in ACCEPTED.get(code, ()):  # SUCCESS comes without the expected header or body
                await expect_result_or_error(lambda client=client: CALLS[code](client))
            else:
                with pytest.raises(ClusterError):
                    await CALLS[code](client)
            await client.close()
        assert cluster.requests[code]
