"""Mirror a topic from one cluster to another with DataFrames, which can change or filter its rows.

python examples/spark/mirror.py
python examples/spark/mirror.py --from pulsar://localhost:6650 --to rocketmq://localhost:9876 --topic orders --checkpoint /var/m

Without URLs the program uses two embedded logs as clusters. For copies without changes `mqbridge spark mirror` is several times
faster: see docs/how-to/spark-mirror.md.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session


def mirror(spark: SparkSession, source: str, target: str, topic: str, checkpoint: str) -> None:
    """Mirror the available messages that are not mirrored yet.

    Keep the columns `source` and `position`: with them the sink recognizes messages that it has stored before.
    """
    options = {"url": source, "subscribe": topic, "startingOffsets": "earliest", "propertiesFormat": "binary"}
    rows = spark.readStream.format("mqbridge").options(**options).load()
    real = rows.where("msg_type IS NULL OR msg_type != 'test'")
    writer = real.writeStream.format("mqbridge").options(url=target, topic=topic, createTopics=4)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def checksums(spark: SparkSession, url: str, topic: str) -> DataFrame:
    """Return the number and the checksum of the messages per partition."""
    rows = spark.read.format("mqbridge").options(url=url, subscribe=topic).load()
    return rows.groupBy("partition").agg(F.count("*").alias("messages"), F.sum(F.crc32("payload")).alias("checksum"))


def write_orders(spark: SparkSession, url: str, topic: str) -> None:
    """Write a hundred orders to mirror; ten of them are tests."""
    orders = spark.range(100).select(
        F.format_string("order %d", "id").alias("payload"),
        F.format_string("customer-%d", F.col("id") % 7).alias("key"),
        F.when(F.col("id") % 10 == 0, "test").otherwise("paid").alias("msg_type"),
        F.create_map(F.lit("region"), F.lit("eu")).alias("properties"),
    )
    orders.write.format("mqbridge").options(url=url, topic=topic, createTopics=4).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Mirror the available messages, and print their number per partition in the source and in the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", metavar="URL")
    parser.add_argument("--to", dest="target", metavar="URL")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--checkpoint", help="a permanent folder; default: a temporary one")
    args = parser.parse_args(arguments)
    if (args.source is None) != (args.target is None):
        parser.error("--from and --to must be used together")
    spark = session("mirror")
    with tempfile.TemporaryDirectory() as folder:
        source, target = args.source or f"log://{folder}/source.db", args.target or f"log://{folder}/target.db"
        if args.source is None:
            write_orders(spark, source, args.topic)
        mirror(spark, source, target, args.topic, args.checkpoint or f"{folder}/checkpoint")
        for name, url in (("source", source), ("target", target)):
            print(f"{name}:")
            checksums(spark, url, args.topic).orderBy("partition").show()


if __name__ == "__main__":
    main()
