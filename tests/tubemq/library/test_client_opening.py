"""Opening producers and consumers: cancelled, and while the client is closed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import ClusterError
from mqbridge.library.opening import Opening
from mqbridge.tubemq.library.client import TubeMQClient
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import Model

OPENINGS: list[Callable[[TubeMQClient], Opening[Any]]] = [
    lambda client: client.producer("single"),
    lambda client: client.consumer("single", "g"),
]


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def opened(opening: Opening[Any]) -> Any:
    return await opening


@pytest.mark.parametrize("opening", OPENINGS, ids=["producer", "consumer"])
async def test_a_cancelled_opening_leaves_nothing_at_the_master(cluster: Model, opening: Any) -> None:
    for count in range(20):
        before = asyncio.all_tasks()
        client = TubeMQClient("tubemq://10.0.0.1", heartbeat_s=0.005)
        task = asyncio.ensure_future(opened(opening(client)))
        await steps(count)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await client.close()
        if not isinstance(result, asyncio.CancelledError):
            assert count > 2
            return
        assert not cluster.master.producers
        assert not cluster.master.members["g"]
        assert not asyncio.all_tasks() - before
    raise AssertionError("it was never opened")


@pytest.mark.parametrize("opening", OPENINGS, ids=["producer", "consumer"])
@pytest.mark.parametrize("count", range(8))
async def test_a_producer_opened_while_the_client_closes_is_closed(cluster: Model, opening: Any, count: int) -> None:
    before = asyncio.all_tasks()
    client = TubeMQClient("tubemq://10.0.0.1", heartbeat_s=0.005)
    task = asyncio.ensure_future(opened(opening(client)))
    await steps(count)
    await client.close()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert result.closed if not isinstance(result, BaseException) else isinstance(result, ClusterError)
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)
    assert not cluster.master.producers
    assert not cluster.master.members["g"]
