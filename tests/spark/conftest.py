"""One Spark session per test process, and the marker of tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kit.spark import SparkJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """Who asks for the session needs Java; a test that starts a Spark of its own carries the marker itself."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJvm]:
    """The JVM behind `spark`; its `log` holds what Spark and the Python workers said."""
    with SparkJvm(tmp_path_factory.mktemp("spark")) as jvm:
        yield jvm


@pytest.fixture(scope="session")
def spark(spark_jvm: SparkJvm) -> SparkSession:
    """The session that the tests of this process share: local[2], RocksDB, UTC. Nobody stops it."""
    return spark_jvm.session
