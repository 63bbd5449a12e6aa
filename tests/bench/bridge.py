"""One system to another end to end, this gateway and the Java bridge in turn, on the same servers and the same source topic.

Both are measured alike: from the moment a warm-up share of the messages is stored (a JVM compiles its hot code in that time)
until the last one is, by the kernel's own account of their process. Each run reads the whole topic with a group of its own into
a fresh target.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.ends import PARTITIONS, fill_topic, java_arguments, java_flags, running, take_topic
from tests.e2e.sides import Side
from tests.kit import java
from tests.kit.gateway import GatewayProcess
from tests.kit.maven import say

WARMUP = 0.25
"""Share of the messages that the figures leave out."""
POLL_S = 0.25
"""Asking the gateway how far it is costs it CPU too: at 20 times a second that was a twentieth of all."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Figures:
    """One run."""

    rate: float
    """Messages per second."""
    cpu: float
    """CPU-seconds per million messages."""
    rss_mb: float
    """Peak resident memory, 10^6 bytes."""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_rss_mb(pid: int) -> float:
    """Its largest resident size."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


def route(source: Side, target: Side, topic: str, into: str, group: str) -> dict[str, Any]:
    """The configuration of one route."""
    return {
        "clusters": {"here": {"system": source.system, **source.settings}, "there": {"system": target.system, **target.settings}},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "here", "topic": topic, "group": group},
                "to": {"cluster": "there", "topic": into, "create": False},
            }
        ],
    }


def run_gateway(source: Side, target: Side, topic: str, group: str, total: int, checkout: Path | None = None) -> Figures:
    """One run of this gateway, or of the one in another checkout."""
    settings = route(source, target, topic, take_topic(target), group)
    with (
        tempfile.TemporaryDirectory(prefix="mqbridge-bench-") as folder,
        GatewayProcess(settings, Path(folder), checkout=checkout) as gateway,
    ):
        pid = gateway.process.pid
        row = gateway.wait_stored(int(total * WARMUP), 600)
        began, began_cpu, before = time.monotonic(), cpu_seconds(pid), row["stored"]
        while (stored := gateway.route()["stored"]) < total:
            time.sleep(POLL_S)
        seconds, cpu, rss = time.monotonic() - began, cpu_seconds(pid) - began_cpu, peak_rss_mb(pid)
        assert gateway.terminate() == 0, gateway.log
    measured = stored - before
    return Figures(measured / seconds, cpu / measured * 1e6, rss)


def run_java(source: Side, target: Side, topic: str, group: str, total: int) -> Figures:
    """One run of the Java bridge."""
    arguments = java_arguments(source, target) | {"topic": topic, "group": group, "target": take_topic(target)}
    if source.system != "pulsar":
        arguments["threads"] = PARTITIONS
    last = java.run(
        "JavaBridge",
        flags=[*java.BRIDGE_FLAGS, *java_flags(source, target)],
        deadline_s=900,
        messages=total,
        warmup=int(total * WARMUP),
        **arguments,
    )[-1]
    return Figures(last["rate"], last["cpuSecondsPerMillion"], last["peakRssBytes"] / 1e6)


Runner = Callable[[Side, Side, str, str, int], Figures]
RUNNERS: dict[str, Runner] = {"mqbridge": run_gateway, "Java bridge": run_java}


def measure(
    source: str,
    target: str,
    size: int,
    total: int,
    rounds: int,
    runners: Mapping[str, Runner] = RUNNERS,
    *,
    locked: bool = False,
) -> dict[str, list[Figures]]:
    """Every runner, `rounds` times in turn, over `total` messages of `size` bytes; `locked` is with TLS and credentials."""
    found: dict[str, list[Figures]] = {name: [] for name in runners}
    total = total // PARTITIONS * PARTITIONS
    with both(source, target, len(runners) * rounds + 1, locked=locked) as (here, there):
        topic = take_topic(here)
        say(f"filling {source} with {total:,} messages of {size:,} bytes")
        fill_topic(here, topic, total, size)
        for number in range(rounds):
            for name, runner in runners.items():
                figures = runner(here, there, topic, f"g{number}_{name.split()[0].lower()}", total)
                say(f"{name}: {figures.rate:,.0f} messages/s, {figures.cpu:.2f} CPU-s per million, {figures.rss_mb:.0f} MB")
                found[name].append(figures)
    return found


@contextlib.contextmanager
def both(source: str, target: str, topics: int, *, locked: bool = False) -> Iterator[tuple[Side, Side]]:
    """Both ends; one cluster where source and target are of one system."""
    with running(source, topics, locked=locked) as here:
        if source == target:
            yield here, here
        else:
            with running(target, topics, locked=locked) as there:
                yield here, there


def median(runs: list[Figures]) -> Figures:
    """The median of each figure."""
    return Figures(*(statistics.median(getattr(run, field) for run in runs) for field in Figures.__slots__))
