"""The systems of a run, by the names of their clusters."""

from __future__ import annotations

from tests.chaos.systems.listener import (
    LogAtListener,
    LogAtRocketMQListener,
    LogOwnListener,
    RocketMQAtListener,
    RocketMQAtRocketMQListener,
)
from tests.chaos.systems.log import LogSystem
from tests.chaos.systems.pulsar import PulsarSystem
from tests.chaos.systems.rocketmq import RocketMQSystem
from tests.chaos.systems.system import System
from tests.chaos.systems.tubemq import TubeMQSystem, TubeMQTarget

SYSTEMS: dict[str, type[System]] = {
    each.name: each
    for each in (
        TubeMQSystem,
        TubeMQTarget,
        PulsarSystem,
        RocketMQSystem,
        LogSystem,
        LogAtListener,
        LogOwnListener,
        RocketMQAtListener,
        LogAtRocketMQListener,
        RocketMQAtRocketMQListener,
    )
}
