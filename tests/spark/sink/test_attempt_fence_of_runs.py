"""Only attempts of the latest run continue, even if that run divides the batch among tasks differently."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from mqbridge.errors import ClusterError
from mqbridge.spark.sink import attempt_fence
from mqbridge.spark.sink.attempt_fence import Attempt, AttemptFence


class MemoryFiles:
    """Claim files in memory."""

    def __init__(self) -> None:
        self.file_names: list[str] = []

    async def names(self, prefix: str) -> Collection[str]:
        return [name for name in self.file_names if name.startswith(prefix)]

    async def write(self, name: str) -> None:
        self.file_names.append(name)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let repeated attempts begin at once, and every check read the claims."""
    monkeypatch.setattr(attempt_fence, "CHECK_INTERVAL_S", 0.0)


async def test_tasks_of_one_run_do_not_fence_each_other() -> None:
    files = MemoryFiles()
    first, second = (AttemptFence(files, 7, task, Attempt(1, task)) for task in (0, 1))
    assert not await first.begin()
    assert not await second.begin()
    await first.check()
    await second.check()


async def test_a_later_attempt_at_a_task_stops_the_earlier_one() -> None:
    files = MemoryFiles()
    first, later = (AttemptFence(files, 7, 0, Attempt(1, number)) for number in (3, 5))
    assert not await first.begin()
    assert await later.begin()
    await later.check()
    with pytest.raises(ClusterError, match="a later attempt"):
        await first.check()


async def test_a_later_run_with_fewer_tasks_stops_all_tasks_of_the_earlier_run() -> None:
    files = MemoryFiles()
    first_run = [AttemptFence(files, 7, task, Attempt(1, task)) for task in range(4)]
    for fence in first_run:
        assert not await fence.begin()
    assert await AttemptFence(files, 7, 0, Attempt(2, 9)).begin()
    for fence in first_run:
        with pytest.raises(ClusterError, match="a later attempt"):
            await fence.check()


async def test_in_a_later_run_with_more_tasks_all_tasks_count_as_repeated() -> None:
    files = MemoryFiles()
    assert not await AttemptFence(files, 7, 0, Attempt(1, 0)).begin()
    second_run = [AttemptFence(files, 7, task, Attempt(2, 4 + task)) for task in range(4)]
    for fence in second_run:
        assert await fence.begin()
    for fence in second_run:
        await fence.check()
    assert not await AttemptFence(files, 70, 0, Attempt(1, 0)).begin()


async def test_only_the_first_of_many_tasks_waits_for_the_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    files = MemoryFiles()
    assert not await AttemptFence(files, 7, 0, Attempt(1, 0)).begin()
    monkeypatch.setattr(attempt_fence.asyncio, "sleep", sleep)
    for task in range(8):
        assert await AttemptFence(files, 7, task, Attempt(2, task)).begin()
    assert len(waits) == 1
    assert await AttemptFence(files, 7, 3, Attempt(2, 9)).begin()
    assert len(waits) == 2, "a task waits for an earlier attempt of its own run"
    assert await AttemptFence(files, 7, 3, Attempt(3, 10)).begin()
    assert len(waits) == 3, "a third run waits again"


async def test_an_attempt_stops_when_its_batch_is_committed() -> None:
    files = MemoryFiles()
    fence = AttemptFence(files, 7, 0, Attempt(1, 0))
    assert not await fence.begin()
    files.file_names.clear()
    with pytest.raises(ClusterError, match="is committed, so this attempt at task 0 stops"):
        await fence.check()
