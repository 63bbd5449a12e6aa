"""Where a query keeps its state: RocksDB on the executors' disks, with changelogs in the checkpoint.

State belongs to the checkpoint: after a crash, or when a task moves to another executor, it is loaded from there as it was at the
start of the batch, so nothing is counted twice. The number of state partitions is `spark.sql.shuffle.partitions` of the first
start, and stays.
"""

from pyspark.sql import SparkSession

STORE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def use_rocksdb(spark: SparkSession, *, max_memory_mb: int = 500) -> None:
    """Let the queries that this session starts from now on keep their state in RocksDB, in at most so much memory per executor.

    Custom aggregates and joins of latest values need it; Spark's own aggregates are about twice as fast on the heap while their
    state fits in there. Without changelogs each batch uploads whole files: they are on.
    """
    spark.conf.set(f"{STORE}.providerClass", ROCKSDB)
    spark.conf.set(f"{STORE}.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set(f"{STORE}.rocksdb.boundedMemoryUsage", "true")
    spark.conf.set(f"{STORE}.rocksdb.maxMemoryUsageMB", str(max_memory_mb))


def require_rocksdb(spark: SparkSession) -> None:
    """Raise ValueError, with the remedy, when this session's state is not in RocksDB."""
    if spark.conf.get(f"{STORE}.providerClass", "") != ROCKSDB:
        raise ValueError("this operator keeps its state in RocksDB: call mqbridge.spark.streams.use_rocksdb(spark) before")
