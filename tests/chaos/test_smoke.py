"""A short chaos run, which verifies that the chaos tests themselves work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import run
from tests.chaos.schedule import draw
from tests.chaos.systems import RocketMQSystem
from tests.kit import java
from tests.kit.rocketmq import RocketMQ

SECONDS = 15
FAULTS = ("kill", "roll", "cut", "late", "burst", "grow", "move_running")


@pytest.mark.cluster
@pytest.mark.sdk
@pytest.mark.thorough
async def test_a_short_run_loses_nothing(rocketmq: RocketMQ, tmp_path: Path) -> None:
    java.build()
    schedule = draw(4, SECONDS, ("rocketmq-rocketmq",), FAULTS)
    assert len(schedule.events) > 2
    result = await run(schedule, {"rocketmq": RocketMQSystem(rocketmq)}, tmp_path)
    assert not result.problems, "\n".join(result.lines())
    assert result.verdicts["rocketmq-rocketmq"].sent > 1000
