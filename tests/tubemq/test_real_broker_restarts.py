"""A Broker is restarted in order, or killed, while a gateway holds packs that the target has not stored.

A pack is the messages of one response. A Broker that ends in order confirms the packs whose confirmation it waits for, and writes
its memory to files. The registrations of consumers are lost, which the Broker says in its response to the next heartbeat.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.net.addresses import split_address
from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq import TubeMQ
from tests.tubemq.mirror import HEARTBEAT_S, Mirror, held, numbered, send, wait_assigned, wait_pack_out
from tests.tubemq.real import until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

STATE = pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
HEARTBEATS_S = 4.0 * HEARTBEAT_S
"""Time in which a gateway learns that a Broker has lost its registrations."""
POLLS_S = 2.0
"""Time in which a gateway gets a pack of each partition. `/routes` does not count a pack that waits for the rate limit."""
DEFAULT_HEARTBEAT = "13s"
STATE_WRITTEN_S = 1.5
"""Time in which a gateway has written its positions to the state file."""
MESSAGES = 20
"""Messages of each partition that are sent while the target is away."""


@pytest.fixture(scope="module")
def restarted() -> Iterator[TubeMQ]:
    """A cluster whose Broker these tests restart; a restart lasts longer the more topics there are."""
    with TubeMQ(pool={1: 2, 2: 12}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def network(restarted: TubeMQ) -> AsyncIterator[Network]:
    """The network between a gateway and the Master."""
    async with Network([split_address(restarted.masters, 0)]) as network:
        yield network


def waiting(partition: int) -> list[bytes]:
    """Return the messages of a partition that are sent while the target is away."""
    return numbered(f"waiting {partition}", MESSAGES)


ALL_WAITING = [*waiting(0), *waiting(1)]


async def start(mirror: Mirror, gateway: GatewayProcess) -> None:
    """Wait until the gateway has delivered a message of each partition, and confirmed it."""
    await wait_assigned(gateway, 2)
    await mirror.finish(gateway)
    await mirror.wait_caught_up()


async def give_packs(mirror: Mirror, gateway: GatewayProcess) -> None:
    """Send messages, and wait until the gateway holds a pack of each partition that it cannot store."""
    await send(mirror.tubemq, mirror.topic, {partition: waiting(partition) for partition in (0, 1)})
    await wait_pack_out(gateway, 2)


async def restart(mirror: Mirror, network: Network) -> None:
    """Restart the Broker in order, and give the gateway time to learn of it.

    The Master knows that a Broker ends, and revokes its partitions in its next responses to heartbeats. A gateway with the
    default heartbeat hears of this too late to release its partitions; with the short heartbeat of these tests, the Master is
    silent meanwhile.
    """
    async with silent(network):
        await asyncio.to_thread(mirror.tubemq.broker.restart)
    await asyncio.sleep(HEARTBEATS_S)


@contextlib.asynccontextmanager
async def silent(network: Network) -> AsyncIterator[None]:
    """Hold back everything between a gateway and the Master."""
    for link in network.links.values():
        link.passes.clear()
    yield
    network.heal()


async def assert_complete(mirror: Mirror, *gateways: GatewayProcess, expected: Sequence[bytes] = ALL_WAITING) -> None:
    """Wait until the gateways have read on to the end; fail if messages are missing that the Broker holds."""
    await mirror.finish(*gateways)
    missing = set(expected) - set(await mirror.stored())
    assert not missing, f"{len(missing)} of {len(expected)} are missing, such as {min(missing)!r}"


# --- restarts in order ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@STATE
async def test_the_target_comes_back_after_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path, state: bool
) -> None:
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, state=state)
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        with mirror.target_away():
            await give_packs(mirror, gateway)
            await restart(mirror, network)
        await assert_complete(mirror, gateway)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.parametrize("state", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["state", "no state"])
async def test_the_gateway_ends_while_the_target_is_away_after_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path, state: bool
) -> None:
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, admin=state, state=state)
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        with mirror.target_away():
            await give_packs(mirror, gateway)
            await restart(mirror, network)
            await asyncio.to_thread(gateway.terminate)
    with mirror.gateway() as gateway:
        await assert_complete(mirror, gateway)


@pytest.mark.thorough
@STATE
async def test_the_gateway_ends_before_it_has_noticed_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path, state: bool
) -> None:
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, state=state, heartbeat=DEFAULT_HEARTBEAT)
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        with mirror.target_away():
            await give_packs(mirror, gateway)
            async with silent(network):
                await asyncio.to_thread(restarted.broker.restart)
            await asyncio.to_thread(gateway.terminate)
    with mirror.gateway() as gateway:
        await assert_complete(mirror, gateway)


@pytest.mark.thorough
@STATE
async def test_the_gateway_ends_while_the_broker_restarts(
    restarted: TubeMQ, network: Network, tmp_path: Path, state: bool
) -> None:
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, state=state, shutdown_timeout="60s")
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        with mirror.target_away():
            await give_packs(mirror, gateway)
            async with silent(network):
                await asyncio.to_thread(restarted.broker.stop)
            ending = asyncio.ensure_future(asyncio.to_thread(gateway.terminate))
            await asyncio.to_thread(restarted.broker.start)
            await ending
    with mirror.gateway() as gateway:
        await assert_complete(mirror, gateway)


@pytest.mark.thorough
@STATE
async def test_the_gateway_is_killed_after_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path, state: bool
) -> None:
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, state=state)
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        with mirror.target_away():
            await give_packs(mirror, gateway)
            await restart(mirror, network)
            gateway.kill()
    with mirror.gateway() as gateway:
        await assert_complete(mirror, gateway)


@pytest.mark.thorough
@pytest.mark.parametrize("stays", [True, False], ids=["stays", "is killed"])
async def test_a_second_instance_joins_after_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path, stays: bool
) -> None:
    """The first instance gives up a partition, with a pack of it; if the second is killed, the partition returns."""
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path)
    with mirror.gateway("a", network=network) as first, contextlib.ExitStack() as away:
        await start(mirror, first)
        away.enter_context(mirror.target_away())
        await give_packs(mirror, first)
        await restart(mirror, network)
        with mirror.gateway("b") as second:
            await wait_assigned(second, 1)
            if stays:
                away.close()
                await assert_complete(mirror, first, second)
        away.close()
        await assert_complete(mirror, first)


@pytest.mark.thorough
async def test_the_gateway_ends_while_a_rate_limit_holds_packs_after_a_broker_restart(
    restarted: TubeMQ, network: Network, tmp_path: Path
) -> None:
    """Everything is healthy; with a limit of messages per second, packs are out for minutes."""
    limited = {partition: numbered(f"limited {partition}", 100) for partition in (0, 1)}
    mirror = Mirror(restarted, restarted.take_topic(2), tmp_path, delivery={"rate": 1})
    with mirror.gateway(network=network) as gateway:
        await start(mirror, gateway)
        await send(restarted, mirror.topic, limited)
        await asyncio.sleep(POLLS_S)
        await restart(mirror, network)
        await asyncio.to_thread(gateway.terminate)
    mirror.configure()
    with mirror.gateway() as gateway:
        await assert_complete(mirror, gateway, expected=[*limited[0], *limited[1]])


# --- killed Brokers -------------------------------------------------------------------------------------------------------------


def position_on_disk(mirror: Mirror) -> int:
    """Return the group's position at partition 0 that the Broker finds after a kill; -1 if there is none."""
    file = mirror.tubemq.folder / "store" / "offsetDir" / "offsets.meta"
    groups = json.loads(file.read_text())["groupOffsetStgInfo"] if file.exists() else {}
    partitions = groups.get(mirror.group, {}).get("partOffsetInfo", {})
    return int(next((each["lstOffset"] for each in partitions.values() if each["partId"] == 0), -1))


