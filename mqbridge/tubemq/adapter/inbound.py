"""Consuming from TubeMQ: a lane is a partition, a batch is a pack.

A pack is confirmed as a whole or read again, and the next one only comes after it. So a lane has one batch out at a time, and
`receive` waits until that is acknowledged or rejected.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import tzinfo
from functools import partial
from typing import Protocol

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.tubemq.client.pack import Pack
from mqbridge.tubemq.client.partition import PartitionSession
from mqbridge.tubemq.mapping.stored import decode

IndexOf = Callable[[str, str], Awaitable[int]]
"""The index of a partition of a topic, by its name."""


class Assigning(Protocol):
    """Where partitions come from: `Consumer`, or a `TemporaryConsumer`."""

    def assignments(self) -> AsyncIterator[PartitionSession]:
        """Partitions as they become ours."""

    async def close(self) -> None:
        """Give everything back and leave."""


class TubeMQInbound:
    """A member of a group."""

    individual_ack = False

    def __init__(self, cluster: str, consumer: Assigning, zone: tzinfo, index_of: IndexOf) -> None:
        self._cluster, self._consumer, self._zone, self._index_of = cluster, consumer, zone, index_of
        self._closed = False

    async def lanes(self) -> AsyncIterator["TubeMQLane"]:
        """Partitions as the Master assigns them."""
        async for session in self._consumer.assignments():
            topic, name = session.ref.topic, session.ref.name
            place = Partition(self._cluster, topic, name, await self._index_of(topic, name))
            yield TubeMQLane(session, place, self._zone)

    async def close(self, deadline: float | None = None) -> None:
        """Give everything back and leave."""
        if not self._closed:
            self._closed = True
            await self._consumer.close()


class TubeMQLane:
    """One partition while it is ours."""

    def __init__(self, session: PartitionSession, partition: Partition, zone: tzinfo) -> None:
        self.partition = partition
        self.revoked = session.over
        self._session, self._zone = session, zone
        self._skip = 0
        """Messages to leave out after a seek: the Broker begins with whole packs."""

    @property
    def caught_up(self) -> bool:
        """The Broker had nothing more the last time it was asked."""
        return self._session.caught_up

    async def receive(self) -> Batch:
        """The next pack, after the one before was acknowledged or rejected."""
        session = self._session
        await session.settled()
        pack = await session.fetch()
        while (count := len(pack.messages)) <= self._skip:
            self._skip -= count
            session.confirm()
            pack = await session.fetch()
        skip = self._skip
        return Batch(
            self.partition,
            partial(_decode, pack, skip, self._zone),
            count=count - skip,
            size=pack.size,
            first=(pack.offset, skip),
            # Only a commit tells where a pack ends, and the next pack's first position is greater than this one in any case.
            next=(pack.offset, count),
            handle=pack,
        )

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Confirm the pack."""
        if self._is_out(batch):
            self._skip = 0
            self._session.confirm()

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Have the pack read again."""
        if self._is_out(batch):
            self._session.reject()

    async def seek(self, position: Position) -> None:
        """Register anew at the position's offset. Messages of its pack that lie before it are left out."""
        offset, skip = position
        await self._session.seek(offset)
        self._skip = skip

    async def release(self, deadline: float | None = None) -> None:
        """Give the partition back."""
        await self._session.release()

    def _is_out(self, batch: Batch) -> bool:
        pack: Pack = batch.handle
        return self._session.pack is pack


def _decode(pack: Pack, skip: int, zone: tzinfo) -> list[Message]:
    messages = decode(pack.messages, pack.offset, zone)
    return messages[skip:] if skip else messages
