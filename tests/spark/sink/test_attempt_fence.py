"""Attempts at one task: an earlier attempt never sends after a later one has sent, even if one of them is slow."""

import asyncio
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.sink.attempt_fence import CHECK_INTERVAL_S, WAIT_INTERVALS, Attempt, AttemptFence, batch_of_claim
from mqbridge.spark.sink.task_attempt import run_while_latest
from tests.spark.transfer.flaky import run_in_virtual_time


class SlowFiles:
    """Claim files in memory, with a delay for each request. `listings` counts the calls of `names`."""

    def __init__(self, delay_s: float = 0.1) -> None:
        self.file_names: set[str] = set()
        self.listings = 0
        self._delay_s = delay_s

    async def names(self, prefix: str) -> Collection[str]:
        self.listings += 1
        await asyncio.sleep(self._delay_s)
        return [name for name in self.file_names if name.startswith(prefix)]

    async def write(self, name: str) -> None:
        await asyncio.sleep(self._delay_s)
        self.file_names.add(name)


def now() -> float:
    """Return the virtual time in seconds since the test began."""
    return asyncio.get_running_loop().time()


def test_the_first_attempt_does_not_wait_and_lists_claims_once_per_interval() -> None:
    async def run() -> None:
        files = SlowFiles()
        fence = AttemptFence(files, 5, 1, Attempt(1, 70))
        assert await fence.begin() is False
        assert now() < 1
        assert files.file_names == {"claim-5-1.1-70"}
        listings = files.listings
        for _ in range(1000):
            await fence.check()
        assert files.listings == listings
        await asyncio.sleep(CHECK_INTERVAL_S)
        await asyncio.gather(*(fence.check() for _ in range(10)))
        assert files.listings == listings + 1

    run_in_virtual_time(run)


def test_claims_of_other_tasks_and_batches_are_ignored() -> None:
    async def run() -> None:
        files = SlowFiles()
        files.file_names = {"claim-5-11.1-1", "claim-51-1.1-1", "claim-6-1.9-9"}
        assert await AttemptFence(files, 5, 1, Attempt(1, 70)).begin() is False

    run_in_virtual_time(run)


@pytest.mark.parametrize("later", [Attempt(1, 71), Attempt(2, 3)])
def test_the_later_attempt_stops_the_earlier_one_and_not_vice_versa(later: Attempt) -> None:
    async def run() -> None:
        files = SlowFiles()
        first, second = AttemptFence(files, 5, 1, Attempt(1, 70)), AttemptFence(files, 5, 1, later)
        assert await first.begin() is False
        began = now()
        assert await second.begin() is True
        assert now() - began >= CHECK_INTERVAL_S * WAIT_INTERVALS
        with pytest.raises(ClusterError, match="a later attempt at task 1 of batch 5, or a later run of this batch, has begun"):
            await first.check()
        await asyncio.sleep(CHECK_INTERVAL_S)
        await second.check()
        with pytest.raises(ClusterError, match="a later attempt"):
            await AttemptFence(files, 5, 1, Attempt(1, 60)).begin()

    run_in_virtual_time(run)


def test_an_attempt_that_was_frozen_until_its_batch_was_committed_stops() -> None:
    """The driver removes the claims of committed batches."""

    async def run() -> None:
        files = SlowFiles()
        first = AttemptFence(files, 5, 1, Attempt(1, 70))
        await first.begin()
        await AttemptFence(files, 5, 1, Attempt(1, 71)).begin()
        files.file_names.clear()
        await asyncio.sleep(CHECK_INTERVAL_S)
        with pytest.raises(ClusterError, match="batch 5 is committed"):
            await first.check()

    run_in_virtual_time(run)


def test_work_that_sends_nothing_is_cancelled_in_time_even_with_slow_files() -> None:
    """The work checks the claims so late that the watch's next check does nothing. Only the check after that finds the claim."""

    async def run() -> None:
        files = SlowFiles()

        class SlowerFiles(SlowFiles):
            async def names(self, prefix: str) -> Collection[str]:
                names = await files.names(prefix)
                await asyncio.sleep(2.0)
                return names

        files.file_names.add("claim-5-1.1-70")
        first = AttemptFence(SlowerFiles(), 5, 1, Attempt(1, 70))
        await asyncio.sleep(CHECK_INTERVAL_S)
        ended_at: list[float] = []

        async def work() -> None:
            try:
                await asyncio.sleep(0.01)
                await first.check()
                await asyncio.sleep(3600)
            finally:
                ended_at.append(now())

        work_task = spawn(run_while_latest(first, work()), "work", log_errors=False)
        await asyncio.sleep(0.2)
        await AttemptFence(files, 5, 1, Attempt(1, 71)).begin()
        later_attempt_began_at = now()
        with pytest.raises(ClusterError, match="a later attempt"):
            await work_task
        assert ended_at[0] < later_attempt_began_at

    run_in_virtual_time(run)


def test_work_is_cancelled_when_a_later_attempt_begins() -> None:
    async def run() -> None:
        files = SlowFiles()
        first = AttemptFence(files, 5, 1, Attempt(1, 70))
        await first.begin()
        has_ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                has_ended.set()

        work_task = spawn(run_while_latest(first, work()), "work", log_errors=False)
        await asyncio.sleep(1)
        await AttemptFence(files, 5, 1, Attempt(1, 71)).begin()
        with pytest.raises(ClusterError, match="a later attempt"):
            await work_task
        assert has_ended.is_set()

        async def return_at_once() -> int:
            return 7

        assert await run_while_latest(first, return_at_once()) == await run_while_latest(None, return_at_once()) == 7

    run_in_virtual_time(run)


@given(
    begins=st.lists(st.floats(0, 60), min_size=2, max_size=4),
    pauses=st.lists(st.floats(0, 40), min_size=1, max_size=8),
    delay=st.floats(0, 1),
)
def test_after_a_later_attempt_has_sent_no_earlier_one_sends(begins: list[float], pauses: list[float], delay: float) -> None:
    """Attempts send as soon as they may, with pauses of any length."""

    async def run() -> None:
        files, sent = SlowFiles(delay), list[int]()

        async def attempt(number: int, begin: float) -> None:
            await asyncio.sleep(begin)
            fence = AttemptFence(files, 0, 0, Attempt(1, number))
            try:
                await fence.begin()
                for pause in pauses * 3:
                    await asyncio.sleep(pause / 4)
                    await fence.check()
                    sent.append(number)
            except ClusterError:
                return

        tasks = [spawn(attempt(number, begin), "attempt") for number, begin in enumerate(sorted(begins))]
        try:
            await asyncio.wait(tasks)
        finally:
            await cancel(*tasks)
        assert sent == sorted(sent)
        assert sent.count(len(begins) - 1) == len(pauses) * 3

    run_in_virtual_time(run)


@pytest.mark.parametrize("name", ["claim-5-1", "claim-5-x.1-70", "claim-5-1.²-70", "claim-5-" + "9" * 5000 + ".1-1"])
def test_other_files_are_no_claims(name: str) -> None:
    async def run() -> None:
        files = SlowFiles()
        files.file_names.add(name)
        assert await AttemptFence(files, 5, 1, Attempt(1, 70)).begin() is False

    run_in_virtual_time(run)


def test_the_batch_of_a_claim() -> None:
    assert batch_of_claim("claim-5-1.1-70") == 5
    assert [batch_of_claim(name) for name in ("claim-x-1", "claim-", "claim-²-1", "claim-" + "9" * 5000)] == [None] * 4
