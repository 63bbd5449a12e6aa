"""The three systems as source and target: their settings, the environment of the shipped configurations, new topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ

SYSTEMS = ("tubemq", "pulsar", "rocketmq")
HEARTBEAT = "2s"


@dataclass(frozen=True, slots=True)
class Side:
    """One running cluster of a system."""

    system: str
    server: TubeMQ | Pulsar | RocketMQ
    max_payload: int
    """Bytes of the largest payload of the corpus: just below the system's limit, with room for carried properties."""

    @property
    def settings(self) -> dict[str, Any]:
        """The options of the cluster in a configuration, with a short heartbeat for tests that wait for assignments."""
        match self.server:
            case TubeMQ():
                return {"masters": self.server.masters, "admin_url": self.server.admin_url, "heartbeat": HEARTBEAT}
            case Pulsar():
                return {"service_url": self.server.service_url, "admin_url": self.server.admin_url}
            case RocketMQ():
                return {"name_servers": self.server.name_server}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which the shipped configurations find the cluster, as their source and as their target."""
        match self.server:
            case TubeMQ():
                variables = {"TUBEMQ_MASTERS": self.server.masters, "TUBEMQ_HEARTBEAT": HEARTBEAT}
            case Pulsar():
                variables = {"PULSAR_URL": self.server.service_url, "PULSAR_ADMIN_URL": self.server.admin_url}
            case RocketMQ():
                variables = {"ROCKETMQ_NAME_SERVERS": self.server.name_server}
        return variables | {f"TARGET_{name}": value for name, value in variables.items() if name != "TUBEMQ_HEARTBEAT"}

    def take_topic(self, partitions: int) -> str:
        """Return a new topic that keeps its messages until they are read back."""
        topic = self.server.take_topic(partitions)
        return self.server.keep(topic) if isinstance(self.server, Pulsar) else topic


def side(system: str, request: pytest.FixtureRequest) -> Side:
    """Return the shared cluster of a system."""
    # TubeMQ takes 1 MiB with attributes, Pulsar 5 MiB with metadata, RocketMQ 4 MiB of body.
    limits = {"tubemq": (1 << 20) - (64 << 10), "pulsar": (5 << 20) - (64 << 10), "rocketmq": 4 << 20}
    return Side(system, request.getfixturevalue(system), limits[system])
