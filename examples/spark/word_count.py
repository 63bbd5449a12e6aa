"""Count the words of a topic, and write every count that changes to another topic.

python examples/spark/word_count.py
python examples/spark/word_count.py --url pulsar://localhost:6650 --source lines --target counts --checkpoint /var/lib/counts

Without a URL it works in an embedded log of its own, with lines of its own.
"""

import argparse
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from mqbridge.spark.session import session

LINES = ["to be or not to be", "that is the question", "to sleep to dream"]


def count_words(spark: SparkSession, url: str, source: str, target: str, checkpoint: str) -> None:
    """Everything that is there and not counted yet. The checkpoint has the counts: the next run goes on with them.

    A batch that is repeated writes its counts again: the last count of a word is right, however often it comes.
    """
    lines = spark.readStream.format("mqbridge").options(url=url, subscribe=source, startingOffsets="earliest").load()
    words = lines.select(F.explode(F.split(F.trim(F.col("payload").cast("string")), r"\s+")).alias("word"))
    counts = words.groupBy("word").count().select(F.col("word").alias("key"), F.col("count").cast("string").alias("payload"))

    def write(changed: DataFrame, _: int) -> None:  # Spark's own way for counts that change: sinks in Python only append
        changed.write.format("mqbridge").options(url=url, topic=target, createTopics=1).mode("append").save()

    writer = counts.writeStream.foreachBatch(write).outputMode("update").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def latest_counts(spark: SparkSession, url: str, target: str) -> DataFrame:
    """The last message of every word."""
    counts = spark.read.format("mqbridge").options(url=url, subscribe=target).load()
    last = F.max_by(F.col("payload").cast("string"), F.col("position")).cast("long").alias("count")
    return counts.groupBy(F.col("key").cast("string").alias("word")).agg(last).orderBy(F.desc("count"), "word")


def write_lines(spark: SparkSession, url: str, topic: str) -> None:
    """Something to count."""
    rows = spark.createDataFrame([(line,) for line in LINES], "payload STRING")
    rows.write.format("mqbridge").options(url=url, topic=topic, createTopics=2).mode("append").save()


def main(arguments: list[str] | None = None) -> None:
    """Count what is there, and show the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the cluster; default: an embedded log")
    parser.add_argument("--source", default="lines")
    parser.add_argument("--target", default="counts")
    parser.add_argument("--checkpoint", help="a folder that stays; default: one that does not")
    given = parser.parse_args(arguments)
    spark = session("word count")
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"log://{folder}/demo.db"
        if given.url is None:
            write_lines(spark, url, given.source)
        count_words(spark, url, given.source, given.target, given.checkpoint or f"{folder}/checkpoint")
        latest_counts(spark, url, given.target).show()


if __name__ == "__main__":
    main()
