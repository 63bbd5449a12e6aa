"""Start offsets, and the store of committed offsets: the brokers (by group), the caller's store, or none.

By default a broker returns 0 for a group that never committed as long as the queue's first message is in memory: a new group that
starts at the end would start at the beginning. So queries set setZeroIfNotFound=false, and we choose the start. Brokers of 4.x do
not know that field, see `compat_v4`.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.route import queue_label
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.offsets import UpdateOffsetHeader

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps the offset of each queue, below which everything is consumed."""

    piggyback: bool
    """True if pulls may carry commits."""

    async def load(self, queue: Queue) -> int | None:
        """Return the offset saved last, None if there is none. Raises ClusterError."""

    async def save(self, queue: Queue, offset: int) -> None:
        """Save, and wait for the confirmation. Raises ClusterError."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Save without waiting for a response; queues whose commit could not be sent are logged and returned."""


class GroupOffsets:
    """The broker keeps the offsets of the group; a queue without one starts at `start`."""

    piggyback = True

    def __init__(self, brokers: Brokers, group: str, start: StartOffset) -> None:
        self._brokers, self._group, self._exact = brokers, group, start is not StartOffset.EARLIEST
        self._positions = Positions(brokers.client)

    async def load(self, queue: Queue) -> int | None:
        """QUERY_CONSUMER_OFFSET."""
        return await self._positions.committed(queue, self._group, exact=self._exact)

    async def save(self, queue: Queue, offset: int) -> None:
        """UPDATE_CONSUMER_OFFSET."""
        await self._positions.commit(queue, self._group, offset)

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """UPDATE_CONSUMER_OFFSET, one-way, as the Java clients do every 5 s."""
        failed = []
        for queue, offset in offsets.items():
            try:
                ext = UpdateOffsetHeader(self._group, queue.topic, queue.id, offset).encode()
                await self._brokers.tell(queue, Code.UPDATE_CONSUMER_OFFSET, ext)
            except ClusterError as error:
                log.log(
                    level_of(error, logging.INFO),
                    "commit of offset %d of %s for group %s failed, retrying later: %s",
                    offset,
                    queue_label(queue),
                    self._group,
                    error,
                )
                failed.append(queue)
        return failed


class StoredOffsets:
    """The caller's store keeps the offsets."""

    piggyback = False

    def __init__(self, store: BroadcastOffsets) -> None:
        self._store = store

    async def load(self, queue: Queue) -> int | None:
        """Load from the store."""
        return await self._store.load(queue)

    async def save(self, queue: Queue, offset: int) -> None:
        """Save to the store."""
        await self._store.save({queue: offset})

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Save all to the store at once."""
        try:
            await self._store.save(offsets)
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "offsets of %d queues not saved, retrying later: %s", len(offsets), error)
            return list(offsets)
        return []


class NoOffsets:
    """Offsets are not kept: every start is a first start."""

    piggyback = False

    async def load(self, queue: Queue) -> int | None:  # noqa: ARG002
        """Return None."""
        return None

    async def save(self, queue: Queue, offset: int) -> None:
        """Nothing is kept."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:  # noqa: ARG002
        """Nothing is kept."""
        return []


async def start_of(positions: Positions, queue: Queue, start: StartOffset, start_ms: int) -> int:
    """Return the start offset of a queue without a committed one. Raises ClusterError."""
    if start is StartOffset.LATEST:
        return await positions.next(queue)
    if start is StartOffset.TIMESTAMP:
        return await positions.at(queue, start_ms)
    return await positions.first(queue)


def offset_store(settings: ConsumerSettings, brokers: Brokers) -> OffsetStore:
    """Return the offset store for these settings."""
    if settings.model is MessageModel.BROADCASTING:
        return NoOffsets() if settings.store is None else StoredOffsets(settings.store)
    return GroupOffsets(brokers, settings.group, settings.start) if settings.group else NoOffsets()
