"""Memory of a gateway whose target is unreachable: the maximum resident size until it reads no more messages.

Sources are real servers, with topics that the official Java clients wrote. The target is an embedded log whose write lock is held
by another connection, so that it can be opened but stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mqbridge.log.adapter.registration import ADAPTER
from tests.bench.bridge import POLL_S
from tests.bench.corpora import CORPORA, Corpus
from tests.bench.ends import SEED, Clusters, fill_topic
from tests.bench.figures import peak_rss_mb
from tests.e2e.sides import SYSTEMS, Side
from tests.kit.gateway import GatewayProcess
from tests.kit.maven import say

TOPIC = "copy"
STILL = 20
"""Number of equal readings after which the gateway counts as full. They last longer than the longest poll of a source."""
DEADLINE_S = 120
BUSY_TIMEOUT = "100ms"
TOTAL_BYTES = 100_000_000
"""Bytes of all bodies in a topic: three times the default limit of a route."""
LEAST_PER_PARTITION = 5
KINDS = {
    "100 B in 8 partitions": CORPORA["bare"],
    "1 KB in 8 partitions": CORPORA["ordinary"],
    "10 KB in 8 partitions": CORPORA["large"],
    "10 KB in 8 partitions, compressed": CORPORA["compressed"],
    "1 MB in 60 partitions": Corpus("1 MB, no property, one by one", payload=1_000_000, properties=0, batch=1, partitions=60),
}


async def make_log(path: Path, partitions: int) -> None:
    """Create an empty topic in an embedded log."""
    cluster = ADAPTER.make_cluster("there", ADAPTER.cluster_model(path=path))
    await cluster.connect()
    await cluster.create(TOPIC, partitions)
    await cluster.close()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of a log."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def held_mb(source: Side, topic: str, partitions: int) -> float:
    """Return the peak resident memory of a gateway that reads the topic and can store nothing, in MB (10^6 bytes)."""
    with tempfile.TemporaryDirectory(prefix="mqbridge-bench-") as folder:
        log = Path(folder) / "log.db"
        asyncio.run(make_log(log, partitions))
        clusters = {
            "here": {"system": source.system, **source.settings},
            "there": {"system": "log", "path": str(log), "busy_timeout": BUSY_TIMEOUT},
        }
        group = f"memory_{topic.rpartition('/')[2]}"  # a group of TubeMQ reads one topic
        ends = {"from": {"cluster": "here", "topic": topic, "group": group}, "to": {"cluster": "there", "topic": TOPIC}}
        with (
            locked(log),
            GatewayProcess({"clusters": clusters, "routes": [{"name": "r", **ends}]}, Path(folder)) as gateway,
        ):
            wait_full(gateway)
            return peak_rss_mb(gateway.process.pid)


def wait_full(gateway: GatewayProcess) -> None:
    """Wait until the gateway has received messages and receives no more: the figures stay the same for STILL readings."""
    deadline = time.monotonic() + DEADLINE_S
    before: tuple[int, float] = (0, 0)
    same = 0
    while same < STILL:
        time.sleep(POLL_S)
        row = gateway.route()
        if gateway.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the gateway is not full:\n{gateway.log}")
        if row.get("stored"):
            raise AssertionError("the target is there: it stores")
        now = row.get("received", 0), peak_rss_mb(gateway.process.pid)
        same = same + 1 if now[0] and now == before else 0
        before = now


def chapter(systems: Sequence[str] = SYSTEMS, seed: int = SEED) -> str:
    """Measure all systems and return the chapter about them."""
    lines = [
        "## Memory",
        "",
        "Peak resident memory (RSS) in MB of a gateway with default settings whose target stores nothing: the gateway",
        f"reads until it reaches its limits. The official Java clients have written {TOTAL_BYTES // 1_000_000} MB of",
        f"messages, at least {LEAST_PER_PARTITION} per partition. The target is an embedded log that is locked by another",
        "program.",
        "",
        "| messages | " + " | ".join(f"from {system}" for system in systems) + " |",
        "|---|" + "---|" * len(systems),
    ]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with Clusters() as clusters:
        for system in systems:
            side = clusters.side(system, raised=False)
            for kind, corpus in KINDS.items():
                count = max(TOTAL_BYTES // corpus.payload, LEAST_PER_PARTITION * corpus.partitions)
                topic = fill_topic(side, corpus, count, seed)
                found[kind].append(held_mb(side, topic, corpus.partitions))
                say(f"{system}, {kind}: {found[kind][-1]:.0f} MB")
    lines += [f"| {kind} | " + " | ".join(f"{value:.0f}" for value in values) + " |" for kind, values in found.items()]
    return "\n".join(lines) + "\n"
