"""Two attempts at one task never send at the same time, however slow one of them is."""

import asyncio
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.sink.attempt_fence import INTERVAL_S, WAIT_INTERVALS, Attempt, Claims
from mqbridge.spark.sink.task_attempt import run_while_latest
from tests.spark.transfer.flaky import run_in_virtual_time


class Files:
    """Names in memory; asking takes a moment."""

    def __init__(self, delay_s: float = 0.1) -> None:
        self.found: set[str] = set()
        self.asked = 0
        self._delay_s = delay_s

    async def names(self, prefix: str) -> Collection[str]:
        self.asked += 1
        await asyncio.sleep(self._delay_s)
        return [name for name in self.found if name.startswith(prefix)]

    async def write(self, name: str) -> None:
        await asyncio.sleep(self._delay_s)
        self.found.add(name)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_attempt_waits_for_nothing_and_asks_seldom() -> None:
    async def run() -> None:
        files = Files()
        claims = Claims(files, 5, 1, Attempt(1, 70))
        assert await claims.begin() is False
        assert now() < 1
        assert files.found == {"claim-5-1.1-70"}
        asked = files.asked
        for _ in range(1000):
            await claims.check()
        assert files.asked == asked
        await asyncio.sleep(INTERVAL_S)
        await asyncio.gather(*(claims.check() for _ in range(10)))
        assert files.asked == asked + 1

    run_in_virtual_time(run)


def test_attempts_at_other_tasks_and_batches_are_not_its_own() -> None:
    async def run() -> None:
        files = Files()
        files.found = {"claim-5-11.1-1", "claim-51-1.1-1", "claim-6-1.9-9"}
        assert await Claims(files, 5, 1, Attempt(1, 70)).begin() is False

    run_in_virtual_time(run)


@pytest.mark.parametrize("later", [Attempt(1, 71), Attempt(2, 3)])
def test_a_later_attempt_stops_the_earlier_one_and_never_the_other_way_round(later: Attempt) -> None:
    async def run() -> None:
        files = Files()
        first, second = Claims(files, 5, 1, Attempt(1, 70)), Claims(files, 5, 1, later)
        assert await first.begin() is False
        began = now()
        assert await second.begin() is True
        assert now() - began >= INTERVAL_S * WAIT_INTERVALS
        with pytest.raises(ClusterError, match="another attempt at claim-5-1 has begun"):
            await first.check()
        await asyncio.sleep(INTERVAL_S)
        await second.check()
        with pytest.raises(ClusterError, match="another attempt"):
            await Claims(files, 5, 1, Attempt(1, 60)).begin()

    run_in_virtual_time(run)


def test_an_attempt_that_was_frozen_until_its_batch_was_committed_stops() -> None:
    """The driver removes the claims of batches that are committed."""

    async def run() -> None:
        files = Files()
        first = Claims(files, 5, 1, Attempt(1, 70))
        await first.begin()
        await Claims(files, 5, 1, Attempt(1, 71)).begin()
        files.found.clear()
        await asyncio.sleep(INTERVAL_S)
        with pytest.raises(ClusterError, match="is done"):
            await first.check()

    run_in_virtual_time(run)


def test_work_that_sends_no_more_batches_is_watched_in_time_however_slow_the_folder_is() -> None:
    """Its last look was not when the watch wanted to look, but just after it."""

    async def run() -> None:
        files = Files()

        class Slow(Files):
            async def names(self, prefix: str) -> Collection[str]:
                found = await files.names(prefix)
                await asyncio.sleep(2.0)
                return found

        files.found.add("claim-5-1.1-70")
        first = Claims(Slow(), 5, 1, Attempt(1, 70))
        await asyncio.sleep(INTERVAL_S)
        ended: list[float] = []

        async def work() -> None:
            try:
                await asyncio.sleep(0.01)
                await first.check()
                await asyncio.sleep(3600)
            finally:
                ended.append(now())

        working = spawn(run_while_latest(first, work()), "work", quiet=True)
        await asyncio.sleep(0.2)
        await Claims(files, 5, 1, Attempt(1, 71)).begin()
        began = now()
        with pytest.raises(ClusterError, match="another attempt"):
            await working
        assert ended[0] < began

    run_in_virtual_time(run)


def test_work_is_cancelled_when_a_later_attempt_begins() -> None:
    async def run() -> None:
        files = Files()
        first = Claims(files, 5, 1, Attempt(1, 70))
        await first.begin()
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        working = spawn(run_while_latest(first, work()), "work", quiet=True)
        await asyncio.sleep(1)
        await Claims(files, 5, 1, Attempt(1, 71)).begin()
        with pytest.raises(ClusterError, match="another attempt"):
            await working
        assert ended.is_set()

        async def soon() -> int:
            return 7

        assert await run_while_latest(first, soon()) == await run_while_latest(None, soon()) == 7

    run_in_virtual_time(run)


@given(
    begins=st.lists(st.floats(0, 60), min_size=2, max_size=4),
    pauses=st.lists(st.floats(0, 40), min_size=1, max_size=8),
    delay=st.floats(0, 1),
)
def test_no_two_attempts_send_in_turn(begins: list[float], pauses: list[float], delay: float) -> None:
    """Attempts send whenever they may, with pauses of any length; once a later one has sent, no earlier one does."""

    async def run() -> None:
        files, sent = Files(delay), list[int]()

        async def attempt(number: int, begin: float) -> None:
            await asyncio.sleep(begin)
            claims = Claims(files, 0, 0, Attempt(1, number))
            try:
                await claims.begin()
                for pause in pauses * 3:
                    await asyncio.sleep(pause / 4)
                    await claims.check()
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
