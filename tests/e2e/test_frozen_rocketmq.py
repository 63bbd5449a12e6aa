"""Administrators of RocketMQ switch something off for a while: groups, topics, a whole broker, permissions of users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mqbridge.rocketmq.client.admin.group_admin import GroupAdmin
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from tests.e2e.freezes import PARTITIONS, Case, Switch, check_at_start, check_while_running
from tests.kit import rocketmq_remoting as remoting
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import APPLICATION, CONSUMES, NOTHING, PRODUCES, User
from tests.sdk.rocketmq import connected

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(300)]

WIPE_WRITE_PERMISSION, ADD_WRITE_PERMISSION = 205, 327


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQ]:
    """Start a cluster whose broker these tests may close."""
    with RocketMQ() as cluster:
        yield cluster


async def pause_group(case: Case, *, enable: bool) -> None:
    async with connected(case.server) as client:
        await GroupAdmin(client, client.admin, client.positions).create(GroupConfig(case.group, consume_enable=enable))


async def set_topic_permission(case: Case, permission: int) -> None:
    address = case.server.broker_address
    await asyncio.to_thread(remoting.create_topic, address, case.topic, PARTITIONS, "", perm=permission)


async def set_broker_permission(case: Case, permission: int) -> None:
    await asyncio.to_thread(case.server.configure, {"brokerPermission": permission})


async def at_name_server(case: Case, code: int) -> None:
    """Take the permission to write from the broker, or give it back, at the name server, as `mqadmin wipeWritePerm` does."""
    await asyncio.to_thread(remoting.call, case.server.name_server, code, {"brokerName": "broker-a"})


SWITCHES = [
    Switch(
        "paused group",
        "source",
        lambda case: pause_group(case, enable=False),
        lambda case: pause_group(case, enable=True),
        "subscription group no permission",
    ),
    Switch(
        "unreadable topic",
        "source",
        lambda case: set_topic_permission(case, 2),
        lambda case: set_topic_permission(case, 6),
        "permi",
    ),
    Switch(
        "write-only broker",
        "source",
        lambda case: set_broker_permission(case, 2),
        lambda case: set_broker_permission(case, 6),
        "permi",
    ),
    Switch(
        "read-only topic",
        "target",
        lambda case: set_topic_permission(case, 4),
        lambda case: set_topic_permission(case, 6),
        "permission to write",
    ),
    Switch(
        "read-only broker",
        "target",
        lambda case: set_broker_permission(case, 4),
        lambda case: set_broker_permission(case, 6),
        "permission to write",
    ),
    Switch(
        "drained broker",
        "target",
        lambda case: at_name_server(case, WIPE_WRITE_PERMISSION),
        lambda case: at_name_server(case, ADD_WRITE_PERMISSION),
        "permission to write",
    ),
]


def case_of(server: RocketMQ, switch: Switch, folder: Path) -> Case:
    settings = {"name_servers": server.name_server, "refresh": "500ms", "heartbeat": "1s"}
    return Case("rocketmq", settings, server.take_topic(PARTITIONS), switch, folder, server)


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
async def test_a_route_waits_while_it_is_switched_off(server: RocketMQ, tmp_path: Path, switch: Switch) -> None:
    await check_while_running(case_of(server, switch, tmp_path))


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
async def test_a_start_waits_while_it_is_switched_off(server: RocketMQ, tmp_path: Path, switch: Switch) -> None:
    await check_at_start(case_of(server, switch, tmp_path))


@pytest.mark.parametrize(("side", "left"), [("source", PRODUCES), ("source", NOTHING), ("target", CONSUMES)])
@pytest.mark.parametrize("check", [check_while_running, check_at_start])
async def test_access_control_is_waited_for(
    rocketmq_locked: RocketMQ, tmp_path: Path, side: str, left: object, check: Callable[[Case], Awaitable[None]]
) -> None:
    """The user keeps some rights, or none, and gets the others back."""
    user = User("frozen-application", "secret-of-frozen-application", APPLICATION)
    lock = rocketmq_locked.lock
    assert lock is not None
    rocketmq_locked.open_for(user)
    rocketmq_locked.wait_admitted(user)
    topic = rocketmq_locked.take_topic(PARTITIONS)

    async def take(_: Case) -> None:
        await asyncio.to_thread(rocketmq_locked.open_for, replace(user, rights=left))

    async def give(_: Case) -> None:
        await asyncio.to_thread(rocketmq_locked.open_for, user)

    found = lock.settings(user)
    found["tls"] = {name: str(path) for name, path in found["tls"].items()}
    settings = {"name_servers": rocketmq_locked.name_server, "refresh": "500ms", "heartbeat": "1s", **found}
    await check(
        Case("rocketmq", settings, topic, Switch("access control", side, take, give, "may not"), tmp_path, rocketmq_locked)
    )
