"""Members that choose their partitions, over a model: listing, acquiring and releasing partitions, joining again, skip orders."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ServerRefused
from mqbridge.tubemq.library.balanced_consumer import BalancedConsumer
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.tubemq.wire.string_formats import PartitionKey
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import EVERY_CODE, STEP, Model
from tests.tubemq.client.quick import shorten_pauses


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


@pytest.fixture
def model() -> Model:
    model = Model({"demo": 3, "audit": 2})
    for number in range(3):
        for n in range(20):
            body = b"%02d" % n
            message = TransferedMessage(messageId=n, checkSum=checksum(body), payLoadData=body, flag=0)
            model.broker.stored["demo", number].append(message)
    return model


@pytest_asyncio.fixture
async def join(model: Model) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def made(**settings: Any) -> BalancedConsumer:
            member = BalancedConsumer(model.masters(), "g", ["demo", "audit"], heartbeat_s=0.003, **settings)
            await member.start()
            stack.push_async_callback(member.close)
            return member

        yield made


def key(partition: int, topic: str = "demo") -> PartitionKey:
    return PartitionKey(1, topic, partition)


async def test_members_see_all_partitions_and_share_them(join: Any, model: Model) -> None:
    members = [await join(node=(number, 2)) for number in range(2)]
    names = [str(ref.key) for ref in await members[0].partitions()]
    assert names == ["1:audit:0", "1:audit:1", "1:demo:0", "1:demo:1", "1:demo:2"]
    shares = [{str(ref.key) for ref in await member.share()} for member in members]
    assert shares == [set(names[::2]), set(names[1::2])]


async def test_a_partition_is_acquired_read_and_released(join: Any, model: Model) -> None:
    member = await join()
    partition = await member.take(key(1), offset=7 * STEP)
    assert await member.take(key(1)) is partition
    pack = await partition.fetch()
    assert [message.payLoadData for message in pack.messages] == [b"%02d" % n for n in range(7, 12)]
    partition.confirm()
    (client_id,) = model.master.balanced
    await until(lambda: model.master.balanced[client_id] == ["demo#1:1"])
    await member.give_back(key(1))
    await until(lambda: model.master.balanced[client_id] == [])
    assert model.broker.confirmed["g", "demo", 1] == 12 * STEP
    assert not model.broker.owners


async def test_a_partition_of_another_member_is_refused(join: Any) -> None:
    first, second = await join(), await join()
    await first.take(key(0))
    with pytest.raises(ServerRefused) as caught:
        await second.take(key(0))
    assert caught.value.code == 410
    await first.give_back(key(0))
    await second.take(key(0))


async def test_a_missing_or_closed_partition_is_refused(join: Any, model: Model) -> None:
    model.master.closed.add("audit")
    member = await join()
    for wanted, code in ((key(9), 403), (key(0, "audit"), 422)):
        with pytest.raises(ServerRefused) as caught:
            await member.take(wanted)
        assert caught.value.code == code
    assert {ref.topic for ref in await member.share()} == {"demo"}


async def test_new_partitions_are_seen(join: Any, model: Model) -> None:
    member = await join()
    assert len(await member.partitions()) == 5
    model.master.topics["demo"], model.master.meta_id = 4, 2
    await asyncio.sleep(0.01)
    assert len(await member.partitions()) == 6
    assert (await (await member.take(key(2))).fetch()).offset == 0


async def test_a_member_that_joins_again_reports_its_partitions(join: Any, model: Model) -> None:
    member = await join()
    await member.take(key(0))
    model.master.forget()
    await until(lambda: list(model.master.balanced.values()) == [["demo#1:0"]])
    model.master.forget()
    assert len(await member.partitions()) == 5


async def test_an_administrators_order_moves_partitions_to_their_ends(join: Any, model: Model) -> None:
    member = await join()
    partition = await member.take(key(0))
    await partition.fetch()
    partition.reject()
    model.master.ops.csmFrmMaxOffsetCtrlId = 101
    await until(lambda: model.broker.confirmed["g", "demo", 0] == 20 * STEP)
    assert member.membership.skip_id == 101


@pytest.mark.parametrize("step", ["before", "after", "silent"])
@pytest.mark.parametrize("method", [rpc.BALANCED_REGISTER, rpc.BALANCED_HEARTBEAT, rpc.PARTITION_REGISTER, rpc.GET, rpc.COMMIT])
async def test_a_cut_at_every_step(join: Any, model: Model, method: int, step: str) -> None:
    for number in (1, 2, 5):
        model.faults.plan[method, number] = step
    member = await join()
    partition = await member.take(key(0))
    got: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(set(got)) < 20:
            got += [message.payLoadData for message in (await partition.fetch()).messages]
            partition.confirm()
    assert list(dict.fromkeys(got)) == [b"%02d" % n for n in range(20)]


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_code_in_heartbeats(join: Any, model: Model, code: int) -> None:
    """A FATAL code is raised by the next call; after other codes the member continues."""
    member = await join()
    at = model.faults.counts[rpc.BALANCED_HEARTBEAT] + 1
    model.faults.plan[rpc.BALANCED_HEARTBEAT, at] = code
    await until(lambda: model.faults.counts[rpc.BALANCED_HEARTBEAT] > at or member._permanent_error is not None)
    if member._permanent_error is not None:
        with pytest.raises(ServerRefused) as caught:
            await member.partitions()
        assert caught.value.code == code
    else:
        await member.take(key(0))
