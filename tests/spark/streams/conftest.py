"""A Spark session for tests of operators that need only one state partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def one_partition_spark(spark: SparkSession) -> SparkSession:
    """A session with one shuffle partition, in which a batch takes half the time. Few tests depend on the partition of a row."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session
