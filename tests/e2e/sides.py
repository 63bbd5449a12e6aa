"""The three systems as ends of a direction: their settings, the environment of the shipped configurations, fresh topics."""

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
    """Bytes of the largest body of the corpus: just below the system's limit, with room for carried properties."""

    @property
    def settings(self) -> dict[str, Any]:
        """The cluster as a configuration names it; a short heartbeat, for tests that wait for assignments."""
        match self.server:
            case TubeMQ():
                return {"masters": self.server.masters, "admin_url": self.server.admin_url, "heartbeat": HEARTBEAT}
            case Pulsar():
                return {"service_url": self.server.service_url, "admin_url": self.server.admin_url}
            case RocketMQ():
                return {"name_servers": self.server.name_server}

    @property
    def environment(self) -> dict[str, str]:
        """What the shipped configurations read from the environment to find it, as their source and as their target."""
        match self.server:
            case TubeMQ():
                found = {"TUBEMQ_MASTERS": self.server.masters, "TUBEMQ_HEARTBEAT": HEARTBEAT}
            case Pulsar():
                found = {"PULSAR_URL": self.server.service_url, "PULSAR_ADMIN_URL": self.server.admin_url}
            case RocketMQ():
                found = {"ROCKETMQ_NAME_SERVERS": self.server.name_server}
        return found | {f"TARGET_{name}": value for name, value in found.items() if name != "TUBEMQ_HEARTBEAT"}

    def take_topic(self, partitions: int) -> str:
        """A fresh topic that keeps its messages until they are read back."""
        topic = self.server.take_topic(partitions)
        return self.server.keep(topic) if isinstance(self.server, Pulsar) else topic


def side(system: str, request: pytest.FixtureRequest) -> Side:
    """A system's shared cluster."""
    # TubeMQ takes 1 MiB with attributes, Pulsar 5 MiB with metadata, RocketMQ 4 MiB of body.
    limits = {"tubemq": (1 << 20) - (64 << 10), "pulsar": (5 << 20) - (64 << 10), "rocketmq": 4 << 20}
    return Side(system, request.getfixturevalue(system), limits[system])
