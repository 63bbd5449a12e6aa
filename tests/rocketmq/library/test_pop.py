"""POP: receipts, acknowledgements, and brokers that do not support it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, Failure, LocalProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.consumer_settings import StartOffset
from mqbridge.rocketmq.client.consumer.subscription import everything, tagged
from mqbridge.rocketmq.library import pop as module
from mqbridge.rocketmq.library import pop_consumer
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.library.pop_consumer import PopConsumer
from mqbridge.rocketmq.library.pop_receipts import make_batch_acks, make_receipts, popped_topic
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.pop import Assignment, AssignmentQuery, Assignments, BatchAck, BatchAcks
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.pop import AckHeader, ChangeInvisibleHeader, ChangeInvisibleResult, PopHeader, PopResult
from mqbridge.rocketmq.wire.receipts import ReceiptHandle
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import Answer, Cluster, Link, refuses, scripted_client, success

HEADER = PopResult(1000, 60000, 3, 7, "0 0 10;2 0 5", "0 0 10,12;2 0 6")


def record(offset: int, topic: str = "T", tag: str = "a") -> Record:
    return Record(topic, b"%d" % offset, properties.encode([("TAGS", tag)]), queue_offset=offset)


RECORDS = [record(12), record(6, "%RETRY%G+T"), record(10, tag="BB")]
RECEIPTS = [
    ReceiptHandle(10, 1000, 60000, 3, "0", "broker-a", 0, 12),
    ReceiptHandle(5, 1000, 60000, 3, "2", "broker-a", 0, 6),
    ReceiptHandle(10, 1000, 60000, 3, "0", "broker-a", 0, 10),
]


def returns_messages(*records: Record, header: PopResult = HEADER) -> Answer:
    body = b"".join(map(encode_record, records))
    return lambda link, request: link.answer(request, ext=header.encode(), body=body)


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    cluster.topics["T"] = {"broker-a": 2}
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


async def test_a_pop_returns_messages_with_receipts(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.POP_MESSAGE] = returns_messages(*RECORDS)
    popped = await Popper(client, "G", everything("T"), start=StartOffset.LATEST, poll_ms=2000).pop("broker-a")
    assert [receipt for _, receipt in popped.messages] == RECEIPTS
    assert [one.body for one, _ in popped.messages] == [b"12", b"6", b"10"]
    assert popped.remaining == 7
    header = PopHeader.decode(cluster.requests[Code.POP_MESSAGE][0].ext)
    assert (header.queue_id, header.max_msg_nums, header.poll_time, header.init_mode, header.exp, header.order) == (
        -1,
        32,
        2000,
        1,
        "*",
        False,
    )


async def test_messages_with_another_tag_of_the_same_hash_are_acknowledged_and_dropped(
    cluster: Cluster, client: ClusterClient
) -> None:
    cluster.on[Code.POP_MESSAGE] = returns_messages(record(10, tag="Aa"), record(12, tag="BB"))
    cluster.on[Code.ACK_MESSAGE] = success
    popped = await Popper(client, "G", tagged("T", ["Aa"])).pop("broker-a")
    assert [one.queue_offset for one, _ in popped.messages] == [10]
    assert [AckHeader.decode(command.ext).offset for command in cluster.requests[Code.ACK_MESSAGE]] == [12]
    cluster.on[Code.ACK_MESSAGE] = refuses(Status.SYSTEM_ERROR)
    assert len((await Popper(client, "G", tagged("T", ["Aa"])).pop("broker-a")).messages) == 1


async def test_an_inner_batch_that_cannot_be_split_is_received_although_its_tags_are_unknown(
    cluster: Cluster, client: ClusterClient
) -> None:
    torn = Record("T", b"torn", queue_offset=10, sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
    cluster.on[Code.POP_MESSAGE] = returns_messages(torn, record(12, tag="a"))
    popped = await Popper(client, "G", tagged("T", ["a"])).pop("broker-a")
    assert [(one.queue_offset, one.defect is None) for one, _ in popped.messages] == [(10, False), (12, True)]


def test_a_redelivered_message_has_its_receipt_as_a_property() -> None:
    again = record(3)
    again.properties = properties.encode([("POP_CK", "1 1000 60000 3 1 broker-a 0 3"), ("TAGS", "a")])
    assert make_receipts("broker-a", PopResult(1, 2, 3, 0, "1 0 1", "1 0 3"), [again]) == [
        ReceiptHandle(1, 1000, 60000, 3, "1", "broker-a", 0, 3)
    ]


def test_a_message_missing_from_the_offset_lists_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="the offset lists of the POP response lack"):
        make_receipts("broker-a", HEADER, [record(10), record(11), record(12)])
    with pytest.raises(RemoteProtocolError, match="the offset lists of the POP response lack"):
        make_receipts("broker-a", HEADER, [record(1, "%RETRY%G_T")])


@pytest.mark.parametrize("code", [Status.PULL_NOT_FOUND, Status.POLLING_FULL])
async def test_a_pop_without_messages_returns_none(
    cluster: Cluster, client: ClusterClient, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLLING_FULL_PAUSE_S", 0)
    cluster.on[Code.POP_MESSAGE] = refuses(code)
    assert (await Popper(client, "G", everything("T")).pop("broker-a")).messages == []


async def test_a_poll_timeout_at_once_is_reported_as_different_clocks(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.POP_MESSAGE] = refuses(Status.POLLING_TIMEOUT)
    with pytest.raises(ServerRefused, match="clock"):
        await Popper(client, "G", everything("T")).pop("broker-a")
    assert (await Popper(client, "G", everything("T"), poll_ms=0).pop("broker-a")).messages == []


async def test_a_broker_without_pop_is_fatal(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.POP_MESSAGE] = refuses(Status.REQUEST_CODE_NOT_SUPPORTED)
    with pytest.raises(ServerRefused, match="instead of `pop_consumer`") as caught:
        await Popper(client, "G", everything("T")).pop("broker-a")
    assert caught.value.failure is Failure.FATAL


async def test_a_broker_of_an_old_version_is_not_queried(
    cluster: Cluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "broker_version", {"a:10911": 409}.get)
    with pytest.raises(ServerRefused, match="409"):
        await Popper(client, "G", everything("T")).pop("broker-a")
    assert cluster.requests[Code.POP_MESSAGE] == []


async def test_one_message_is_acknowledged_by_a_single_request(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.ACK_MESSAGE] = success
    await Popper(client, "G", everything("T")).acknowledge(RECEIPTS[1:2])
    header = AckHeader.decode(cluster.requests[Code.ACK_MESSAGE][0].ext)
    assert (header.topic, header.queue_id, header.offset, header.extra_info) == (
        "%RETRY%G+T",
        0,
        6,
        "5 1000 60000 3 2 broker-a 0 6",
    )


async def test_several_messages_are_acknowledged_by_one_request(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.BATCH_ACK_MESSAGE] = success
    await Popper(client, "G", everything("T")).acknowledge(RECEIPTS)
    found = BatchAcks.decode(cluster.requests[Code.BATCH_ACK_MESSAGE][0].body)
    broker, acks = found.broker, list(found.acks)
    assert broker == "broker-a"
    assert acks == [BatchAck("G", "T", "0", 10, 0, 3, 1000, 60000, 0b101), BatchAck("G", "T", "2", 5, 0, 3, 1000, 60000, 0b10)]


async def test_a_broker_without_batch_acknowledgements_gets_single_ones(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.BATCH_ACK_MESSAGE] = refuses(Status.REQUEST_CODE_NOT_SUPPORTED)
    cluster.on[Code.ACK_MESSAGE] = success
    popper = Popper(client, "G", everything("T"))
    await popper.acknowledge(RECEIPTS)
    await popper.acknowledge(RECEIPTS)
    assert len(cluster.requests[Code.BATCH_ACK_MESSAGE]) == 1
    assert len(cluster.requests[Code.ACK_MESSAGE]) == 6


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_batch_acknowledgement_contains_exactly_the_offsets(offsets: set[int]) -> None:
    receipts = [RECEIPTS[0]._replace(start=50, offset=50 + one) for one in offsets]
    (ack,) = make_batch_acks("G", "T", receipts)
    assert {bit for bit in range(400) if ack.mask >> bit & 1} == offsets


async def test_changing_the_invisible_time_returns_a_new_receipt(cluster: Cluster, client: ClusterClient) -> None:
    def later(link: Link, request: Command) -> None:
        link.answer(request, ext=ChangeInvisibleResult(2000, 5000, 4).encode())

    cluster.on[Code.CHANGE_MESSAGE_INVISIBLETIME] = later
    receipt = await Popper(client, "G", everything("T")).change_invisible(RECEIPTS[0], 5000)
    assert receipt == ReceiptHandle(12, 2000, 5000, 4, "0", "broker-a", 0, 12)
    header = ChangeInvisibleHeader.decode(cluster.requests[Code.CHANGE_MESSAGE_INVISIBLETIME][0].ext)
    assert (header.invisible_time, header.offset, header.extra_info) == (5000, 12, str(RECEIPTS[0]))


async def test_assignments_are_queried_at_the_broker(cluster: Cluster, client: ClusterClient) -> None:
    found = [Assignment(Queue("T", "broker-a", 0), "POP")]
    body = Assignments(tuple(found)).encode()
    cluster.on[Code.QUERY_ASSIGNMENT] = lambda link, request: link.answer(request, body=body)
    popper = Popper(client, "G", everything("T"))
    assert await popper.assignments() == found
    query = AssignmentQuery.decode(cluster.requests[Code.QUERY_ASSIGNMENT][0].body)
    assert query == AssignmentQuery("T", "G", client.client_id, "AVG", "CLUSTERING")


async def test_no_assignment_is_an_error(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.QUERY_ASSIGNMENT] = lambda link, request: link.answer(request, body=b"{}")
    with pytest.raises(ServerRefused, match="no assignment"):
        await Popper(client, "G", everything("T")).assignments()


async def test_brokers_lists_every_broker_of_the_topic(cluster: Cluster, client: ClusterClient) -> None:
    cluster.topics["T"] = {"broker-b": 1, "broker-a": 1}
    assert await Popper(client, "G", everything("T")).brokers() == ["broker-a", "broker-b"]
    with pytest.raises(ClusterError, match="absent"):
        await Popper(client, "G", everything("absent")).brokers()


@pytest.mark.parametrize("bad", [{"start": StartOffset.TIMESTAMP}, {"max_msgs": 33}, {"max_msgs": 0}])
def test_invalid_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        Popper(None, "G", everything("T"), **bad)  # type: ignore[arg-type]


def test_the_topic_of_an_acknowledgement_depends_on_the_retry_marker() -> None:
    assert [popped_topic("G", "T", retry) for retry in "012"] == ["T", "%RETRY%G_T", "%RETRY%G+T"]


async def test_a_broker_that_comes_later_is_popped_too(cluster: Cluster) -> None:
    cluster.topics["T"] = {"broker-a": 1, "broker-b": 1}
    cluster.down.add("broker-a")

    def pop(link: Link, request: Command) -> None:
        if len(cluster.requests_to[link.address]) < 50 and PopHeader.decode(request.ext).topic == "T":
            returns_messages(record(12), header=PopResult(1000, 60000, 3, 7, "0 0 12", "0 0 12"))(link, request)

    cluster.on[Code.POP_MESSAGE] = pop
    client = scripted_client(route=0.05)
    await client.connect()
    client.routes.start()
    popper = Popper(client, "G", everything("T"), poll_ms=2000)
    async with PopConsumer(popper, "T", await popper.brokers()) as consumer:
        assert (await consumer.receive(timeout=PATIENCE_S)).partition == "broker-b:0"
        cluster.down.clear()
        async with asyncio.timeout(PATIENCE_S):
            while (await consumer.receive()).partition != "broker-a:0":
                pass
    await client.close()


async def test_nothing_is_popped_while_too_many_acknowledgements_wait(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_consumer, "MAX_PENDING_RECEIPTS", 3)
    cluster.topics["T"] = {"broker-a": 1}
    waiting: list[tuple[Link, Command]] = []
    number = iter(range(10**6))

    def pop_one(link: Link, request: Command) -> None:
        offset = next(number)
        header = PopResult(1000, 60000, 3, 7, f"0 0 {offset}", f"0 0 {offset}")
        link.answer(request, ext=header.encode(), body=encode_record(record(offset)))

    def hold(link: Link, request: Command) -> None:
        waiting.append((link, request))

    cluster.on |= {Code.POP_MESSAGE: pop_one, Code.ACK_MESSAGE: hold, Code.BATCH_ACK_MESSAGE: hold}
    client = scripted_client()
    await client.connect()
    consumer = PopConsumer(Popper(client, "G", everything("T")), "T", ["broker-a"])
    received = 0
    with contextlib.suppress(TimeoutError):
        while received < 100:
            consumer.acknowledge(await consumer.receive(0.2))
            received += 1
    assert 3 < received < 10
    for code in (Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE):
        cluster.on[code] = success
    for link, request in waiting:
        success(link, request)
    while received < 100:
        consumer.acknowledge(await consumer.receive(PATIENCE_S))
        received += 1
    await consumer.close()
    await client.close()
