"""Copy the messages of a topic in a time range to another cluster, each message once, with one task per partition.

python examples/spark/backfill.py
python examples/spark/backfill.py --from tubemq://localhost:8715 --to rocketmq://localhost:9876 --topic orders \
    --begin 2026-01-01T00:00:00Z --end 2026-02-01T00:00:00Z

Without URLs the program uses two embedded logs as clusters. The end of the copy is fixed when it starts: later messages are not
copied. If a copy fails, start it again: it stores only the missing messages.
"""

import argparse
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session


def backfill(spark: SparkSession, source: str, target: str, topic: str, begin: str | None, end: str | None) -> None:
    """Copy the messages stored from `begin` (default: the first message) up to `end` (default: the last message).

    If it is repeated with the same times, it copies only what is missing. Other times are another job.
    """
    options = {"url": source, "subscribe": topic, "propertiesFormat": "binary"}
    options |= {name: time for name, time in (("startingTimestamp", begin), ("endingTimestamp", end)) if time is not None}
    rows = spark.read.format("mqbridge").options(**options).load()
    job = f"backfill of {topic} from {begin or 'the first'} to {end or 'the last'}"
    rows.write.format("mqbridge").options(url=target, topic=topic, createTopics=4, jobId=job).mode("append").save()


def write_orders(spark: SparkSession, url: str, topic: str) -> None:
    """Write messages to copy."""
    orders = spark.range(1000).select(F.format_string("order %d", "id").alias("payload"), F.col("id").cast("string").alias("key"))
    orders.write.format("mqbridge").options(url=url, topic=topic, createTopics=4).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Copy the messages, and print how many there are in the source and in the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", metavar="URL")
    parser.add_argument("--to", dest="target", metavar="URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--begin", metavar="TIME", help="ms since the epoch, or 2026-01-31T12:00:00Z")
    parser.add_argument("--end", metavar="TIME", help="same formats; exclusive")
    args = parser.parse_args(arguments)
    if (args.source is None) != (args.target is None):
        parser.error("--from and --to must be used together")
    spark = session("backfill")
    with tempfile.TemporaryDirectory() as folder:
        source, target = args.source or f"log://{folder}/source.db", args.target or f"log://{folder}/target.db"
        if args.source is None:
            write_orders(spark, source, args.topic)
        backfill(spark, source, target, args.topic, args.begin, args.end)
        for name, url in (("source", source), ("target", target)):
            rows = spark.read.format("mqbridge").options(url=url, subscribe=args.topic).load()
            print(f"{name}: {rows.count()} messages")


if __name__ == "__main__":
    main()
