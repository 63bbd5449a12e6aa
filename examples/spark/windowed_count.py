"""Count the messages of every key per minute of their event time; late ones count until the watermark has passed their minute.

python examples/spark/windowed_count.py
python examples/spark/windowed_count.py --url rocketmq://localhost:9876 --source clicks --target clicks-per-minute

Without a URL it works in an embedded log of its own, with clicks of its own.
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
CLICKS = [(0, "ann"), (20, "bob"), (50, "ann"), (70, "ann"), (40, "bob"), (100, "bob"), (190, "ann")]
"""Second, and who clicked. The fifth comes late, but not too late."""


def per_minute(clicks: DataFrame) -> DataFrame:
    """The counts of minutes that are complete."""
    minutes = clicks.withWatermark("event_time", "1 minute").groupBy(F.window("event_time", "1 minute"), "key").count()
    said = F.struct(F.col("window.start").alias("minute"), F.col("count"))
    return minutes.select("key", F.col("window.start").alias("event_time"), F.to_json(said).alias("payload"))


def count_clicks(spark: SparkSession, url: str, source: str, target: str, checkpoint: str) -> None:
    """Everything that is there and not counted yet; minutes that are not complete stay in the checkpoint."""
    clicks = spark.readStream.format("mqbridge").options(url=url, subscribe=source, startingOffsets="earliest").load()
    writer = per_minute(clicks).writeStream.format("mqbridge").options(url=url, topic=target, createTopics=1)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def write_clicks(spark: SparkSession, url: str, topic: str) -> None:
    """Something to count."""
    rows = [(who, NOON + timedelta(seconds=second), "click") for second, who in CLICKS]
    frame = spark.createDataFrame(rows, "key STRING, event_time TIMESTAMP, payload STRING")
    frame.write.format("mqbridge").options(url=url, topic=topic, createTopics=2).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Count what is there, and show the complete minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the cluster; default: an embedded log")
    parser.add_argument("--source", default="clicks")
    parser.add_argument("--target", default="clicks-per-minute")
    parser.add_argument("--checkpoint", help="a folder that stays; default: one that does not")
    given = parser.parse_args(arguments)
    spark = session("windowed count")
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"log://{folder}/demo.db"
        if given.url is None:
            write_clicks(spark, url, given.source)
        count_clicks(spark, url, given.source, given.target, given.checkpoint or f"{folder}/checkpoint")
        counts = spark.read.format("mqbridge").options(url=url, subscribe=given.target).load()
        counts.selectExpr("cast(key AS STRING) AS key", "cast(payload AS STRING) AS payload").orderBy("payload", "key").show(
            truncate=False
        )


if __name__ == "__main__":
    main()
