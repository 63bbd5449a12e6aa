"""Count the words of a topic, and write every count that changes to another topic.

python examples/spark/word_count.py
python examples/spark/word_count.py --url rocketmq://localhost:9876 --source lines --target counts --checkpoint /var/lib/counts

Without a URL the program uses a temporary embedded log, and writes sample lines.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session

LINES = ["to be or not to be", "that is the question", "to sleep to dream"]


def count_words(spark: SparkSession, url: str, source: str, target: str, checkpoint: str) -> None:
    """Count the words of the available messages that are not counted yet.

    The checkpoint stores the counts, so the next run continues with them. A repeated batch writes its counts again; the last
    count of a word is right in any case.
    """
    lines = spark.readStream.format("mqbridge").options(url=url, subscribe=source, startingOffsets="earliest").load()
    words = lines.select(F.explode(F.split(F.trim(F.col("payload").cast("string")), r"\s+")).alias("word"))
    counts = words.groupBy("word").count().select(F.col("word").alias("key"), F.col("count").cast("string").alias("payload"))

    def write(changed: DataFrame, _: int) -> None:  # foreachBatch, because sinks in Python can only append
        changed.write.format("mqbridge").options(url=url, topic=target, createTopics=1).mode("append").save()

    writer = counts.writeStream.foreachBatch(write).outputMode("update").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def latest_counts(spark: SparkSession, url: str, target: str) -> DataFrame:
    """Return the last count of every word."""
    counts = spark.read.format("mqbridge").options(url=url, subscribe=target).load()
    last = F.max_by(F.col("payload").cast("string"), F.col("position")).cast("long").alias("count")
    return counts.groupBy(F.col("key").cast("string").alias("word")).agg(last).orderBy(F.desc("count"), "word")


def write_lines(spark: SparkSession, url: str, topic: str) -> None:
    """Write messages to count."""
    rows = spark.createDataFrame([(line,) for line in LINES], "payload STRING")
    rows.write.format("mqbridge").options(url=url, topic=topic, createTopics=2).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Count the words of the available messages, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the cluster; default: an embedded log")
    parser.add_argument("--source", default="lines")
    parser.add_argument("--target", default="counts")
    parser.add_argument("--checkpoint", help="a permanent folder; default: a temporary one")
    args = parser.parse_args(arguments)
    spark = session("word count")
    with tempfile.TemporaryDirectory() as folder:
        url = args.url or f"log://{folder}/demo.db"
        if args.url is None:
            write_lines(spark, url, args.source)
        count_words(spark, url, args.source, args.target, args.checkpoint or f"{folder}/checkpoint")
        latest_counts(spark, url, args.target).show()


if __name__ == "__main__":
    main()
