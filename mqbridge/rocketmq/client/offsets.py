"""Where a consumer begins, and who keeps how far it is: the brokers under its group, the caller's store, or nobody.

Asked in the plain way, a broker says 0 for a group that never committed as long as the queue's first message is still in memory,
so that a new group with a start at the end would begin at the beginning. We ask with setZeroIfNotFound=false and decide
ourselves. Brokers of 4.x do not know that field, see `compat_v4`.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.broadcast import BroadcastOffsets
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.positions import Positions
from mqbridge.rocketmq.client.route import shown
from mqbridge.rocketmq.client.spec import GroupSpec, Model, StartOffset
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.offsets import UpdateOffsetHeader

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps the offset of each queue, below which everything is consumed."""

    piggyback: bool
    """Whether pulls may carry the offset along."""

    async def load(self, queue: Queue) -> int | None:
        """The offset that was saved last. Raises ClusterError."""

    async def save(self, queue: Queue, offset: int) -> None:
        """Save and know that it is saved. Raises ClusterError."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Save without waiting for an answer; those that could not even be sent are logged and returned."""


class GroupOffsets:
    """The broker keeps them, under the group, which begins at `start` where there is none."""

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
                    "offset %d of %s for group %s is committed later: %s",
                    offset,
                    shown(queue),
                    self._group,
                    error,
                )
                failed.append(queue)
        return failed


class StoredOffsets:
    """The caller's store keeps them."""

    piggyback = False

    def __init__(self, store: BroadcastOffsets) -> None:
        self._store = store

    async def load(self, queue: Queue) -> int | None:
        """Ask the store."""
        return await self._store.load(queue)

    async def save(self, queue: Queue, offset: int) -> None:
        """Tell the store."""
        await self._store.save({queue: offset})

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:
        """Tell the store, all at once."""
        try:
            await self._store.save(offsets)
        except ClusterError as error:
            log.log(level_of(error, logging.WARNING), "offsets of %d queues are stored later: %s", len(offsets), error)
            return list(offsets)
        return []


class NoOffsets:
    """Nobody keeps them: every start is a first one."""

    piggyback = False

    async def load(self, queue: Queue) -> int | None:  # noqa: ARG002
        """Nothing is known."""
        return None

    async def save(self, queue: Queue, offset: int) -> None:
        """Nothing is kept."""

    async def save_soon(self, offsets: Mapping[Queue, int]) -> list[Queue]:  # noqa: ARG002
        """Nothing is kept."""
        return []


async def start_of(positions: Positions, queue: Queue, start: StartOffset, start_ms: int) -> int:
    """Where a queue without an offset begins. Raises ClusterError."""
    if start is StartOffset.LATEST:
        return await positions.next(queue)
    if start is StartOffset.TIMESTAMP:
        return await positions.at(queue, start_ms)
    return await positions.first(queue)


def offset_store(spec: GroupSpec, brokers: Brokers) -> OffsetStore:
    """Who keeps the offsets of a consumer like this."""
    if spec.model is Model.BROADCASTING:
        return NoOffsets() if spec.store is None else StoredOffsets(spec.store)
    return GroupOffsets(brokers, spec.group, spec.start) if spec.group else NoOffsets()
