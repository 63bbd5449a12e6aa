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
"""Share of the messages, at the start of a run, that the figures leave out."""
DEADLINE_S = 300
ROOT = Path(__file__).resolve().parents[2]
OURS, BATCHES, JAVA, PYPI = "mqbridge", "mqbridge, lists", "Java client", "pulsar-client (PyPI)"


@dataclass(frozen=True, slots=True)
class System:
    """The runs for one system; all clients get the same `settings`."""

    name: str
    messages: int
    java: str
    """Name of the Java program."""
    settings: dict[str, int]
    """Settings of producers: limits of a batch; `window` is the maximum number of messages (RocketMQ: batches) in flight."""
    how: str
    """Description of the settings in the page."""
    clients: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"produce": (OURS, JAVA), "consume": (OURS, JAVA)})


SYSTEMS = (
    System(
        "tubemq", 200_000, "TubeBench", {"window": 1000}, "one request per message, 1,000 requests in flight; consumed in packs"
    ),
    System(
        "pulsar",
        400_000,
        "PulsarBench",
        {"batch_messages": 1000, "batch_bytes": 128 << 10, "linger_ms": 10, "window": 16_000},
        "batches of at most 1,000 messages, 128 KiB, 10 ms; 16,000 messages in flight; cumulative acknowledgement",
        {"produce": (OURS, BATCHES, JAVA, PYPI), "consume": (OURS, JAVA, PYPI)},
    ),
    System(
        "rocketmq", 400_000, "RocketBench", {"batch_messages": 100, "window": 16}, "batches of 100 messages, 16 batches in flight"
    ),
)
Row = tuple[str, str, str, Figures]
"""System, mode (produce or consume), client, and its median figures."""


def available(client: str) -> bool:
    """True if the client is installed here."""
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
    """Run one client once, and return its figures."""
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
    """Run the official Java client, by a program of tests/java."""
    if system.name == "pulsar" and mode == "produce":
        settings["pending_mb"] = settings.pop("window") * SIZE // 1_000_000
    return java.run(system.java, flags=java.BRIDGE_FLAGS, deadline_s=DEADLINE_S, mode=mode, **settings)[-1]


def run_ours(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run our client, with one call per message."""
    return python("tests.bench.client_runs", settings | {"run": f"{system.name} {mode}"})


def run_batches(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run our client, with one call per list of messages."""
    return python("tests.bench.client_runs", settings | {"run": f"{system.name} {mode} batches"})


def run_pypi(system: System, mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run the official Python client of Pulsar."""
    with tempfile.NamedTemporaryFile(prefix="mqbridge-pulsar-client-") as log:
        return python("tests.bench.client_pypi", settings | {"run": f"{system.name} {mode}", "log": log.name})


RUNNERS: dict[str, Callable[[System, str, dict[str, Any]], dict[str, Any]]] = {
    OURS: run_ours,
    BATCHES: run_batches,
    JAVA: run_java,
    PYPI: run_pypi,
}


def python(module: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a Python module; return the figures, which it prints in the last line."""
    argv = [sys.executable, "-m", module, json.dumps(settings | {"deadline_s": DEADLINE_S})]
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, timeout=DEADLINE_S + 30, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rounds: int, systems: tuple[str, ...] = ()) -> str:
    """Measure the clients and return the chapter about them."""
    lines = [
        "## Clients",
        "",
        f"Messages of {SIZE:,} bytes without properties, in {PARTITIONS} partitions of servers on the same machine. Figures",
        f"are medians of {rounds} alternating runs, without the first {WARMUP:.0%} of each run. CPU and memory are those of",
        f"the client's process. With `{BATCHES}` the program passes lists of messages to our client, as the gateway does.",
        "The others send one message per call, except with RocketMQ, where all clients send lists (batches).",
        "",
        *(f"- {system.name}: {system.messages:,} messages; {system.how}" for system in SYSTEMS),
        "",
    ]
    if not available(PYPI):
        lines += [f"{PYPI} is not installed here (`pip install '.[bench]'`), so it is missing.", ""]
    lines += [
        "| system | | client | messages/s | CPU-s per million | peak RSS, MB | CPU relative to Java |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = list(measure(rounds, systems))
    of_java = {(system, mode): figures for system, mode, client, figures in rows if client == JAVA}
    for system, mode, client, figures in rows:
        ratio = figures.cpu / of_java[system, mode].cpu
        cells = f"{figures.rate:,.0f} | {figures.cpu:.1f} | {figures.rss_mb:.0f} | {ratio:.2f}"
        lines.append(f"| {system} | {mode} | {client} | {cells} |")
    return "\n".join(lines) + "\n"
