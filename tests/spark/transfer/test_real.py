"""Attempts of one task against a real Pulsar: killed, and beside one that was believed dead; each message is stored once."""

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
from tests.spark.load import Place, Tally, arrived
from tests.spark.mirror_runs import target_place
from tests.spark.transfer_program import message

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

MESSAGES = 20_000
LIMIT_S = 120.0


@contextmanager
def attempt(target: Place, which: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = target.settings
    argv = [settings["service_url"], settings["admin_url"], target.topic, str(MESSAGES), which]
    with subprocess.Popen([sys.executable, "-m", "tests.spark.transfer_program", *argv], cwd=REPOSITORY) as process:
        guard().process(process.pid)
        try:
            yield process
        finally:
            process.kill()


async def stored(target: Place, least: int) -> None:
    """Wait until the target has so many messages."""
    async with asyncio.timeout(LIMIT_S):
        while (await arrived(target))[0].count < least:
            await asyncio.sleep(0.01)


async def assert_once(target: Place) -> None:
    sent = Tally()
    for number in range(MESSAGES):
        one = message(number)
        sent.add(one.payload or b"", str(number))
    found = (await arrived(target))[0]
    assert not found.wrong
    assert (found.repeated, found.count, found.checksum) == (0, sent.count, sent.checksum)


@pytest.mark.parametrize("end", ["killed", "believed dead"])
async def test_the_next_attempt_goes_on_where_one_got_to(pulsar: Pulsar, end: str) -> None:
    target = target_place(pulsar, f"attempts-{time.time_ns()}")
    with ExitStack() as stack:
        for number, which in enumerate(["first", "again"]):
            process = stack.enter_context(attempt(target, which))
            await stored(target, MESSAGES // 4 * (number + 1))
            if end == "killed":
                process.kill()
        last = stack.enter_context(attempt(target, "again"))
        assert await asyncio.to_thread(last.wait, LIMIT_S) == 0
    await assert_once(target)
