"""A session for tests of operators, whose state needs no second partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def narrow(spark: SparkSession) -> SparkSession:
    """Shuffles into one partition: a batch takes half the time, and where rows go matters to few tests."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session
