"""Copy what a topic holds of a span of time to another cluster, once, with as many tasks as there are partitions.

python examples/spark/backfill.py
python examples/spark/backfill.py --from tubemq://localhost:8715 --to pulsar://localhost:6650 --topic orders \
    --begin 2026-01-01T00:00:00Z --end 2026-02-01T00:00:00Z

Without URLs the clusters are two embedded logs. The end is frozen when the copy begins: what comes meanwhile is not in it. A copy
that failed in the middle is started again, and stores what is missing.
"""

import argparse
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session


def backfill(spark: SparkSession, source: str, target: str, topic: str, begin: str | None, end: str | None) -> None:
    """What was stored from `begin` up to `end`, or from the first message to the last."""
    options = {"url": source, "subscribe": topic, "propertiesFormat": "binary"}
    options |= {name: time for name, time in (("startingTimestamp", begin), ("endingTimestamp", end)) if time is not None}
    rows = spark.read.format("mqbridge").options(**options).load()
    rows.write.format("mqbridge").options(url=target, topic=topic, createTopics=4, jobId=f"backfill of {topic}").mode(
        "append"
    ).save()


def write_orders(spark: SparkSession, url: str, topic: str) -> None:
    """Something to copy."""
    orders = spark.range(1000).select(F.format_string("order %d", "id").alias("payload"), F.col("id").cast("string").alias("key"))
    orders.write.format("mqbridge").options(url=url, topic=topic, createTopics=4).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Copy, and show how many messages are where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", metavar="URL")
    parser.add_argument("--to", dest="target", metavar="URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--begin", metavar="TIME", help="ms since the epoch, or 2026-01-31T12:00:00Z")
    parser.add_argument("--end", metavar="TIME", help="likewise; not included")
    given = parser.parse_args(arguments)
    if (given.source is None) != (given.target is None):
        parser.error("give both URLs, or none")
    spark = session("backfill")
    with tempfile.TemporaryDirectory() as folder:
        source, target = given.source or f"log://{folder}/source.db", given.target or f"log://{folder}/target.db"
        if given.source is None:
            write_orders(spark, source, given.topic)
        backfill(spark, source, target, given.topic, given.begin, given.end)
        for name, url in (("source", source), ("target", target)):
            rows = spark.read.format("mqbridge").options(url=url, subscribe=given.topic).load()
            print(f"{name}: {rows.count()} messages")


if __name__ == "__main__":
    main()
