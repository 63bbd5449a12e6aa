"""Writes the rows of one task, with one concurrent transfer for each pair of source partition and target topic."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import NO_SOURCE, Batch
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn
from mqbridge.spark.sink.rows import Stream
from mqbridge.spark.sink.settings import SinkSettings
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay
from mqbridge.spark.transfer.targets import FindCluster
from mqbridge.spark.transfer.transfer import Transfer

MAX_STREAMS = 64
"""Maximum number of open transfers of one task: each writes one `Stream`, a pair of source partition and target topic.

To open another one, the task first finishes the least recently used one.
"""

Gate = Callable[[], Awaitable[None]]
"""Awaited before each batch is sent. Raises if this task must stop sending, because a later attempt has replaced it."""
Watch = Callable[[], Coroutine[Any, Any, None]]
"""Runs concurrently with the transfers, and raises for the same reason.

The gate alone is not enough: a batch that has passed it may wait long for its target, and may be sent again.
"""


@dataclass(slots=True)
class TaskResult:
    """The result of a task, for the driver."""

    counts: Counts = field(default_factory=Counts)
    streams: set[tuple[str, str | None]] = field(default_factory=set)
    """The streams that the task wrote: source partition as text (as in the column `source`), and `Stream.topic`, which is None if
    the settings name the target topic."""


class _BatchQueue:
    """The queue of batches from the task to one transfer. All queues of the task share the budget, which limits their bytes."""

    def __init__(self, budget: Budget, gate: Gate) -> None:
        self._budget, self._gate = budget, gate
        self._batches: deque[Batch | None] = deque()
        """None marks the end."""
        self._not_empty = asyncio.Event()
        self._is_closed = False

    async def put(self, batch: Batch) -> None:
        """Wait for budget and append the batch. Drops the batch if the queue is closed."""
        await self._budget.reserve(batch.held_bytes)
        if self._is_closed:
            self._budget.release(batch.held_bytes)
            return
        self._batches.append(batch)
        self._not_empty.set()

    def end(self) -> None:
        """Mark the end of the batches."""
        self._batches.append(None)
        self._not_empty.set()

    def close(self) -> None:
        """Drop all batches: the transfer reads no more."""
        self._is_closed = True
        while self._batches:
            if (batch := self._batches.popleft()) is not None:
                self._budget.release(batch.held_bytes)

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield the batches until the end. Awaits the gate, which raises if the task must stop, before each batch and the end."""
        while True:
            while not self._batches:
                self._not_empty.clear()
                await self._not_empty.wait()
            await self._gate()
            if (batch := self._batches.popleft()) is None:
                return
            self._budget.release(batch.held_bytes)
            yield batch


