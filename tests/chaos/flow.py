"""A producer that sends to one topic during all faults, and the messages that the source acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel, spawn
from tests.kit.oracle import body

TICK_S = 0.1
WINDOW = 8
"""Batches per partition without an answer."""
SMALL, LARGE, LARGE_EVERY = 300, 24 << 10, 97


def message(partition: int, number: int) -> Message:
    """Mostly small; a large one now and then, so that batches and budgets are not all alike."""
    return Message(body(partition, number, LARGE if number % LARGE_EVERY == LARGE_EVERY - 1 else SMALL))


class Flow:
    """The producer of one topic. `sent` is exact: it rests while servers are at fault, so every send is answered."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, per_second: int) -> None:
        self.topic, self.sent = topic, [0] * partitions
        self._cluster, self._per_second = cluster, per_second
        self._outbound: Outbound | None = None
        self._waiting: list[deque[asyncio.Future[Receipt]]] = [deque() for _ in range(partitions)]
        self._flows = asyncio.Event()
        self._rests = 0
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the topic and begin to send."""
        await self._open()
        self._flows.set()
        self._task = spawn(self._run(), f"flow to {self.topic}")

    async def burst(self, per_partition: int) -> None:
        """So many at once, to every partition."""
        async with self._turn:
            for partition in range(len(self.sent)):
                await self._send(partition, per_partition)

    async def rest(self) -> None:
        """Pause the sending and wait until every message is acknowledged; `go_on` resumes it."""
        self._rests += 1
        self._flows.clear()
        async with self._turn:
            await self._settle()

    def go_on(self) -> None:
        """End one rest."""
        self._rests -= 1
        if not self._rests:
            self._flows.set()

    async def grow(self, partitions: int) -> None:
        """Give the topic more partitions and send to them too."""
        await self.rest()
        async with self._turn:
            await self._cluster.create(self.topic, partitions)
            assert self._outbound is not None
            await self._outbound.close()
            await self._open(partitions)
            added = partitions - len(self.sent)
            self.sent += [0] * added
            self._waiting += [deque() for _ in range(added)]
        self.go_on()

    async def end(self) -> None:
        """Stop when everything is acknowledged."""
        await self.rest()
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
            await self._outbound.close()  # the system's own routes show new partitions a moment later
            await asyncio.sleep(TICK_S)

    async def _run(self) -> None:
        due = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            await self._flows.wait()
            due += self._per_second * TICK_S / len(self.sent)
            count, due = int(due), due - int(due)
            async with self._turn:
                if self._flows.is_set() and count:
                    for partition in range(len(self.sent)):
                        await self._send(partition, count)

    async def _send(self, partition: int, count: int) -> None:
        assert self._outbound is not None
        first = self.sent[partition]
        batch = Batch.of([message(partition, number) for number in range(first, first + count)])
        waiting = self._waiting[partition]
        waiting.append(self._outbound.send(partition, Share(batch)))
        self.sent[partition] += count
        while len(waiting) > WINDOW or (waiting and waiting[0].done()):
            _acknowledged(await waiting.popleft())

    async def _settle(self) -> None:
        for waiting in self._waiting:
            while waiting:
                _acknowledged(await waiting.popleft())


def _acknowledged(receipt: Receipt) -> None:
    if receipt.failures:
        raise RuntimeError(f"the source refused a message, nobody knows what it holds: {receipt.failures[0].reason}")
