"""Runs `mqbridge spark mirror` as a user does, on real clusters, and follows it by its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.spark import MASTER, SparkProgram, settings
from tests.kit.tubemq import TubeMQ
from tests.spark.load import TopicRef
from tests.spark.waiting import PATIENCE_S, wait_for

PARTITIONS = 4
ROUTE = "mirrored"
NAMESPACE = "mirrors"


def source_topic(cluster: RocketMQ | TubeMQ, topic: str = "") -> TopicRef:
    """Return a topic of this cluster as a source; without a name, a new topic."""
    if isinstance(cluster, RocketMQ):
        return TopicRef("rocketmq", {"name_servers": cluster.name_server}, topic or cluster.take_topic(PARTITIONS))
    tubemq_settings = {"masters": cluster.masters, "admin_url": cluster.admin_url, "heartbeat": "2s"}
    return TopicRef("tubemq", tubemq_settings, topic or cluster.take_topic(PARTITIONS))


def settle(cluster: RocketMQ | TubeMQ) -> None:
    """Wait until readers see all stored messages."""
    if isinstance(cluster, RocketMQ):
        cluster.settle()


def new_target_topic(pulsar: Pulsar, name: str) -> TopicRef:
    """Create a topic in a namespace with deduplication. It retains its messages until the test reads them back."""
    namespace = f"public/{NAMESPACE}"
    if namespace not in pulsar.admin("GET", "namespaces/public"):
        pulsar.create_namespace("public", NAMESPACE)
        pulsar.admin("POST", f"namespaces/{namespace}/deduplication", body=True)
    topic = pulsar.keep(pulsar.create_topic(name, PARTITIONS, namespace=namespace))
    return TopicRef("pulsar", {"service_url": pulsar.service_url, "admin_url": pulsar.admin_url}, topic)


@dataclass
class Mirror:
    """One mirror: its source and target topics, and its folder with configuration, checkpoint and logs."""

    source: TopicRef
    target: TopicRef
    folder: Path
    through: str = "pump"
    batch: str = "2MB"
    master: str = MASTER
    route: Mapping[str, Any] | None = None
    """Further settings of the route."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        route = {
            "name": ROUTE,
            "from": {"cluster": "from", "topic": self.source.name, "group": "mirrors", "start": "earliest"},
            "to": {"cluster": "to", "topic": self.target.name},
        }
        clusters = {
            "from": {"system": self.source.system, **self.source.settings},
            "to": {"system": self.target.system, **self.target.settings},
        }
        self._config = self.folder / "mirror.yaml"
        self._config.write_text(yaml.safe_dump({"clusters": clusters, "routes": [route | dict(self.route or {})]}))

    @property
    def checkpoint(self) -> Path:
        """The checkpoint folder of the route's query."""
        return self.folder / "checkpoint" / ROUTE

    def start(self, *options: str) -> SparkProgram:
        """Start the mirror, or continue from its checkpoint. It ends at the current end of the source."""
        conf = settings(self.folder, self.master)
        del conf["spark.master"]
        conf_options = [word for name, value in conf.items() for word in ("--set", f"{name}={value}")]
        return SparkProgram(
            self.folder, "-m", "mqbridge", "spark", "mirror", str(self._config), "--checkpoint", str(self.folder / "checkpoint"),
            "--master", self.master, "--through", self.through, "--max-bytes-per-batch", self.batch, "--until-caught-up",
            *conf_options, *options,
        )  # fmt: skip

    def batches(self) -> tuple[int, int]:
        """Return the ids of the newest batch that was begun and of the newest that was committed; -1 for none."""
        return _newest(self.checkpoint / "offsets"), _newest(self.checkpoint / "commits")

    @property
    def is_in_batch(self) -> bool:
        """Whether the newest batch was begun and is not committed."""
        begun, committed = self.batches()
        return begun > committed

    def wait_in_batch(self, number: int, program: SparkProgram, patience_s: float = PATIENCE_S) -> None:
        """Wait until this batch, or a later one, is running."""

        def is_running() -> bool:
            assert program.running, f"the mirror ended at batches {self.batches()}:\n{program.log[-8000:]}"
            return self.batches()[0] >= number and self.is_in_batch

        wait_for(is_running, f"batch {number}", patience_s)


def _newest(folder: Path) -> int:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1
