"""Spark with clusters that require TLS and credentials, which the driver and the workers read from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.kit.mounted import mount
from tests.kit.pulsar_locked import APP, LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import APP as APPLICANT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.thorough]

MESSAGES, QUEUES = 200, 2


def test_a_topic_is_copied_between_secured_clusters(
    spark: SparkSession, pulsar_locked: LockedPulsar, rocketmq_locked: RocketMQ, tmp_path: Path
) -> None:
    mount(tmp_path, pulsar_locked, role=APP)
    mount(tmp_path, rocketmq_locked, user=APPLICANT)
    source, target = rocketmq_locked.take_topic(QUEUES), pulsar_locked.keep(pulsar_locked.take_topic(QUEUES))
    for number in range(MESSAGES):
        rocketmq_locked.send(source, b"%d" % number, queue=number % QUEUES)
    rocketmq_locked.settle()
    rocketmq_security = {
        "tls": {
            "authorities": str(tmp_path / "rocketmq/authorities.pem"),
            "certificate": str(tmp_path / "rocketmq/client.pem"),
            "key": str(tmp_path / "rocketmq/client.key"),
        },
        "auth": {name: {"file": str(tmp_path / "rocketmq" / name.replace("_", "-"))} for name in ("access_key", "secret_key")},
    }
    clusters = {
        "rocket": {"system": "rocketmq", "name_servers": rocketmq_locked.name_server, **rocketmq_security},
        "pulsar": {"system": "pulsar", **pulsar_locked.config({"token": {"file": str(tmp_path / "pulsar/token")}})},
    }
    config = tmp_path / "clusters.yaml"
    config.write_text(yaml.safe_dump({"clusters": clusters}))

    read = spark.read.format("mqbridge").option("config", str(config))
    read.option("cluster", "rocket").option("subscribe", source).load().write.format("mqbridge").mode("append").options(
        config=str(config), cluster="pulsar", topic=target
    ).save()
    back = spark.read.format("mqbridge").options(config=str(config), cluster="pulsar", subscribe=target).load()
    rows = back.select("partition", "payload").collect()
    numbers = {index: [int(row.payload) for row in rows if row.partition == index] for index in {row.partition for row in rows}}
    assert sorted(numbers.values()) == [list(range(first, MESSAGES, QUEUES)) for first in range(QUEUES)]
