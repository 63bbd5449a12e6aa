"""Mirrors refuse targets whose cluster deletes unread messages, and the sink warns about them."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Failure
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.mirror.targets import prepare_targets
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.schema import message_schema
from mqbridge.spark.sink.driver import find_unprotected
from mqbridge.spark.sink.settings import sink_settings
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.adapter.operations import MemoryOperations
from mqbridge.testing.memory.broker import delete_broker

GROUPS: dict[str, str] = {}
"""A group of each topic that has one."""


class DeletingOperations(MemoryOperations):
    """Operations of a system that deletes messages of topics without groups."""

    async def create_group(self, topic: str, group: str) -> None:
        GROUPS[topic] = group

    def check_create_group(self) -> None:
        """Every group can be created."""

    async def why_unprotected(self, topic: str, planned: Collection[str] = ()) -> str | None:
        if topic == "away":
            raise ClusterError("no answer", Failure.RETRY)
        return None if planned or topic in GROUPS else f"{topic} has no group"


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(MemoryCluster, "operations", property(DeletingOperations))
    yield
    GROUPS.clear()
    for name in ("there", "here"):
        delete_broker(name)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({}, "target here/copy would lose messages: copy has no group"),
        ({"create": {"subscriptions": "billing"}}, None),
        ({"unread": "may_be_deleted"}, None),
    ],
)
async def test_a_mirror_refuses_an_unprotected_target_before_it_creates_anything(
    target: dict[str, Any], problem: str | None
) -> None:
    config = from_dict(
        {
            "clusters": {name: {"system": "memory"} for name in ("there", "here")},
            "routes": [
                {
                    "name": "r",
                    "from": {"cluster": "there", "topic": "t", "group": "g"},
                    "to": {"cluster": "here", "topic": "copy", **target},
                }
            ],
        }
    )
    clusters = {name: MemoryCluster(name, MemoryConfig()) for name in config.clusters}
    await clusters["there"].create("t", 2)
    if problem is None:
        await prepare_targets(list(config.routes), clusters)
    else:
        with pytest.raises(ClusterError, match=problem):
            await prepare_targets(list(config.routes), clusters)
    assert (await clusters["here"].describe("copy") is None) is (problem is not None)


async def test_the_sink_finds_the_topics_that_lose_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def find(ref: ClusterRef) -> AsyncIterator[Cluster]:
        yield MemoryCluster(ref.name, MemoryConfig())

    async def unprotected(**options: str) -> list[str]:
        given = {"url": "log:///nowhere", "topic": "t", "deadLetterTopic": "dead"} | options
        spec = sink_settings(parse_options(given, Usage.WRITE), message_schema()).spec
        (name,) = spec.clusters
        found = await find_unprotected(spec, {(name, topic) for topic in ("t", "kept", "away", "dead")}, find)
        return [label.removeprefix(f"{name}/") for label in found]

    GROUPS["kept"] = "billing"
    assert await unprotected() == ["dead", "t"]
    assert "cannot find out whether log:///nowhere/away keeps unread messages: no answer" in caplog.text
    assert await unprotected(unread="may_be_deleted") == []
