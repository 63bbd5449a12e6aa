"""The programs of tests/sdk/rocketmq_features reach the expected outcomes at a listener, over each backing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.listener.server import load_servers
from tests.e2e.support import opened
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.sdk.listener import Backing
from tests.sdk.rocketmq_features import LANGUAGES, TOPICS, features_of, missing, wrong_outcomes

pytestmark = [
    pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(900),
    pytest.mark.skipif("rocketmq" not in load_servers(), reason="no server for RocketMQ clients is installed"),
]  # fmt: skip

BACKINGS = [*itertools.product(("log", "rocketmq"), ("own", "backing"))]
SMOKE_TESTED = {("log", "own"): ("send", "retry", "pull"), ("rocketmq", "backing"): ("transaction", "rebalance")}
"""What `make test` tries, by backing and whose the groups are; `make test-thorough` tries all."""
DIFFERENT: dict[tuple[str, str, str], str] = {
    ("go", "rocketmq", "pull"): "a new reader asks a broker for 4 messages first, and a first pull gets no more than these",
}
"""Features that differ from a real broker's, by language and backing, and why."""


class RocketmqListener:
    """A listener for RocketMQ clients, and its cluster, in which topics are created."""

    def __init__(self, process: ListenerProcess, cluster: Cluster) -> None:
        self.process, self.cluster = process, cluster

    async def create_topic(self, topic: str, queues: int) -> None:
        await self.cluster.create(self.cluster.capabilities.topic_name.escape(topic), queues)


@pytest_asyncio.fixture
async def listened(groups: str, backing: Backing, tmp_path: Path) -> AsyncIterator[RocketmqListener]:
    system, cluster = backing
    options = ListenerOptions(system, cluster, serves="rocketmq", owns_groups=groups == "own", group="{group}")
    with ListenerProcess("features", options, tmp_path / "listener") as process:
        async with opened(system, cluster) as connected:
            yield RocketmqListener(process, connected)


def smoke() -> list[Any]:
    return [pytest.param(LANGUAGES[0], "smoke", *each) for each in SMOKE_TESTED]


def thorough() -> list[Any]:
    cases = itertools.product(LANGUAGES, TOPICS, BACKINGS)
    return [pytest.param(language, topic, *each, marks=pytest.mark.thorough) for language, topic, each in cases]


@pytest.mark.parametrize(("language", "topic", "backing", "groups"), [*smoke(), *thorough()], indirect=["backing"])
async def test_a_listener_gives_the_expected_outcomes(language: str, topic: str, groups: str, listened: RocketmqListener) -> None:
    if reason := missing(language):
        pytest.skip(reason)
    system = listened.process.options.system
    features = SMOKE_TESTED[system, groups] if topic == "smoke" else features_of(language, topic)
    judged = [each for each in features if (language, system, each) not in DIFFERENT]
    wrong = await wrong_outcomes(judged, language, listened.process.address, create_topic=listened.create_topic)
    assert wrong == {}
