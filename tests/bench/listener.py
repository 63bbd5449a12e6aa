"""The listener for Pulsar clients beside a real Pulsar standalone: what both servers cost for the same program.

The program is the official Java client (tests/java, PulsarBench); its own CPU time does not count. Of a server, the CPU time of
its process tree counts, from the program's start to its end: the JVM of the standalone has compiled its hot code before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from tests.bench.figures import Figures, median, peak_rss_mb
from tests.bench.listener_load import idle, producers
from tests.bench.process_tree import tree_cpu_s
from tests.kit import java
from tests.kit.guard import guard
from tests.kit.maven import say
from tests.kit.process import HOST, free_ports
from tests.kit.pulsar import Pulsar

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1000
MESSAGES = 200_000
WARM_UP = 100_000
"""Messages of each kind of run before the first one that counts."""
DEADLINE_S = 300
START_S = 120
IDLE_CONNECTIONS = 2000
BUSY_PRODUCERS = 200
BUSY_MESSAGES = 100_000
LISTENER, STANDALONE = "listener", "Pulsar standalone"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: what the program does. A consuming case reads the topic that `source` names."""

    name: str
    settings: dict[str, Any]
    source: str | None = None


PRODUCING = [
    Case(f"produce, {how}, {properties} properties", {"properties": properties, "single": how == "single"})
    for how in ("batches", "single")
    for properties in (0, 5)
]
EXCLUSIVE = {"type": "Exclusive"}
SHARED = {"type": "Shared", "individual": True}
CONSUMING = [
    Case(f"consume {sharing['type']}, {each.name.removeprefix('produce, ')}", dict(sharing), each.name)
    for each in PRODUCING
    for sharing in (EXCLUSIVE, SHARED)
]
STORED = [
    Case(f"consume {sharing['type']}, stored without units, {properties} properties", dict(sharing), f"stored_{properties}")
    for properties in (0, 5)
    for sharing in (EXCLUSIVE, SHARED)
]
"""Messages that another system's client has stored. The standalone has no such messages: it reads those sent one by one."""
CASES = (*PRODUCING, *CONSUMING, *STORED)


class Server(Protocol):
    """A server under test."""

    name: str
    url: str

    @property
    def pid(self) -> int:
        """Process id."""

    def new_topic(self, name: str) -> str:
        """Create a topic, which keeps its messages, and return its full name."""


class RealServer:
    """The real Pulsar standalone."""

    name = STANDALONE

    def __init__(self, pulsar: Pulsar) -> None:
        self._pulsar, self.url = pulsar, pulsar.service_url

    @property
    def pid(self) -> int:
        """Process id."""
        pid = self._pulsar.server.pid
        assert pid is not None
        return pid

    def new_topic(self, name: str) -> str:
        """Create a topic that keeps its messages."""
        return self._pulsar.keep(self._pulsar.create_topic(name))


@dataclass
class ListenerServer:
    """A listener over an embedded log, see `listener_process`. Clients create the topics by using them."""

    settings: dict[str, Any] = field(default_factory=dict)
    name = LISTENER

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mqbridge-bench-")
        [self.port] = free_ports(1)
        self.url = f"pulsar://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        given = {"folder": self._folder.name, "port": self.port, **self.settings}
        argv = [sys.executable, "-m", "tests.bench.listener_process", json.dumps(given)]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
        guard().process(self._process.pid)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        assert ready, f"the listener has not started within {START_S} s"
        assert self._process.stdout.readline() == b"READY\n", "the listener has ended at its start"
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def new_topic(self, name: str) -> str:
        """Return the name of a topic."""
        return f"persistent://public/default/{name}"


@contextlib.contextmanager
def running(messages: int) -> Iterator[list[Server]]:
    """Run both servers, with the topics of messages that were stored without units."""
    fill = [{"topic": f"stored_{n}", "messages": messages, "size": SIZE, "properties": n} for n in (0, 5)]
    with ListenerServer({"fill": fill}) as listener, Pulsar(heap_mb=1024, java_options=()) as pulsar:
        yield [listener, RealServer(pulsar)]


