"""Memory brokers, a gateway between them, and helpers for tests with both. Brokers are deleted after each test."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Message
from mqbridge.routes.route import Route
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.registration import ADAPTER
from mqbridge.testing.memory.broker import Broker, delete_broker, get_broker
from tests.kit import conversation
from tests.patience import PATIENCE_S

ADAPTERS = {"memory": ADAPTER}
CLUSTERS = ("a", "b", "c")


class World:
    """Three memory clusters, a to c."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.a, self.b, self.c = (get_broker(f"{self.name}-{name}") for name in CLUSTERS)

    def config(self, *routes: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Make a configuration of these routes; keyword arguments named like a cluster are its settings."""
        own = {name: more.pop(name, {}) for name in CLUSTERS}
        clusters = {
            name: {"system": "memory", "broker": f"{self.name}-{name}", "batch_messages": 20} | own[name] for name in CLUSTERS
        }
        return {"clusters": clusters, "http": {"enabled": False}, "shutdown_timeout": "5s", "routes": list(routes)} | more

    def delete_brokers(self) -> None:
        for name in CLUSTERS:
            delete_broker(f"{self.name}-{name}")


def route(name: str, source: str, *targets: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
    """Make a route from `cluster/topic` to targets, each `cluster/topic` or a mapping; `source_` and `delivery` extend its
    parts."""
    return {
        "name": name,
        "from": end(source) | {"group": f"g-{name}"} | more.pop("source_", {}),
        "to": [end(target) if isinstance(target, str) else target for target in targets],
    } | more


def end(text: str, **more: Any) -> dict[str, Any]:
    """Make a source or target of a route from `cluster/topic`; `more` are its other options."""
    cluster, _, topic = text.partition("/")
    return {"cluster": cluster, "topic": topic} | more


def set_capabilities(patch: pytest.MonkeyPatch, **capabilities: Any) -> None:
    """Change the capabilities of every memory cluster that is made from now on."""
    original = MemoryCluster.__init__

    def changed(self: MemoryCluster, *arguments: Any) -> None:
        original(self, *arguments)
        self.capabilities = replace(self.capabilities, **capabilities)

    patch.setattr(MemoryCluster, "__init__", changed)


def put(memory_broker: Broker, topic: str, partition: int, *messages: Message | bytes) -> None:
    """Store messages as a producer does."""
    stored_partition = memory_broker.topics[topic][partition]
    for item in messages:
        message = Message(item) if isinstance(item, bytes) else item
        stored_partition.append([message.replace(position=(stored_partition.next,))])


def fill(memory_broker: Broker, topic: str, partitions: int, count: int, first: int = 0) -> None:
    """Create a topic and store messages numbered from `first` in it, round robin over its partitions."""
    memory_broker.create(topic, partitions)
    for number in range(first, first + count):
        put(memory_broker, topic, number % partitions, b"%d" % number)


def stored(memory_broker: Broker, topic: str) -> list[list[bytes]]:
    """Return the payloads of a topic by partition; [] if the topic does not exist."""
    return [[message.payload or b"" for message in partition.messages] for partition in memory_broker.topics.get(topic, [])]


def everything(memory_broker: Broker, topic: str) -> list[int]:
    """Return the numbers of all messages of a topic, sorted."""
    return sorted(int(payload) for partition in stored(memory_broker, topic) for payload in partition)


def committed(memory_broker: Broker, group: str) -> int:
    """Return the number of messages that the group has committed, in all partitions together."""
    return sum(progress.committed for (name, _, _), progress in memory_broker.progress.items() if name == group)


until = partial(conversation.until, patience_s=PATIENCE_S, pause_s=0.005)


@contextlib.asynccontextmanager
async def running(config: dict[str, Any], path: Path | None = None, *, alone: bool = True) -> AsyncIterator[Gateway]:
    """Run a gateway; stop and drain it at the end, and check that it leaves no task (unless other code runs, not `alone`)."""
    before = asyncio.all_tasks()
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS, path)
    task = asyncio.ensure_future(gateway.run())
    try:
        while not gateway.ready:
            if task.done():
                task.result()
            await asyncio.sleep(0)
        yield gateway
    finally:
        gateway.stop()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), PATIENCE_S)
    left = {one.get_name() for one in asyncio.all_tasks() - before if not one.done()}
    assert not alone or left == set()


async def run(config: dict[str, Any], until_idle_s: float = 0.2) -> RunResult:
    """Run a gateway until it is idle."""
    return await asyncio.wait_for(Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run(until_idle_s), PATIENCE_S * 2)


def named(gateway: Gateway, name: str) -> Route:
    """Return the route with this name."""
    return next(route for route in gateway.routes if route.name == name)
