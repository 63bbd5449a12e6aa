"""Settings for the state of queries: RocksDB on the executors' disks, with changelogs in the checkpoint.

After a crash, or when a task moves to another executor, Spark loads the state from the checkpoint as it was at the start of the
batch. So no record is counted twice. The number of state partitions is the value of `spark.sql.shuffle.partitions` at the first
start of the query; it cannot change later.
"""

from pyspark.sql import SparkSession

STATE_STORE = "spark.sql.streaming.stateStore"
"""Prefix of Spark's options for state."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def use_rocksdb(spark: SparkSession, *, max_memory_mb: int = 500) -> None:
    """Use RocksDB for the state of the queries that this session starts after this call.

    RocksDB uses at most `max_memory_mb` of memory per executor. `accumulate` and `latest_join` need RocksDB. Spark's own
    aggregates are about twice as fast with state on the heap, as long as it fits there. Changelogs are switched on, because
    without them each batch uploads whole files of RocksDB, not only the changes.
    """
    spark.conf.set(f"{STATE_STORE}.providerClass", ROCKSDB)
    spark.conf.set(f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled", "true")
    spark.conf.set(f"{STATE_STORE}.rocksdb.boundedMemoryUsage", "true")
    spark.conf.set(f"{STATE_STORE}.rocksdb.maxMemoryUsageMB", str(max_memory_mb))


def require_rocksdb(spark: SparkSession) -> None:
    """Raise ValueError if this session does not store state in RocksDB."""
    if spark.conf.get(f"{STATE_STORE}.providerClass", "") != ROCKSDB:
        raise ValueError("accumulate and latest_join need state in RocksDB: call mqbridge.spark.streams.use_rocksdb(spark) first")
