"""Pull and push over a model: packs arrive in order, and again until they are confirmed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.library.pack_puller import PackPuller, push
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model
from tests.tubemq.client.quick import shorten_pauses

COUNT = 40
BODIES = [b"%03d" % n for n in range(COUNT)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


@pytest.fixture
def model() -> Model:
    model = Model({"demo": 3})
    for number in range(3):
        for n, body in enumerate(BODIES):
            message = TransferedMessage(messageId=n, checkSum=checksum(body), payLoadData=body, flag=0)
            model.broker.stored["demo", number].append(message)
    return model


@pytest_asyncio.fixture
async def member(model: Model) -> AsyncIterator[PackConsumer]:
    async with AsyncExitStack() as stack:
        member = PackConsumer(model.masters(), "g", ["demo"], heartbeat_s=0.003)
        await member.start()
        stack.push_async_callback(member.close)
        yield member


def bodies(pack: Pack) -> list[bytes]:
    return [message.payLoadData for message in pack.messages]


async def test_pull_takes_packs_of_all_partitions(member: PackConsumer) -> None:
    puller, got = PackPuller(member), defaultdict(list)
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
async def test_close_ends_pull(member: PackConsumer, what: str, timeout: float | None) -> None:
    puller = PackPuller(member)

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


async def test_every_pull_raises_the_error_that_ended_the_membership(member: PackConsumer) -> None:
    puller = PackPuller(member)
    member._on_permanent_refusal(ClusterError("no more", Failure.FATAL))

    async def to_the_end() -> None:
        while (delivery := await asyncio.wait_for(puller.pull(), PATIENCE_S)) is not None:
            delivery.confirm()

    for _ in range(2):
        with pytest.raises(ClusterError, match="no more"):
            await to_the_end()
    await puller.close()


async def test_a_puller_may_be_closed_before_it_has_started(member: PackConsumer) -> None:
    puller = PackPuller(member)
    await puller.close()
    with pytest.raises(ClusterError, match="closed"):
        await asyncio.wait_for(puller.pull(), PATIENCE_S)


async def test_a_rejected_or_unsettled_pack_is_pulled_again(member: PackConsumer) -> None:
    puller = PackPuller(member, settle_s=0.02)
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


async def test_pull_raises_the_gap_of_a_partition(member: PackConsumer, model: Model) -> None:
    puller = PackPuller(member)
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
async def test_push_keeps_the_order_and_repeats_or_skips_failed_packs(
    member: PackConsumer, skip_failed: bool, caplog: pytest.LogCaptureFixture
) -> None:
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

    pushing = spawn(push(member, handle, handlers=2, skip_failed=skip_failed, retry_s=0.001), "test push", log_errors=False)
    expected = [body for n, body in enumerate(BODIES) if not (skip_failed and 10 <= n < 15)]
    async with asyncio.timeout(PATIENCE_S):
        while [got[number] for number in range(3)] != [expected] * 3:
            assert not pushing.done()
            await asyncio.sleep(0.002)
    assert (failed, most) == ({0, 1, 2}, 2)
    assert ("which is confirmed" in caplog.text, "which is read again" in caplog.text) == (skip_failed, not skip_failed)
    await member.close()
    await asyncio.wait_for(pushing, PATIENCE_S)


async def test_push_ends_with_a_gap(member: PackConsumer) -> None:
    async def handle(partition: HeldPartition, _: Pack) -> None:
        partition.state.stop(GapError("lost data"))

    with pytest.raises(GapError):
        await asyncio.wait_for(push(member, handle), PATIENCE_S)