@pytest.mark.thorough
@pytest.mark.parametrize("ends", ["in order", "killed"])
async def test_messages_at_offsets_that_a_broker_lost_while_no_gateway_ran_are_read(tmp_path: Path, ends: str) -> None:
    """The gateway's state file knows what was read, and the Broker's position of the group lies behind the new messages."""
    durable, lost, then = numbered("durable", 50), numbered("lost", 250), numbered("then", 400)
    with TubeMQ({"src": 1}, pool={}) as tubemq:
        mirror = Mirror(tubemq, "src", tmp_path, state=True)
        with mirror.gateway() as gateway:
            await send(tubemq, "src", {0: durable})
            await mirror.wait_stored(durable, gateway)
            await asyncio.to_thread(tubemq.wait_stored, "src")
            await send(tubemq, "src", {0: lost})
            await mirror.wait_stored(lost, gateway)
            (end,) = [bounds.next[0] for bounds in (await mirror.bounds()).values()]
            await until(lambda: position_on_disk(mirror) >= end)
            if ends == "killed":
                await asyncio.sleep(STATE_WRITTEN_S)
            await asyncio.to_thread(gateway.kill if ends == "killed" else gateway.terminate)
        await asyncio.to_thread(tubemq.broker.kill)
        await asyncio.to_thread(tubemq.broker.start)
        await send(tubemq, "src", {0: then})
        with mirror.gateway() as gateway:
            last = await mirror.finish(gateway)
            at_broker = await held(tubemq, "src", last)
            assert at_broker.isdisjoint(lost[-1:]), "the Broker has lost nothing: it wrote its memory to a file before the kill"
            missing = at_broker - set(await mirror.stored())
            assert not missing, f"{len(missing)} of {len(at_broker)} are missing, such as {min(missing)!r}\n{gateway.log}"


@pytest.mark.parametrize("is_position_kept", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["older", "kept"])
async def test_messages_at_offsets_that_a_killed_broker_had_lost_are_read(tmp_path: Path, is_position_kept: bool) -> None:
    """The Broker is killed before its memory is in files; the next messages get the offsets of those that it lost.

    They are sent before the gateway reaches the Broker again. The Broker writes the positions of groups to a file every 5 s, so
    it may find a position from before the lost messages, or the one after them.
    """
    durable, lost, then = numbered("durable", 50), numbered("lost", 250), numbered("then", 400)
    with TubeMQ({"src": 1}, pool={}) as tubemq:
        mirror = Mirror(tubemq, "src", tmp_path)
        async with Network([("127.0.0.1", tubemq.broker_port)]) as network:
            (link,) = network.links.values()
            with mirror.gateway(network=network) as gateway:
                await send(tubemq, "src", {0: durable})
                await mirror.wait_stored(durable, gateway)
                await asyncio.to_thread(tubemq.wait_stored, "src")
                await send(tubemq, "src", {0: lost})
                await mirror.wait_stored(lost, gateway)
                (end,) = [bounds.next[0] for bounds in (await mirror.bounds()).values()]
                if is_position_kept:
                    await until(lambda: position_on_disk(mirror) >= end)
                link.away = True
                await asyncio.to_thread(tubemq.broker.kill)
                await asyncio.to_thread(tubemq.broker.start)
                await send(tubemq, "src", {0: then})
                link.away = False
                last = await mirror.finish(gateway)
                at_broker = await held(tubemq, "src", last)
                assert at_broker.isdisjoint(lost[-1:]), (
                    "the Broker has lost nothing: it wrote its memory to a file before the kill"
                )
                missing = at_broker - set(await mirror.stored())
                assert not missing, f"{len(missing)} of {len(at_broker)} are missing, such as {min(missing)!r}\n{gateway.log}"
