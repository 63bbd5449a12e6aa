"""Pull and push over a model: every pack, in order, confirmed or again."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, GapError, LocalProtocolError
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.consumer import Consumer
from mqbridge.tubemq.client.messages import TubeMessage, decode, decode_all, encode
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.reading import Puller, push
from mqbridge.tubemq.wire.payload import checksum, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model
from tests.tubemq.client.quick import hurry

COUNT = 40
BODIES = [b"%03d" % n for n in range(COUNT)]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def model() -> Model:
    model = Model({"demo": 3})
    for number in range(3):
        for n, body in enumerate(BODIES):
            message = TransferedMessage(messageId=n, checkSum=checksum(body), payLoadData=body, flag=0)
            model.broker.stored["demo", number].append(message)
    return model


@pytest_asyncio.fixture
async def member(model: Model) -> AsyncIterator[Consumer]:
    async with AsyncExitStack() as stack:
        member = Consumer(model.masters(), "g", ["demo"], heartbeat_s=0.003)
        await member.start()
        stack.push_async_callback(member.close)
        yield member


def bodies(pack: Pack) -> list[bytes]:
    return [message.payLoadData for message in pack.messages]


async def test_pull_takes_packs_of_all_partitions(member: Consumer) -> None:
    puller, got = Puller(member), defaultdict(list)
    while any(len(found) < COUNT for found in got.values()) or len(got) < 3:
        delivery = await puller.pull(5.0)
        assert delivery is not None
        got[delivery.partition.ref.partition] += bodies(delivery.pack)
        delivery.confirm()
        delivery.reject()  # too late: it counts once
    assert list(got.values()) == [BODIES] * 3
    assert await puller.pull(0.01) is None
    await puller.close()


@pytest.mark.parametrize("what", ["consumer", "puller"])
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_pull_ends_when_it_is_closed(member: Consumer, what: str, timeout: float | None) -> None:
    puller = Puller(member)

    async def to_the_end() -> None:
        while (delivery := await puller.pull(timeout)) is not None:
            delivery.confirm()

    pulling = [asyncio.ensure_future(to_the_end()) for _ in range(2)]
    await until(lambda: member.held_partitions.snapshot().get("misses", 0) > 0)
    await (member.close() if what == "consumer" else puller.close())
    for task in pulling:
        with pytest.raises(ClusterError, match="closed"):
            await asyncio.wait_for(task, PATIENCE_S)
    with pytest.raises(ClusterError, match="closed"):
        await asyncio.wait_for(puller.pull(timeout), PATIENCE_S)
    await puller.close()


async def test_a_group_that_does_not_want_us_is_told_to_everybody_who_pulls(member: Consumer) -> None:
    puller = Puller(member)
    member._fail(ClusterError("no more", Failure.FATAL))

    async def to_the_end() -> None:
        while (delivery := await asyncio.wait_for(puller.pull(), PATIENCE_S)) is not None:
            delivery.confirm()

    for _ in range(2):
        with pytest.raises(ClusterError, match="no more"):
            await to_the_end()
    await puller.close()


async def test_a_puller_that_is_closed_before_it_has_begun(member: Consumer) -> None:
    puller = Puller(member)
    await puller.close()
    with pytest.raises(ClusterError, match="closed"):
        await asyncio.wait_for(puller.pull(), PATIENCE_S)


async def test_pull_again_what_was_rejected_or_never_settled(member: Consumer) -> None:
    puller = Puller(member, settle_s=0.02)
    first = await puller.pull(5.0)
    assert first is not None
    again = None
    while again is None or again.partition is not first.partition:
        if again is not None:
            again.confirm()
        again = await puller.pull(5.0)
        assert again is not None
    assert bodies(again.pack) == bodies(first.pack)
    again.reject()
    first.confirm()
    assert again.partition.pack is None
    await puller.close()


async def test_pull_says_what_is_wrong_with_a_partition(member: Consumer, model: Model) -> None:
    puller = Puller(member)
    partition = None
    while partition is None:
        delivery = await puller.pull(5.0)
        assert delivery is not None
        if delivery.partition.ref.partition == 1:
            partition = delivery.partition
        delivery.confirm()
    partition.state.stop(GapError("lost data"))

    async def to_the_end() -> None:
        while (delivery := await puller.pull(5.0)) is not None:
            delivery.confirm()

    with pytest.raises(GapError):
        await to_the_end()
    await puller.close()


@pytest.mark.parametrize("skip_failed", [False, True], ids=["again", "skipped"])
async def test_push_in_order_and_what_becomes_of_failures(member: Consumer, skip_failed: bool) -> None:
    got: dict[int, list[bytes]] = defaultdict(list)
    failed: set[int] = set()
    running = most = 0

    async def handle(partition: HeldPartition, pack: Pack) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if pack.offset == 10 * STEP and partition.ref.partition not in failed:
            failed.add(partition.ref.partition)
            raise ValueError("not now")
        got[partition.ref.partition] += bodies(pack)

    pushing = spawn(push(member, handle, handlers=2, skip_failed=skip_failed, again_s=0.001), "test push", quiet=True)
    expected = [body for n, body in enumerate(BODIES) if not (skip_failed and 10 <= n < 15)]
    async with asyncio.timeout(PATIENCE_S):
        while [got[number] for number in range(3)] != [expected] * 3:
            assert not pushing.done()
            await asyncio.sleep(0.002)
    assert (failed, most) == ({0, 1, 2}, 2)
    await member.close()
    await asyncio.wait_for(pushing, PATIENCE_S)


async def test_push_ends_with_a_gap(member: Consumer) -> None:
    async def handle(partition: HeldPartition, _: Pack) -> None:
        partition.state.stop(GapError("lost data"))

    with pytest.raises(GapError):
        await asyncio.wait_for(push(member, handle), PATIENCE_S)


# --- messages ---------------------------------------------------------------------------------------------------------


def stored(message: TubeMessage) -> TransferedMessage:
    data, flag = encode(message)
    return TransferedMessage(messageId=7, checkSum=checksum(data), payLoadData=data, flag=flag)


@pytest.mark.parametrize(
    "message",
    [
        TubeMessage(b"plain"),
        TubeMessage(b"", {"k": "v"}),
        TubeMessage(b"x", {"k": "v", "ключ": "значение"}, "t1", "202611202350"),
        TubeMessage(b"x", msg_type="t1"),
    ],
)
def test_messages_both_ways(message: TubeMessage) -> None:
    found = decode(stored(message))
    assert found.id == 7
    found.id = 0
    assert found == message


def test_the_system_pairs_come_first() -> None:
    data, flag = encode(TubeMessage(b"x", {"k": "v"}, "t1", "202611202350"))
    assert (data[4:-1], flag) == (b"$msgType$=t1,$msgTime$=202611202350,k=v", 1)


@pytest.mark.parametrize(
    "message",
    [
        TubeMessage(b"x", {"a,b": "v"}),
        TubeMessage(b"x", {"k": "a=b"}),
        TubeMessage(b"x", {"k": " "}),
        TubeMessage(b"x", {"$msgType$": "t"}),
        TubeMessage(b"x", msg_time="2026-11-20"),
    ],
)
def test_what_attributes_cannot_carry(message: TubeMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode(message)


def test_foreign_types_and_damage() -> None:
    pack = [stored(TubeMessage(b"%d" % n, msg_type=kind)) for n, kind in enumerate(("t1", "t2", None, "t1"))]
    assert [message.body for message in decode_all(pack, {"t1"})] == [b"0", b"3"]
    assert len(decode_all(pack)) == 4
    pack[0].checkSum ^= 1
    with pytest.raises(LocalProtocolError, match="damaged"):
        decode_all(pack)
    impossible = TransferedMessage(messageId=1, payLoadData=b"body", flag=1, checkSum=checksum(b"body"))
    assert decode(impossible).body == b"body"
    assert join_payload(None, b"x") == (b"x", 0)
