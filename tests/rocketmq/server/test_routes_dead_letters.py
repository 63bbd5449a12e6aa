"""Routes of the topics that the listener makes for groups, before these topics exist."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit import rocketmq_remoting as remoting
from tests.rocketmq.server.log_serving import serving_log


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with serving_log(tmp_path) as (_, at):
        yield at


async def route_status(address: str, topic: str) -> int:
    fields = {"topic": topic, "acceptStandardJsonOnly": True}
    return (await asyncio.to_thread(remoting.request, address, remoting.GET_ROUTEINFO_BY_TOPIC, fields)).status


@pytest.mark.parametrize("topic", ["%RETRY%g", "RMQ_SYS_TRACE_TOPIC"])
async def test_topics_that_clients_use_by_themselves_have_a_route_at_once(address: str, topic: str) -> None:
    assert await route_status(address, topic) == remoting.SUCCESS


async def test_a_dead_letter_topic_has_a_route_when_it_exists(address: str) -> None:
    """Who reads dead letters waits for the route: with one, it would pull, and fail."""
    assert await route_status(address, "%DLQ%g") == remoting.TOPIC_NOT_EXIST
    fields = {
        "a": "p", "b": "%DLQ%g", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": "", "j": 0,
        "k": False, "m": False,
    }  # fmt: skip
    await asyncio.to_thread(remoting.call, address, remoting.SEND_MESSAGE_V2, fields, b"dead")
    assert await route_status(address, "%DLQ%g") == remoting.SUCCESS
