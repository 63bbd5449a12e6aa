"""Join two topics of two clusters: orders, and the payments within ten minutes of each order.

python examples/spark/join.py
python examples/spark/join.py --orders-url pulsar://localhost:6650 --payments-url rocketmq://localhost:9876

Without URLs the program uses two embedded logs as clusters, and writes sample orders and payments. Paid orders are written to the
cluster of the payments.
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDERS = [(0, "A1", "book"), (1, "A2", "pen"), (2, "A3", "lamp")]
PAYMENTS = [(3, "A1", "12.50"), (4, "A3", "80.00"), (40, "A2", "1.20")]
"""Rows of minute, order, and the item or the amount. The payment of A2 is too late."""


def stream(spark: SparkSession, url: str, topic: str, value: str) -> DataFrame:
    """Read the key, the event time and the payload of a topic. Messages that are more than ten minutes late are dropped."""
    rows = spark.readStream.format("mqbridge").options(url=url, subscribe=topic, startingOffsets="earliest").load()
    return rows.select(
        F.col("key").cast("string").alias(f"{topic}_key"),
        F.col("event_time").alias(f"{topic}_time"),
        F.col("payload").cast("string").alias(value),
    ).withWatermark(f"{topic}_time", "10 minutes")


def join(spark: SparkSession, orders_url: str, payments_url: str, checkpoint: str) -> None:
    """Join the available messages that are not joined yet. Messages that may still find a match are stored in the checkpoint."""
    orders, payments = stream(spark, orders_url, "orders", "item"), stream(spark, payments_url, "payments", "amount")
    condition = F.expr(
        "orders_key = payments_key AND payments_time >= orders_time AND payments_time <= orders_time + INTERVAL 10 MINUTES"
    )
    paid = orders.join(payments, condition).select(
        F.col("orders_key").alias("key"),
        F.col("payments_time").alias("event_time"),
        F.to_json(F.struct("item", "amount")).alias("payload"),
    )
    writer = paid.writeStream.format("mqbridge").options(url=payments_url, topic="paid", createTopics=1)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def write(spark: SparkSession, url: str, topic: str, messages: list[tuple[int, str, str]]) -> None:
    """Write messages to join."""
    rows = [(order, NOON + timedelta(minutes=minute), text) for minute, order, text in messages]
    frame = spark.createDataFrame(rows, "key STRING, event_time TIMESTAMP, payload STRING")
    frame.write.format("mqbridge").options(url=url, topic=topic, createTopics=2).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Join the available messages, and print the orders that were paid in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders-url", help="the cluster with the topic orders")
    parser.add_argument("--payments-url", help="the cluster with the topics payments and paid")
    parser.add_argument("--checkpoint", help="a permanent folder; default: a temporary one")
    args = parser.parse_args(arguments)
    if (args.orders_url is None) != (args.payments_url is None):
        parser.error("--orders-url and --payments-url must be used together")
    spark = session("join")
    with tempfile.TemporaryDirectory() as folder:
        orders_url = args.orders_url or f"log://{folder}/orders.db"
        payments_url = args.payments_url or f"log://{folder}/payments.db"
        if args.orders_url is None:
            write(spark, orders_url, "orders", ORDERS)
            write(spark, payments_url, "payments", PAYMENTS)
        join(spark, orders_url, payments_url, args.checkpoint or f"{folder}/checkpoint")
        paid = spark.read.format("mqbridge").options(url=payments_url, subscribe="paid").load()
        paid.selectExpr("cast(key AS STRING) AS key", "event_time", "cast(payload AS STRING) AS payload").orderBy("key").show(
            truncate=False
        )


if __name__ == "__main__":
    main()
