"""The listener for RocketMQ clients beside a real broker: what both cost for the same program, and how soon they answer.

The program is the official Java client (tests/java, RocketBench); its own CPU time does not count. Of a server, the CPU time of
its processes counts, from the program's start to its end: the JVM of the broker has compiled its hot code before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import uvloop

from mqbridge.rocketmq.wire import command as frames
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.wire.cutter import FrameCutter
from tests.bench.figures import Figures, median, peak_rss_mb
from tests.bench.listener import LISTENER, ListenerServer
from tests.bench.process_tree import tree_cpu_s
from tests.kit import java
from tests.kit.maven import say
from tests.kit.process import HOST
from tests.kit.rocketmq import RocketMQ

SIZE = 1000
MESSAGES = 200_000
WARM_UP = 100_000
DEADLINE_S = 300
BROKER = "RocketMQ broker"
PROBES = 500
"""Synchronous sends whose time is measured."""
LOAD_TICK_S = 0.005
"""Time between two bursts of the load beside them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. A consuming case reads the topic that `source` has filled."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    source: str | None = None


PRODUCING = (
    Case("produce, batches of 100", {"batch_messages": 100, "window": 16}),
    Case("produce, single", {"batch_messages": 1, "window": 64}),
)
CASES = (*PRODUCING, *(Case(f"consume, {each.name.removeprefix('produce, ')}", {}, each.name) for each in PRODUCING))


class Server(Protocol):
    """A server under test."""

    name: str
    address: str
    """Address of the name server."""
    broker_address: str
    pids: list[int]
    """Ids of its processes."""

    def new_topic(self, name: str) -> str:
        """Create a topic of one queue, and return its name."""


class RealServer:
    """A real name server and broker."""

    name = BROKER

    def __init__(self, server: RocketMQ) -> None:
        self._server, self.address, self.broker_address = server, server.name_server, server.broker_address
        self.pids = [process.pid for process in server.servers if process.pid is not None]

    def new_topic(self, name: str) -> str:
        """Create a topic."""
        return self._server.create_topic(name, 1)


class Listener:
    """A listener over an embedded log. Clients create the topics by using them."""

    name = LISTENER

    def __init__(self, server: ListenerServer) -> None:
        self.address = self.broker_address = f"{HOST}:{server.port}"
        self.pids = [server.pid]

    def new_topic(self, name: str) -> str:
        """Return the name of a topic."""
        return name


