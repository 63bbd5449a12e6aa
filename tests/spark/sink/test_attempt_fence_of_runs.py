"""Only the last attempt at what a task does goes on, also when the next run divides the batch among tasks in another way."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mqbridge.errors import ClusterError
from mqbridge.spark.sink import attempt_fence as module
from mqbridge.spark.sink.attempt_fence import Attempt, Claims


class Files:
    """Claims in memory."""

    def __init__(self) -> None:
        self.found: list[str] = []

    async def names(self, prefix: str) -> Collection[str]:
        return [name for name in self.found if name.startswith(prefix)]

    async def write(self, name: str) -> None:
        self.found.append(name)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)


async def test_tasks_of_one_run_are_nothing_to_each_other() -> None:
    files = Files()
    first, second = (Claims(files, 7, task, Attempt(1, task)) for task in (0, 1))
    assert not await first.begin()
    assert not await second.begin()
    await first.check()
    await second.check()


async def test_a_later_attempt_at_a_task_stops_the_earlier_one() -> None:
    files = Files()
    first, again = (Claims(files, 7, 0, Attempt(1, number)) for number in (3, 5))
    assert not await first.begin()
    assert await again.begin()
    await again.check()
    with pytest.raises(ClusterError, match="another attempt"):
        await first.check()


async def test_a_later_run_with_fewer_tasks_stops_all_of_the_earlier_one() -> None:
    files = Files()
    before = [Claims(files, 7, task, Attempt(1, task)) for task in range(4)]
    for one in before:
        assert not await one.begin()
    assert await Claims(files, 7, 0, Attempt(2, 9)).begin()
    for one in before:
        with pytest.raises(ClusterError, match="another attempt"):
            await one.check()


async def test_a_later_run_with_more_tasks_waits_in_all_of_them() -> None:
    files = Files()
    assert not await Claims(files, 7, 0, Attempt(1, 0)).begin()
    after = [Claims(files, 7, task, Attempt(2, 4 + task)) for task in range(4)]
    for one in after:
        assert await one.begin()
    for one in after:
        await one.check()
    assert not await Claims(files, 70, 0, Attempt(1, 0)).begin()


async def test_many_tasks_wait_once_for_the_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    files = Files()
    assert not await Claims(files, 7, 0, Attempt(1, 0)).begin()
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    for task in range(8):
        assert await Claims(files, 7, task, Attempt(2, task)).begin()
    assert len(waits) == 1
    assert await Claims(files, 7, 3, Attempt(2, 9)).begin()
    assert len(waits) == 2, "an earlier attempt of the same run is waited for"
    assert await Claims(files, 7, 3, Attempt(3, 10)).begin()
    assert len(waits) == 3, "another run waits anew"


async def test_an_attempt_at_a_batch_that_is_done_stops() -> None:
    files = Files()
    late = Claims(files, 7, 0, Attempt(1, 0))
    assert not await late.begin()
    files.found.clear()
    with pytest.raises(ClusterError, match="claim-7-0 is done"):
        await late.check()
