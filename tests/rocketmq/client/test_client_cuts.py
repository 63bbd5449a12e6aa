"""Each request of a conversation fails in turn, in each of four ways: nothing hangs and no message is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.library.transactions import Half, State, TransactionProducer
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.bodies.pop import BatchAcks
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, request_name
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.headers.transactions import CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Link, store, success
from tests.rocketmq.client.cutting_cluster import (
    MODES,
    SILENT,
    Cutting,
    cutting,
    new_client,
    retry_temporary_errors,
    short_pauses,
)

__all__ = ["short_pauses"]

QUEUES = [Queue("T", "broker-a", number) for number in range(2)]


async def fail_each_request(
    patch: pytest.MonkeyPatch, mode: str, converse: Callable[[Cutting], Awaitable[None]], codes: Collection[int]
) -> None:
    """Run the conversation with its first request failing, then its second, and so on.

    The order of requests depends on timing, so the numbers may miss one of `codes`. Then the conversation runs once more, and the
    first request with this code fails.
    """
    failed_codes: set[int] = set()

    async def run(number: int | None = None, code: int | None = None) -> int | None:
        cluster = cutting(patch, mode, number, code)
        async with asyncio.timeout(PATIENCE_S):
            await converse(cluster)
        return cluster.hit

    for number in range(1000):
        if (hit := await run(number)) is None:
            break
        failed_codes.add(hit)
    else:
        raise AssertionError("the conversation does not end")
    for code in set(codes) - failed_codes:
        assert await run(code=code) == code, f"the conversation has no request {request_name(code)}"


# --- producing ------------------------------------------------------------------------------------------------------------


async def produce(cluster: Cutting) -> None:
    """Send batches and single messages to two queues, in order."""
    client = new_client(cluster)
    await retry_temporary_errors(client.connect)
    producer = client.producer("P", "T")
    await retry_temporary_errors(producer.queues)
    sent = []
    for round_ in range(3):
        for queue in QUEUES:
            bodies = [b"%d" % (round_ * 3 + index) for index in range(3)]
            sent.append(producer.send_batch(queue, b"".join(batch.encode_element(body, b"") for body in bodies[:2]), 2, 0))
            sent.append(producer.send_single(queue, bodies[2], b""))
    results = await asyncio.gather(*sent)
    assert [result.queue for result in results] == [queue for _ in range(3) for queue in QUEUES for _ in range(2)]
    await producer.close()
    await client.close()
    for number in range(2):
        stored = [body for body, _ in cluster.stored[A, number]]
        assert list(dict.fromkeys(stored)) == [
            b"%d" % at for at in range(9)
        ]  # every message in order; at most one request is stored twice
        assert len(stored) <= 11


@pytest.mark.parametrize("mode", MODES)
async def test_sends_survive_a_failure_of_any_request(short_pauses: pytest.MonkeyPatch, mode: str) -> None:
    codes = {
        Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE_V2, Code.UNREGISTER_CLIENT,
    }  # fmt: skip
    await fail_each_request(short_pauses, mode, produce, codes)


async def transact(cluster: Cutting) -> None:
    """Commit one transaction and roll back another; the broker checks each transaction whose END_TRANSACTION was lost."""
    ended: dict[int, int] = {}

    def end(link: Link, request: object) -> None:
        header = EndTransactionHeader.decode(request.ext)  # type: ignore[attr-defined]
        ended[header.tran_state_table_offset] = header.commit_or_rollback

    cluster.on[Code.END_TRANSACTION] = end
    outcomes: dict[str, State] = {}

    def execute(message: OutgoingMessage, transaction_id: str) -> State:
        outcomes[transaction_id] = State.COMMIT if message.payload == b"yes" else State.ROLLBACK
        return outcomes[transaction_id]

    def check(half: Half) -> State:
        return outcomes.get(half.transaction_id, State.ROLLBACK)

    client = new_client(cluster)
    await retry_temporary_errors(client.connect)
    producer = TransactionProducer(client, "TG", "T", check)
    for body in (b"yes", b"no"):
        await retry_temporary_errors(lambda body=body: producer.send(OutgoingMessage(body), execute, partition="broker-a:0"))
    halves = cluster.stored[A, 0]
    while len(ended) < len(halves):
        for offset in range(len(halves)):
            if offset not in ended and (links := cluster.links_to(A)):
                send_check(links[0], offset, *halves[offset])
        if not cluster.links_to(A):
            await client.heartbeat()  # the client sends one every 30 s
        await asyncio.sleep(0.005)
    for offset, (body, _) in enumerate(halves):
        assert body == b"yes" or ended[offset] == State.ROLLBACK.value
    assert [ended[offset] for offset, (body, _) in enumerate(halves) if body == b"yes"].count(State.COMMIT.value) >= 1
    await producer.close()
    await client.close()


def send_check(link: Link, offset: int, body: bytes, properties: str) -> None:
    """Send CHECK_TRANSACTION_STATE, which contains the half message."""
    header = CheckTransactionHeader(offset, offset, None, None, None)
    record = Record("T", body, properties.encode(), queue_offset=offset)
    link.send(Command(Code.CHECK_TRANSACTION_STATE, header.encode(), encode_record(record), flag=ONEWAY))


@pytest.mark.parametrize("mode", MODES)
async def test_transactions_survive_a_failure_of_any_request(short_pauses: pytest.MonkeyPatch, mode: str) -> None:
    codes = {Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_MESSAGE_V2, Code.END_TRANSACTION}
    await fail_each_request(short_pauses, mode, transact, codes)


# --- consuming ------------------------------------------------------------------------------------------------------------


def consume_all(*, orderly: bool) -> Callable[[Cutting], Awaitable[None]]:
    """Return a conversation that reads two queues and sends one message back; at its end everything is committed."""

    async def consume(cluster: Cutting) -> None:
        cluster.on[Code.CONSUMER_SEND_MSG_BACK] = success
        cluster.on[Code.SEND_MESSAGE_V2] = store
        for queue in QUEUES:
            log = cluster.groups.log(*queue)
            log.limit = 4
            log.append(*(b"%d %d" % (queue.id, at) for at in range(10)))
        client = new_client(cluster)
        await retry_temporary_errors(client.connect)
        consumer = await retry_temporary_errors(lambda: join(client, ConsumerSettings("G", (everything("T"),), orderly=orderly)))
        read: dict[Queue, list[bytes]] = {queue: [] for queue in QUEUES}
        back = SendBack(client, "G")
        while any(len(set(bodies)) < 10 for bodies in read.values()):
            for assigned in list(consumer.held.values()):
                pulled = assigned.take()
                for record in pulled.records if pulled is not None else ():
                    if record.body == b"0 5" and record.body not in read[assigned.queue]:
                        await retry_temporary_errors(lambda queue=assigned.queue, record=record: back.redeliver(queue, record))
                    read[assigned.queue].append(record.body)
                if pulled is not None:
                    assigned.commit(pulled.next)
            await asyncio.sleep(0.002)
        await consumer.close()
        await client.close()
        # Requests on a lost connection are repeated. One that is never answered is not repeated: closing gives up first.
        unanswered = cluster.hit if cluster.mode == SILENT else None
        for queue, bodies in read.items():
            assert list(dict.fromkeys(bodies)) == [b"%d %d" % (queue.id, at) for at in range(10)]
            committed = cluster.groups.offsets.get(("G", queue), 0)
            assert committed == 10 or (unanswered == Code.UPDATE_CONSUMER_OFFSET and committed <= 10)
        assert not cluster.groups.locks or unanswered == Code.UNLOCK_BATCH_MQ
        assert not cluster.groups.members["G"] or unanswered == Code.UNREGISTER_CLIENT
        copies = sum(len(cluster.stored[A, number]) for number in range(2))
        assert copies + len(cluster.requests[Code.CONSUMER_SEND_MSG_BACK]) >= 1

    return consume


CONSUMING = {
    Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.QUERY_CONSUMER_OFFSET,
    Code.GET_MIN_OFFSET, Code.PULL_MESSAGE, Code.UPDATE_CONSUMER_OFFSET, Code.CONSUMER_SEND_MSG_BACK, Code.UNREGISTER_CLIENT,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
async def test_a_member_survives_a_failure_of_any_request(short_pauses: pytest.MonkeyPatch, mode: str) -> None:
    await fail_each_request(short_pauses, mode, consume_all(orderly=False), CONSUMING)


@pytest.mark.parametrize("mode", MODES)
async def test_an_orderly_member_survives_a_failure_of_any_request(short_pauses: pytest.MonkeyPatch, mode: str) -> None:
    codes = CONSUMING | {Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ}
    await fail_each_request(short_pauses, mode, consume_all(orderly=True), codes)


async def pop(cluster: Cutting) -> None:
    """Pop messages until all are acknowledged; the broker delivers unacknowledged ones again."""
    todo = {at: encode_record(Record("T", b"%d" % at, queue_offset=at)) for at in range(4)}

    def pop_response(link: Link, request: Command) -> None:
        offsets = sorted(todo)[:2]
        header = PopResult(1000, 60000, 3, 0, f"0 0 {offsets[0]}", "0 0 " + ",".join(map(str, offsets)))
        link.answer(request, ext=header.encode(), body=b"".join(todo[at] for at in offsets))

    def acknowledge(link: Link, request: Command) -> None:
        for ack in BatchAcks.decode(request.body).acks:
            for bit in range(64):
                if ack.mask >> bit & 1:
                    todo.pop(ack.start + bit, None)
        link.answer(request)

    cluster.on |= {Code.POP_MESSAGE: pop_response, Code.BATCH_ACK_MESSAGE: acknowledge}
    client = new_client(cluster)
    await retry_temporary_errors(client.connect)
    popper = Popper(client, "G", everything("T"), poll_ms=0)
    read = set()
    while todo:
        popped_now = await retry_temporary_errors(lambda: popper.pop("broker-a"))
        read |= {record.body for record, _ in popped_now.messages}
        await retry_temporary_errors(
            lambda popped_now=popped_now: popper.acknowledge([receipt for _, receipt in popped_now.messages])
        )
    assert read == {b"0", b"1", b"2", b"3"}
    await client.close()


@pytest.mark.parametrize("mode", MODES)
async def test_pops_survive_a_failure_of_any_request(short_pauses: pytest.MonkeyPatch, mode: str) -> None:
    codes = {Code.GET_ROUTEINFO_BY_TOPIC, Code.POP_MESSAGE, Code.BATCH_ACK_MESSAGE}
    await fail_each_request(short_pauses, mode, pop, codes)
