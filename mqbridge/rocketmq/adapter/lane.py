"""A lane: one queue's messages as batches.

Pulls that wait are handed on together, because a batch costs the gateway the same whether it holds one message or thousands, and
a Broker gives 32 messages per pull unless its limits are raised. They are read into messages only when somebody asks.
"""

from collections.abc import Sequence

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.mapping.stored import decode

BATCH_BYTES = 1 << 20
"""Pulls that wait are joined up to about so much."""


class RocketMQLane:
    """One queue while it is ours. Acknowledging moves the group's offset of the queue."""

    def __init__(self, partition: Partition, stream: QueueStream) -> None:
        self.partition = partition
        self.revoked = stream.over
        self._stream = stream
        self._out = 0
        """Batches handed out and not yet acknowledged."""

    @property
    def caught_up(self) -> bool:
        """The Broker had nothing more the last time it was asked, and nothing waits here."""
        return self._stream.caught_up

    async def receive(self) -> Batch:
        """The next batch."""
        while True:
            pulls = gather(self._stream, await self._stream.receive())
            batch = make_batch(self.partition, pulls)
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
        self._out = max(0, self._out - 1)
        self._stream.commit(batch.next[0])

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Read again from the beginning of this batch."""
        self._out = 0
        self._stream.rewind(batch.first[0])

    async def seek(self, position: Position) -> None:
        """Continue with this offset; the group's offset moves there too."""
        if self._stream.revoked:
            raise LaneRevoked(f"{self.partition} was taken away or released")
        self._out = 0
        await self._stream.seek(position[0])

    async def release(self, deadline: float | None = None) -> None:
        """Commit what is acknowledged, give the queue back."""
        await self._stream.release()


def gather(stream: QueueStream, first: Pulled) -> list[Pulled]:
    """A pull and those that wait behind it, up to BATCH_BYTES."""
    pulls, size = [first], first.size
    while size < BATCH_BYTES and (pulled := stream.take()) is not None:
        pulls.append(pulled)
        size += pulled.size
    return pulls


def make_batch(partition: Partition, pulls: Sequence[Pulled]) -> Batch | None:
    """The batch of some pulls in a row; None when a filter left nothing of them."""
    full = [pulled for pulled in pulls if pulled.count]
    if not full:
        return None
    first = full[0].records[0].queue_offset if full[0].tags else max(full[0].first, full[0].first_stored)
    return Batch(
        partition,
        lambda: _decode_all(full),
        count=sum(pulled.count for pulled in full),
        size=sum(pulled.size for pulled in full),
        first=(first,),
        next=(pulls[-1].next,),
    )


def _decode_all(pulls: Sequence[Pulled]) -> list[Message]:
    if len(pulls) == 1:
        return decode(pulls[0].records)
    return [message for pulled in pulls for message in decode(pulled.records)]
