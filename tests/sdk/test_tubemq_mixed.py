"""Our consumers and a consumer of the official Java client in one TubeMQ group: no message is lost.

While no member joins or leaves, each message is handled once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mqbridge.errors import ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.library.client import TubeMQClient
from mqbridge.tubemq.library.messages import decode_all
from mqbridge.tubemq.library.pack_puller import PackPuller
from mqbridge.tubemq.wire.codes import CERTIFICATE_FAILURE
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo
from tests.kit import java
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import checking_tokens
from tests.sdk.rocketmq import body, sequence, until
from tests.tubemq.real import fresh_group, in_order

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(400)]

PARTITIONS = 8
BURST = 10
PAUSE_S = 0.05


class OurMember:
    """A member of ours that confirms every pack; `handled` has the partition and number of each message."""

    def __init__(self, consumer: PackConsumer) -> None:
        self.consumer = consumer
        self.handled: list[tuple[str, int]] = []
        self._puller = PackPuller(consumer)
        self._task = spawn(self._run(), "test member")

    async def _run(self) -> None:
        while (delivery := await self._puller.pull()) is not None:
            name = delivery.partition.ref.name
            self.handled += [(name, sequence(message.body)) for message in decode_all(delivery.pack.messages)]
            delivery.confirm()

    @property
    def held(self) -> int:
        return len(self.consumer.held_partitions.held)

    async def leave(self) -> None:
        await cancel(self._task)
        await self._puller.close()
        await self.consumer.close()


class Sending:
    """Send numbered messages to all partitions, round robin."""

    def __init__(self, sender: PartitionSender) -> None:
        self.sent: list[int] = []
        self._sender, self._names = sender, list(sender.route.partitions)

    async def round(self) -> list[int]:
        """Send one message to each partition; return their numbers."""
        numbers = list(range(len(self.sent), len(self.sent) + PARTITIONS))
        self.sent += numbers
        pairs = zip(self._names, numbers, strict=True)
        await asyncio.gather(*(self._sender.send(name, number.to_bytes(8)) for name, number in pairs))
        return numbers

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        over = False

        async def run() -> None:
            while not over:
                await self.round()
                await asyncio.sleep(PAUSE_S)

        task = spawn(run(), "test sending")
        try:
            yield
            over = True
            await task
        finally:
            await cancel(task)


@pytest.fixture
def token_checking_broker() -> Iterator[TubeMQ]:
    """A Broker that accepts only visit tokens of the Master, the only ones that official clients can send.

    See docs/how-to/locked-tubemq.md.
    """
    with checking_tokens(pool={1: 1, PARTITIONS: 1}) as server:
        yield server


async def test_java_and_our_members_join_and_leave(tubemq: TubeMQ, tmp_path: Path) -> None:
    await _join_and_leave(tubemq, tmp_path)


async def test_java_and_our_members_send_the_masters_tokens(token_checking_broker: TubeMQ, tmp_path: Path) -> None:
    async with TubeMQClient(f"tubemq://{token_checking_broker.masters}", heartbeat_s=0.5) as client:
        sender = await client.partition_sender(token_checking_broker.take_topic(1), max_elapsed_s=0.0)
        async with asyncio.timeout(200):
            while not await _is_refused(client, sender):
                await asyncio.sleep(1)
    await _join_and_leave(token_checking_broker, tmp_path)


async def _is_refused(client: TubeMQClient, sender: PartitionSender) -> bool:
    """Return True once the Broker checks tokens."""
    client.masters.broker_auth = AuthorizedInfo(visitAuthorizedToken=12345)
    try:
        await sender.send("1:0", b"x")
    except ServerRefused as error:
        return error.code == CERTIFICATE_FAILURE
    return False


async def _join_and_leave(tubemq: TubeMQ, tmp_path: Path) -> None:
    topic, group, leave = tubemq.take_topic(PARTITIONS), fresh_group(), tmp_path / "leave"
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(TubeMQClient(f"tubemq://{tubemq.masters}", heartbeat_s=0.5))
        sending = Sending(await client.partition_sender(topic))
        first = OurMember(await client.pack_consumer(topic, group))
        stack.push_async_callback(first.leave)
        program = stack.enter_context(
            java.spawn("TubeConsume", master=tubemq.masters, topic=topic, group=group, heartbeat=1000, idle=0, until=str(leave))
        )

        def theirs() -> list[tuple[str, int]]:
            return [(line["partition"], sequence(body(line))) for line in program.lines() if "body" in line]

        def handled() -> Counter[int]:
            return Counter(number for _, number in [*first.handled, *second, *theirs()])

        async def burst() -> None:
            """Send messages while no member joins or leaves, and check that each is handled once."""
            await until(lambda: handled().keys() == set(sending.sent))
            numbers = [number for _ in range(BURST) for number in await sending.round()]
            await until(lambda: handled().keys() == set(sending.sent))
            times = handled()
            assert {number: times[number] for number in numbers} == dict.fromkeys(numbers, 1)

        second: list[tuple[str, int]] = []
        async with sending.running():
            await until(lambda: first.held == PARTITIONS // 2 and bool(theirs()))
        await burst()
        async with sending.running():
            joined = OurMember(await client.pack_consumer(topic, group))
            stack.push_async_callback(joined.leave)
            second = joined.handled
            await until(lambda: 0 < joined.held < PARTITIONS // 2 and bool(second))
            leave.touch()
            await asyncio.to_thread(program.wait)
            await until(lambda: first.held + joined.held == PARTITIONS)
        await burst()
        async with sending.running():
            await first.leave()
            await until(lambda: joined.held == PARTITIONS)
        await burst()
        for member in (first.handled, second, theirs()):
            for name in {name for name, _ in member}:
                assert in_order([number.to_bytes(8) for of, number in member if of == name])
