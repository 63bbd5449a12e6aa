"""One request of a whole conversation is spoilt, each in turn and in each way: nothing hangs, nothing is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.pull_consumer import join
from mqbridge.rocketmq.client.sendback import SendBack
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.library.transactions import Half, State, TransactionProducer
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.bodies.pop import BatchAcks
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.headers.transactions import CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Link, store, success
from tests.rocketmq.client.cutting_cluster import MODES, SILENT, Cutting, cutting, impatient, insist, new_client

__all__ = ["impatient"]

QUEUES = [Queue("T", "broker-a", number) for number in range(2)]


async def at_every_step(patch: pytest.MonkeyPatch, mode: str, converse: Callable[[Cutting], Awaitable[None]]) -> set[int]:
    """Run the conversation with its first request spoilt, its second, and so on; the codes that were."""
    spoilt: set[int] = set()
    for victim in range(1000):
        cluster = cutting(patch, mode, victim)
        async with asyncio.timeout(PATIENCE_S):
            await converse(cluster)
        if cluster.hit is None:
            return spoilt
        spoilt.add(cluster.hit)
    raise AssertionError("the conversation does not end")


# --- producing ------------------------------------------------------------------------------------------------------------


async def produce(cluster: Cutting) -> None:
    """Batches and single messages to two queues, in order."""
    client = new_client(cluster)
    await insist(client.connect)
    producer = client.producer("P", "T")
    await insist(producer.queues)
    sent = []
    for round_ in range(3):
        for queue in QUEUES:
            bodies = [b"%d" % (round_ * 3 + place) for place in range(3)]
            sent.append(producer.send_batch(queue, b"".join(batch.encode_element(body, b"") for body in bodies[:2]), 2, 0))
            sent.append(producer.send_single(queue, bodies[2], b""))
    results = await asyncio.gather(*sent)
    assert [result.queue for result in results] == [queue for _ in range(3) for queue in QUEUES for _ in range(2)]
    await producer.close()
    await client.close()
    for number in range(2):
        stored = [body for body, _ in cluster.stored[A, number]]
        assert list(dict.fromkeys(stored)) == [b"%d" % at for at in range(9)]  # each, in order; at most one request twice
        assert len(stored) <= 11


@pytest.mark.parametrize("mode", MODES)
async def test_sends(impatient: pytest.MonkeyPatch, mode: str) -> None:
    spoilt = await at_every_step(impatient, mode, produce)
    assert spoilt == {
        Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE_V2, Code.UNREGISTER_CLIENT,
    }  # fmt: skip


async def transact(cluster: Cutting) -> None:
    """A word that was lost is asked for, and says the same."""
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
    await insist(client.connect)
    producer = TransactionProducer(client, "TG", "T", check)
    for body in (b"yes", b"no"):
        await insist(lambda body=body: producer.send(OutgoingMessage(body), execute, partition="broker-a:0"))
    halves = cluster.stored[A, 0]
    while len(ended) < len(halves):
        for offset in range(len(halves)):
            if offset not in ended and (links := cluster.links_to(A)):
                ask(links[0], offset, *halves[offset])
        if not cluster.links_to(A):
            await client.heartbeat()  # of every 30 s
        await asyncio.sleep(0.005)
    for offset, (body, _) in enumerate(halves):
        assert body == b"yes" or ended[offset] == State.ROLLBACK.value
    assert [ended[offset] for offset, (body, _) in enumerate(halves) if body == b"yes"].count(State.COMMIT.value) >= 1
    await producer.close()
    await client.close()


def ask(link: Link, offset: int, body: bytes, properties: str) -> None:
    """CHECK_TRANSACTION_STATE, which carries the half message."""
    header = CheckTransactionHeader(offset, offset, None, None, None)
    record = Record("T", body, properties.encode(), queue_offset=offset)
    link.send(Command(Code.CHECK_TRANSACTION_STATE, header.encode(), encode_record(record), flag=ONEWAY))


@pytest.mark.parametrize("mode", MODES)
async def test_transactions(impatient: pytest.MonkeyPatch, mode: str) -> None:
    spoilt = await at_every_step(impatient, mode, transact)
    assert spoilt >= {Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_MESSAGE_V2, Code.END_TRANSACTION}


# --- consuming ------------------------------------------------------------------------------------------------------------


def consumes(*, orderly: bool) -> Callable[[Cutting], Awaitable[None]]:
    """Everything of two queues; one message is sent back. A second member would go on where the first one stopped."""

    async def consume(cluster: Cutting) -> None:
        cluster.on[Code.CONSUMER_SEND_MSG_BACK] = success
        cluster.on[Code.SEND_MESSAGE_V2] = store
        for queue in QUEUES:
            log = cluster.groups.log(*queue)
            log.limit = 4
            log.append(*(b"%d %d" % (queue.id, at) for at in range(10)))
        client = new_client(cluster)
        await insist(client.connect)
        consumer = await insist(lambda: join(client, ConsumerSettings("G", (everything("T"),), orderly=orderly)))
        read: dict[Queue, list[bytes]] = {queue: [] for queue in QUEUES}
        back = SendBack(client, "G")
        while any(len(set(found)) < 10 for found in read.values()):
            for assigned in list(consumer.held.values()):
                pulled = assigned.take()
                for record in pulled.records if pulled is not None else ():
                    if record.body == b"0 5" and record.body not in read[assigned.queue]:
                        await insist(lambda queue=assigned.queue, record=record: back.later(queue, record))
                    read[assigned.queue].append(record.body)
                if pulled is not None:
                    assigned.commit(pulled.next)
            await asyncio.sleep(0.002)
        await consumer.close()
        await client.close()
        # What a connection loses is done again; a broker that is silent to it says so only after the deadline.
        unheard = cluster.hit if cluster.mode == SILENT else None
        for queue, found in read.items():
            assert list(dict.fromkeys(found)) == [b"%d %d" % (queue.id, at) for at in range(10)]
            committed = cluster.groups.offsets.get(("G", queue), 0)
            assert committed == 10 or (unheard == Code.UPDATE_CONSUMER_OFFSET and committed <= 10)
        assert not cluster.groups.locks or unheard == Code.UNLOCK_BATCH_MQ
        assert not cluster.groups.members["G"] or unheard == Code.UNREGISTER_CLIENT
        copies = sum(len(cluster.stored[A, number]) for number in range(2))
        assert copies + len(cluster.asked[Code.CONSUMER_SEND_MSG_BACK]) >= 1

    return consume


CONSUMING = {
    Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.QUERY_CONSUMER_OFFSET,
    Code.GET_MIN_OFFSET, Code.PULL_MESSAGE, Code.UPDATE_CONSUMER_OFFSET, Code.CONSUMER_SEND_MSG_BACK, Code.UNREGISTER_CLIENT,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
async def test_a_member(impatient: pytest.MonkeyPatch, mode: str) -> None:
    assert await at_every_step(impatient, mode, consumes(orderly=False)) >= CONSUMING


@pytest.mark.parametrize("mode", MODES)
async def test_an_orderly_member(impatient: pytest.MonkeyPatch, mode: str) -> None:
    spoilt = await at_every_step(impatient, mode, consumes(orderly=True))
    assert spoilt >= CONSUMING | {Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ}


async def pop(cluster: Cutting) -> None:
    """What was not acknowledged is there again."""
    todo = {at: encode_record(Record("T", b"%d" % at, queue_offset=at)) for at in range(4)}

    def popped(link: Link, request: Command) -> None:
        offsets = sorted(todo)[:2]
        header = PopResult(1000, 60000, 3, 0, f"0 0 {offsets[0]}", "0 0 " + ",".join(map(str, offsets)))
        link.answer(request, ext=header.encode(), body=b"".join(todo[at] for at in offsets))

    def acknowledged(link: Link, request: Command) -> None:
        for one in BatchAcks.decode(request.body).acks:
            for bit in range(64):
                if one.mask >> bit & 1:
                    todo.pop(one.start + bit, None)
        link.answer(request)

    cluster.on |= {Code.POP_MESSAGE: popped, Code.BATCH_ACK_MESSAGE: acknowledged}
    client = new_client(cluster)
    await insist(client.connect)
    popper = Popper(client, "G", everything("T"), poll_ms=0)
    read = set()
    while todo:
        found = await insist(lambda: popper.pop("broker-a"))
        read |= {record.body for record, _ in found.messages}
        await insist(lambda found=found: popper.acknowledge([receipt for _, receipt in found.messages]))
    assert read == {b"0", b"1", b"2", b"3"}
    await client.close()


@pytest.mark.parametrize("mode", MODES)
async def test_pops(impatient: pytest.MonkeyPatch, mode: str) -> None:
    assert await at_every_step(impatient, mode, pop) >= {Code.GET_ROUTEINFO_BY_TOPIC, Code.POP_MESSAGE, Code.BATCH_ACK_MESSAGE}
