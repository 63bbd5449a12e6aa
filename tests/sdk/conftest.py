"""Fixtures of the tests of listeners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit.rocketmq import RocketMQ
from tests.sdk.listener import Backing


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened_stack:
        yield opened_stack


@pytest.fixture(params=["log", "rocketmq"])
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Backing:
    if request.param == "log":
        return "log", {"path": str(tmp_path / "log.db"), "lease": "3s", "max_message_bytes": "8MiB"}
    server: RocketMQ = request.getfixturevalue("rocketmq")
    return "rocketmq", {"name_servers": [server.name_server], "refresh": "2s", "heartbeat": "2s"}
