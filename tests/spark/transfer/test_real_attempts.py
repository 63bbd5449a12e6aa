"""Attempts of one task against a real Pulsar, after a killed attempt or beside a running one: each message is stored once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.kit.guard import guard
from tests.kit.pulsar import Pulsar
from tests.kit.spark import REPOSITORY
from tests.spark.load import SentMessages, TopicRef, read_topic
from tests.spark.mirror_runs import new_target_topic
from tests.spark.transfer_program import message

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

MESSAGES = 20_000
LIMIT_S = 120.0


@contextmanager
def run_attempt(target: TopicRef, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = target.settings
    argv = [settings["service_url"], settings["admin_url"], target.name, str(MESSAGES), mode]
    with subprocess.Popen([sys.executable, "-m", "tests.spark.transfer_program", *argv], cwd=REPOSITORY) as process:
        guard().process(process.pid)
        try:
            yield process
        finally:
            process.kill()


async def wait_until_stored(target: TopicRef, min_messages: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await read_topic(target))[0].count < min_messages:
            await asyncio.sleep(0.01)


async def assert_each_stored_once(target: TopicRef) -> None:
    sent = SentMessages()
    for number in range(MESSAGES):
        sent.add(message(number).payload or b"", str(number))
    stored = (await read_topic(target))[0]
    assert not stored.errors
    assert (stored.repeated, stored.count, stored.checksum) == (0, sent.count, sent.checksum)


@pytest.mark.parametrize("earlier_attempts", ["killed", "still running"])
async def test_an_attempt_continues_where_an_earlier_one_stopped(pulsar: Pulsar, earlier_attempts: str) -> None:
    target = new_target_topic(pulsar, f"attempts-{time.time_ns()}")
    with ExitStack() as stack:
        for number, mode in enumerate(["first", "again"]):
            process = stack.enter_context(run_attempt(target, mode))
            await wait_until_stored(target, MESSAGES // 4 * (number + 1))
            if earlier_attempts == "killed":
                process.kill()
        last = stack.enter_context(run_attempt(target, "again"))
        assert await asyncio.to_thread(last.wait, LIMIT_S) == 0
    await assert_each_stored_once(target)
