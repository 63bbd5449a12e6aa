"""Benchmark of one direction end to end: this gateway and the Java bridge alternate, on the same servers and source topic.

Both are measured in the same way: from the moment the first fifth of the messages is stored (a JVM compiles its hot code
in that time) until the last one is stored, with the CPU time that the kernel reports. Each run reads the whole topic with a
new group into a new target topic.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.ends import java_arguments, java_flags, take_topic
from tests.bench.figures import Figures, Reading, cpu_seconds, peak_rss_mb
from tests.e2e.sides import Side
from tests.kit import java
from tests.kit.gateway import GatewayProcess
from tests.kit.maven import say

WARMUP = 0.2
"""Share of the messages, at the start of a run, that the figures leave out."""
POLL_S = 0.25
"""Interval of polls of the gateway's progress. Polls cost CPU time of the gateway: 5 % of it at 20 polls per second."""
LEAST_POLL_S = 0.02
DEADLINE_S = 600
RULES: dict[str, Any] = {
    "filter": {"exclude": {"properties": {"zone": {"equals": "eu-4"}}}},
    "edit": {"remove": ["title"], "rename": {"trace": "trace_id"}, "set": {"label": "{property:zone}/{property:user}"}},
    "partitions": {"by": "key", "key": "property:user"},
}
"""Settings of a route in runs with rules; `BridgeRules.java` does the same."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a bridge: move the messages of a filled topic to another cluster."""

    source: Side
    target: Side
    topic: str
    partitions: int
    total: int
    rules: bool = False

    def route(self, into: str, group: str) -> dict[str, Any]:
        """Return the configuration of the gateway."""
        here, there = self.source, self.target
        route: dict[str, Any] = {
            "name": "r",
            "from": {"cluster": "here", "topic": self.topic, "group": group},
            "to": {"cluster": "there", "topic": into, "create": False},
        }
        if self.rules:
            route["filter"] = RULES["filter"]
            route["to"] |= {"edit": RULES["edit"], "partitions": RULES["partitions"]}
        clusters = {"here": {"system": here.system, **here.settings}, "there": {"system": there.system, **there.settings}}
        return {"clusters": clusters, "routes": [route]}


def reading(gateway: GatewayProcess) -> Reading:
    """Return the progress and the CPU time of a gateway."""
    row = gateway.route()
    done = sum(row.get(name, 0) for name in ("stored", "filtered", "looped", "dead"))
    return Reading(time.monotonic(), done, row.get("batches", 0), *cpu_seconds(gateway.process.pid))


def wait_done(gateway: GatewayProcess, count: int) -> Reading:
    """Wait until this number of messages is stored or filtered; return the progress."""
    begin = now = reading(gateway)
    while now.done < count:
        if gateway.process.poll() is not None or now.at > begin.at + DEADLINE_S:
            raise AssertionError(f"the gateway has {now.done:,} of {count:,} messages stored:\n{gateway.log}")
        time.sleep(pause_s(begin, now, count))
        now = reading(gateway)
    return now


def pause_s(begin: Reading, now: Reading, count: int) -> float:
    """Return the time to the next poll. It gets shorter towards the end, which is estimated from the rate so far."""
    done, seconds = now.done - begin.done, now.at - begin.at
    left_s = (count - now.done) * seconds / done if done else math.inf
    return min(POLL_S, max(LEAST_POLL_S, left_s / 2))


@contextlib.contextmanager
def started(task: Task, group: str, checkout: Path | None = None, into: str | None = None) -> Iterator[GatewayProcess]:
    """Run this gateway, or the gateway of another checkout. Without `into`, a new target topic is created."""
    settings = task.route(into or take_topic(task.target, task.partitions), group)
    with (
        tempfile.TemporaryDirectory(prefix="mqbridge-bench-") as folder,
        GatewayProcess(settings, Path(folder), checkout=checkout) as gateway,
    ):
        yield gateway
        assert gateway.terminate() == 0, gateway.log


def run_gateway(task: Task, group: str, checkout: Path | None = None) -> Figures:
    """Run this gateway, or the gateway of another checkout, once."""
    with started(task, group, checkout) as gateway:
        begin = wait_done(gateway, int(task.total * WARMUP))
        return wait_done(gateway, task.total).figures(begin, peak_rss_mb(gateway.process.pid))


def run_java(task: Task, group: str) -> Figures:
    """Run the Java bridge once."""
    with java_bridge(task, group, take_topic(task.target, task.partitions)) as program:
        last = program.wait(DEADLINE_S)[-1]
    if not last["measured"]:
        raise ValueError("there are too few messages to measure: all were stored during the warm-up")
    return Figures(last["rate"], last["cpuSecondsPerMillion"], last["peakRssBytes"] / 1e6)


def java_bridge(task: Task, group: str, into: str) -> java.JavaProgram:
    """Start the Java bridge. If the task has no number of messages, it runs forever."""
    arguments = java_arguments(task.source, task.target) | {"topic": task.topic, "group": group, "target": into}
    if task.source.system != "pulsar":
        arguments["threads"] = task.partitions
    if task.rules:
        arguments["rules"] = task.partitions
    if not task.total:
        arguments["idle"] = 0
    return java.spawn(
        "JavaBridge",
        flags=[*java.BRIDGE_FLAGS, *java_flags(task.source, task.target)],
        messages=task.total,
        warmup=int(task.total * WARMUP),
        **arguments,
    )


Runner = Callable[[Task, str], Figures]
GATEWAY, JAVA = "mqbridge", "Java bridge"
RUNNERS: dict[str, Runner] = {GATEWAY: run_gateway, JAVA: run_java}


def runners(*, gateway_only: bool, against: Path | None) -> dict[str, Runner]:
    """The runners that alternate: this gateway, and the Java bridge or the gateway of another checkout, if requested."""
    if against is not None:
        other: Runner = partial(run_gateway, checkout=against)
        return {"the other": other} if gateway_only else {"this": run_gateway, "the other": other}
    return {GATEWAY: run_gateway} if gateway_only else RUNNERS


def measure(task: Task, rounds: int, runners: Mapping[str, Runner] = RUNNERS) -> dict[str, list[Figures]]:
    """Run every runner `rounds` times. The first one changes between rounds, because it finds servers that were just started."""
    found: dict[str, list[Figures]] = {name: [] for name in runners}
    for number in range(rounds):
        for name, runner in list(runners.items())[:: -1 if number % 2 else 1]:
            group = f"g{number}_{name.replace(' ', '_').lower()}_{time.monotonic_ns():x}"
            figures = runner(task, group)
            say(f"{task.source.system} to {task.target.system}, {name}: {figures} (load {os.getloadavg()[0]:.1f})")
            found[name].append(figures)
    return found
