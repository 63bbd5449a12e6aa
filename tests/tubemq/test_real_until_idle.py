"""`--until-idle` ends when every message is read: no answer of a Broker from before an outage, or about files only, is enough."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge.net.addresses import split_address
from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq import TubeMQ
from tests.tubemq.mirror import Mirror, numbered, send

pytestmark = pytest.mark.cluster

IDLE_S = 8
OUTAGE_S = 2.5 * IDLE_S
UNREAD = 3
"""Exit code of a run after which it is unknown whether everything is read."""
FIRST, THEN = numbered("first", 100), numbered("then", 500)


async def wait_for_end(gateway: GatewayProcess, patience_s: float) -> int | None:
    """Wait up to `patience_s` for the end of a gateway; return its exit code, or None."""
    for _ in range(int(patience_s * 10)):
        if (code := gateway.process.poll()) is not None:
            return code
        await asyncio.sleep(0.1)
    return None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("masters", "refuses"),
    [(False, False), (False, True), (True, False)],
    ids=["broker silent", "broker refuses", "broker and master silent"],
)
async def test_an_outage_is_not_idleness(tubemq: TubeMQ, tmp_path: Path, masters: bool, refuses: bool) -> None:
    """The gateway has read everything when its servers become unreachable; messages arrive meanwhile."""
    mirror = Mirror(tubemq, tubemq.take_topic(1), tmp_path)
    await send(tubemq, mirror.topic, {0: FIRST})
    addresses = [("127.0.0.1", tubemq.broker_port)] + ([split_address(tubemq.masters, 0)] if masters else [])
    async with Network(addresses) as network:
        with mirror.gateway("a", "--until-idle", str(IDLE_S), network=network) as gateway:
            await mirror.wait_stored(FIRST, gateway)
            await mirror.wait_caught_up()
            for link in network.links.values():
                link.away = refuses
                link.passes.clear()
            if refuses:
                network.cut()
            await send(tubemq, mirror.topic, {0: THEN})
            code = await wait_for_end(gateway, OUTAGE_S)
            stored = len(set(await mirror.stored()))
            assert code is None, f"ended with {code} during the outage: {stored} of 600 are stored\n{gateway.log}"
            network.heal()
            code = await asyncio.to_thread(gateway.wait)
            stored = len(set(await mirror.stored()))
            assert (code, stored) == (0, 600), gateway.log


@pytest.fixture(scope="module")
def own() -> Iterator[TubeMQ]:
    """A cluster whose Broker a test kills; it has no memory store, so it loses nothing."""
    with TubeMQ({"src": 1}, pool={}, memory_store=False) as cluster:
        yield cluster


@pytest.mark.thorough
async def test_a_broker_that_ends_is_not_idle(own: TubeMQ, tmp_path: Path) -> None:
    """The Broker accepts messages until it is killed; it returns after the time of idleness."""
    mirror = Mirror(own, "src", tmp_path)
    await send(own, "src", {0: FIRST})
    async with Network([("127.0.0.1", own.broker_port)]) as network:
        (link,) = network.links.values()
        with mirror.gateway("a", "--until-idle", str(IDLE_S), network=network) as gateway:
            await mirror.wait_stored(FIRST, gateway)
            await mirror.wait_caught_up()
            link.passes.clear()
            await send(own, "src", {0: THEN})
            await asyncio.to_thread(own.broker.kill)
            network.heal()
            # Longer than the time of idleness, and far shorter than UNKNOWN_PATIENCE_S after it: then the run may end.
            code = await wait_for_end(gateway, 1.5 * IDLE_S)
            assert code is None, f"ended with {code} while the Broker was away\n{gateway.log}"
            await asyncio.to_thread(own.broker.start)
            code = await asyncio.to_thread(gateway.wait)
        if code == UNREAD:  # the Broker took too long to start; the next run reads the rest
            with mirror.gateway("b", "--until-idle", str(IDLE_S)) as gateway:
                code = await asyncio.to_thread(gateway.wait)
        stored = len(set(await mirror.stored()))
        assert (code, stored) == (0, 600), gateway.log


@pytest.mark.parametrize(
    "priority", [None, pytest.param(303, marks=pytest.mark.thorough)], ids=["default priority", "reads all stores"]
)
async def test_filtered_messages_in_the_memory_of_a_broker_are_read(tubemq: TubeMQ, tmp_path: Path, priority: int | None) -> None:
    """By default a Broker filters only what is in its files, and answers "no data" until its memory is written."""
    options = {} if priority is None else {"options": {"query_priority": priority}}
    mirror = Mirror(tubemq, tubemq.take_topic(2), tmp_path, further={"msg_types": ["paid"], **options})
    paid = {partition: numbered(f"paid {partition}", 50) for partition in (0, 1)}
    await send(tubemq, mirror.topic, paid, msg_type="paid")
    await send(tubemq, mirror.topic, {partition: numbered(f"open {partition}", 50) for partition in (0, 1)}, msg_type="open")
    with mirror.gateway("a", "--until-idle", "2") as gateway:
        code = await asyncio.to_thread(gateway.wait)
    stored = set(await mirror.stored())
    missing = {*paid[0], *paid[1]} - stored
    assert code == 0, gateway.log
    assert not missing, f"ended with {code} while {len(missing)} of 100 messages were unread\n{gateway.log}"
    assert stored.isdisjoint(numbered("open 0", 50))
