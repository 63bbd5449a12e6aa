"""Benchmark of our clients and the official ones on the same real servers: producing and consuming messages of 1 KB.

Every run is a process of its own, which measures itself by the kernel's account: from the moment a warm-up share of the messages
is through (a JVM compiles its hot code in that time) until the last one is. The clients take turns; each produces into a fresh
topic, and all of them read the same one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.bench.ends import PARTITIONS, running, take_topic
from tests.bench.figures import Figures, median
from tests.e2e.sides import Side
from tests.kit import java
from tests.kit.maven import say
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ

SIZE = 1000
WARMUP = 0.25
"""Share of the messages that the figures leave out."""
DEADLINE_S = 300
ROOT = Path(__file__).resolve().parents[2]
OURS, BATCHES, JAVA, PYPI = "mqbridge", "mqbridge, lists", "Java client", "pulsar-client (PyPI)"


@dataclass(frozen=True, slots=True)
class System:
    """What is measured of one system; `settings` mean the same to all clients."""

    name: str
    messages: int
    java: str
    settings: dict[str, int]
    """Of producers: batches, and messages (RocketMQ: batches) without an answer."""
    how: str
    clients: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"produce": (OURS, JAVA), "consume": (OURS, JAVA)})


SYSTEMS = (
    System("tubemq", 200_000, "TubeBench", {"window": 1000}, "one request per message, 1,000 unanswered; consumed in packs"),
    System(
        "pulsar",
        400_000,
        "PulsarBench",
        {"batch_messages": 1000, "batch_bytes": 128 << 10, "linger_ms": 10, "window": 16_000},
        "batches of at most 1,000 messages, 128 KiB, 10 ms; 16,000 messages unanswered; cumulative acknowledgement",
        {"produce": (OURS, BATCHES, JAVA, PYPI), "consume": (OURS, JAVA, PYPI)},
    ),
    System("rocketmq", 400_000, "RocketBench", {"batch_messages": 100, "window": 16}, "batches of 100, 16 of them unanswered"),
)
Row = tuple[str, str, str, Figures]
"""System, mode, client, and the medians of its figures."""


def available(client: str) -> bool:
    """Whether it can be measured here."""
    return client != PYPI or find_spec("pulsar") is not None


def measure(rounds: int, systems: tuple[str, ...] = ()) -> Iterator[Row]:
    """Run every client of every system `rounds` times, alternating."""
    for system in SYSTEMS:
        if systems and system.name not in systems:
            continue
        with running(system.name, 4 * rounds + 1) as side:
            source = ""
            for mode, clients in system.clients.items():
                found: dict[str, list[Figures]] = {client: [] for client in clients if available(client)}
                for number in range(rounds):
                    for client, figures in found.items():
                        topic = take_topic(side) if mode == "produce" else source
                        source = source or topic
                        figures.append(run(system, side, mode, client, topic, number))
                for client, figures in found.items():
                    yield system.name, mode, client, median(figures)


def run(system: System, side: Side, mode: str, client: str, topic: str, number: int) -> Figures:
    """One run."""
    settings = {"messages": system.messages, "warmup": int(system.messages * WARMUP), "topic": topic} | cluster_settings(side)
    if mode == "produce":
        settings |= {"size": SIZE, **system.settings}
    elif system.name != "pulsar" or client != JAVA:
        settings |= {"group": f"g{number}_{client[:2].lower()}"}
    last = RUNNERS[client](system, mode, settings)
    figures = Figures(last["rate"], last["cpuSecondsPerMillion"], last["peakRssBytes"] / 1e6)
    what = f"{figures.rate:,.0f} messages/s, {figures.cpu:.2f} CPU-s per million, {figures.rss_mb:.0f} MB"
    say(f"{system.name} {mode}, {client}: {what}")
    return figures


def cluster_settings(side: Side) -> dict[str, str]:
    """Return the address of the server, as an argument of the programs."""
    match side.server:
        case TubeMQ():
            return {"master": side.server.masters}
        case Pulsar():
            return {"url": side.server.service_url}
        case RocketMQ():
            return {"name_servers": side.server.name_server}


def run_java(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A program of tests/java."""
    if system.name == "pulsar" and mode == "produce":
        settings["pending_mb"] = settings.pop("window") * SIZE // 1_000_000
    return java.run(system.java, flags=java.BRIDGE_FLAGS, deadline_s=DEADLINE_S, mode=mode, **settings)[-1]


def run_ours(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A process of our client."""
    return python("tests.bench.client_runs", settings | {"run": f"{system.name} {mode}"})


def run_batches(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The same, given whole lists of messages."""
    return python("tests.bench.client_runs", settings | {"run": f"{system.name} {mode} batches"})


def run_pypi(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A process of Pulsar's own Python client."""
    with tempfile.NamedTemporaryFile(prefix="mqbridge-pulsar-client-") as log:
        return python("tests.bench.client_pypi", settings | {"run": f"{system.name} {mode}", "log": log.name})


RUNNERS: dict[str, Callable[[System, str, dict[str, Any]], dict[str, Any]]] = {
    OURS: run_ours,
    BATCHES: run_batches,
    JAVA: run_java,
    PYPI: run_pypi,
}


def python(module: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The figures that a module prints last."""
    argv = [sys.executable, "-m", module, json.dumps(settings | {"deadline_s": DEADLINE_S})]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, timeout=DEADLINE_S + 30, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rounds: int, systems: tuple[str, ...] = ()) -> str:
    """The chapter of docs/explanation/benchmarks.md."""
    lines = [
        "## Clients",
        "",
        f"{SIZE:,} bytes without properties, {PARTITIONS} partitions, real servers on the same machine, medians of {rounds} runs",
        f"in turn; the first {WARMUP:.0%} of each run are left out. CPU and memory are those of the client's process.",
        f"`{BATCHES}` is given lists of messages, as the gateway has them; the others take one message at a time (of RocketMQ",
        "they take lists, which are its batches).",
        "",
        *(f"- {system.name}: {system.messages:,} messages; {system.how}" for system in SYSTEMS),
        "",
    ]
    if not available(PYPI):
        lines += [f"{PYPI} is not installed here (`pip install '.[bench]'`), so it is not among them.", ""]
    lines += [
        "| system | | client | messages/s | CPU-s per million | peak RSS, MB | CPU beside Java |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = list(measure(rounds, systems))
    of_java = {(system, mode): figures for system, mode, client, figures in rows if client == JAVA}
    for system, mode, client, figures in rows:
        ratio = figures.cpu / of_java[system, mode].cpu
        cells = f"{figures.rate:,.0f} | {figures.cpu:.1f} | {figures.rss_mb:.0f} | {ratio:.2f}"
        lines.append(f"| {system} | {mode} | {client} | {cells} |")
    return "\n".join(lines) + "\n"
