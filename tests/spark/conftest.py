"""The Spark session that the tests of a process share, and the marker of the tests that use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kit.spark import SparkJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that use the fixture `spark`, which needs Java. Tests that start another Spark have the marker in their code."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJvm]:
    """The JVM of the fixture `spark`. Its `log` contains the output of Spark and of the Python workers."""
    with SparkJvm(tmp_path_factory.mktemp("spark")) as jvm:
        yield jvm


@pytest.fixture(scope="session")
def spark(spark_jvm: SparkJvm) -> SparkSession:
    """The session that the tests of this process share: local[2], RocksDB, UTC. A test must not stop it."""
    return spark_jvm.session
