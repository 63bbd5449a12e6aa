"""The listener for TubeMQ clients beside a real Master and Broker: what both cost for the same program.

The program is the official Java client (tests/java, TubeBench); its own CPU time does not count. Of a server, the CPU time of its
processes counts, from the program's start to its end: the JVMs of the real servers have compiled their hot code before. The
listener answers when the embedded log has stored a message. So the Broker runs without its memory cache: it writes each message
to its file before it answers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.bench.figures import Figures, median, peak_rss_mb
from tests.bench.listener import LISTENER, ListenerServer
from tests.bench.process_tree import tree_cpu_s
from tests.kit import java
from tests.kit.maven import say
from tests.kit.process import HOST
from tests.kit.tubemq import TubeMQ

SIZE = 1000
MESSAGES = 200_000
WARM_UP = 100_000
DEADLINE_S = 300
BROKER = "TubeMQ Master and Broker"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. A consuming case reads the topic that `source` has filled."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    source: str | None = None


PRODUCING = (Case("produce", {"window": 1000}), Case("produce, 10 unanswered", {"window": 10}))
CASES = (*PRODUCING, Case("consume", {"threads": 2}, PRODUCING[0].name))


class Server(Protocol):
    """A server under test."""

    name: str
    master: str
    """Address of the Master."""
    pids: list[int]
    """Ids of its processes."""

    def new_topic(self, name: str) -> str:
        """Return the name of a new topic of one partition."""


class RealServer:
    """A real Master and Broker."""

    name = BROKER

    def __init__(self, server: TubeMQ) -> None:
        self._server, self.master = server, server.masters
        self.pids = [process.pid for process in server.servers if process.pid is not None]

    def new_topic(self, name: str) -> str:
        """Create a topic."""
        self._server.add_topic(name, 1)
        return name


class Listener:
    """A listener over an embedded log. Clients create the topics by using them."""

    name = LISTENER

    def __init__(self, server: ListenerServer) -> None:
        self.master = f"{HOST}:{server.port}"
        self.pids = [server.pid]

    def new_topic(self, name: str) -> str:
        """Return the name of a topic."""
        return name


@contextlib.contextmanager
def running() -> Iterator[list[Server]]:
    """Run both servers."""
    with ListenerServer({"system": "tubemq"}) as listener, TubeMQ(pool={}, memory_store=False) as broker:
        yield [Listener(listener), RealServer(broker)]


class Runs:
    """The runs of one server; it remembers the topics that were filled."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._topics: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def _cpu_s(self) -> float:
        return sum(map(tree_cpu_s, self.server.pids))

    def run(self, case: Case, messages: int) -> Figures:
        """Run a case once, and return the figures of the server."""
        number = next(self._numbers)
        settings = dict(case.settings)
        if case.source is None:
            topic, mode = self.server.new_topic(f"bench_{number}"), "produce"
            settings["size"] = SIZE
        else:
            topic, mode = self._topics[case.source], "consume"
            settings["group"] = f"bench_{number}"
        before = self._cpu_s()
        last = java.run(
            "TubeBench",
            flags=java.BRIDGE_FLAGS,
            deadline_s=DEADLINE_S,
            master=self.server.master,
            topic=topic,
            mode=mode,
            messages=messages,
            warmup=messages // 10,
            **settings,
        )[-1]
        cpu = (self._cpu_s() - before) / messages * 1e6
        assert last["messages"] >= messages, f"{case.name}: only {last['messages']} of {messages} messages"
        if mode == "produce":
            self._topics[case.name] = topic
        found = Figures(last["rate"], cpu, max(map(peak_rss_mb, self.server.pids)))
        say(f"{self.server.name}: {case.name}: {found}")
        return found


Row = tuple[Case, Figures, Figures]
"""A case, the listener's figures, and those of the real servers."""


def measure(rounds: int, messages: int, chosen: Sequence[Case]) -> list[Row]:
    """Run the cases on both servers, alternating; return the medians."""
    with running() as servers:
        runs = [Runs(server) for server in servers]
        for case in CASES:
            runs[1].run(case, min(WARM_UP, messages))
        rows: list[Row] = []
        for case in [each for each in CASES if each in chosen or each.name in {one.source for one in chosen}]:
            found: list[list[Figures]] = [[], []]
            for _ in range(rounds):
                for figures, each in zip(found, runs, strict=True):
                    figures.append(each.run(case, messages))
            listener, broker = map(median, found)
            rows.append((case, listener, broker))
    return [row for row in rows if row[0] in chosen]


def table(rounds: int, messages: int | None = None, only: str = "") -> str:
    """Measure and return the chapter."""
    messages = messages or MESSAGES
    chosen = [case for case in CASES if only in case.name]
    lines = [
        "## Listener for TubeMQ clients",
        "",
        "The same program of the official Java client with a listener over the embedded log, and with a TubeMQ Master and Broker",
        f"that have run before: {messages:,} messages of {SIZE:,} bytes in one partition, and 1,000 unanswered sends where",
        "nothing else is said. The Broker writes each message to its file before it answers. Figures are medians of",
        f"{rounds} alternating runs. CPU is that of the servers' processes, with the start of the client.",
        "",
        "| case | listener: messages/s | CPU-s per million | TubeMQ: messages/s | CPU-s per million | ratio: rate | CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, listener, broker in measure(rounds, messages, chosen):
        ratio = listener.beside(broker)
        lines.append(
            f"| {case.name} | {listener.rate:,.0f} | {listener.cpu:.1f} | {broker.rate:,.0f} | {broker.cpu:.1f}"
            f" | {ratio.rate:.2f} | {ratio.cpu:.2f} |"
        )
    return "\n".join(lines) + "\n"
