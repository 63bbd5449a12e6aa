"""Three listeners in three processes share the groups of a cluster: one is killed, then each is restarted. Nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import opened
from tests.kit import java
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.kit.rocketmq import RocketMQ
from tests.kit.subscription_oracle import SubscriptionOracle, SubscriptionVerdict
from tests.sdk.listener import TOPIC, JavaConsumer, all_confirmed, all_seen, now_us
from tests.sdk.rocketmq import until

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(500)]

PARTITIONS = 4
MESSAGES, RATE = 15_000, 300
AWAY_S = 2.0
"""How long a listener that was stopped stays away."""
COMMIT_S = 5.0
"""Maximum time until the cluster knows what was acknowledged, which may come again until then.

So it is after a kill; and a member that gets a partition of RocketMQ asks for its position 0.5 s later, when the member that had
it may not have told the broker yet, if the machine is busy.
"""
BETWEEN_S = 5.0
"""Pause between two restarts: partitions move meanwhile."""


class Pods:
    """Three listeners over one cluster, and a consumer at each."""

    def __init__(self, options: ListenerOptions, folder: Path) -> None:
        self.listeners = [ListenerProcess(f"pod-{name}", options, folder / f"pod-{name}") for name in "abc"]
        self.consumers: list[JavaConsumer] = []
        self.causes: list[int] = []
        """The times at which partitions begin to move."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the listeners."""
        for listener in self.listeners:
            stack.callback(listener.kill)
        await asyncio.gather(*(asyncio.to_thread(listener.start) for listener in self.listeners))

    async def kill_and_restart(self, listener: ListenerProcess) -> None:
        """Kill a listener, and start it again."""
        self.causes.append(now_us())
        await asyncio.to_thread(listener.kill)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(listener.start)
        self.causes.append(now_us())

    async def restart_in_order(self, listener: ListenerProcess) -> int:
        """Stop a listener with SIGTERM, and start it again; return its exit code."""
        self.causes.append(now_us())
        code = await asyncio.to_thread(listener.terminate)
        self.causes.append(now_us())
        await asyncio.to_thread(listener.start)
        self.causes.append(now_us())
        return code

    def judge(self, messages: int, *, allows_lag: bool = True) -> SubscriptionVerdict:
        """Judge what the consumers have got."""
        oracle = SubscriptionOracle(range(messages))
        for at in self.causes:
            oracle.cause(at, COMMIT_S if allows_lag else 0.0)
        return oracle.judge(all_seen(self.consumers), all_confirmed(self.consumers))


async def run_pods(
    system: str, settings: dict[str, Any], topic: str, type_: str, folder: Path, stack: AsyncExitStack
) -> SubscriptionVerdict:
    """Kill one of three listeners under load, then restart all of them; return the verdict."""
    async with opened(system, settings) as cluster:
        await cluster.create(topic, PARTITIONS)
    pods = Pods(ListenerOptions(system, settings), folder)
    await pods.start(stack)
    for number, listener in enumerate(pods.listeners):
        pods.consumers.append(JavaConsumer(listener.url, topic, folder, f"java-{number}", type_=type_))
        stack.enter_context(pods.consumers[-1].program)
    for consumer in pods.consumers:
        await consumer.wait_subscribed()
    pods.causes.append(now_us())  # members have joined, so partitions move
    urls = ",".join(listener.url.removeprefix("pulsar://") for listener in pods.listeners)
    producer = stack.enter_context(
        java.spawn("PulsarProduce", url=f"pulsar://{urls}", topic=TOPIC + topic, messages=MESSAGES, rate=RATE, size=200)
    )
    await until(lambda: len(all_seen(pods.consumers)) > 10 * RATE, producer.stderr)
    await pods.kill_and_restart(pods.listeners[0])
    await asyncio.sleep(BETWEEN_S)
    for listener in pods.listeners:
        assert await pods.restart_in_order(listener) == 0
        await asyncio.sleep(BETWEEN_S)
    await asyncio.to_thread(producer.wait)
    await until(
        lambda: len({each.number for each in all_seen(pods.consumers)}) == MESSAGES,
        lambda: str(pods.judge(MESSAGES)),
        patience_s=150,
    )
    for consumer in pods.consumers:
        await consumer.leave()
    verdict = pods.judge(MESSAGES)
    strict = pods.judge(MESSAGES, allows_lag=False)
    print(f"{system} {type_}: {verdict}", *verdict.examples, f"without the time of commits: {strict}", sep="\n  ")
    return verdict


@pytest.mark.parametrize("type_", ["Shared", "Failover"])
async def test_three_listeners_over_rocketmq(type_: str, rocketmq: RocketMQ, tmp_path: Path, stack: AsyncExitStack) -> None:
    settings = {"name_servers": [rocketmq.name_server], "refresh": "2s", "heartbeat": "2s"}
    verdict = await run_pods("rocketmq", settings, f"pods_{type_.lower()}", type_, tmp_path, stack)
    assert not verdict.lost
    assert not verdict.too_early


@pytest.mark.parametrize("type_", ["Shared", "Failover"])
async def test_three_listeners_over_one_log(type_: str, tmp_path: Path, stack: AsyncExitStack) -> None:
    settings = {"path": str(tmp_path / "log.db"), "lease": "3s", "max_message_bytes": "8MiB"}
    verdict = await run_pods("log", settings, "pods", type_, tmp_path, stack)
    assert not verdict.lost
    assert not verdict.too_early
