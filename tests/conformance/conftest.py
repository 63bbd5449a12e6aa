"""The systems that the suite tests, and the check that adapters leave no tasks or files open."""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Capabilities, Cluster
from tests.conformance.arena import Arena
from tests.conformance.harness import Harness, LogHarness, MemoryHarness

OUTSIDE = os.environ.get("MQBRIDGE_CONFORMANCE")
"""`module:attribute` of a harness: the suite then runs against that adapter alone (see docs/how-to/adapters.md).

The attribute is called with a new folder for each test.
"""

BUILT_IN = [
    "memory",
    "memory-individual",
    "log",
    pytest.param("tubemq", marks=pytest.mark.cluster),
    pytest.param("tubemq_locked", marks=[pytest.mark.cluster, pytest.mark.thorough], id="tubemq-locked"),
    pytest.param("pulsar", marks=pytest.mark.cluster),
    pytest.param("pulsar-shared", marks=[pytest.mark.cluster, pytest.mark.thorough]),
    pytest.param("pulsar_locked-token", marks=[pytest.mark.cluster, pytest.mark.thorough], id="pulsar-token"),
    pytest.param("pulsar_locked-mtls", marks=[pytest.mark.cluster, pytest.mark.thorough], id="pulsar-mtls"),
    pytest.param("rocketmq", marks=pytest.mark.cluster),
    pytest.param("rocketmq_old", marks=[pytest.mark.cluster, pytest.mark.thorough]),
    pytest.param("rocketmq_locked", marks=[pytest.mark.cluster, pytest.mark.thorough], id="rocketmq-acl2"),
    pytest.param("rocketmq_old_locked", marks=[pytest.mark.cluster, pytest.mark.thorough], id="rocketmq-acl1"),
]
SYSTEMS = BUILT_IN if OUTSIDE is None else [OUTSIDE]


def make_harness(name: str, request: pytest.FixtureRequest, folder: Path) -> Harness:
    if name == OUTSIDE:
        module, _, attribute = name.partition(":")
        made: Harness = getattr(importlib.import_module(module), attribute)(folder)
        return made
    if name.startswith("memory"):
        return MemoryHarness(individual_ack=name.endswith("individual"))
    if name == "log":
        return LogHarness(folder)
    # Imported here, so that the suite of one system does not need the others'.
    if name.startswith("tubemq"):
        from tests.conformance.harness_tubemq import TubeMQHarness

        return TubeMQHarness(request.getfixturevalue(name))
    if name.startswith("pulsar"):
        from tests.conformance.harness_pulsar import LockedPulsarHarness, PulsarHarness

        if name.endswith(("token", "mtls")):
            return LockedPulsarHarness(request.getfixturevalue("pulsar_locked"), name)
        return PulsarHarness(request.getfixturevalue("pulsar"), "shared" if name.endswith("shared") else "failover")
    from tests.conformance.harness_rocketmq import RocketMQHarness

    return RocketMQHarness(request.getfixturevalue(name))


@pytest.fixture(params=SYSTEMS)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    harness = make_harness(request.param, request, tmp_path)
    yield harness
    harness.close()


@pytest_asyncio.fixture
async def arena(harness: Harness) -> AsyncIterator[Arena]:
    before = asyncio.all_tasks()
    arena = Arena(harness)
    yield arena
    await arena.close()
    left = [task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()]
    assert left == [], "tasks outlive the close of everything"


@pytest_asyncio.fixture
async def cluster(arena: Arena) -> Cluster:
    return await arena.cluster()


@pytest.fixture
def capabilities(harness: Harness) -> Capabilities:
    return harness.cluster().capabilities
