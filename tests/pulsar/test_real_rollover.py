"""Brokers that close and delete ledgers by themselves, and restart, between two runs of a gateway."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.names import parse_topic
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.gap_environment import Environment, warnings

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

ENTRIES = 5
"""A ledger is closed when it holds this many entries."""
SETTINGS: dict[str, object] = {
    "managedLedgerMaxEntriesPerLedger": ENTRIES,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 1,
    "backlogQuotaCheckIntervalInSeconds": 1,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(SETTINGS) as server:
        yield server


@pytest_asyncio.fixture
async def environment(server: Server, tmp_path: Path) -> AsyncIterator[Environment]:
    admin = Admin(server.admin_url, 20.0)
    environment = Environment(server, admin, tmp_path)
    yield environment
    environment.delete_target()
    await admin.close()


async def deleted(environment: Environment, ledgers: set[int]) -> None:
    """Wait until the broker has deleted these ledgers of the topic."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while ledgers & set(await environment.ledgers(environment.partitions[0])):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("admin", [True, False])
async def test_ledgers_that_roll_over_are_no_gap(environment, caplog, admin):
    await environment.create(0)
    await environment.run(admin=admin)
    for expected in range(ENTRIES * 2, ENTRIES * 8, ENTRIES * 2):
        await environment.send(ENTRIES * 2)
        old = set((await environment.ledgers(environment.partitions[0]))[:-1])
        assert (await environment.run(admin=admin)).clean
        assert environment.copied == list(range(expected))
        await deleted(environment, old)
    assert warnings(caplog) == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_ledgers_deleted_around_a_restart_of_the_broker_are_no_gap(environment, server, caplog, is_killed):
    await environment.create(0)
    await environment.run()
    await environment.send(3)
    assert (await environment.run()).clean
    await environment.acknowledged()
    old = set(await environment.ledgers(environment.partitions[0]))
    if is_killed:
        await asyncio.sleep(1.5)  # acknowledged positions are stored once per second
        await asyncio.to_thread(server.server.kill)
        await asyncio.to_thread(server.server.start)
    else:
        await asyncio.to_thread(server.restart)
    await environment.admin.stats(environment.partitions[0])
    await deleted(environment, old)
    await environment.send(3)
    caplog.clear()
    assert (await environment.run()).clean
    assert environment.copied == list(range(6))
    assert warnings(caplog) == []


async def test_messages_taken_by_an_evicting_quota_are_a_warning(environment, caplog):
    await environment.create(0)
    await environment.run()
    await environment.send(3)
    await environment.run()
    old = set(await environment.ledgers(environment.partitions[0]))
    quota = {"limitSize": 1, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    await environment.admin.set_policy(environment.namespace, "backlogQuota", quota)
    await environment.send(ENTRIES * 2)
    await deleted(environment, old)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while (await environment.admin.stats(parse_topic(environment.topic))).backlog["g"] > 1:
            await asyncio.sleep(0.2)
    await environment.send(1)
    assert (await environment.run()).clean
    (warning,) = warnings(caplog)
    assert "cannot tell whether unread messages were in it" in warning
    assert set(environment.copied) >= {0, 1, 2, ENTRIES * 2 + 3}
