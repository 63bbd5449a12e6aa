"""The work of `mqbridge spark quickstart`: write a topic, count its messages per minute, mirror it, compare the copy.

It uses the public interface only: `format("mqbridge")` on embedded logs, mqbridge's own message store in local files.
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
FIRST_ORDER_S = 1_769_860_800
"""2026-01-31 12:00 UTC, the time of the first order."""
DURATION_MINUTES = 10
"""The time between the first order and the end of the last minute."""
MEMORY_TABLE = "orders_per_minute"
"""The in-memory table to which the query writes the orders per minute."""

OnStep = Callable[[str], None]
"""A callback that receives a text such as "writing 1,000 messages" when a step begins."""


@dataclass(frozen=True, slots=True)
class Step:
    """A completed step of the quickstart, with the number of its messages and its duration."""

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The number of messages and the checksum of one source partition and of its copy."""

    partition: int
    """Index of the partition, the same in source and copy."""
    sent: int
    """Number of messages in the source."""
    copied: int
    """Number of messages in the copy."""
    sent_checksum: str
    copied_checksum: str

    @property
    def equal(self) -> bool:
        """Whether both partitions have the same messages in the same order."""
        return (self.sent, self.sent_checksum) == (self.copied, self.copied_checksum)


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a run. `minutes` has one row per minute: its start, the number of orders and their total amount."""

    steps: list[Step]
    minutes: list[tuple[datetime, int, int]]
    partitions: list[PartitionComparison]

    @property
    def all_equal(self) -> bool:
        """Whether there is at least one partition, and all partitions equal their copies."""
        return bool(self.partitions) and all(row.equal for row in self.partitions)


class Quickstart:
    """One run of the quickstart, with `messages` orders in topics of `partitions` partitions. `folder` must be new.

    `source` and `target` are the URLs of two embedded logs.
    """

    def __init__(self, spark: SparkSession, folder: Path, messages: int, partitions: int, on_step: OnStep) -> None:
        self._spark, self._folder = spark, folder
        self._messages, self._partitions, self._on_step = messages, partitions, on_step
        self.source, self.target = f"log://{folder}/source.db", f"log://{folder}/copy.db"
        self._steps: list[Step] = []

    def run(self) -> Results:
        """Run all steps and return the results."""
        self._run_step("writing", self._write)
        minutes = self._run_step("counting per minute", self._count)
        self._run_step("mirroring", self._mirror)
        partitions = self._run_step("comparing", self._compare)
        return Results(self._steps, minutes, partitions)

    def _run_step(self, name: str, work: Callable[[], Any]) -> Any:
        self._on_step(f"{name} {self._messages:,} messages")
        started = time.monotonic()
        result = work()
        self._steps.append(Step(name, self._messages, time.monotonic() - started))
        return result

    def _write(self) -> None:
        """Write orders in the order of their event times, evenly spread over DURATION_MINUTES."""
        second = F.lit(FIRST_ORDER_S) + F.col("id") * (60 * DURATION_MINUTES) / self._messages
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
        all_options = {"url": self.source, "subscribe": TOPIC, "startingOffsets": "earliest"} | options
        return self._spark.readStream.format("mqbridge").options(**all_options).load()

    def _count(self) -> list[tuple[datetime, int, int]]:
        order = F.from_json(F.col("payload").cast("string"), "order BIGINT, amount BIGINT")
        rows = self._read().select("event_time", order.amount.alias("amount"))
        counts = rows.groupBy(F.window("event_time", "1 minute")).agg(
            F.count("*").alias("orders"), F.sum("amount").alias("amount")
        )
        writer = counts.writeStream.format("memory").queryName(MEMORY_TABLE).outputMode("complete")
        writer.option("checkpointLocation", f"{self._folder}/counts").trigger(availableNow=True).start().awaitTermination()
        minutes = self._spark.table(MEMORY_TABLE).orderBy("window.start").collect()
        return [(row.window.start, row.orders, row.amount) for row in minutes]

    def _mirror(self) -> None:
        # Properties as one binary value are faster to copy than a map.
        writer = self._read(propertiesFormat="binary").writeStream.format("mqbridge")
        writer = writer.options(url=self.target, topic=TOPIC, createTopics=self._partitions)
        writer.option("checkpointLocation", f"{self._folder}/mirror").trigger(availableNow=True).start().awaitTermination()

    def _compare(self) -> list[PartitionComparison]:
        sent, copied = self._checksums(self.source), self._checksums(self.target)
        missing = (0, "")  # no messages, and no checksum
        return [
            _compare_partition(partition, sent.get(partition, missing), copied.get(partition, missing))
            for partition in sorted(sent.keys() | copied.keys())
        ]

    def _checksums(self, url: str) -> dict[int, tuple[int, str]]:
        """Return the number of messages and the checksum per partition.

        The checksum covers the positions of the messages, so it depends on their order.
        """
        rows = self._spark.read.format("mqbridge").options(url=url, subscribe=TOPIC).load()
        message_hash = F.xxhash64("payload", "key", "event_time", F.to_json("properties"), "position")
        sums = rows.groupBy("partition").agg(F.count("*").alias("messages"), F.bit_xor(message_hash).alias("checksum"))
        return {row.partition: (row.messages, f"{row.checksum & (1 << 64) - 1:016x}") for row in sums.collect()}


def _compare_partition(partition: int, sent: tuple[int, str], copied: tuple[int, str]) -> PartitionComparison:
    return PartitionComparison(partition, sent[0], copied[0], sent[1], copied[1])
