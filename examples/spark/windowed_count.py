"""Count the messages of each key per minute of event time. Late messages count until the watermark has passed their minute.

python examples/spark/windowed_count.py
python examples/spark/windowed_count.py --url rocketmq://localhost:9876 --source clicks --target clicks-per-minute

Without a URL the program uses a temporary embedded log, and writes sample clicks.
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
CLICKS = [(0, "ann"), (20, "bob"), (50, "ann"), (70, "ann"), (40, "bob"), (100, "bob"), (190, "ann")]
"""Rows of second and user. The fifth click is late, but not too late to count."""


def per_minute(clicks: DataFrame) -> DataFrame:
    """Return the counts per key of complete minutes, as messages for the sink."""
    minutes = clicks.withWatermark("event_time", "1 minute").groupBy(F.window("event_time", "1 minute"), "key").count()
    count = F.struct(F.col("window.start").alias("minute"), F.col("count"))
    return minutes.select("key", F.col("window.start").alias("event_time"), F.to_json(count).alias("payload"))


def count_clicks(spark: SparkSession, url: str, source: str, target: str, checkpoint: str) -> None:
    """Count the available messages that are not counted yet. Incomplete minutes are stored in the checkpoint."""
    clicks = spark.readStream.format("mqbridge").options(url=url, subscribe=source, startingOffsets="earliest").load()
    writer = per_minute(clicks).writeStream.format("mqbridge").options(url=url, topic=target, createTopics=1)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def write_clicks(spark: SparkSession, url: str, topic: str) -> None:
    """Write messages to count."""
    rows = [(user, NOON + timedelta(seconds=second), "click") for second, user in CLICKS]
    frame = spark.createDataFrame(rows, "key STRING, event_time TIMESTAMP, payload STRING")
    frame.write.format("mqbridge").options(url=url, topic=topic, createTopics=2).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Count the available messages, and print the complete minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the cluster; default: an embedded log")
    parser.add_argument("--source", default="clicks")
    parser.add_argument("--target", default="clicks-per-minute")
    parser.add_argument("--checkpoint", help="a permanent folder; default: a temporary one")
    args = parser.parse_args(arguments)
    spark = session("windowed count")
    with tempfile.TemporaryDirectory() as folder:
        url = args.url or f"log://{folder}/demo.db"
        if args.url is None:
            write_clicks(spark, url, args.source)
        count_clicks(spark, url, args.source, args.target, args.checkpoint or f"{folder}/checkpoint")
        counts = spark.read.format("mqbridge").options(url=url, subscribe=args.target).load()
        counts.selectExpr("cast(key AS STRING) AS key", "cast(payload AS STRING) AS payload").orderBy("payload", "key").show(
            truncate=False
        )


if __name__ == "__main__":
    main()
