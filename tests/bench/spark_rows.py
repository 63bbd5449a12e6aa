"""The rows of the Spark benchmark: the same in every system, made by Spark for sinks and by our clients for sources.

Row `n` has a value of 1,000 bytes (149 words and the first, of which there are 9,000), a key of 4 bytes, three headers or
properties. Partition `p` has every row of the p-th quarter, so a task of Spark writes into one partition, as a copy does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_element
from tests.bench.ends import BATCH, BORN, WINDOW, store_elements
from tests.kit.rocketmq import RocketMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
SIZE = 1000
FIRST_WORDS = 9000
TEXT = " ".join(f"word{number * number % 997:04}" for number in range(110))[: SIZE - 5]
_BODY = TEXT.encode()


def key(number: int) -> str:
    """Return the key of a row, four digits."""
    return str(1000 + number % FIRST_WORDS)


def value(number: int) -> bytes:
    """Return the value of a row: its key as the first word, then always the same text."""
    return b"%d %b" % (1000 + number % FIRST_WORDS, _BODY)


def pairs(number: int) -> tuple[tuple[str, str], ...]:
    """Return three properties; `zone` has the same value in all rows."""
    return (("seq", str(number)), ("zone", "eu-1"), ("trace", f"{number:X}"))


def message(number: int) -> Message:
    """Return a row as a message."""
    return Message(value(number), pairs(number), key=key(number), event_time=BORN + number)


def kafka_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows in the columns of Spark's Kafka sink."""
    headers = ", ".join(f"struct('{name}' AS key, CAST({text} AS BINARY) AS value)" for name, text in _PAIRS.items())
    return _numbers(spark, rows).selectExpr(f"{_KEY} AS key", f"{_VALUE} AS value", f"array({headers}) AS headers", "partition")


def our_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows in the columns of our sink."""
    properties_map = ", ".join(f"'{name}', {text}" for name, text in _PAIRS.items())
    return _numbers(spark, rows).selectExpr(
        f"{_KEY} AS key", f"{_VALUE} AS payload", f"map({properties_map}) AS properties", "partition"
    )


_KEY = f"CAST(CAST(id % {FIRST_WORDS} + 1000 AS STRING) AS BINARY)"
_VALUE = f"CAST(concat(CAST(id % {FIRST_WORDS} + 1000 AS STRING), ' {TEXT}') AS BINARY)"
_PAIRS = {"seq": "CAST(id AS STRING)", "zone": "'eu-1'", "trace": "hex(id)"}


def _numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, PARTITIONS).selectExpr("id", f"CAST(id DIV {rows // PARTITIONS} AS INT) AS partition")


async def fill(cluster: Cluster, topic: str, rows: int) -> None:
    """Store the rows in a topic of a cluster that keeps every field as it is."""
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))

    async def one(partition: int) -> None:
        waiting: deque[asyncio.Future[Any]] = deque()
        for numbers in _batches(partition, rows):
            waiting.append(outbound.send(partition, Share(Batch.of([message(number) for number in numbers]))))
            if len(waiting) >= WINDOW:
                await waiting.popleft()
        await asyncio.gather(*waiting)

    await asyncio.gather(*map(one, range(PARTITIONS)))
    await outbound.close()


def fill_rocketmq(server: RocketMQ, topic: str, rows: int) -> None:
    """Store the rows as RocketMQ's own producers would: the key as an index key, none of the gateway's properties."""

    def element(number: int, unique_key: str) -> bytes:
        own = [("UNIQ_KEY", unique_key), ("KEYS", key(number)), *pairs(number)]
        return encode_element(value(number), properties.encode(own), 0)

    asyncio.run(store_elements(server, topic, [_batches(partition, rows) for partition in range(PARTITIONS)], element))


def _batches(partition: int, rows: int) -> list[range]:
    quarter = rows // PARTITIONS
    end = (partition + 1) * quarter
    return [range(start, min(start + BATCH, end)) for start in range(partition * quarter, end, BATCH)]
