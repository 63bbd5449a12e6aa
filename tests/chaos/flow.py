"""A producer that sends to one topic during all faults, and the messages that the source acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel, spawn
from tests.chaos.layout import key
from tests.chaos.schedule import Load
from tests.kit.oracle import body

TICK_S = 0.1
"""Interval between two sends."""
MAX_IN_FLIGHT = 8
"""Maximum number of batches per partition without a receipt."""
SMALL_BYTES, LARGE_BYTES, LARGE_EVERY = 300, 24 << 10, 97
"""Payload sizes; every LARGE_EVERY-th message of a partition is large, so that the sizes of batches differ."""
CHUNKED_BYTES, CHUNKED_EVERY = 60 << 10, 389
"""The same for messages that are sent in chunks, where the source has chunks."""

SendInChunks = Callable[[str, int, Message], Awaitable[None]]
"""Store a message in chunks in a partition of a topic, and return when it is stored."""


def message(partition: int, number: int) -> Message:
    """Return the message with this number in a partition."""
    size = CHUNKED_BYTES if is_chunked(number) else LARGE_BYTES if number % LARGE_EVERY == LARGE_EVERY - 1 else SMALL_BYTES
    return Message(body(partition, number, size), key=key(partition, number))


def is_chunked(number: int) -> bool:
    """Return True for a message that is sent in chunks, where the source has chunks."""
    return number % CHUNKED_EVERY == CHUNKED_EVERY - 1


class Flow:
    """Producer of one topic. `sent` has the number of messages by partition, `first` the first one that was not deleted.

    The flow pauses while servers of the source are killed or frozen, so every send gets a receipt. It continues while a broker
    restarts in order: it sends what was not acknowledged again, so the source may have repetitions.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, load: Load, send_in_chunks: SendInChunks | None = None
    ) -> None:
        self.topic, self.sent, self.load = topic, [0] * partitions, load
        self.first = [0] * partitions
        self._send_in_chunks = send_in_chunks
        self._idle = partitions - 1
        """The partition that gets no messages for `Load.idle_s`."""
        self._cluster = cluster
        self._outbound: Outbound | None = None
        self._receipts: list[deque[asyncio.Future[Receipt]]] = [deque() for _ in range(partitions)]
        self._running = asyncio.Event()
        self._pauses = 0
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the topic and begin to send."""
        await self._open()
        self._running.set()
        self._task = spawn(self._run(), f"flow to {self.topic}")

    async def burst(self, per_partition: int) -> None:
        """Send this number of messages to each partition at once."""
        async with self._lock:
            for partition in range(len(self.sent)):
                await self._send(partition, per_partition)

    async def pause(self) -> None:
        """Pause the sending and wait until every message is acknowledged; `resume` continues it."""
        self._pauses += 1
        self._running.clear()
        async with self._lock:
            await self._wait_acknowledged()

    def resume(self) -> None:
        """End one pause; sending continues when no other pause is left."""
        self._pauses -= 1
        if not self._pauses:
            self._running.set()

    async def grow(self, partitions: int) -> None:
        """Grow the topic to this number of partitions, and send to the new ones too."""
        await self.pause()
        async with self._lock:
            await self._cluster.create(self.topic, partitions)
            assert self._outbound is not None
            await self._outbound.close()
            await self._open(partitions)
            added = partitions - len(self.sent)
            self.sent += [0] * added
            self.first += [0] * added
            self._receipts += [deque() for _ in range(added)]
        self.resume()

    @contextlib.asynccontextmanager
    async def deletion(self, *, opens_again: bool) -> AsyncIterator[None]:
        """While an operator deletes the messages so far, send nothing. `opens_again`: the topic is another one afterwards."""
        await self.pause()
        async with self._lock:
            assert self._outbound is not None
            if opens_again:
                await self._outbound.close()
            yield
            self.first = self.sent.copy()
            if opens_again:
                await self._open()
        self.resume()  # not after an error: then it is unknown what the source has

    async def end(self) -> None:
        """Wait until every message is acknowledged, then stop."""
        await self.pause()
        await cancel(self._task)
        if self._outbound is not None:
            await self._outbound.close()

    def check(self) -> None:
        """Raise the error that ended the flow, if there is one."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _open(self, partitions: int | None = None) -> None:
        wanted = partitions or len(self.sent)
        while True:
            self._outbound = await self._cluster.outbound(OutboundSpec(self.topic, stamp_origin=False))
            if self._outbound.partitions >= wanted:
                return
            await self._outbound.close()  # metadata of the system may still lack the new partitions
            await asyncio.sleep(TICK_S)

    async def _run(self) -> None:
        await asyncio.sleep(self.load.first_s)
        due, turn, began = 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            await self._running.wait()
            due += self.load.per_second * TICK_S
            async with self._lock:
                if self._running.is_set():
                    is_idle = time.monotonic() < began + self.load.idle_s
                    partitions = [each for each in range(len(self.sent)) if not (is_idle and each == self._idle)]
                    for step in range(len(partitions)):
                        if count := math.ceil((int(due) - step) / len(partitions)):
                            await self._send(partitions[(turn + step) % len(partitions)], count)
                    turn, due = turn + int(due), due - int(due)

    async def _send(self, partition: int, count: int) -> None:
        first = self.sent[partition]
        batch: list[Message] = []
        for number in range(first, first + count):
            if self._send_in_chunks is None or not is_chunked(number):
                batch.append(message(partition, number))
                continue
            await self._send_batch(partition, batch)
            batch = []
            while self._receipts[partition]:  # they are sent by another producer, so order needs the receipts
                _check_stored(await self._receipts[partition].popleft())
            await self._send_in_chunks(self.topic, partition, message(partition, number))
            self.sent[partition] += 1
        await self._send_batch(partition, batch)

    async def _send_batch(self, partition: int, batch: list[Message]) -> None:
        if not batch:
            return
        assert self._outbound is not None
        receipts = self._receipts[partition]
        receipts.append(self._outbound.send(partition, Share(Batch.of(batch))))
        self.sent[partition] += len(batch)
        while len(receipts) > MAX_IN_FLIGHT or (receipts and receipts[0].done()):
            _check_stored(await receipts.popleft())

    async def _wait_acknowledged(self) -> None:
        for receipts in self._receipts:
            while receipts:
                _check_stored(await receipts.popleft())


def _check_stored(receipt: Receipt) -> None:
    if receipt.failures:
        raise RuntimeError(f"the source rejected a message, so its content is unknown: {receipt.failures[0].reason}")
