"""A thousand topics, which a producer makes by sending to them, and two consumers that share all of them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit import java
from tests.kit.listener import ListenerProcess
from tests.sdk.listener import Backing
from tests.sdk.rocketmq_listener import GROUP, serving

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough, pytest.mark.timeout(900)]

TOPICS, DEADLINE_S = 1000, 600


@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
async def test_a_thousand_topics_arrive_whole(owns_groups: bool, backing: Backing, tmp_path: Path, stack: AsyncExitStack) -> None:
    listener = stack.enter_context(ListenerProcess("one", serving(backing, owns_groups=owns_groups), tmp_path / "one"))
    lines = await asyncio.to_thread(
        java.run,
        "RocketTopics",
        name_servers=listener.address,
        topic=f"many_{time.time_ns()}_",
        group=f"{GROUP}_{time.time_ns()}",
        topics=TOPICS,
        deadline_s=DEADLINE_S,
    )
    rounds = {line["round"]: line for line in lines}
    print(f"{backing[0]}:", *lines, sep="\n  ")
    assert rounds["alone"]["first"] == rounds["left"]["first"] == TOPICS
    assert min(rounds["two"]["first"], rounds["two"]["second"]) > TOPICS / 4
    assert [line["again"] for line in lines if line["round"] in {"alone", "two"}] == [0, 0]
