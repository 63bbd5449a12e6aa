"""One attempt at a task: what of it may be stored already, and its claim."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, NamedTuple, NoReturn, TypeVar

from pyspark import TaskContext

from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.sink.attempt_fence import INTERVAL_S, Claims
from mqbridge.spark.sink.checkpoint_files import Folder

T = TypeVar("T")


class TaskId(NamedTuple):
    """What Spark says of the attempt that this process makes now; to be asked for in the thread that Spark calls."""

    partition: int
    attempt: int
    id: int
    batch: int | None
    """None outside of streams."""
    query: str | None

    @classmethod
    def current(cls) -> "TaskId":
        """The one that runs."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls `write` in tasks only
        batch = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
            None if batch is None else int(batch),
            context.getLocalProperty("sql.streaming.queryId"),
        )


class FolderClaims:
    """Claims in the folder of a query."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    async def names(self, prefix: str) -> Collection[str]:
        """Those that begin so."""
        return await asyncio.to_thread(self._folder.names, prefix)

    async def write(self, name: str) -> None:
        """Make one."""
        await asyncio.to_thread(self._folder.write, name, b"")


async def run_while_latest(claims: Claims | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; it is cancelled when a later attempt begins, which is raised (ClusterError)."""
    working: asyncio.Task[T] = spawn(work, "the work of a task", quiet=True)
    watch = None if claims is None else spawn(raise_when_superseded(claims), "later attempts", quiet=True)
    try:
        await asyncio.wait([working] if watch is None else [working, watch], return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and watch is not None:
            watch.result()
        return await working
    finally:
        await cancel(working, watch)


async def raise_when_superseded(claims: Claims) -> NoReturn:
    """Raise ClusterError when a later attempt begins."""
    while True:
        await asyncio.sleep(INTERVAL_S / 2)  # somebody else may have looked in between: then it is not due yet
        await claims.check()
