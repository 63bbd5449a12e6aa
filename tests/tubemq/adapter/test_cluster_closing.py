"""Closing a cluster leaves nothing open, even if the deadline has passed."""

import asyncio
from typing import Any

import pytest

from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.temporary_groups import TemporaryGroups
from tests.tubemq.client.model import Model


@pytest.fixture
def model() -> Model:
    return Model({"demo": 1})


async def test_closing_after_the_deadline_stops_the_producers_heartbeats(
    unconnected: TubeMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing groups takes all the time until the deadline. Heartbeats that continued would open new connections."""

    async def sweep(_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TemporaryGroups, "sweep", sweep)
    await unconnected.connect()
    heartbeats = [task for task in asyncio.all_tasks() if task.get_name().startswith("tubemq producer")]
    assert len(heartbeats) == 1
    await unconnected.close(asyncio.get_running_loop().time())
    await asyncio.wait(heartbeats, timeout=1)
    assert heartbeats[0].done()
