"""`mqbridge.spark.session.session`, its prerequisites, and the registration of `format("mqbridge")`."""

import importlib
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from mqbridge.errors import ConfigError
from mqbridge.spark import prerequisites
from mqbridge.spark.functions import properties_of, properties_udf
from mqbridge.spark.prerequisites import check_java, check_prerequisites, find_java
from mqbridge.spark.property_blob import encode_pairs
from mqbridge.spark.session import session, session_exists
from tests.kit.spark import SparkProgram


def fake_java(folder: Path, version_text: str) -> Path:
    """Create a Java program in `folder` that prints a version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version_text}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def test_java_is_found_by_java_home_or_the_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "")
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == java
    assert find_java({"PATH": str(java.parent)}) == java


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere", "PATH": os.environ["PATH"]}])
def test_the_error_for_missing_java_names_the_package_to_install(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"Spark needs Java.*Install Java 17.*or set JAVA_HOME"):
        find_java(environ)


@pytest.mark.parametrize(("version_text", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "11.0.21"', 11)])
def test_an_old_java_is_an_error(tmp_path: Path, version_text: str, version: int) -> None:
    with pytest.raises(ConfigError, match=f"Spark needs Java 17 or newer, but .* is Java {version}. Install Java 17"):
        check_java(fake_java(tmp_path, version_text))


def test_a_new_java_is_accepted(tmp_path: Path) -> None:
    check_java(fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17'))


def test_a_java_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not run"):
        check_java(tmp_path)


def test_the_error_for_missing_pyspark_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites.importlib.util, "find_spec", lambda *_: None)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"pyspark and pyarrow cannot be imported. pip install 'mqbridge\[spark\]'"):
        check_prerequisites()


def test_a_failed_import_of_the_data_source_does_not_disable_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mqbridge.spark.data_source", None)
    monkeypatch.delitem(sys.modules, "pyspark_mqbridge", raising=False)
    package = importlib.import_module("pyspark_mqbridge")
    monkeypatch.delitem(sys.modules, "pyspark_mqbridge")
    assert not hasattr(package, "DefaultSource")


def test_every_thread_sees_the_session_of_the_process(spark: SparkSession) -> None:
    """So a mirror that runs in a thread of a notebook does not stop the notebook's session."""
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(session_exists).result()
        again = thread.submit(session).result()
    assert again.sparkContext is spark.sparkContext


def test_an_existing_session_is_returned_with_changed_settings(spark: SparkSession) -> None:
    original_values = {
        name: spark.conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.sql.streaming.numRecentProgressUpdates")
    }
    try:
        first = session("notebook", sql_shuffle_partitions=3)
        second = session(**{"spark.sql.streaming.numRecentProgressUpdates": 7, "sql.ansi.enabled": True})
        assert first.sparkContext is second.sparkContext is spark.sparkContext
        assert first.conf.get("spark.sql.shuffle.partitions") == "3"
        assert first.conf.get("spark.sql.streaming.numRecentProgressUpdates") == "7"
    finally:
        for name, value in original_values.items():
            spark.conf.set(name, value)


def test_the_session_has_the_format_registered(spark: SparkSession, tmp_path: Path) -> None:
    url = f"log://{tmp_path}/orders.db"
    written = session().createDataFrame([("k", "v")], "key STRING, value STRING")
    written.write.format("mqbridge").options(url=url, topic="orders", createTopics=2).mode("append").save()
    frame = session().read.format("mqbridge").option("url", url).option("subscribe", "orders").load()
    assert frame.select("key", "payload", "topic").collect() == [Row(key=b"k", payload=b"v", topic="orders")]


def test_binary_properties_become_maps_of_the_first_values(spark: SparkSession) -> None:
    blobs = [encode_pairs((("a", "1"), ("b", "ü"), ("a", "2"))), b"", None]
    frame = spark.createDataFrame([(blob,) for blob in blobs], "properties BINARY")
    expected = [Row(properties={"a": "1", "b": "ü"}), Row(properties={}), Row(properties=None)]
    assert frame.select(properties_of("properties")).collect() == expected
    spark.udf.register("properties_of", properties_udf)
    frame.createOrReplaceTempView("binary_properties")
    assert spark.sql("SELECT properties_of(properties)['b'] AS b FROM binary_properties").first() == Row(b="ü")


PROGRAM = """
import json, sys
from mqbridge.spark.session import session_exists, session
spark = session("settings", "local[2]", ui_enabled=False, driver_memory="1g", **{"spark.sql.warehouse.dir": sys.argv[1]})
conf = dict(spark.sparkContext.getConf().getAll())
print(json.dumps(conf), file=open(sys.argv[1] + "/conf.json", "w"))
"""


@pytest.mark.spark
def test_a_new_session_has_local_settings_and_logs_nothing(tmp_path: Path) -> None:
    with SparkProgram(tmp_path, "-c", PROGRAM, str(tmp_path)) as program:
        log = program.wait()
    conf = json.loads((tmp_path / "conf.json").read_text())
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage"] == "true"
    assert conf["spark.driver.memory"] == "1g"
    assert conf["spark.app.name"] == "settings"
    assert [line for line in log.splitlines() if "incubator" not in line] == []
