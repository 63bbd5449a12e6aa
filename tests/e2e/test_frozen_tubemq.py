"""Administrators of TubeMQ switch something off for a while: topics, a Broker, a group, users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.freezes import PARTITIONS, Case, Switch, check_at_start, check_while_running
from tests.e2e.support import tubemq_settings
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import BROKER_ID, TOKEN

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server() -> Iterator[TubeMQ]:
    """Start a cluster whose Broker these tests may close."""
    with TubeMQ(pool={PARTITIONS: 12}) as cluster:
        yield cluster


def call(method: str, **parameters: object) -> Callable[[Case], Awaitable[None]]:
    """Return an action that calls a method of the Master about the topic of the case."""

    async def run(case: Case) -> None:
        values = {name: value.format(case=case) if isinstance(value, str) else value for name, value in parameters.items()}
        await asyncio.to_thread(case.server.admin, method, **values)

    return run


def topic_accepts(**what: bool) -> Callable[[Case], Awaitable[None]]:
    """Return an action that opens or closes the topic at the Broker."""

    async def run(case: Case) -> None:
        topic = {"topicName": case.topic, "brokerId": BROKER_ID, "modifyUser": "tests"}
        await asyncio.to_thread(case.server.admin, "admin_modify_topic_info", **topic, **what)
        await asyncio.to_thread(case.server.admin, "admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="tests")

    return run


def broker_accepts(**what: bool) -> Callable[[Case], Awaitable[None]]:
    """Return an action that opens or closes the whole Broker, once its last change is complete."""

    async def run(case: Case) -> None:
        def change() -> None:
            case.server.broker.wait_until(case.server._admin.settled, "completing the last change")
            case.server.admin("admin_set_broker_read_or_write", brokerId=BROKER_ID, modifyUser="tests", **what)

        await asyncio.to_thread(change)

    return run


RUNNING = [
    Switch(
        "topic closed for producers",
        "target",
        topic_accepts(acceptPublish=False),
        topic_accepts(acceptPublish=True),
        "closed",
    ),
    Switch(
        "topic closed for consumers",
        "source",
        topic_accepts(acceptSubscribe=False),
        topic_accepts(acceptSubscribe=True),
        "closed for consumers",
    ),
    Switch(
        "group in the black list",
        "source",
        call("admin_add_black_consumergroup_info", topicName="{case.topic}", groupName="{case.group}", createUser="tests"),
        call("admin_delete_black_consumergroup_info", topicName="{case.topic}", groupName="{case.group}", modifyUser="tests"),
        "in its black list",
    ),
    Switch(
        "read-only broker",
        "target",
        broker_accepts(acceptPublish=False, acceptSubscribe=True),
        broker_accepts(acceptPublish=True, acceptSubscribe=True),
        "closed",
    ),
]
STARTING = [
    *RUNNING,
    Switch(
        "topic for listed groups",
        "source",
        call("admin_set_topic_authorize_control", topicName="{case.topic}", isEnable="true", createUser="tests"),
        call("admin_set_topic_authorize_control", topicName="{case.topic}", isEnable="false", createUser="tests"),
        "listed",
    ),
]


def case_of(server: TubeMQ, switch: Switch, folder: Path) -> Case:
    return Case("tubemq", tubemq_settings(server) | {"admin_token": TOKEN}, server.take_topic(PARTITIONS), switch, folder, server)


@pytest.mark.parametrize("switch", RUNNING, ids=lambda switch: switch.name)
async def test_a_route_waits_while_it_is_switched_off(server: TubeMQ, tmp_path: Path, switch: Switch) -> None:
    await check_while_running(case_of(server, switch, tmp_path))


@pytest.mark.parametrize("switch", STARTING, ids=lambda switch: switch.name)
async def test_a_start_waits_while_it_is_switched_off(server: TubeMQ, tmp_path: Path, switch: Switch) -> None:
    await check_at_start(case_of(server, switch, tmp_path))
