"""One attempt at a task: its identity in Spark, and functions that stop its work when a later attempt begins."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, NamedTuple, NoReturn, TypeVar

from pyspark import TaskContext

from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.sink.attempt_fence import CHECK_INTERVAL_S, AttemptFence
from mqbridge.spark.sink.checkpoint_files import CheckpointFiles

T = TypeVar("T")


class TaskId(NamedTuple):
    """The identity of an attempt at a task, as Spark numbers it.

    partition  number of the task among the tasks of its stage
    attempt    number of the attempt at the task in this stage, from 0
    id         Spark's unique id of the attempt
    batch      id of the streaming batch; None in a batch write
    query      id of the streaming query; None in a batch write
    """

    partition: int
    attempt: int
    id: int
    batch: int | None
    query: str | None

    @classmethod
    def current(cls) -> "TaskId":
        """Return the identity of the running attempt. Must be called in the thread in which Spark calls `write`."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls `write` only in tasks
        batch = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
            None if batch is None else int(batch),
            context.getLocalProperty("sql.streaming.queryId"),
        )


class CheckpointClaimFiles:
    """Stores claims, empty files by which attempts at a task learn of each other, in a query's checkpoint. May raise OSError."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files

    async def names(self, prefix: str) -> Collection[str]:
        """Return the names that begin with the prefix."""
        return await asyncio.to_thread(self._files.names, prefix)

    async def write(self, name: str) -> None:
        """Write an empty file."""
        await asyncio.to_thread(self._files.write, name, b"")


async def run_while_latest(fence: AttemptFence | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. If a later attempt begins, cancel the work and raise ClusterError.

    Raises OSError if the claims cannot be read. Without a fence (None), nothing cancels the work.
    """
    work_task: asyncio.Task[T] = spawn(work, "the work of a task", log_errors=False)
    watch_task = None if fence is None else spawn(raise_when_superseded(fence), "watching for later attempts", log_errors=False)
    try:
        await asyncio.wait([work_task] if watch_task is None else [work_task, watch_task], return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done() and watch_task is not None:
            watch_task.result()  # raises the error of the fence
        return await work_task
    finally:
        await cancel(work_task, watch_task)


async def raise_when_superseded(fence: AttemptFence) -> NoReturn:
    """Raise ClusterError when this attempt must stop, and OSError if the claims cannot be read."""
    while True:
        # `check` reads the claims only if CHECK_INTERVAL_S has passed since the last check, which a sender may have made. With a
        # pause of half that time, they are read at least every 1.5 intervals. A later attempt waits for 2 before it sends.
        await asyncio.sleep(CHECK_INTERVAL_S / 2)
        await fence.check()
