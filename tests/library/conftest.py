"""The three clients, each at its real cluster: a test with the fixture `system` runs once for each."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mqbridge import PulsarClient, RocketMQClient, TubeMQClient
from mqbridge.library.contract import Client
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ

SYSTEMS = ("pulsar", "rocketmq", "tubemq")


@dataclass(frozen=True)
class System:
    """A system with a running cluster."""

    name: str
    client: Callable[[], Client]
    take_topic: Callable[[int], str]


def url_of(cluster: Pulsar | RocketMQ | TubeMQ) -> str:
    """Return the URL with which the client connects to the cluster."""
    if isinstance(cluster, Pulsar):
        return cluster.service_url
    return f"rocketmq://{cluster.name_server}" if isinstance(cluster, RocketMQ) else f"tubemq://{cluster.masters}"


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.cluster) for name in SYSTEMS])
def system(request: pytest.FixtureRequest) -> System:
    """One of the three systems, with its client and its real cluster."""
    name: str = request.param
    cluster: Pulsar | RocketMQ | TubeMQ = request.getfixturevalue(name)
    make: Callable[[str], Client] = {"pulsar": PulsarClient, "rocketmq": RocketMQClient, "tubemq": TubeMQClient}[name]
    return System(name, lambda: make(url_of(cluster)), cluster.take_topic)