class TaskWriter:
    """Writes the rows of one task: call `write` for the rows, then `finish`, and at the end always `abort`.

    job     name of the job, the same in every attempt; part of the producer names for deduplication
    replay  the positions in the target from which messages of the task may be stored already; None: none is stored
    gate    None: every batch may be sent
    watch   None: nothing stops the task from outside

    Runs on the background event loop.
    """

    def __init__(
        self,
        settings: SinkSettings,
        job: str,
        find_cluster: FindCluster,
        replay: Replay | None,
        gate: Gate | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._settings, self._job = settings, job
        self._find_cluster, self._replay = find_cluster, replay
        self._gate, self._watch = gate or _always_allow, watch
        self._watch_task: asyncio.Task[None] | None = None
        delivery = settings.spec.delivery
        self._send_budget, self._queue_budget = Budget(delivery.sending_bytes), Budget(delivery.read_ahead_bytes)
        self._transfers: dict[Stream, tuple[_BatchQueue, asyncio.Task[Counts]]] = {}
        """The open transfers, least recently used first."""
        self._created_topics: set[str] = set()
        """Target topics that this task has created, or has found to exist."""
        self._result = TaskResult()
        self._error: BaseException | None = None
        """The first error of a transfer or of the watch."""

    async def write(self, batches: Iterable[tuple[Stream, Batch]]) -> None:
        """Queue the batches for their transfers, and wait while the queues are full.

        Raises the first error of a transfer or the watch, and the error of creating a target topic.
        """
        if self._watch is not None and self._watch_task is None:
            self._watch_task = spawn(self._run_watch(self._watch), "watching for later attempts")
        for stream, batch in batches:
            self._raise_first_error()
            if (transfer := self._transfers.pop(stream, None)) is None:
                while len(self._transfers) >= MAX_STREAMS:
                    await self._finish_least_recent()
                transfer = await self._open_transfer(stream)
            self._transfers[stream] = transfer
            queue, _ = transfer
            await queue.put(batch)
        self._raise_first_error()

    async def finish(self) -> TaskResult:
        """Wait until everything is stored, and return the result. Raises the first error of a transfer or the watch."""
        for queue, _ in self._transfers.values():
            queue.end()
        if self._transfers:  # the first error is raised at once, even if other transfers still retry
            await asyncio.wait([task for _, task in self._transfers.values()], return_when=asyncio.FIRST_EXCEPTION)
        self._raise_first_error()
        while self._transfers:
            await self._finish_least_recent()
        return self._result

    async def abort(self) -> None:
        """Cancel the open transfers (none after `finish`) and the watch. Messages that were sent may be stored."""
        transfers, self._transfers = self._transfers, {}
        await cancel(self._watch_task, *(task for _, task in transfers.values()))

    async def _run_watch(self, watch: Watch) -> None:
        """Run the watch, and cancel all transfers if it raises."""
        try:
            await watch()
        except Exception as error:  # noqa: BLE001 - `write` and `finish` raise it
            self._error = self._error or error
            await cancel(*(task for _, task in self._transfers.values()))

    def _raise_first_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _finish_least_recent(self) -> None:
        """Wait until the least recently used transfer has stored everything, and add its counts. Raises the first error."""
        stream = next(iter(self._transfers))
        queue, task = self._transfers[stream]
        queue.end()
        await asyncio.wait([task])
        self._raise_first_error()
        del self._transfers[stream]
        self._result.counts.add(task.result())

    async def _open_transfer(self, stream: Stream) -> tuple[_BatchQueue, asyncio.Task[Counts]]:
        """Start the transfer of a stream, and return its queue and its task."""
        spec = self._settings.spec if stream.topic is None else self._settings.spec.with_topic(stream.topic)
        await self._create_topics(spec.targets[0].topic)
        if stream.source is not NO_SOURCE:
            self._result.streams.add(stream.label)
        queue = _BatchQueue(self._queue_budget, self._gate)
        transfer = Transfer(
            spec,
            stream.source,
            self._job,
            cluster=stream.cluster,
            find_cluster=self._find_cluster,
            replay=self._replay,
            budget=self._send_budget,
        )
        self._raise_first_error()
        task = spawn(self._run_transfer(transfer, queue), f"writing {stream.source} to {stream.topic}", log_errors=False)
        task.add_done_callback(mark_error_retrieved)  # the error is in `_error`; after `abort` it is not needed
        return queue, task

    async def _run_transfer(self, transfer: Transfer, queue: _BatchQueue) -> Counts:
        try:
            return await transfer.run(queue.batches())
        except Exception as error:
            self._error = self._error or error
            raise
        finally:
            queue.close()

    async def _create_topics(self, topic: str) -> None:
        """With the option createTopics, create the target topic and the dead-letter topic if they are missing.

        An empty `topic` means that the rows name none: the transfer refuses them.
        """
        partitions = self._settings.create_partitions
        if partitions is None or not topic or topic in self._created_topics:
            return
        spec = self._settings.spec
        dead_letter = spec.delivery.dead_letter
        async with self._find_cluster(spec.clusters[spec.targets[0].cluster]) as cluster:
            await _create_if_missing(cluster, topic, partitions)
            if dead_letter is not None:
                await _create_if_missing(cluster, dead_letter.topic, 1)
        self._created_topics.add(topic)


async def _create_if_missing(cluster: Cluster, topic: str, partitions: int) -> None:
    if await cluster.describe(topic) is None:
        await cluster.create(topic, partitions)


async def _always_allow() -> None:
    """Allow every send: the gate of an attempt that is not fenced."""
