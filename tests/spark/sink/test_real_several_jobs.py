"""Several jobs write into one topic of a real Pulsar that deduplicates by producer name and by positions of the source."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqbridge.message import Message
from tests.kit.pulsar import Pulsar
from tests.spark.mirror_runs import new_target_topic
from tests.spark.sink.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

FORMAT = "mqbridge"
MESSAGES = 200


def test_jobs_and_clusters_of_one_name_do_not_drop_messages_of_each_other(
    spark: SparkSession, pulsar: Pulsar, tmp_path: Path
) -> None:
    """Both sources have the same positions. Each job runs twice, and the second run stores nothing."""
    from mqbridge.spark.data_source import MqbridgeDataSource

    spark.dataSource.register(MqbridgeDataSource)
    target = new_target_topic(pulsar, f"writers-{time.time_ns()}")
    target_url = f"{pulsar.service_url}?admin={pulsar.admin_url}"
    logs = {name: Log(tmp_path / f"{name}.db") for name in ("berlin", "tokyo")}
    for name, log in logs.items():
        log.fill("orders", [[Message(f"{name} {number}".encode()) for number in range(MESSAGES)]])
    for _ in range(2):
        for name, job in (("berlin", "one"), ("tokyo", "one"), ("tokyo", "two")):
            rows = spark.read.format(FORMAT).options(url=logs[name].url, subscribe="orders").load()
            rows.write.format(FORMAT).options(url=target_url, topic=target.name, jobId=job).mode("append").save()
    stored = spark.read.format(FORMAT).options(url=target_url, subscribe=target.name).load()
    counts = stored.selectExpr("CAST(payload AS STRING) AS text").groupBy("text").count().collect()
    copies = {"berlin": 1, "tokyo": 2}
    assert {row["text"]: row["count"] for row in counts} == {
        f"{name} {number}": copies[name] for name in logs for number in range(MESSAGES)
    }
