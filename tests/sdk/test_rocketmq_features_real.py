"""The programs of tests/sdk/rocketmq_features reach the expected outcomes with a real broker, so they may judge other servers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.kit.rocketmq import RocketMQ
from tests.sdk.rocketmq_features import LANGUAGES, SMOKE_TESTED, TOPICS, features_of, missing, wrong_outcomes

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(600)]


def thorough() -> list[Any]:
    return [pytest.param(language, topic, marks=pytest.mark.thorough) for language, topic in itertools.product(LANGUAGES, TOPICS)]


@pytest.mark.parametrize(("language", "topic"), [(LANGUAGES[0], "smoke"), *thorough()])
async def test_a_real_broker_gives_the_expected_outcomes(language: str, topic: str, rocketmq: RocketMQ) -> None:
    if reason := missing(language):
        pytest.skip(reason)

    async def create_topic(name: str, queues: int) -> None:
        await asyncio.to_thread(rocketmq.create_topic, name, queues)

    async def create_group(name: str) -> None:
        await create_topic(f"%RETRY%{name}", 1)

    features = SMOKE_TESTED if topic == "smoke" else features_of(language, topic)
    settings = {"create_topic": create_topic, "create_group": create_group}
    assert await wrong_outcomes(features, language, rocketmq.name_server, **settings) == {}
