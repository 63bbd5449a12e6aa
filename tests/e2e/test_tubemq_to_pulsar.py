"""TubeMQ to Pulsar on the real servers: messages arrive once, in order and undamaged; faults may only repeat some.

`make test` runs these with a tenth of a million messages or fewer; `make test-long` with a million of 1 KB over 8 partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import config, environment, fill, judge, pulsar_settings, read, tubemq_settings
from tests.kit.gateway import CONFIG, GatewayProcess
from tests.kit.oracle import Oracle
from tests.kit.pulsar import KEEPER, Pulsar
from tests.kit.tubemq import TubeMQ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS = 8
SIZE = 1000
PACK_BYTES = 512 << 10
"""The messages of one pack of a Broker: the most that are unconfirmed per partition."""
IDLE_S = "4"

Total = pytest.mark.parametrize("total", [40_000, pytest.param(1_000_000, marks=pytest.mark.long)])


def counts(total: int) -> list[int]:
    """Divide `total` messages unevenly over the partitions."""
    shares = [total // PARTITIONS + (p - PARTITIONS // 2) * 10 for p in range(PARTITIONS)]
    shares[0] += total - sum(shares)
    return shares


@pytest.fixture(scope="module")
def fragile_tubemq() -> Iterator[TubeMQ]:
    """Start a cluster that these tests may kill."""
    with TubeMQ(pool={PARTITIONS: 4}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fragile_pulsar() -> Iterator[Pulsar]:
    """Start a broker that these tests may restart."""
    with Pulsar() as cluster:
        yield cluster


@Total
async def test_everything_arrives_once_and_in_order(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, total: int) -> None:
    source, target = tubemq.take_topic(PARTITIONS), f"copy-{time.time_ns()}"
    await fill(tubemq, source, counts(total), SIZE)
    with GatewayProcess(config(tubemq, pulsar, source, target), tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait, 600) == 0, gateway.log
    oracle = await judge(pulsar, target, Oracle(counts(total), SIZE))
    oracle.assert_complete()
    assert oracle.arrived == total


@Total
async def test_sigterm_and_restart_lose_and_repeat_nothing(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, total: int) -> None:
    source, target = tubemq.take_topic(PARTITIONS), f"copy-{time.time_ns()}"
    await fill(tubemq, source, counts(total), SIZE)
    settings = config(tubemq, pulsar, source, target, in_flight_bytes="2MiB")
    for _ in range(2):
        with GatewayProcess(settings, tmp_path) as gateway:
            await asyncio.to_thread(gateway.wait_stored, total // 10)
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
            assert "will deliver them again" not in gateway.log
    with GatewayProcess(settings, tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait, 600) == 0, gateway.log
    oracle = await judge(pulsar, target, Oracle(counts(total), SIZE))
    oracle.assert_complete()
    assert oracle.repeats == 0


@pytest.mark.parametrize(
    ("kills", "total"),
    [
        (1, 40_000),
        pytest.param(2, 40_000, marks=pytest.mark.thorough),
        pytest.param(2, 1_000_000, marks=pytest.mark.long),
    ],
)
async def test_kill_loses_nothing_and_repeats_only_messages_in_flight(
    tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, kills: int, total: int
) -> None:
    source, target = tubemq.take_topic(PARTITIONS), f"copy-{time.time_ns()}"
    await fill(tubemq, source, counts(total), SIZE)
    for _ in range(kills):
        with GatewayProcess(config(tubemq, pulsar, source, target), tmp_path) as gateway:
            await asyncio.to_thread(gateway.wait_stored, total // 10)
            gateway.kill()
    with GatewayProcess(config(tubemq, pulsar, source, target), tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait, 600) == 0, gateway.log
    oracle = await judge(pulsar, target, Oracle(counts(total), SIZE))
    oracle.assert_complete()
    assert oracle.repeats <= kills * PARTITIONS * (PACK_BYTES // SIZE + 1)


@pytest.mark.thorough
@Total
async def test_restarts_of_both_brokers_are_survived(
    fragile_tubemq: TubeMQ, fragile_pulsar: Pulsar, tmp_path: Path, total: int
) -> None:
    source, target = fragile_tubemq.take_topic(PARTITIONS), f"copy-{time.time_ns()}"
    half = [count // 2 for count in counts(total)]
    await fill(fragile_tubemq, source, half, SIZE)
    settings = config(fragile_tubemq, fragile_pulsar, source, target, rate=total // 10)
    with GatewayProcess(settings, tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, total // 10)
        await asyncio.to_thread(fragile_pulsar.server.kill)
        await asyncio.to_thread(fragile_pulsar.server.start)
        await asyncio.to_thread(gateway.wait_stored, total // 4)
        await asyncio.to_thread(fragile_tubemq.kill_broker_when_stored, source)
        await asyncio.to_thread(fragile_tubemq.broker.start)
        rest = [all_ - first for all_, first in zip(counts(total), half, strict=True)]
        await fill(fragile_tubemq, source, rest, SIZE, first=half)
        await asyncio.to_thread(gateway.wait_stored, total * 3 // 4, 300)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    # What is stored is counted with its repeats, so only idleness tells that everything is there.
    with GatewayProcess(settings, tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait, 600) == 0, gateway.log
    oracle = await judge(fragile_pulsar, target, Oracle(counts(total), SIZE))
    oracle.assert_complete()


async def test_a_message_too_large_for_pulsar_becomes_a_dead_letter(
    tubemq: TubeMQ, fragile_pulsar_small: Pulsar, tmp_path: Path
) -> None:
    source, target, dead = tubemq.take_topic(1), f"copy-{time.time_ns()}", tubemq.take_topic(1)
    await fill(tubemq, source, [10], SIZE)
    await fill(tubemq, source, [1], 400_000, first=[10])
    await fill(tubemq, source, [10], SIZE, first=[11])
    settings = config(tubemq, fragile_pulsar_small, source, target)
    settings["routes"][0]["to"]["options"] = {"chunking": False}
    with GatewayProcess(settings, tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait) == 4
        assert f"the message of tube/{source}/1:0 at position" in gateway.log
        assert "dead_letter" in gateway.log

    settings["routes"][0]["delivery"]["dead_letter"] = {"cluster": "tube", "topic": dead}
    with GatewayProcess(settings, tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log

    arrived = [m async for _, batch in read("pulsar", pulsar_settings(fragile_pulsar_small), target, KEEPER) for m in batch]
    sequence = [int.from_bytes((m.payload or b"")[4:8], "big") for m in arrived]
    assert sorted(set(sequence)) == [n for n in range(21) if n != 10]
    [letter] = [m async for _, batch in read("tubemq", tubemq_settings(tubemq), dead, "j") for m in batch]
    assert len(letter.payload or b"") == 400_000
    assert letter.property("mqbridge.dead.reason")
    assert letter.property("mqbridge.dead.target") == f"pulsar/{target}"
    assert (letter.origin or "").startswith(f"tube|{source}|1:0|")


async def test_a_message_above_the_limit_of_pulsar_is_stored_in_chunks(
    tubemq: TubeMQ, fragile_pulsar_small: Pulsar, tmp_path: Path
) -> None:
    source, target = tubemq.take_topic(1), f"copy-{time.time_ns()}"
    for first, count, size in ((0, 10, SIZE), (10, 1, 400_000), (11, 10, SIZE)):
        await fill(tubemq, source, [count], size, first=[first])
    settings = config(tubemq, fragile_pulsar_small, source, target)
    with GatewayProcess(settings, tmp_path, "--until-idle", IDLE_S) as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    arrived = [m async for _, batch in read("pulsar", pulsar_settings(fragile_pulsar_small), target, KEEPER) for m in batch]
    assert [int.from_bytes((m.payload or b"")[4:8], "big") for m in arrived] == list(range(21))
    assert len(arrived[10].payload or b"") == 400_000


@pytest.fixture(scope="module")
def fragile_pulsar_small() -> Iterator[Pulsar]:
    """Start a broker that accepts messages of at most 256 KiB."""
    with Pulsar({"maxMessageSize": str(256 << 10), "nettyMaxFrameSizeBytes": str((256 << 10) + (16 << 10))}) as cluster:
        yield cluster


async def test_the_shipped_configuration_runs_unchanged(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path) -> None:
    source, target = tubemq.take_topic(3), pulsar.keep(pulsar.create_topic(f"copy-{time.time_ns()}", 3))
    await fill(tubemq, source, [100, 100, 100], SIZE)
    env = environment(tubemq, pulsar, source, target)
    with GatewayProcess(CONFIG / "tubemq-to-pulsar.yaml", tmp_path, "--until-idle", IDLE_S, env=env) as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    oracle = await judge(pulsar, target, Oracle([100, 100, 100], SIZE))
    oracle.assert_complete()
    assert oracle.arrived == 300
