"""The jobs of the Spark benchmark: the same work by Spark's Kafka connector and by ours.

A job reads or writes all rows once. What it begins with, such as an empty topic, is made by `prepare` before it is measured.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import load_adapters
from tests.bench.spark_rows import PARTITIONS, fill, fill_rocketmq, kafka_rows, our_rows
from tests.kit.kafka import Kafka
from tests.kit.process import JavaProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "mqbridge"
TOPIC = "rows"
"""Name of the topic that contains the rows in every source."""
WORDS_PART = 4
"""The word count reads one row of this many, because counting words costs more than reading."""
KAFKA_SOURCE = {"includeHeaders": "true", "kafka.max.poll.records": "5000"}
KAFKA_SINK = {"kafka.batch.size": str(128 << 10), "kafka.linger.ms": "10"}
"""Options that make Kafka faster than its defaults: 500 records per poll, batches of 16 KiB."""
YARDSTICK = "Kafka"
GENERATOR, SOURCE, STREAM, SINK, COPY, WORDS = "rows only", "source, batch", "source, stream", "sink", "copy", "word count"

Run = Callable[[Any], None]
Options = dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One measured job: the function, the source and target, the number of rows, and the `servers` outside of Spark."""

    work: str
    ends: str
    rows: int
    run: Run
    prepare: Callable[[], Any] = lambda: None
    """Called before each run, outside the measurement; its result is the argument of `run`."""
    servers: Sequence[JavaProcess] = ()
    generator: str | None = None
    """The job whose CPU time is subtracted from this one's: it generates the same rows and writes them nowhere."""


