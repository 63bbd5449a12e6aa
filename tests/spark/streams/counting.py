"""A program that counts words with an accumulator. Its arguments are Spark's master, the input folder, and a working folder.

Each batch writes a file with its counts. A repeated batch replaces the file of the first attempt.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from mqbridge.spark.streams import Fold, accumulate
from tests.kit.spark import session_from_environment


def main() -> None:
    """Count the words of all input files. Each batch reads one file."""
    master, source, work = sys.argv[1:]
    spark = session_from_environment(master)
    schema = "word STRING, number BIGINT, event_time TIMESTAMP"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)
    count = Fold(lambda _key, _value, so_far: (so_far or 0) + 1)
    counts = stream.transform(accumulate, "word", count, value="number", kind="int")

    def write_counts(rows: DataFrame, batch: int) -> None:
        draft = Path(work) / f"_{batch}"
        draft.write_text(json.dumps({row["word"]: row["result"] for row in rows.collect()}))
        draft.rename(Path(work) / f"{batch}.json")

    writer = counts.writeStream.outputMode("update").foreachBatch(write_counts).option("checkpointLocation", f"{work}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
