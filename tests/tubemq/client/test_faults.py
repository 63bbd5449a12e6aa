"""Every exchange cut at every step, and every error code in every response: no hang, no loss, no reordering."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    Failure,
    LaneRevoked,
    MqbridgeError,
    RequestTimeout,
    ServerRefused,
)
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.pack_consumer import PackConsumer
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_sender import open_partition_sender
from mqbridge.tubemq.client.routes import Routes
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.rpc import StandbyError
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.client.model import EVERY_CODE, MASTER_ADDRESS, TOKEN, Model
from tests.tubemq.client.quick import hurry

COUNT = 40
PARTITIONS = 2
BODIES = [b"%03d" % number for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


class Play:
    """A producer of two partitions and a consumer of all it sends, over a model."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.model = Model({"demo": PARTITIONS})
        self.masters = self.model.masters()
        self.got: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        self.readers: list[asyncio.Task[None]] = []

    async def produce(self, *, in_flight: int = 1) -> list[object]:
        routes = Routes(self.masters, heartbeat_s=0.003)
        await routes.start()
        self.stack.push_async_callback(routes.close)
        sender = await open_partition_sender(routes, self.model, "demo", in_flight=in_flight)  # type: ignore[arg-type]
        self.stack.push_async_callback(sender.close)
        sent = [sender.send(f"1:{number}", body) for body in BODIES for number in range(PARTITIONS)]
        return await asyncio.gather(*sent, return_exceptions=True)

    async def consume(self, group: str = "g") -> None:
        member = PackConsumer(self.masters, group, ["demo"], heartbeat_s=0.003)
        await member.start()
        self.stack.push_async_callback(member.close)
        self.readers.append(spawn(self._assigned(member), "test assignments", quiet=True))

    async def _assigned(self, member: PackConsumer) -> None:
        async for partition in member.assignments():
            self.readers.append(spawn(self._read(partition), f"test reading {partition}"))

    async def _read(self, partition: HeldPartition) -> None:
        try:
            while True:
                pack = await partition.fetch()
                self.got[partition.ref.partition].extend(message.payLoadData for message in pack.messages)
                partition.confirm()
        except LaneRevoked:
            return

    async def all_read(self) -> None:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while any(set(bodies) != set(BODIES) for bodies in self.got.values()):
                for reader in self.readers:
                    if reader.done() and reader.exception() is not None:
                        reader.result()
                await asyncio.sleep(0.002)

    def judge(self) -> None:
        """First appearances come in order; what is read again may repeat."""
        for bodies in self.got.values():
            seen = list(dict.fromkeys(bodies))
            assert seen == sorted(seen)
        for messages in self.model.broker.stored.values():
            stored = list(dict.fromkeys(message.payLoadData for message in messages))
            assert stored == BODIES
        assert set(self.model.broker.tokens) == {TOKEN}


@pytest_asyncio.fixture
async def play() -> AsyncIterator[Play]:
    async with AsyncExitStack() as stack:
        made = Play(stack)
        yield made
        async with asyncio.timeout(SERVER_PATIENCE_S):
            await stack.aclose()
        await cancel(*made.readers)


PRODUCING = [rpc.PRODUCER_REGISTER, rpc.PRODUCER_HEARTBEAT, rpc.SEND]
CONSUMING = [
    rpc.CONSUMER_REGISTER,
    rpc.CONSUMER_HEARTBEAT,
    rpc.PARTITION_REGISTER,
    rpc.PARTITION_HEARTBEAT,
    rpc.GET,
    rpc.COMMIT,
]
CLOSING = [rpc.PRODUCER_CLOSE, rpc.CONSUMER_CLOSE]


def name(method: int) -> str:
    return rpc.METHOD_NAMES[method].replace(" ", "-")


@pytest.mark.parametrize("step", ["before", "after", "silent"])
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("method", PRODUCING + CONSUMING + CLOSING, ids=name)
async def test_a_cut_at_every_step(play: Play, method: int, turn: int, step: str) -> None:
    """Several in a row from the given turn on: the first tries to recover fail as well."""
    for number in range(turn, turn + 2):
        play.model.faults.plan[method, number] = step
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await play.consume()
        results = await play.produce()
    assert not [result for result in results if isinstance(result, Exception)]
    await play.all_read()
    play.judge()