@dataclass(slots=True)
class Bench:
    """A session, the folder for logs and checkpoints, and the servers that run."""

    spark: SparkSession
    folder: Path
    rows: int
    kafka: Kafka
    pulsar: Pulsar | None = None
    rocketmq: RocketMQ | None = None
    _made: int = field(default=0)

    @property
    def servers(self) -> list[JavaProcess]:
        """Return the processes that are not Spark's."""
        return [each for server in (self.kafka, self.pulsar, self.rocketmq) if server is not None for each in server.servers]

    def jobs(self) -> list[Job]:
        """Return all jobs, grouped by kind of work, Kafka's first."""
        found = [*self._generators(), *self._sources(), *self._sinks(), *self._copies(), *self._words()]
        order = (GENERATOR, SOURCE, STREAM, SINK, COPY, WORDS)
        return sorted(found, key=lambda job: order.index(job.work))

    def fill(self) -> None:
        """Store the rows in every source, those of the word count included."""
        for topic, rows in ((TOPIC, self.rows), (_words(TOPIC), self.rows // WORDS_PART)):
            self._into_kafka(kafka_rows(self.spark, rows), topic)
            asyncio.run(_filled_log(self._log("source"), topic, rows))
        if self.rocketmq is not None:
            self.rocketmq.create_topic(TOPIC, PARTITIONS)
            fill_rocketmq(self.rocketmq, TOPIC, self.rows)
            self.rocketmq.settle()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _generators(self) -> list[Job]:
        shapes = {YARDSTICK: kafka_rows, "mqbridge": our_rows}
        return [
            Job(GENERATOR, name, self.rows, lambda _, make=make: _to_noop(make(self.spark, self.rows)))
            for name, make in shapes.items()
        ]

    def _sources(self) -> list[Job]:
        servers = self.kafka.servers
        found = [
            Job(SOURCE, YARDSTICK, self.rows, lambda _: _to_noop(self._kafka(TOPIC)), servers=servers),
            Job(STREAM, YARDSTICK, self.rows, lambda _: self._stream(self._kafka(TOPIC, stream=True)), servers=servers),
        ]
        for ends, options, brokers in self._readable():
            found += [
                Job(SOURCE, ends, self.rows, lambda _, options=options: _to_noop(self._ours(options)), servers=brokers),
                Job(
                    STREAM,
                    ends,
                    self.rows,
                    lambda _, options=options: self._stream(self._ours(options, stream=True)),
                    servers=brokers,
                ),
            ]
        return found

    def _sinks(self) -> list[Job]:
        rows = self.rows
        found = [
            Job(
                SINK, YARDSTICK, rows, lambda topic: self._into_kafka(kafka_rows(self.spark, rows), topic), self._fresh,
                self.kafka.servers, YARDSTICK,
            )
        ]  # fmt: skip
        for ends, prepare, brokers in self._writable():
            found.append(
                Job(SINK, ends, rows, lambda into: _write(our_rows(self.spark, rows), into), prepare, brokers, "mqbridge")
            )
        return found

    def _copies(self) -> list[Job]:
        def kafka_copy(topic: str) -> None:
            self._into_kafka(self._kafka(TOPIC).select("key", "value", "headers", "partition"), topic)

        found = [Job(COPY, "Kafka to Kafka", self.rows, kafka_copy, self._fresh, self.kafka.servers)]
        found += self._copies_between("log to log", "log", self._fresh_log, ())
        if self.rocketmq is not None and self.pulsar is not None:
            servers = [*self.rocketmq.servers, *self.pulsar.servers]
            found += self._copies_between("RocketMQ to Pulsar", "rocketmq", self._fresh_pulsar, servers)
        return found

    def _copies_between(
        self, ends: str, source: str, prepare: Callable[[], Options], servers: Sequence[JavaProcess]
    ) -> list[Job]:
        def copy(into: Options, **extra: str) -> None:
            _write(self._ours({**self._options(source), **extra}), into)

        def pump(into: Options) -> None:
            """Copy by offset ranges, which needs a route: the sink reads the source itself."""
            target = {"cluster": into["cluster"], "topic": into["topic"], "create": False}
            route = {"name": "pump", "from": {"cluster": source, "topic": TOPIC, "group": "pump"}, "to": target}
            options = {"config": self._config([route]), "route": "pump"}
            _write(self._ours({**options, "mode": "ranges"}), options)

        ways: dict[str, Run] = {"": copy, ", binary": partial(copy, propertiesFormat="binary"), ", pump": pump}
        return [Job(COPY, ends + how, self.rows, run, prepare, servers) for how, run in ways.items()]

    def _words(self) -> list[Job]:
        rows, topic = self.rows // WORDS_PART, _words(TOPIC)

        def count_kafka(_: Any) -> None:
            self._count(self._kafka(topic, stream=True), "value")

        def count_log(_: Any) -> None:
            self._count(self._ours(self._options("log", topic), stream=True), "payload")

        return [Job(WORDS, YARDSTICK, rows, count_kafka, servers=self.kafka.servers), Job(WORDS, "log", rows, count_log)]

    # --- ends -------------------------------------------------------------------------------------------------------

    def _readable(self) -> list[tuple[str, Options, Sequence[JavaProcess]]]:
        found: list[tuple[str, Options, Sequence[JavaProcess]]] = [
            ("log", self._options("log"), ()),
            ("log, binary", {**self._options("log"), "propertiesFormat": "binary"}, ()),
        ]
        if self.rocketmq is not None:
            found.append(("RocketMQ", self._options("rocketmq"), self.rocketmq.servers))
        return found

    def _writable(self) -> list[tuple[str, Callable[[], Options], Sequence[JavaProcess]]]:
        found: list[tuple[str, Callable[[], Options], Sequence[JavaProcess]]] = [("log", self._fresh_log, ())]
        if self.pulsar is not None:
            found.append(("Pulsar", self._fresh_pulsar, self.pulsar.servers))
        return found

    def _kafka(self, topic: str, *, stream: bool = False) -> DataFrame:
        reader = self.spark.readStream if stream else self.spark.read
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "subscribe": topic, **KAFKA_SOURCE}
        return reader.format("kafka").options(startingOffsets="earliest", **options).load()

    def _into_kafka(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**KAFKA_SINK, topic=topic).option(
            "kafka.bootstrap.servers", self.kafka.bootstrap_servers
        ).save()

    def _ours(self, options: Mapping[str, str], *, stream: bool = False) -> DataFrame:
        reader = self.spark.readStream if stream else self.spark.read
        return reader.format(FORMAT).options(startingOffsets="earliest", **options).load()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def _options(self, cluster: str, topic: str = TOPIC) -> Options:
        return {"config": self._config(), "cluster": cluster, "subscribe": topic}

    def _config(self, routes: Sequence[Mapping[str, Any]] = ()) -> str:
        """Write a configuration with every cluster for the data source, and return its path."""
        clusters = {"log": self._log("source"), "target": self._log(f"made{self._made}")}
        found: dict[str, Any] = {name: {"system": "log", "path": str(path), **LOG_SETTINGS} for name, path in clusters.items()}
        if self.rocketmq is not None:
            found["rocketmq"] = {"system": "rocketmq", "name_servers": self.rocketmq.name_server}
        if self.pulsar is not None:
            urls = {"service_url": self.pulsar.service_url, "admin_url": self.pulsar.admin_url}
            found["pulsar"] = {"system": "pulsar", **urls}
        path = self.folder / f"clusters{self._made}.yaml"
        path.write_text(json.dumps({"clusters": found, "routes": list(routes)}))
        return str(path)

    # --- targets of jobs ---------------------------------------------------------------------------------------

    def _fresh(self) -> str:
        self._made += 1
        return f"made{self._made}"

    def _fresh_log(self) -> Options:
        """Delete the previous log, create an empty one, and return its options."""
        for path in self.folder.glob("made*.db*"):
            path.unlink()
        asyncio.run(_created_log(self._log(self._fresh()), TOPIC))
        return {"config": self._config(), "cluster": "target", "topic": TOPIC}

    def _fresh_pulsar(self) -> Options:
        assert self.pulsar is not None
        topic = self.pulsar.keep(self.pulsar.create_topic(self._fresh(), PARTITIONS))
        return {"config": self._config(), "cluster": "pulsar", "topic": topic}

    # --- streams ------------------------------------------------------------------------------------------------------

    def _stream(self, rows: DataFrame, mode: str = "append") -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as checkpoint:
            writer = rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()

    def _count(self, rows: DataFrame, column: str) -> None:
        words = rows.selectExpr(f"explode(split(CAST({column} AS STRING), ' ')) AS word")
        self._stream(words.groupBy("word").count(), "update")


LOG_SETTINGS = {"synchronous": "normal"}
"""A message counts as stored when the operating system has it, as with Kafka, Pulsar and RocketMQ in this benchmark."""


def _words(topic: str) -> str:
    return f"{topic}-words"


def _to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def _write(rows: DataFrame, into: Mapping[str, str]) -> None:
    rows.write.format(FORMAT).options(**into).mode("append").save()


async def _opened_log(path: Path) -> Cluster:
    adapter = load_adapters()["log"]
    cluster = adapter.make_cluster("log", adapter.cluster_model(path=path, **LOG_SETTINGS))
    await cluster.connect()
    return cluster


async def _created_log(path: Path, topic: str) -> None:
    cluster = await _opened_log(path)
    await cluster.create(topic, PARTITIONS)
    await cluster.close()


async def _filled_log(path: Path, topic: str, rows: int) -> None:
    cluster = await _opened_log(path)
    await cluster.create(topic, PARTITIONS)
    await fill(cluster, topic, rows)
    await cluster.close()