@contextlib.contextmanager
def running() -> Iterator[list[Server]]:
    """Run both servers."""
    with ListenerServer({"system": "rocketmq"}) as listener, RocketMQ(heap_mb=1024, java_options=()) as broker:
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
            topic, mode = self.server.new_topic(f"bench-{number}"), "produce"
            settings["size"] = SIZE
        else:
            topic, mode = self._topics[case.source], "consume"
            settings["group"] = f"bench-{number}"
        before = self._cpu_s()
        last = java.run(
            "RocketBench",
            flags=java.BRIDGE_FLAGS,
            deadline_s=DEADLINE_S,
            name_servers=self.server.address,
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


# --- the time of a synchronous send -------------------------------------------------------------------------------------


class SendTimes(NamedTuple):
    """How long synchronous sends took beside a load, in ms."""

    p50: float
    p99: float


class _Sender(asyncio.Protocol):
    """A connection that sends messages of SIZE bytes, and counts the answers."""

    def __init__(self, topic: str) -> None:
        self._topic, self._cutter = topic, FrameCutter(frames.measure)
        self.answered = 0
        self._waiting: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for frame in self._cutter.feed(data):
            answer = frames.decode(frame)
            assert answer.code == Status.SUCCESS, answer
            self.answered += 1
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

    def send(self, count: int) -> None:
        """Send messages, without waiting."""
        header = SendHeader("bench", self._topic, 0, round(time.time() * 1000)).encode()
        frame = frames.encode(frames.Command(Code.SEND_MESSAGE_V2, header, bytes(range(250)) * (SIZE // 250), opaque=1))
        self.transport.write(frame * count)

    async def send_and_wait(self) -> float:
        """Send one message, and return the seconds until it is answered."""
        self._waiting = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self.send(1)
        async with asyncio.timeout(DEADLINE_S):
            await self._waiting
        return time.perf_counter() - began


async def _probe(address: str, topic: str, rate: float) -> SendTimes:
    """Measure synchronous sends while another connection sends this many messages each second."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, probe = await loop.create_connection(lambda: _Sender(topic), host, int(port))
    _, load = await loop.create_connection(lambda: _Sender(topic), host, int(port))
    await probe.send_and_wait()

    async def send_load() -> None:
        began, sent = loop.time(), 0
        while True:
            due = int((loop.time() - began) * rate) - sent
            if due > 0:
                load.send(due)
                sent += due
            await asyncio.sleep(LOAD_TICK_S)

    task = asyncio.create_task(send_load())
    try:
        times = [await probe.send_and_wait() for _ in range(PROBES)]
    finally:
        task.cancel()
    cuts = statistics.quantiles(times, n=100)
    return SendTimes(cuts[49] * 1000, cuts[98] * 1000)


def probe(server: Server, rate: float) -> SendTimes:
    """Measure synchronous sends beside a load of this many messages each second."""
    topic = server.new_topic("bench-probe")
    found = uvloop.run(_probe(server.broker_address, topic, rate))
    say(f"{server.name}: synchronous sends beside {rate:,.0f} messages/s: {found}")
    return found


Row = tuple[Case, Figures, Figures]


def measure(rounds: int, messages: int, chosen: Sequence[Case]) -> tuple[list[Row], list[SendTimes]]:
    """Run the cases on both servers, alternating; return the medians, and the times of synchronous sends at half load."""
    with running() as servers:
        runs = [Runs(server) for server in servers]
        for case in CASES:
            runs[1].run(case, WARM_UP)
        rows: list[Row] = []
        for case in [each for each in CASES if each in chosen or each.name in {one.source for one in chosen}]:
            found: list[list[Figures]] = [[], []]
            for _ in range(rounds):
                for figures, each in zip(found, runs, strict=True):
                    figures.append(each.run(case, messages))
            listener, broker = map(median, found)
            rows.append((case, listener, broker))
        singles = [row for row in rows if row[0] is PRODUCING[1]]
        times = [probe(server, singles[0][1 + index].rate / 2) for index, server in enumerate(servers)] if singles else []
    return [row for row in rows if row[0] in chosen], times


def table(rounds: int, messages: int | None = None, only: str = "") -> str:
    """Measure and return the chapter."""
    messages = messages or MESSAGES
    chosen = [case for case in CASES if only in case.name]
    rows, times = measure(rounds, messages, chosen)
    lines = [
        "## Listener for RocketMQ clients",
        "",
        "The same program of the official Java client with a listener over the embedded log, and with a RocketMQ broker that has",
        f"run before: {messages:,} messages of {SIZE:,} bytes in one queue. Figures are medians of {rounds} alternating runs.",
        "CPU is that of the server's processes, with the start of the client.",
        "",
        "| case | listener: messages/s | CPU-s per million | broker: messages/s | CPU-s per million | ratio: rate | CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, listener, broker in rows:
        ratio = listener.beside(broker)
        lines.append(
            f"| {case.name} | {listener.rate:,.0f} | {listener.cpu:.1f} | {broker.rate:,.0f} | {broker.cpu:.1f}"
            f" | {ratio.rate:.2f} | {ratio.cpu:.2f} |"
        )
    if times:
        listener_ms, broker_ms = times
        load = "Synchronous sends of one message, beside half of the rate of single messages above"
        of_listener = f"{listener_ms.p50:.1f} ms (p99 {listener_ms.p99:.1f})"
        lines += ["", f"{load}: listener {of_listener}, broker {broker_ms.p50:.1f} ms (p99 {broker_ms.p99:.1f})."]
    return "\n".join(lines) + "\n"
