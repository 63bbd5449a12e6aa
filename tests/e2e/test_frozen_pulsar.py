"""Administrators of Pulsar switch something off for a while: permissions, quotas, limits, rules of a namespace."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mqbridge import PulsarClient
from mqbridge.cli.process.exit_codes import CLUSTER
from tests.e2e.freezes import (
    PARTITIONS,
    Case,
    Switch,
    check_at_start,
    check_while_running,
    rows,
    until,
)
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import APP, LockedPulsar

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(300)]

QUOTA_CHECK_S = 1
SLOW = "slow"
"""A subscription of target topics that nobody reads."""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Pulsar]:
    """Start a broker that checks quotas often."""
    settings: dict[str, object] = {
        "backlogQuotaCheckIntervalInSeconds": QUOTA_CHECK_S,
        "backlogQuotaCheckEnabled": "true",
        "topicLevelPoliciesEnabled": "true",
        "systemTopicEnabled": "true",
    }
    with Pulsar(settings) as started:
        yield started


def namespace_of(case: Case) -> str:
    return case.topic.removeprefix("persistent://").rpartition("/")[0]


def setting(path: str, off: Any, on: Any) -> tuple[Callable[[Case], Awaitable[None]], Callable[[Case], Awaitable[None]]]:
    """Return the two actions that set a policy of the namespace; None as the value deletes the policy."""

    async def put(case: Case, value: Any) -> None:
        method = "DELETE" if value is None else "POST"
        await asyncio.to_thread(case.server.admin, method, f"namespaces/{namespace_of(case)}/{path}", value)

    return lambda case: put(case, off), lambda case: put(case, on)


def quota(policy: str) -> tuple[Callable[[Case], Awaitable[None]], Callable[[Case], Awaitable[None]]]:
    off, _ = setting("backlogQuota", {"limitSize": 10, "limitTime": -1, "policy": policy}, None)
    _, on = setting("backlogQuota?backlogQuotaType=destination_storage", None, None)
    return off, on


class Occupied:
    """Other clients that have what the gateway needs, while it is switched off."""

    def __init__(self, take: Callable[[AsyncExitStack, PulsarClient, Case], Awaitable[None]], policies: dict[str, Any]) -> None:
        self._take, self._policies = take, policies
        self._stack: AsyncExitStack | None = None

    async def off(self, case: Case) -> None:
        self._stack = AsyncExitStack()
        client = await self._stack.enter_async_context(PulsarClient(case.server.service_url))
        await self._take(self._stack, client, case)
        for path, value in self._policies.items():
            await setting(path, value, None)[0](case)

    async def on(self, case: Case) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            for path in self._policies:
                await setting(path, None, None)[0](case)
            await stack.aclose()


async def take_producer(stack: AsyncExitStack, client: PulsarClient, case: Case) -> None:
    producer = await stack.enter_async_context(client.producer(case.topic))
    for key in range(20):  # on both partitions
        await producer.send(b"0", key=f"{key}")


async def take_other_subscription(stack: AsyncExitStack, client: PulsarClient, case: Case) -> None:
    await stack.enter_async_context(client.consumer(case.topic, group="another"))


async def take_subscription(stack: AsyncExitStack, client: PulsarClient, case: Case) -> None:
    await stack.enter_async_context(client.consumer(case.topic, group=case.group, mode="exclusive", start="earliest"))


async def take_shared_subscription(stack: AsyncExitStack, client: PulsarClient, case: Case) -> None:
    await stack.enter_async_context(client.consumer(case.topic, group=case.group, mode="shared", start="earliest"))


async def unloaded(case: Case, path: str, value: Any) -> None:
    """Set a policy and unload the topics, because a running producer keeps its place otherwise."""
    await setting(path, value, None)[0](case)
    await asyncio.to_thread(case.server.admin, "PUT", f"namespaces/{namespace_of(case)}/unload")


async def give_schema(case: Case) -> None:
    """Register a schema with the topic, and demand one from every producer."""
    body = {"type": "STRING", "schema": "", "properties": {}}
    path = f"schemas/{case.topic.removeprefix('persistent://')}/schema"
    await asyncio.to_thread(case.server.admin, "POST", path, body)
    await unloaded(case, "schemaValidationEnforced", True)


RUNNING = [
    Switch("encryption demanded", "target", *setting("encryptionRequired", True, False), "ncrypt"),
    Switch("quota holds producers", "target", *quota("producer_request_hold"), "uota"),
    Switch("quota refuses producers", "target", *quota("producer_exception"), "uota"),
    Switch("schema demanded", "target", give_schema, lambda case: unloaded(case, "schemaValidationEnforced", False), "chema"),
]
_producers = Occupied(take_producer, {"maxProducersPerTopic": 1})
_consumers = Occupied(take_other_subscription, {"maxConsumersPerTopic": 1})
_subscriptions = Occupied(take_other_subscription, {"maxSubscriptionsPerTopic": 1})
_exclusive = Occupied(take_subscription, {})
_shared = Occupied(take_shared_subscription, {})
STARTING = [
    *RUNNING[:3],
    Switch("no more producers", "target", _producers.off, _producers.on, "ProducerBusy"),
    Switch("no more consumers", "source", _consumers.off, _consumers.on, "ConsumerBusy"),
    Switch("no more subscriptions", "source", _subscriptions.off, _subscriptions.on, "NotAllowedError"),
    Switch("exclusive subscription in use", "source", _exclusive.off, _exclusive.on, "ConsumerBusy"),
    Switch("subscription of another type", "source", _shared.off, _shared.on, "ConsumerBusy"),
]


def case_of(server: Pulsar, switch: Switch, folder: Path) -> Case:
    namespace = server.create_namespace("public", f"frozen{next(_numbers)}")
    topic = server.create_topic("t", PARTITIONS, namespace=namespace)
    if switch.side == "target":
        path = f"{topic.replace('://', '/')}/subscription/{SLOW}"
        server.admin("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    settings = {"service_url": server.service_url, "admin_url": server.admin_url}
    return Case("pulsar", settings, topic, switch, folder, server)


@pytest.mark.parametrize("switch", RUNNING, ids=lambda switch: switch.name)
async def test_a_route_waits_while_it_is_switched_off(server: Pulsar, tmp_path: Path, switch: Switch) -> None:
    await check_while_running(case_of(server, switch, tmp_path))


@pytest.mark.parametrize("switch", STARTING, ids=lambda switch: switch.name)
async def test_a_start_waits_while_it_is_switched_off(server: Pulsar, tmp_path: Path, switch: Switch) -> None:
    await check_at_start(case_of(server, switch, tmp_path))


async def test_a_terminated_target_ends_its_route_and_a_start(server: Pulsar, tmp_path: Path) -> None:
    """Nobody can take that back."""

    async def nothing(_: Case) -> None:
        pass

    case = case_of(server, Switch("terminated", "target", nothing, nothing, ""), tmp_path)
    await case.prepare()
    await case.send()
    with GatewayProcess(case.config(), case.folder) as gateway:
        await asyncio.to_thread(gateway.wait_stored, case.sent)
        for partition in range(PARTITIONS):
            path = f"{case.topic.replace('://', '/')}-partition-{partition}/terminate"
            await asyncio.to_thread(server.admin, "POST", path)
        await case.send()
        await until(gateway, lambda: "TopicTerminatedError" in str(rows(gateway).get("r", {}).get("error")))
        await case.send_other()
        await until(gateway, lambda: rows(gateway)["other"]["stored"] > 0)
    with GatewayProcess(case.config(), case.folder) as gateway:
        assert await asyncio.to_thread(gateway.wait) == CLUSTER, gateway.log
        assert "TopicTerminatedError" in gateway.log


async def test_a_slow_and_unloaded_target_gets_everything(server: Pulsar, tmp_path: Path) -> None:
    """The namespace limits the rate of producers, and is unloaded meanwhile."""

    async def nothing(_: Case) -> None:
        pass

    case = case_of(server, Switch("slow", "target", nothing, nothing, ""), tmp_path)
    await case.prepare()
    await setting("publishRate", {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}, None)[0](case)
    with GatewayProcess(case.config(), case.folder) as gateway:
        for _ in range(3):
            await case.send()
            await asyncio.to_thread(server.admin, "PUT", f"namespaces/{namespace_of(case)}/unload")
        await asyncio.to_thread(gateway.wait_stored, case.sent)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("check", [check_while_running, check_at_start])
async def test_a_permission_is_waited_for(
    pulsar_locked: LockedPulsar, tmp_path: Path, side: str, check: Callable[[Case], Awaitable[None]]
) -> None:
    namespace = pulsar_locked.create_namespace("locked", f"frozen{next(_numbers)}")
    rights = f"namespaces/{namespace}/permissions/{APP}"
    pulsar_locked.admin("POST", rights, ["consume", "produce"])
    topic = pulsar_locked.keep(pulsar_locked.create_topic("t", PARTITIONS, namespace=namespace))

    async def revoke(_: Case) -> None:
        await asyncio.to_thread(pulsar_locked.admin, "DELETE", rights)

    async def grant(_: Case) -> None:
        await asyncio.to_thread(pulsar_locked.admin, "POST", rights, ["consume", "produce"])

    switch = Switch("permission", side, revoke, grant, "may not")
    await check(Case("pulsar", pulsar_locked.config_of(APP), topic, switch, tmp_path, pulsar_locked))
