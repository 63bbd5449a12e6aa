"""Short chaos runs, which verify that the chaos tests themselves work."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.chaos.run import run
from tests.chaos.schedule import FULL, SLOW, draw
from tests.chaos.systems.log import LogSystem
from tests.chaos.systems.rocketmq import RocketMQSystem
from tests.chaos.systems.tubemq import TubeMQSystem
from tests.kit import java
from tests.kit.rocketmq import RocketMQ

SECONDS = 15
FAULTS = ("kill", "roll", "cut", "late", "burst", "grow", "move_running")
SWITCHES = ("pause_group", "refuse_target", "remake_topic", "lower_limit")
SLOW_SECONDS = 30
SLOW_FAULTS = ("restart_broker", "restart_during_pause", "pause_target", "roll")

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.thorough]


async def test_a_short_run_loses_nothing(rocketmq: RocketMQ, tmp_path: Path) -> None:
    java.build()
    drawn = (draw(seed, SECONDS, ("rocketmq-rocketmq",), FAULTS, FULL) for seed in itertools.count())
    schedule = next(schedule for schedule in drawn if {"kill", "cut"} <= {event.kind.name for event in schedule.events})
    result = await run(schedule, {"rocketmq": RocketMQSystem(rocketmq)}, tmp_path)
    assert not result.problems, "\n".join(result.lines())
    assert result.verdicts["rocketmq-rocketmq"].sent > 1000


async def test_switches_of_administrators_lose_nothing(rocketmq: RocketMQ, tmp_path: Path) -> None:
    java.build()
    drawn = (draw(seed, SECONDS, ("rocketmq-rocketmq",), SWITCHES, FULL) for seed in itertools.count())
    schedule = next(schedule for schedule in drawn if {event.kind.name for event in schedule.events[:2]} >= {"refuse_target"})
    result = await run(schedule, {"rocketmq": RocketMQSystem(rocketmq)}, tmp_path)
    assert not result.problems, "\n".join(result.lines())


async def test_slow_traffic_survives_restarts_of_the_broker_in_order(tmp_path: Path) -> None:
    java.build()
    schedule = draw(2, SLOW_SECONDS, ("tubemq-log",), SLOW_FAULTS, SLOW)
    assert {event.kind.name for event in schedule.events} >= {"restart_broker", "restart_during_pause"}
    tubemq, log = TubeMQSystem(), LogSystem()
    try:
        await asyncio.to_thread(tubemq.start)
        result = await run(schedule, {"tubemq": tubemq, "log": log}, tmp_path)
    finally:
        tubemq.kill()
        log.kill()
    assert not result.problems, "\n".join(result.lines())
    assert result.verdicts["tubemq-log"].sent > SLOW_SECONDS
