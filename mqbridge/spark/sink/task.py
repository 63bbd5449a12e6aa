"""Writes the rows of one task: a transfer for each of its source partitions and topics, side by side."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import NO_SOURCE, Batch
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, collect_error, spawn
from mqbridge.spark.schema import format_source
from mqbridge.spark.sink.rows import Stream
from mqbridge.spark.sink.settings import SinkSettings
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay
from mqbridge.spark.transfer.targets import FindCluster
from mqbridge.spark.transfer.transfer import Transfer

MAX_STREAMS = 64
"""Transfers of one task that are open at once, each with its outbounds; the one that had no rows for longest makes room."""

Gate = Callable[[], Awaitable[None]]
"""Waited for before each batch is sent; raises when this task is not to send any more."""
Watch = Callable[[], Coroutine[Any, Any, None]]
"""Runs beside all of it, and raises likewise: what has passed the gate may wait for its target for long, and be sent again."""


@dataclass(slots=True)
class TaskResult:
    """What a task wrote. `streams` are its source partitions (as in the column) and topics."""

    counts: Counts = field(default_factory=Counts)
    streams: set[tuple[str, str | None]] = field(default_factory=set)


class _Feed:
    """The batches of one transfer: put by the task, taken by the transfer. Holds no more bytes than its budget has."""

    def __init__(self, ahead: Budget, gate: Gate) -> None:
        self._ahead, self._gate = ahead, gate
        self._batches: deque[Batch | None] = deque()
        self._filled = asyncio.Event()
        self._is_closed = False

    async def put(self, batch: Batch) -> None:
        """Wait for room, and put it."""
        await self._ahead.take(batch.held_bytes)
        if self._is_closed:
            self._ahead.give(batch.held_bytes)
            return
        self._batches.append(batch)
        self._filled.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._batches.append(None)
        self._filled.set()

    def close(self) -> None:
        """Nobody takes any more."""
        self._is_closed = True
        while self._batches:
            if (batch := self._batches.popleft()) is not None:
                self._ahead.give(batch.held_bytes)

    async def batches(self) -> AsyncIterator[Batch]:
        """What is put, to the end."""
        while True:
            while not self._batches:
                self._filled.clear()
                await self._filled.wait()
            await self._gate()
            if (batch := self._batches.popleft()) is None:
                return
            self._ahead.give(batch.held_bytes)
            yield batch


class TaskWriter:
    """One task. `take` its rows, then `finish`; or `abort`. On the background event loop only.

    `replay` is given where some of it may be stored already.
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
        self._settings, self._job, self._find_cluster, self._replay = settings, job, find_cluster, replay
        self._gate, self._watch = gate or _open_gate, watch
        self._watching: asyncio.Task[None] | None = None
        delivery = settings.spec.delivery
        self._budget, self._ahead = Budget(delivery.sending_bytes), Budget(delivery.read_ahead_bytes)
        self._open: dict[Stream, tuple[_Feed, asyncio.Task[Counts]]] = {}
        """The one that had no rows for longest first."""
        self._made: set[str] = set()
        self._result = TaskResult()
        self._error: BaseException | None = None

    async def take(self, batches: Iterable[tuple[Stream, Batch]]) -> None:
        """Write these, some time; waits while too much is not written yet. Raises what the transfers raise."""
        if self._watch is not None and self._watching is None:
            self._watching = spawn(self._stop_when_told(self._watch), "later attempts")
        for stream, batch in batches:
            self._check()
            if (opened := self._open.pop(stream, None)) is None:
                while len(self._open) >= MAX_STREAMS:
                    await self._end_oldest()
                opened = await self._begin(stream)
            self._open[stream] = opened
            await opened[0].put(batch)
        self._check()

    async def finish(self) -> TaskResult:
        """Wait until everything is stored. Raises what the transfers raise."""
        for feed, _ in self._open.values():
            feed.end()
        if self._open:  # the first that fails is told at once, however long the others try
            await asyncio.wait([task for _, task in self._open.values()], return_when=asyncio.FIRST_EXCEPTION)
        self._check()
        while self._open:
            await self._end_oldest()
        return self._result

    async def abort(self) -> None:
        """Leave everything where it is."""
        opened, self._open = self._open, {}
        await cancel(self._watching, *(task for _, task in opened.values()))

    async def _stop_when_told(self, watch: Watch) -> None:
        try:
            await watch()
        except Exception as error:  # noqa: BLE001 - whatever it is, `take` and `finish` raise it
            self._error = self._error or error
            await cancel(*(task for _, task in self._open.values()))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _end_oldest(self) -> None:
        stream = next(iter(self._open))
        feed, task = self._open[stream]
        feed.end()
        await asyncio.wait([task])
        self._check()
        del self._open[stream]
        self._result.counts.add(task.result())

    async def _begin(self, stream: Stream) -> tuple[_Feed, asyncio.Task[Counts]]:
        spec = self._settings.spec if stream.topic is None else self._settings.spec.with_topic(stream.topic)
        await self._make_topics(spec.targets[0].topic)
        if stream.source is not NO_SOURCE:
            self._result.streams.add((format_source(stream.source), stream.topic))
        feed = _Feed(self._ahead, self._gate)
        transfer = Transfer(
            spec, stream.source, self._job, find_cluster=self._find_cluster, replay=self._replay, budget=self._budget
        )
        self._check()
        task = spawn(self._run(transfer, feed), f"writing {stream.source} to {stream.topic}", quiet=True)
        task.add_done_callback(collect_error)  # `_error` has it, and after `abort` nobody asks
        return feed, task

    async def _run(self, transfer: Transfer, feed: _Feed) -> Counts:
        try:
            return await transfer.run(feed.batches())
        except Exception as error:
            self._error = self._error or error
            raise
        finally:
            feed.close()

    async def _make_topics(self, topic: str) -> None:
        """Make what is missing, where the options ask for it: the target topic, and the one for dead letters."""
        if self._settings.create is None or not topic or topic in self._made:
            return
        spec = self._settings.spec
        letters = spec.delivery.dead_letter
        async with self._find_cluster(spec.clusters[spec.targets[0].cluster]) as cluster:
            await _make(cluster, topic, self._settings.create)
            if letters is not None:
                await _make(cluster, letters.topic, 1)
        self._made.add(topic)


async def _make(cluster: Cluster, topic: str, partitions: int) -> None:
    if await cluster.describe(topic) is None:
        await cluster.create(topic, partitions)


async def _open_gate() -> None:
    """Nobody else sends."""
