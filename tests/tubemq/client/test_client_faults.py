"""Requests fail at every step, and responses have every error code: nothing hangs, no message is lost or reordered."""

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
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.producer.partition_sender import open_partition_sender
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.rpc import StandbyError
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.client.model import EVERY_CODE, MASTER_ADDRESS, TOKEN, Model
from tests.tubemq.client.quick import shorten_pauses

COUNT = 40
PARTITIONS = 2
BODIES = [b"%03d" % number for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


class Scenario:
    """A producer of two partitions and a consumer of all it sends, over a model."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.model = Model({"demo": PARTITIONS})
        self.masters = self.model.masters()
        self.received: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
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
        self.readers.append(spawn(self._assigned(member), "test assignments", log_errors=False))

    async def _assigned(self, member: PackConsumer) -> None:
        async for partition in member.assignments():
            self.readers.append(spawn(self._read(partition), f"test reading {partition}"))

    async def _read(self, partition: HeldPartition) -> None:
        try:
            while True:
                pack = await partition.fetch()
                self.received[partition.ref.partition].extend(message.payLoadData for message in pack.messages)
                partition.confirm()
        except LaneRevoked:
            return

    async def all_read(self) -> None:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while any(set(bodies) != set(BODIES) for bodies in self.received.values()):
                for reader in self.readers:
                    if reader.done() and reader.exception() is not None:
                        reader.result()
                await asyncio.sleep(0.002)

    def check_order(self) -> None:
        """Check that stored and received messages are in order, repeats apart, and that sends had the Master's token."""
        for bodies in self.received.values():
            seen = list(dict.fromkeys(bodies))
            assert seen == sorted(seen)
        for messages in self.model.broker.stored.values():
            stored = list(dict.fromkeys(message.payLoadData for message in messages))
            assert stored == BODIES
        assert set(self.model.broker.tokens) == {TOKEN}


@pytest_asyncio.fixture
async def scenario() -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as stack:
        scenario = Scenario(stack)
        yield scenario
        async with asyncio.timeout(SERVER_PATIENCE_S):
            await stack.aclose()
        await cancel(*scenario.readers)


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
@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("method", PRODUCING + CONSUMING + CLOSING, ids=name)
async def test_a_failure_of_any_request_loses_no_message(scenario: Scenario, method: int, first: int, step: str) -> None:
    """Two requests in a row fail, so that the first attempt to recover fails too."""
    for number in range(first, first + 2):
        scenario.model.faults.plan[method, number] = step
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await scenario.consume()
        results = await scenario.produce()
    assert not [result for result in results if isinstance(result, Exception)]
    await scenario.all_read()
    scenario.check_order()


@pytest.mark.parametrize("in_flight", [1, 7])
async def test_no_message_is_lost_if_every_tenth_request_is_cut(scenario: Scenario, in_flight: int) -> None:
    for method in PRODUCING + CONSUMING:
        for number in range(10, 2000, 10):
            scenario.model.faults.plan[method, number] = ("before", "after")[number // 10 % 2]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await scenario.consume()
        results = await scenario.produce(in_flight=in_flight)
    assert not [result for result in results if isinstance(result, Exception)]
    await scenario.all_read()
    scenario.check_order()


async def test_no_message_is_lost_if_servers_forget_everything(scenario: Scenario) -> None:
    await scenario.consume()
    producing = asyncio.ensure_future(scenario.produce())
    for _ in range(5):
        await asyncio.sleep(0.01)
        scenario.model.master.forget()
        scenario.model.broker.forget()
    assert not [result for result in await producing if isinstance(result, Exception)]
    await scenario.all_read()
    scenario.check_order()


async def test_two_members_read_everything_while_connections_are_cut(scenario: Scenario) -> None:
    for method in CONSUMING:
        for number in range(7, 2000, 7):
            scenario.model.faults.plan[method, number] = "after"
    await scenario.consume()
    await scenario.consume()
    await scenario.produce()
    await scenario.all_read()
    scenario.check_order()
    assert {method for method, _ in scenario.model.faults.happened} >= {rpc.GET, rpc.CONSUMER_HEARTBEAT}, (
        "requests of these methods must have been cut"
    )


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("method", CONSUMING[2:] + CLOSING, ids=name)
async def test_no_response_code_about_partitions_stops_a_group(scenario: Scenario, method: int, code: int) -> None:
    """No response code may stop a group: a lost partition is assigned again."""
    for number in (2, 3):
        scenario.model.faults.plan[method, number] = code
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await scenario.consume()
        await scenario.produce()
    await scenario.all_read()
    scenario.check_order()


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_response_code_to_a_send_is_retried_or_raised(scenario: Scenario, code: int) -> None:
    scenario.model.faults.plan[rpc.SEND, 5] = code
    results = await scenario.produce()
    failed = [result for result in results if isinstance(result, Exception)]
    if codes.CODES[code].failure in (Failure.REFUSED, Failure.FATAL):
        error, *behind = failed
        assert isinstance(error, ServerRefused)
        # REFUSED concerns this message only; after FATAL, later messages of its partition are not sent.
        assert bool(behind) == (codes.CODES[code].failure is Failure.FATAL)
        assert all(isinstance(later, ClusterError) and "an earlier message was not stored" in str(later) for later in behind)
        assert (error.code, "scripted refusal" in str(error)) == (code, True)
    else:
        assert not failed
        scenario.received = {number: list(BODIES) for number in range(PARTITIONS)}
        scenario.check_order()


def is_fatal(code: int, is_first: bool) -> bool:
    """Return whether a refusal is permanent; refused credentials are, if they were never accepted."""
    return codes.CODES[code].failure is Failure.FATAL or (code == codes.CERTIFICATE_FAILURE and is_first)


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("method", [rpc.PRODUCER_HEARTBEAT, rpc.CONSUMER_HEARTBEAT, rpc.PRODUCER_REGISTER], ids=name)
async def test_every_response_code_of_the_master_is_retried_or_raised(scenario: Scenario, method: int, code: int) -> None:
    """Temporary refusals are retried, permanent ones are raised with their code."""
    scenario.model.faults.plan[method, 1] = code

    async def run() -> None:
        await scenario.consume()
        await scenario.produce()
        await scenario.all_read()
        scenario.check_order()

    # A Master that has just started may not know a topic yet; only joining a group fails at once.
    waits = method == rpc.CONSUMER_HEARTBEAT and code == codes.TOPIC_NOT_DEPLOYED
    async with asyncio.timeout(SERVER_PATIENCE_S):
        if is_fatal(code, method == rpc.PRODUCER_REGISTER) and not waits:
            with pytest.raises(ServerRefused) as caught:
                await run()
            assert caught.value.code == code
        else:
            await run()


@pytest.mark.parametrize("code", EVERY_CODE)
async def test_every_response_code_to_joining_is_retried_or_raised(scenario: Scenario, code: int) -> None:
    scenario.model.faults.plan[rpc.CONSUMER_REGISTER, 1] = code
    if is_fatal(code, True):
        with pytest.raises(ServerRefused) as caught:
            await scenario.consume()
        assert caught.value.code == code
    else:
        await scenario.consume()
        await scenario.produce()
        await scenario.all_read()


@pytest.mark.parametrize("method", PRODUCING + CONSUMING, ids=name)
async def test_requests_answered_with_an_exception_are_repeated(scenario: Scenario, method: int) -> None:
    for number in (1, 2):
        scenario.model.faults.plan[method, number] = StandbyError("StandbyException", "not me", 1)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await scenario.consume()
        await scenario.produce()
    await scenario.all_read()
    scenario.check_order()


async def test_an_unreachable_cluster_fails_producers_and_consumers(scenario: Scenario) -> None:
    scenario.model.unreachable = {("10.0.0.1", 8715)}
    with pytest.raises(ClusterError):
        await scenario.consume()
    with pytest.raises(MqbridgeError):
        await scenario.produce()


@pytest.mark.parametrize("how", ["is unreachable", "is silent"])
@pytest.mark.parametrize("limit_s", [None, 3.0], ids=["unlimited", "limited"])
async def test_sending_continues_without_a_master(
    scenario: Scenario, how: str, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response of the Broker is lost while no Master responds: the sender uses the last known route."""
    monkeypatch.setattr("mqbridge.tubemq.client.producer.broker_reconnector.ROUTE_REFRESH_TIMEOUT_S", 0.01)
    routes = Routes(scenario.masters, heartbeat_s=100)
    await routes.start()
    sender = await open_partition_sender(routes, scenario.model, "demo", max_elapsed_s=limit_s)  # type: ignore[arg-type]
    await sender.send("1:0", b"before")
    if how == "is unreachable":
        scenario.model.unreachable = {MASTER_ADDRESS}
        scenario.model.connection_to(*MASTER_ADDRESS).cut(ConnectionLost("the Master is unreachable"))
    else:
        scenario.model.connection_to(*MASTER_ADDRESS)._broken = True  # requests to it get no response
    scenario.model.faults.plan[rpc.SEND, 2] = "before"
    await asyncio.wait_for(sender.send("1:0", b"after"), SERVER_PATIENCE_S)
    assert [message.payLoadData for message in scenario.model.broker.stored["demo", 0]] == [b"before", b"after"]
    assert scenario.model.faults.happened == [(rpc.SEND, 2)]
    await sender.close()
    await cancel(routes._heartbeat_task, routes._refresh_task)


async def test_concurrent_refreshes_of_a_route_share_one_request(scenario: Scenario) -> None:
    """Otherwise each partition would wait for the timeouts of all partitions before it."""
    routes = Routes(scenario.masters, heartbeat_s=100)
    await routes.start()
    await routes.topic("demo")
    before = scenario.model.faults.counts[rpc.PRODUCER_HEARTBEAT]
    scenario.model.faults.plan[rpc.PRODUCER_HEARTBEAT, before + 1] = "silent"
    results = await asyncio.gather(*(routes.refresh() for _ in range(20)), return_exceptions=True)
    assert [type(result) for result in results] == [RequestTimeout] * 20
    assert scenario.model.faults.counts[rpc.PRODUCER_HEARTBEAT] == before + 1
    await routes.refresh()
    await routes.close()
