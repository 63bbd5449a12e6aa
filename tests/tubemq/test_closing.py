"""What is left of a cluster that was closed: nothing, also when there was no time to be polite."""

import asyncio
from typing import Any

import pytest

from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.adapter.reader import Reader
from tests.tubemq.client.model import Model
from tests.tubemq.client.quick import hurry


class Cluster(Model):
    """Also closes as sessions do."""

    async def close(self) -> None: ...


async def test_a_cluster_that_is_closed_late_leaves_no_producer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeping takes all the time there is. The producer's heartbeats would go on, over new connections."""

    async def sweep(_: Any) -> None:
        await asyncio.Event().wait()

    hurry(monkeypatch)
    model = Cluster({"demo": 1})
    monkeypatch.setattr("mqbridge.tubemq.adapter.cluster.Sessions", lambda **_: model)
    monkeypatch.setattr(Reader, "sweep", sweep)
    made = TubeMQ("c", TubeMQCluster(masters=("10.0.0.1",), heartbeat="5ms"))
    await made.connect()
    heartbeats = [task for task in asyncio.all_tasks() if task.get_name().startswith("tubemq producer")]
    assert len(heartbeats) == 1
    await made.close(asyncio.get_running_loop().time())
    await asyncio.wait(heartbeats, timeout=1)
    assert heartbeats[0].done()
