"""What `mqbridge spark quickstart` does behind its tables: write a topic, count it per minute, mirror it, compare.

Everything goes the way that users go: `format("mqbridge")` on embedded logs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

TOPIC = "orders"
NOON_S = 1_769_860_800
"""2026-01-31 12:00 UTC, when the first order comes."""
MINUTES = 10
MEMORY_TABLE = "orders_per_minute"

Begun = Callable[[str], None]
"""Called with the step that begins."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the work."""

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One partition of the source beside its copy: numbers of messages, and checksums."""

    partition: int
    sent: int
    copied: int
    sent_checksum: str
    copied_checksum: str

    @property
    def equal(self) -> bool:
        """The same messages."""
        return (self.sent, self.sent_checksum) == (self.copied, self.copied_checksum)


@dataclass(frozen=True, slots=True)
class Found:
    """The results: `minutes` are minute, number of orders and their amount."""

    steps: list[Step]
    minutes: list[tuple[datetime, int, int]]
    partitions: list[Compared]

    @property
    def holds(self) -> bool:
        """Everything arrived."""
        return bool(self.partitions) and all(row.equal for row in self.partitions)


class Quickstart:
    """One run over `messages` in a new folder."""

    def __init__(self, spark: SparkSession, folder: Path, messages: int, partitions: int, begun: Begun) -> None:
        self._spark, self._folder, self._messages, self._partitions, self._begun = spark, folder, messages, partitions, begun
        self.source, self.target = f"log://{folder}/source.db", f"log://{folder}/copy.db"
        self._steps: list[Step] = []

    def run(self) -> Found:
        """All steps."""
        self._timed("writing", self._write)
        minutes = self._timed("counting per minute", self._count)
        self._timed("mirroring", self._mirror)
        partitions = self._timed("comparing", self._compare)
        return Found(self._steps, minutes, partitions)

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        self._begun(f"{name} {self._messages:,} messages")
        began = time.monotonic()
        result = work()
        self._steps.append(Step(name, self._messages, time.monotonic() - began))
        return result

    def _write(self) -> None:
        """Orders of ten minutes, in order of time."""
        second = F.lit(NOON_S) + F.col("id") * (60 * MINUTES) / self._messages
        amount = F.col("id") % 97
        regions = F.array(F.lit("eu"), F.lit("us"), F.lit("ap"))
        orders = self._spark.range(0, self._messages, numPartitions=2).select(
            F.format_string("customer-%d", F.col("id") % 1000).alias("key"),
            F.timestamp_seconds(second).alias("event_time"),
            F.to_json(F.struct(F.col("id").alias("order"), amount.alias("amount"))).alias("payload"),
            F.create_map(F.lit("region"), F.get(regions, (F.col("id") % 3).cast("int"))).alias("properties"),
        )
        orders.write.format("mqbridge").options(url=self.source, topic=TOPIC, createTopics=self._partitions).mode("append").save()

    def _read(self, **options: str) -> DataFrame:
        given = {"url": self.source, "subscribe": TOPIC, "startingOffsets": "earliest"} | options
        return self._spark.readStream.format("mqbridge").options(**given).load()

    def _count(self) -> list[tuple[datetime, int, int]]:
        order = F.from_json(F.col("payload").cast("string"), "order BIGINT, amount BIGINT")
        rows = self._read().select("event_time", order.amount.alias("amount"))
        counts = rows.groupBy(F.window("event_time", "1 minute")).agg(
            F.count("*").alias("orders"), F.sum("amount").alias("amount")
        )
        writer = counts.writeStream.format("memory").queryName(MEMORY_TABLE).outputMode("complete")
        writer.option("checkpointLocation", f"{self._folder}/counts").trigger(availableNow=True).start().awaitTermination()
        found = self._spark.table(MEMORY_TABLE).orderBy("window.start").collect()
        return [(row.window.start, row.orders, row.amount) for row in found]

    def _mirror(self) -> None:
        writer = self._read(propertiesFormat="binary").writeStream.format("mqbridge")
        writer = writer.options(url=self.target, topic=TOPIC, createTopics=self._partitions)
        writer.option("checkpointLocation", f"{self._folder}/mirror").trigger(availableNow=True).start().awaitTermination()

    def _compare(self) -> list[Compared]:
        sent, copied = self._checksums(self.source), self._checksums(self.target)
        nothing = (0, "")
        return [
            Compared(number, *_interleave(sent.get(number, nothing), copied.get(number, nothing)))
            for number in sorted(sent.keys() | copied.keys())
        ]

    def _checksums(self, url: str) -> dict[int, tuple[int, str]]:
        """Number and checksum per partition; positions are part of it, so order is."""
        rows = self._spark.read.format("mqbridge").options(url=url, subscribe=TOPIC).load()
        each = F.xxhash64("payload", "key", "event_time", F.to_json("properties"), "position")
        sums = rows.groupBy("partition").agg(F.count("*").alias("messages"), F.bit_xor(each).alias("checksum"))
        return {row.partition: (row.messages, f"{row.checksum & (1 << 64) - 1:016x}") for row in sums.collect()}


def _interleave(sent: tuple[int, str], copied: tuple[int, str]) -> tuple[int, int, str, str]:
    return sent[0], copied[0], sent[1], copied[1]
