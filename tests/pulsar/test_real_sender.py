"""A named sender at a real broker: its messages are stored once, even if another process sends them again after a crash."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.adapter import outbound as outbounds
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.admin.admin import Admin
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

SOURCE = Partition("src", "orders", "7:0", 0)
NAME = "job"


class Job:
    """One topic of a namespace, and senders into it; each has a cluster object of its own, like a separate process."""

    def __init__(self, server: Pulsar, topic: str, stack: AsyncExitStack) -> None:
        self.topic, self._server, self._stack = topic, server, stack

    async def cluster(self):
        config = ADAPTER.cluster_model(service_url=self._server.service_url, admin_url=self._server.admin_url)
        cluster = ADAPTER.make_cluster("c", config)
        self._stack.push_async_callback(cluster.close)
        await cluster.connect()
        return cluster

    async def outbound(self, **options: int) -> Outbound:
        spec = OutboundSpec(self.topic, sender=NAME, options=PulsarOutboundOptions(**options))
        outbound = await (await self.cluster()).outbound(spec)
        self._stack.push_async_callback(outbound.close)
        return outbound

    async def stored(self, partition: str = "0") -> list[int]:
        """Return the messages of a partition in order."""
        cluster = await self.cluster()
        bounds = (await cluster.bounds(self.topic))[partition]
        async with (
            asyncio.timeout(SERVER_PATIENCE_S),
            aclosing(read(cluster, self.topic, partition, bounds.first, bounds.next)) as all_of_it,
        ):
            return [int(message.payload) async for batch in all_of_it for message in batch.messages]


async def made(server: Pulsar, stack: AsyncExitStack, *, is_deduplicated: bool, partitions: int = 1) -> Job:
    namespace = await asyncio.to_thread(server.create_namespace, "acme", f"sender-{uuid4().hex[:6]}")
    admin = Admin(server.admin_url, SERVER_PATIENCE_S)
    await admin.set_deduplication(namespace, is_deduplicated)
    await admin.set_retention(namespace, -1, -1)  # nothing is consumed, and a restart closes ledgers
    await admin.close()
    topic = await asyncio.to_thread(server.create_topic, "t", partitions, namespace=namespace)
    return Job(server, topic, stack)


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def job(pulsar: Pulsar, stack: AsyncExitStack) -> Job:
    return await made(pulsar, stack, is_deduplicated=True)


async def send(outbound: Outbound, numbers: Sequence[int], size: int, partition: int = 0) -> list[bool]:
    """Send shares of this size; return for each message whether the broker reported its position."""
    sends = [
        outbound.send(partition, Share(Batch.of([Message(b"%d" % n, position=(n,)) for n in numbers[at : at + size]], SOURCE)))
        for at in range(0, len(numbers), size)
    ]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        receipts = await asyncio.gather(*sends)
    assert not any(receipt.failures for receipt in receipts)
    return [bool(position) for receipt in receipts for position in receipt.positions]


async def test_a_repeated_send_is_stored_once(job: Job) -> None:
    first = await job.outbound()
    assert await first.resume(SOURCE) == {}
    assert all(await send(first, range(0, 100, 2), 7))
    await first.close()
    second = await job.outbound()
    assert await second.resume(SOURCE) == {0: (98,)}
    assert not any(await send(second, range(0, 100, 2), 7))
    assert await job.stored() == list(range(0, 100, 2))


@pytest.mark.parametrize("stored", [1, 40, 99])
async def test_other_batches_after_a_resume_lose_and_duplicate_nothing(job: Job, stored: int) -> None:
    first = await job.outbound(batch_messages=10)
    await first.resume(SOURCE)
    await send(first, range(stored), 13)
    await first.close()
    second = await job.outbound(batch_messages=9)
    assert await second.resume(SOURCE) == {0: (stored - 1,)}
    await send(second, range(100), 31)
    assert await job.stored() == list(range(100))


async def test_a_second_sender_waits_until_the_first_is_closed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await job.outbound(), await job.outbound()
    await first.resume(SOURCE)
    await send(first, range(10), 5)
    with monkeypatch.context() as patched:
        patched.setattr(outbounds, "OPEN_TIMEOUT_S", 0.5)
        with pytest.raises(ClusterError, match=r"named 'job' .another sender of this name may still be connected") as caught:
            await second.resume(SOURCE)
    assert caught.value.failure is Failure.RETRY
    waiting = spawn(second.resume(SOURCE), "the second sender")
    await send(first, range(10, 20), 5)
    assert not waiting.done()
    await first.close()
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await waiting == {0: (19,)}
    await send(second, range(15, 25), 5)
    assert await job.stored() == list(range(25))


async def test_partitions_without_a_sequence_id_are_resumed_by_origins(pulsar: Pulsar, stack: AsyncExitStack) -> None:
    job = await made(pulsar, stack, is_deduplicated=True, partitions=2)
    unnamed = await (await job.cluster()).outbound(OutboundSpec(job.topic))
    await send(unnamed, range(5), 5, partition=1)
    await unnamed.close()
    first = await job.outbound()
    assert await first.resume(SOURCE) == {1: (4,)}
    await send(first, range(5, 9), 5, partition=0)
    await first.close()
    assert await (await job.outbound()).resume(SOURCE) == {0: (8,), 1: (4,)}


async def test_without_deduplication_origins_show_the_stored_positions(
    pulsar: Pulsar, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    job = await made(pulsar, stack, is_deduplicated=False)
    first = await job.outbound()
    assert await first.resume(SOURCE) == {}
    assert "does not deduplicate" in caplog.text
    await send(first, range(20), 6)
    await first.close()
    cluster = await job.cluster()
    assert not await cluster.operations.deduplicates(job.topic)
    since = {0: (await cluster.bounds(job.topic))["0"].next}
    second = await job.outbound()
    assert await second.resume(SOURCE, since) == {}
    assert await second.resume(SOURCE) == {0: (19,)}
    await send(second, range(10, 30), 7)
    assert await job.stored() == list(range(30))


async def test_deduplication_can_be_switched_on_for_a_topic(pulsar: Pulsar, stack: AsyncExitStack) -> None:
    job = await made(pulsar, stack, is_deduplicated=False)
    operations = (await job.cluster()).operations
    await operations.deduplicate(job.topic)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not await operations.deduplicates(job.topic):
            await asyncio.sleep(0.05)
    first = await job.outbound()
    await first.resume(SOURCE)
    await send(first, range(5), 5)
    await first.close()
    second = await job.outbound()
    await second.resume(SOURCE)
    (producer,) = second._producers.values()
    assert producer.last_sequence_id == 4


@pytest.mark.thorough
async def test_everything_is_stored_once_although_the_broker_is_killed(stack: AsyncExitStack) -> None:
    """The broker is killed during sends, which continue when it is back. Then another sender repeats everything."""
    server = Pulsar()
    await asyncio.to_thread(server.start)
    try:
        job = await made(server, stack, is_deduplicated=True)
        first = await job.outbound(batch_messages=20)
        await first.resume(SOURCE)
        await send(first, range(1000), 50)
        shares = [
            Share(Batch.of([Message(b"%d" % n, position=(n,)) for n in range(at, at + 50)], SOURCE))
            for at in range(1000, 20_000, 50)
        ]
        sends = [first.send(0, share) for share in shares]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(server.server.kill)
        assert any(not each.done() for each in sends)
        await asyncio.to_thread(server.server.start)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            assert not any(receipt.failures for receipt in await asyncio.gather(*sends))
        await first.close()
        second = await job.outbound(batch_messages=33)
        assert await second.resume(SOURCE) == {0: (19_999,)}
        await send(second, range(15_000, 20_100), 70)
        assert await job.stored() == list(range(20_100))
        await stack.aclose()
    finally:
        await asyncio.to_thread(server.kill)
