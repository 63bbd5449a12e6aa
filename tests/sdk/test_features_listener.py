"""The programs of tests/sdk/features reach the expected outcomes at a listener, over each backing and in each mode of groups."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from tests.e2e.support import opened
from tests.kit.listener import ListenerOptions, ListenerProcess
from tests.sdk.features import LANGUAGES, TOPICS, features_of, missing, wrong_outcomes
from tests.sdk.listener import Backing

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(900)]

FAST = ("python",)
"""The languages whose programs run with every test run; the others are thorough."""
SMOKE_TESTED = {("log", "own"), ("rocketmq", "backing")}
"""The backings, and whose the groups are, that `make test` tries; `make test-thorough` tries all."""
DIFFERENT = {
    "batched", "ack_whole_batch", "negative_ack_in_batch", "reader_in_batch", "seek_in_batch", "last_message_id",
    "delayed_exclusive", "message_ids",
}  # fmt: skip
"""Features that differ over RocketMQ, where each message is an entry of its own, and the broker delays messages for everybody:
see the support table."""


class ListenedBacking:
    """A listener, and its cluster, in which topics with partitions are created."""

    def __init__(self, process: ListenerProcess, cluster: Cluster) -> None:
        self.process, self.cluster = process, cluster

    async def create_partitioned(self, topic: str, partitions: int) -> None:
        await self.cluster.create(self.cluster.capabilities.topic_name.escape(topic.rpartition("/")[2]), partitions)


@pytest_asyncio.fixture
async def listened(groups: str, backing: Backing, tmp_path: Path) -> AsyncIterator[ListenedBacking]:
    system, cluster = backing
    options = ListenerOptions(system, cluster, owns_groups=groups == "own", deduplicate=True, create_partitions=1)
    with ListenerProcess("features", options, tmp_path / "listener") as process:
        async with opened(system, cluster) as connected:
            yield ListenedBacking(process, connected)


def languages() -> list[Any]:
    return [pytest.param(language, marks=[] if language in FAST else [pytest.mark.thorough]) for language in LANGUAGES]


def listeners() -> list[Any]:
    return [
        pytest.param(*each, marks=[] if each in SMOKE_TESTED else [pytest.mark.thorough])
        for each in itertools.product(("log", "rocketmq"), ("own", "backing"))
    ]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("language", languages())
@pytest.mark.parametrize(("backing", "groups"), listeners(), indirect=["backing"])
async def test_a_listener_gives_the_expected_outcomes(language: str, topic: str, listened: ListenedBacking) -> None:
    if reason := missing(language):
        pytest.skip(reason)
    system = listened.process.options.system
    features = [each for each in features_of(language, topic) if system == "log" or each not in DIFFERENT]
    wrong = await wrong_outcomes(features, language, listened.process.url, create_partitioned=listened.create_partitioned)
    assert wrong == {}
