"""Benchmark of our Spark source, sink and pump and of Spark's Kafka connector, alternating, with the same rows and session.

CPU time is that of all of Spark's processes: the driver, its JVM, and every Python worker. The servers are counted separately;
the embedded log has no server, so readers and writers do its work. Every job first runs once unmeasured, because a JVM
compiles its hot code in that time. The order of the jobs is reversed in every other round.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mqbridge.spark.data_source import MqbridgeDataSource
from tests.bench.ends import PULL_LIMITS
from tests.bench.process_tree import tree_cpu_s
from tests.bench.spark_jobs import COPY, GENERATOR, SINK, SOURCE, STREAM, WORDS_PART, YARDSTICK, Bench, Job
from tests.bench.spark_rows import PARTITIONS, SIZE, TEXT
from tests.kit.clusters import running
from tests.kit.guard import guard
from tests.kit.kafka import CONNECTOR_VERSION, VERSION, Kafka, connector_jars
from tests.kit.maven import say
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.spark import SparkJvm

ROWS = 500_000
DIVISIBLE = PARTITIONS * WORDS_PART
HEAP = "1g"

REAL_JOBS = (f"{SOURCE} RocketMQ", f"{STREAM} RocketMQ", f"{SINK} Pulsar", f"{COPY} RocketMQ to Pulsar, binary, pump")
"""Jobs that need a Pulsar and a RocketMQ server."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of a job."""

    rate: float
    """Rows per second, from the start of the job to its end."""
    cpu: float
    """CPU-seconds of Spark per million rows."""
    servers: float
    """CPU-seconds of the servers per million rows."""


Runs = dict[Job, list[Figures]]


def table(rounds: int, chosen: str = "", rows: int = ROWS) -> str:
    """Measure the jobs and return the chapter about them; `chosen` is a regular expression that selects jobs."""
    rows = rows // DIVISIBLE * DIVISIBLE
    with bench(rows, chosen) as ready:
        return chapter(measure(ready, _chosen(ready.jobs(), chosen), rounds), rounds, rows)


def _chosen(jobs: Sequence[Job], chosen: str) -> list[Job]:
    """Return the chosen jobs, and the jobs that their figures are compared with: Kafka's, and generating rows for sinks."""
    works = {job.work for job in jobs if re.search(chosen, f"{job.work} {job.ends}")}
    if SINK in works:
        works.add(GENERATOR)
    return [
        job
        for job in jobs
        if job.work in works
        and (job.work == GENERATOR or job.ends.startswith(YARDSTICK) or re.search(chosen, f"{job.work} {job.ends}"))
    ]


def measure(ready: Bench, jobs: Sequence[Job], rounds: int) -> Runs:
    """Run every job once as a warm-up, then `rounds` times, alternating."""
    say(f"filling topics with {ready.rows:,} rows")
    ready.fill()
    without = [server.pid for server in ready.servers]
    found: Runs = {job: [] for job in jobs}
    for number in range(rounds + 1):
        for job in jobs if number % 2 else reversed(jobs):
            figures = run(job, without)
            what = f"{figures.rate:,.0f} rows/s, {figures.cpu:.2f} CPU-s per million, servers {figures.servers:.2f}"
            say(f"{f'round {number}' if number else 'warm-up'}, {job.work}, {job.ends}: {what}")
            if number:
                found[job].append(figures)
    return found


def run(job: Job, without: Sequence[int]) -> Figures:
    """Run a job once. `without` are the process ids of the servers, whose CPU time is not Spark's."""

    def used() -> tuple[float, float, float]:
        return time.monotonic(), tree_cpu_s(os.getpid(), without), sum(server.cpu_s() for server in job.servers)

    given = job.prepare()
    before = used()
    job.run(given)
    seconds, spark, servers = (now - then for now, then in zip(used(), before, strict=True))
    return Figures(job.rows / seconds, spark / job.rows * 1e6, servers / job.rows * 1e6)


@contextlib.contextmanager
def bench(rows: int, chosen: str) -> Iterator[Bench]:
    """Start the Spark session, and the servers that the chosen jobs need."""
    folder = Path(tempfile.mkdtemp(prefix="mqbridge-bench-spark-"))
    guard().folder(folder)
    kafka = Kafka(partitions=PARTITIONS, heap_mb=1024)
    is_real = any(re.search(chosen, job) for job in REAL_JOBS)
    pulsar = Pulsar(heap_mb=1024, java_options=()) if is_real else None
    rocketmq = RocketMQ(PULL_LIMITS, heap_mb=1024) if is_real else None
    extra = {"spark.jars": ",".join(map(str, connector_jars())), "spark.driver.memory": HEAP}
    try:
        with running([server for server in (kafka, pulsar, rocketmq) if server is not None]) as starts:
            for start in starts:
                start.result()
            with SparkJvm(folder, extra, java_options=()) as jvm:
                jvm.session.dataSource.register(MqbridgeDataSource)
                yield Bench(jvm.session, folder, rows, kafka, pulsar, rocketmq)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chapter(runs: Runs, rounds: int, rows: int) -> str:
    """Return the text of the chapter."""
    lines = [*_introduction(rounds, rows), *TABLE_HEAD]
    generators = {job.ends: _median(found, "cpu") for job, found in runs.items() if job.work == GENERATOR}
    costs = {job: _median(found, "cpu") - generators.get(job.generator or "", 0.0) for job, found in runs.items()}
    of_kafka = {job.work: cost for job, cost in costs.items() if job.ends.startswith(YARDSTICK)}
    for job, found in runs.items():
        rate, servers = _median(found, "rate"), _median(found, "servers")
        slowest, fastest = min(one.rate for one in found), max(one.rate for one in found)
        rates = f"{rate:,.0f} | {slowest:,.0f} to {fastest:,.0f}"
        per_core = f"{1e6 / costs[job]:,.0f} | {of_kafka[job.work] / costs[job]:.2f}"
        lines.append(f"| {job.work} | {job.ends} | {rates} | {costs[job]:.2f} | {servers:.2f} | {per_core} |")
    return "\n".join(lines) + "\n"


TABLE_HEAD = [
    "| work | ends | rows/s | range | CPU-s per million | servers: CPU-s per million | rows per CPU-s | relative to Kafka |",
    "|---|---|---|---|---|---|---|---|",
]


def _introduction(rounds: int, rows: int) -> list[str]:
    words = len(TEXT.split()) + 1
    return [
        "## Spark",
        "",
        f"Our data source compared with Spark's own Kafka connector ({CONNECTOR_VERSION}, with a real Kafka {VERSION}",
        f"broker), in one session of PySpark {version('pyspark')} with `local[2]`. Topics have {rows:,} rows in",
        f"{PARTITIONS} partitions; a row has {SIZE:,} bytes, a key of 4 bytes and three headers or properties. The word",
        f"count reads a quarter of the rows, with {words} words each. Figures are medians of {rounds} alternating runs,",
        "after a warm-up run. CPU is that of all of Spark's processes, including the Python workers. The servers have a",
        "column of their own; the embedded log has no server, so readers and writers do its work. The CPU time for",
        "generating rows is subtracted from that of the sinks. With `binary`, the properties of a row are one value",
        "(`propertiesFormat`). With `pump`, only ranges pass through Spark. The last column is rows per CPU-second divided",
        "by Kafka's for the same work.",
        "",
    ]


def _median(found: Sequence[Figures], field: str) -> float:
    return statistics.median(getattr(figures, field) for figures in found)
