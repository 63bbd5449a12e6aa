"""Stores of committed offsets (at the brokers by group, in the caller's store, or nowhere), and the choice of the start offset.

If a group has never committed an offset in a queue, a broker by default returns 0 as long as the queue's first message is in
memory. So a new group that wants to start at the end would start at the beginning. Therefore our queries set
setZeroIfNotFound=false, and this client chooses the start. Brokers of 4.x do not know that field, see `compat_v4`.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.client.consumer.broadcast_offsets import BroadcastOffsets
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel, StartOffset
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.offsets import UpdateOffsetHeader

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Stores one offset per queue: all messages below it are consumed."""

    piggyback: bool
    """True if pulls may carry commits, because the broker that answers the pull also stores the offset."""

    async def load(self, queue: Queue) -> int | None:
        """Return the offset saved last, None if there is none. Raises ClusterError."""

    async def save(self, queue: Queue, offset: int) -> None:
        """Save an offset, and wait until the store confirms it. Raises ClusterError."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Save offsets without waiting for a broker's response; log failures, and return the queues of unsaved offsets."""


class GroupOffsets:
    """The brokers store the offsets of the group, each broker those of its own queues.

    `start` is where queues without an offset start. With EARLIEST it does not matter if a 4.x broker returns 0 for "no offset",
    because such a queue starts at its beginning anyway.
    """

    piggyback = True

    def __init__(self, brokers: Brokers, group: str, start: StartOffset) -> None:
        self._brokers, self._group = brokers, group
        self._exact = start is not StartOffset.EARLIEST
        """True if `load` must distinguish a committed 0 from no offset, by one more request to a 4.x broker."""
        self._positions = Positions(brokers.client)

    async def load(self, queue: Queue) -> int | None:
        """Query the group's offset at the broker (QUERY_CONSUMER_OFFSET)."""
        return await self._positions.committed(queue, self._group, exact=self._exact)

    async def save(self, queue: Queue, offset: int) -> None:
        """Commit the offset at the broker, and wait for its response (UPDATE_CONSUMER_OFFSET)."""
        await self._positions.commit(queue, self._group, offset)

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Commit offsets by one-way requests (UPDATE_CONSUMER_OFFSET), as the Java clients do."""
        failed_queues = []
        for queue, offset in offsets.items():
            try:
                ext = UpdateOffsetHeader(self._group, queue.topic, queue.id, offset).encode()
                await self._brokers.send_oneway(queue, Code.UPDATE_CONSUMER_OFFSET, ext)
            except ClusterError as error:
                log.log(
                    retry_log_level(error, logging.INFO),
                    "committing offset %d of queue %s for group %s failed, retrying later: %s",
                    offset,
                    queue_label(queue),
                    self._group,
                    error,
                )
                failed_queues.append(queue)
        return failed_queues


class StoredOffsets:
    """The caller's store keeps the offsets: for groups in broadcasting, whose offsets brokers do not store."""

    piggyback = False

    def __init__(self, store: BroadcastOffsets) -> None:
        self._store = store

    async def load(self, queue: Queue) -> int | None:
        """Load the offset from the caller's store."""
        return await self._store.load(queue)

    async def save(self, queue: Queue, offset: int) -> None:
        """Save the offset to the caller's store."""
        await self._store.save({queue: offset})

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Save all offsets by one call of the store, and wait for it."""
        try:
            await self._store.save(offsets)
        except ClusterError as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "saving the offsets of %d queues of topics %s in the application's offset store failed, retrying later: %s",
                len(offsets),
                ", ".join(sorted({queue.topic for queue in offsets})),
                error,
            )
            return list(offsets)
        return []


class NoOffsets:
    """No offset is stored: a consumer begins every time at the start offset that its settings choose."""

    piggyback = False

    async def load(self, queue: Queue) -> int | None:  # noqa: ARG002
        """Return None."""
        return None

    async def save(self, queue: Queue, offset: int) -> None:
        """Do nothing."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:  # noqa: ARG002
        """Do nothing."""
        return []


async def resolve_start(positions: Positions, queue: Queue, start: StartOffset, start_ms: int) -> int:
    """Return the offset that `start` stands for in this queue; `start_ms` is used by TIMESTAMP only. Raises ClusterError."""
    if start is StartOffset.LATEST:
        return await positions.next(queue)
    if start is StartOffset.TIMESTAMP:
        return await positions.at(queue, start_ms)
    return await positions.first(queue)


def offset_store(settings: ConsumerSettings, brokers: Brokers) -> OffsetStore:
    """Return the offset store for these settings: NoOffsets without a group, and in broadcasting without a store."""
    if settings.model is MessageModel.BROADCASTING:
        return NoOffsets() if settings.store is None else StoredOffsets(settings.store)
    return GroupOffsets(brokers, settings.group, settings.start) if settings.group else NoOffsets()