@pytest.mark.parametrize("in_flight", [1, 7])
async def test_every_tenth_request_of_everything_is_cut(play: Play, in_flight: int) -> None:
    for method in PRODUCING + CONSUMING:
        for number in range(10, 2000, 10):
            play.model.faults.plan[method, number] = ("before", "after")[number // 10 % 2]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await play.consume()
        results = await play.produce(in_flight=in_flight)
    assert not [result for result in results if isinstance(result, Exception)]
    await play.all_read()
    play.judge()


async def test_servers_that_forget_everything(play: Play) -> None:
    await play.consume()
    producing = asyncio.ensure_future(play.produce())
    for _ in range(5):
        await asyncio.sleep(0.01)
        play.model.master.forget()
        play.model.broker.forget()
    assert not [result for result in await producing if isinstance(result, Exception)]
    await play.all_read()
    play.judge()


async def test_two_members_while_connections_are_cut(play: Play) -> None:
    for method in CONSUMING:
        for number in range(7, 2000, 7):
            play.model.faults.plan[method, number] = "after"
    await play.consume()
    await play.consume()
    await play.produce()
    await play.all_read()
    play.judge()
    assert {method for method, _ in play.model.faults.happened} >= {rpc.GET, rpc.CONSUMER_HEARTBEAT}, "or nothing was cut"


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("method", CONSUMING[2:] + CLOSING, ids=name)
async def test_every_code_in_answers_about_partitions(play: Play, method: int, code: int) -> None:
    """None of them may stop a group: what is lost is assigned again."""
    for number in (2, 3):
        play.model.faults.plan[method, number] = code
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await play.consume()
        await play.produce()
    await play.all_read()
    play.judge()


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_code_in_answers_to_sends(play: Play, code: int) -> None:
    play.model.faults.plan[rpc.SEND, 5] = code
    results = await play.produce()
    failed = [result for result in results if isinstance(result, Exception)]
    if codes.CODES[code].failure in (Failure.REFUSED, Failure.FATAL):
        error, *behind = failed
        assert isinstance(error, ServerRefused)
        # One that is refused for itself stands alone; of what is refused for good, nothing behind it in its partition is sent.
        assert bool(behind) == (codes.CODES[code].failure is Failure.FATAL)
        assert all(isinstance(one, ClusterError) and "an earlier message was not stored" in str(one) for one in behind)
        assert (error.code, "said" in str(error)) == (code, True)
    else:
        assert not failed
        play.got = {number: list(BODIES) for number in range(PARTITIONS)}
        play.judge()


def is_fatal(code: int, is_first: bool) -> bool:
    """Credentials that were never taken are refused for good."""
    return codes.CODES[code].failure is Failure.FATAL or (code == codes.CERTIFICATE_FAILURE and is_first)


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("method", [rpc.PRODUCER_HEARTBEAT, rpc.CONSUMER_HEARTBEAT, rpc.PRODUCER_REGISTER], ids=name)
async def test_every_code_in_answers_of_the_master(play: Play, method: int, code: int) -> None:
    """Transient ones pass by; the others are raised with their code, and nothing waits for ever."""
    play.model.faults.plan[method, 1] = code

    async def run() -> None:
        await play.consume()
        await play.produce()
        await play.all_read()
        play.judge()

    # A topic that is not deployed may be a Master that has just started; only joining a group believes it at once.
    waits = method == rpc.CONSUMER_HEARTBEAT and code == codes.TOPIC_NOT_DEPLOYED
    async with asyncio.timeout(SERVER_PATIENCE_S):
        if is_fatal(code, method == rpc.PRODUCER_REGISTER) and not waits:
            with pytest.raises(ServerRefused) as caught:
                await run()
            assert caught.value.code == code
        else:
            await run()


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_code_in_answers_to_joining(play: Play, code: int) -> None:
    play.model.faults.plan[rpc.CONSUMER_REGISTER, 1] = code
    if is_fatal(code, True):
        with pytest.raises(ServerRefused) as caught:
            await play.consume()
        assert caught.value.code == code
    else:
        await play.consume()
        await play.produce()
        await play.all_read()


@pytest.mark.parametrize("method", PRODUCING + CONSUMING, ids=name)
async def test_a_server_that_throws(play: Play, method: int) -> None:
    for number in (1, 2):
        play.model.faults.plan[method, number] = StandbyError("StandbyException", "not me", 1)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await play.consume()
        await play.produce()
    await play.all_read()
    play.judge()


async def test_a_cluster_that_is_away_fails_in_time(play: Play) -> None:
    play.model.away = {("10.0.0.1", 8715)}
    with pytest.raises(ClusterError):
        await play.consume()
    with pytest.raises(MqbridgeError):
        await play.produce()


@pytest.mark.parametrize("how", ["is away", "is silent"])
@pytest.mark.parametrize("limit_s", [None, 3.0], ids=["for ever", "limited"])
async def test_sending_goes_on_without_a_master(
    play: Play, how: str, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the Broker is lost while no Master can tell where the partition is: it is where it was."""
    monkeypatch.setattr("mqbridge.tubemq.client.broker_reconnector.ROUTE_REFRESH_TIMEOUT_S", 0.01)
    routes = Routes(play.masters, heartbeat_s=100)
    await routes.start()
    sender = await open_partition_sender(routes, play.model, "demo", max_elapsed_s=limit_s)  # type: ignore[arg-type]
    await sender.send("1:0", b"before")
    if how == "is away":
        play.model.away = {MASTER_ADDRESS}
        play.model.connection_to(*MASTER_ADDRESS).cut(ConnectionLost("the Master is gone"))
    else:
        play.model.connection_to(*MASTER_ADDRESS)._broken = True  # what is sent there is never answered
    play.model.faults.plan[rpc.SEND, 2] = "before"
    await asyncio.wait_for(sender.send("1:0", b"after"), SERVER_PATIENCE_S)
    assert [message.payLoadData for message in play.model.broker.stored["demo", 0]] == [b"before", b"after"]
    assert play.model.faults.happened == [(rpc.SEND, 2)]
    await sender.close()
    await cancel(routes._heartbeat_task, routes._refresh_task)


async def test_all_who_ask_a_silent_master_for_the_route_share_one_question(play: Play) -> None:
    """Else each partition's recovery would wait for the time-outs of all before it."""
    routes = Routes(play.masters, heartbeat_s=100)
    await routes.start()
    await routes.topic("demo")
    before = play.model.faults.counts[rpc.PRODUCER_HEARTBEAT]
    play.model.faults.plan[rpc.PRODUCER_HEARTBEAT, before + 1] = "silent"
    results = await asyncio.gather(*(routes.refresh() for _ in range(20)), return_exceptions=True)
    assert [type(result) for result in results] == [RequestTimeout] * 20
    assert play.model.faults.counts[rpc.PRODUCER_HEARTBEAT] == before + 1
    await routes.refresh()
    await routes.close()
