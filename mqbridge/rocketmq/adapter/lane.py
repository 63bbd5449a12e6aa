"""A lane: one queue's messages as batches.

Pulls that wait are handed on together, because a batch costs the gateway the same whether it holds one message or thousands, and
a Broker gives 32 messages per pull unless its limits are raised. They are read into messages only when somebody asks.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.deadlines import deadline_of
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.native import compiled
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.mapping.stored import decode_pulls
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES

FORMAT = "rocketmq.records"
"""Batches whose `data` are pulls in a row."""
BATCH_BYTES = 1 << 20
"""Pulls that wait are joined up to about so much."""


class RocketMQLane:
    """One queue while it is ours. Acknowledging moves the group's offset of the queue; a batch's handle is the run it is of."""

    def __init__(self, partition: Partition, stream: QueueStream) -> None:
        self.partition = partition
        self.revoked = stream.over
        self._stream = stream
        stream.lends = True
        self._counted: tuple[Batch | None, int] = None, 0
        """The last batch, and the bytes of pulls that count until it is on the core's account; with what a filter left out."""
        self._run = -1
        self._out = 0
        """Batches of this run that are handed out and not yet acknowledged."""

    @property
    def caught_up(self) -> bool:
        """The Broker had nothing more the last time it was asked, and nothing waits here."""
        return self._stream.caught_up

    async def receive(self) -> Batch:
        """The next batch."""
        while True:
            self._give_back()
            pulls = gather(self._stream, await self._stream.receive())
            if (run := self._stream.state.run) != self._run:  # begun by us, or by an administrator
                self._run, self._out = run, 0
            batch = make_batch(self.partition, pulls, run)
            self._counted = batch, sum(pulled.size for pulled in pulls)
            if batch is not None:
                self._out += 1
                return batch
            if not self._out:  # a filter wanted none of these: nobody will acknowledge them
                self._stream.commit(pulls[-1].next)

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Everything before the end of this batch is stored."""
        self._give_back(batch)
        if batch.handle == self._run:
            self._out = max(0, self._out - 1)
        self._stream.commit(batch.next[0], batch.handle)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Read again from the beginning of this batch, after the delay."""
        self._give_back(batch)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch)
        else:
            self._stream.rewind(batch.first[0], batch.handle)

    def _give_back(self, batch: Batch | None = None) -> None:
        """The bytes of the last batch (None), or of this one if it is the last, are not ours to count any more."""
        last, size = self._counted
        if size and (batch is None or batch is last):
            self._counted = None, 0
            self._stream.give_back(size)

    async def seek(self, position: Position) -> None:
        """Continue with this offset; the group's offset moves there too."""
        if self.revoked.is_set():
            raise LaneRevoked(f"{self.partition} was taken away or released")
        await self._stream.seek(position[0])

    async def release(self, deadline: float | None = None) -> None:
        """Commit what is acknowledged, give the queue back."""
        await self._stream.release(deadline_of(deadline))


def gather(stream: QueueStream, first: Pulled) -> list[Pulled]:
    """A pull and those that wait behind it, up to BATCH_BYTES, or MAX_UNPACKED_BYTES if they may decompress to so much."""
    pulls, size, unpacked = [first], first.size, first.max_unpacked_bytes
    while size < BATCH_BYTES and unpacked < MAX_UNPACKED_BYTES and (pulled := stream.take()) is not None:
        pulls.append(pulled)
        size += pulled.size
        unpacked += pulled.max_unpacked_bytes
    return pulls


def make_batch(partition: Partition, pulls: Sequence[Pulled], run: int | None = None) -> Batch | None:
    """The batch of some pulls in a row; None when a filter left nothing of them."""
    full = [pulled for pulled in pulls if pulled.count]
    if not full:
        return None
    size, count = sum(pulled.size for pulled in full), sum(pulled.count for pulled in full)
    return Batch(
        partition,
        partial(decode_pulls, full),
        count=count,
        size=size,
        first=(full[0].first_record,),
        next=(pulls[-1].next,),
        format=FORMAT,
        data=full,
        handle=run,
        held_bytes=sum(pulled.held_bytes for pulled in full),
        mentions=None if compiled is not None else lambda text: any(pulled.mentions(text) for pulled in full),
        published_ms=full[0].published_ms,
    )