class Runs:
    """The runs of one server; it remembers the topics that were filled by producing cases."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._topics: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def topic_of(self, case: Case) -> str:
        """Return a new topic, or the one that a consuming case reads."""
        if case.source is None:
            return self.server.new_topic(f"bench-{next(self._numbers)}")
        if case.source in self._topics:
            return self._topics[case.source]
        if self.server.name == LISTENER:
            return self.server.new_topic(case.source)
        return self._topics[PRODUCING[2 if case.source == "stored_0" else 3].name]

    def run(self, case: Case, messages: int) -> Figures:
        """Run a case once, and return the figures of the server."""
        topic = self.topic_of(case)
        mode = "produce" if case.source is None else "consume"
        settings = {name: value for name, value in case.settings.items() if value is not False}
        if mode == "produce":
            settings["size"] = SIZE
        before = tree_cpu_s(self.server.pid)
        last = java.run(
            "PulsarBench",
            flags=java.BRIDGE_FLAGS,
            deadline_s=DEADLINE_S,
            url=self.server.url,
            topic=topic,
            mode=mode,
            messages=messages,
            warmup=messages // 10,
            **settings,
        )[-1]
        cpu = (tree_cpu_s(self.server.pid) - before) / messages * 1e6
        assert last["messages"] >= messages, f"{case.name}: only {last['messages']} of {messages} messages"
        if mode == "produce":
            self._topics[case.name] = topic
        found = Figures(last["rate"], cpu, peak_rss_mb(self.server.pid))
        say(f"{self.server.name}: {case.name}: {found}")
        return found


Row = tuple[Case, Figures, Figures]
"""A case, the listener's figures, and those of the standalone."""


def measure(rounds: int, messages: int = MESSAGES, chosen: Sequence[Case] = CASES) -> list[Row]:
    """Run the cases on both servers, alternating; return the medians."""
    with running(messages) as servers:
        runs = [Runs(server) for server in servers]
        for each in runs:
            if each.server.name == STANDALONE:
                for case in (*PRODUCING, *CONSUMING):
                    each.run(case, WARM_UP)
        rows: list[Row] = []
        for case in needed(chosen):
            found: list[list[Figures]] = [[], []]
            for _ in range(rounds):
                for figures, each in zip(found, runs, strict=True):
                    figures.append(each.run(case, messages))
            listener, standalone = (median(each) for each in found)
            rows.append((case, listener, standalone))
    return [row for row in rows if row[0] in chosen]


def needed(chosen: Sequence[Case]) -> list[Case]:
    """Return the cases to run: the chosen ones, and those that fill their topics."""
    sources = {case.source for case in chosen}
    if any(case in STORED for case in chosen):
        sources |= {each.name for each in PRODUCING[2:]}
    return [case for case in CASES if case in chosen or case.name in sources]


# --- many connections ---------------------------------------------------------------------------------------------------


def crowd(connections: int = IDLE_CONNECTIONS, busy: int = BUSY_PRODUCERS, messages: int = BUSY_MESSAGES) -> list[str]:
    """Measure one listener with idle connections, then with busy producers beside them; return lines of the page."""
    with ListenerServer({"connections": connections + 2 * busy}) as server:
        before = peak_rss_mb(server.pid)
        with idle(server.port, connections):
            held = peak_rss_mb(server.pid) - before
            began = time.monotonic(), tree_cpu_s(server.pid)
            time.sleep(10)
            idle_cpu = (tree_cpu_s(server.pid) - began[1]) / (time.monotonic() - began[0])
            cpu = tree_cpu_s(server.pid)
            rate = producers(server.port, busy, messages, SIZE)
            cpu = (tree_cpu_s(server.pid) - cpu) / messages * 1e6
            rss = peak_rss_mb(server.pid)
    quiet = f"{held:.0f} MB ({held / connections * 1000:.1f} KB each), {idle_cpu:.1%} of a core"
    loud = f"{rate:,.0f} messages/s, {cpu:.1f} CPU-s per million, {rss:.0f} MB at most"
    return [
        f"- {connections:,} idle connections: {quiet}",
        f"- {busy} producers on connections of their own beside them, {messages:,} single messages: {loud}",
    ]


def table(rounds: int, messages: int | None = None, only: str = "") -> str:
    """Measure and return the chapter."""
    messages = messages or MESSAGES
    chosen = [case for case in CASES if only in case.name]
    lines = [
        "## Listener for Pulsar clients",
        "",
        "The same program of the official Java client with a listener over the embedded log, and with a Pulsar standalone that",
        f"has run before: {messages:,} messages of {SIZE:,} bytes in one partition. Figures are medians of {rounds} alternating",
        "runs. CPU is that of the server's processes, with the start of the client. Batches have at most 128 KiB. Exclusive",
        "subscriptions acknowledge cumulatively, shared ones message by message. Messages stored without units come one by one",
        "from the listener; the standalone has none, and delivers messages that were sent one by one.",
        "",
        "| case | listener: messages/s | CPU-s per million | standalone: messages/s | CPU-s per million | ratio: rate | CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, listener, standalone in measure(rounds, messages, chosen):
        ratio = listener.beside(standalone)
        lines.append(
            f"| {case.name} | {listener.rate:,.0f} | {listener.cpu:.1f} | {standalone.rate:,.0f} | {standalone.cpu:.1f}"
            f" | {ratio.rate:.2f} | {ratio.cpu:.2f} |"
        )
    if not only:
        lines += ["", "Many connections to one listener:", "", *crowd()]
    return "\n".join(lines) + "\n"
