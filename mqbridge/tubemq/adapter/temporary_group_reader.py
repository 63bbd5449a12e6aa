"""Reads a range of one partition with a temporary group, without the Master; no other group's position changes.

Brokers keep the offsets of temporary groups. With `admin_url` they are removed after a later read or when the cluster is closed;
without, they are never removed. So all requests for bounds share one group, and only each read has a group of its own.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import tzinfo
from functools import partial

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.message import Batch, Partition, Position
from mqbridge.tubemq.adapter.inbound import batch_of
from mqbridge.tubemq.adapter.operations import READER_GROUP_PREFIX, GroupAdmin
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.range_reader import read_range, store_range
from mqbridge.tubemq.client.stable_range_reader import read_stable_range
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef

log = logging.getLogger(__name__)

SWEEP_S = 60.0
"""Minimum interval between removals of the groups of closed readers."""


class TemporaryGroupReader:
    """Reads ranges and bounds of one cluster with temporary groups."""

    def __init__(self, masters: Masters, group_admin: GroupAdmin | None, zone: tzinfo) -> None:
        self._masters, self._group_admin, self._zone = masters, group_admin, zone
        self._has_leftovers = False
        """True if groups of closed readers may exist."""
        self._swept_at = float("-inf")
        self._bounds_group = _fresh_group()
        """The group with which requests for bounds register."""
        self._bounds_locks: defaultdict[PartitionKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks around the requests for a partition's bounds: a group can register a partition only once at a time."""

    async def ranges_of(self, refs: Collection[PartitionRef]) -> list[tuple[int, int]]:
        """Return (first, next) offset of each partition, by registering it at its Broker and releasing it again."""
        try:
            results = await asyncio.gather(*map(self._range_of, refs), return_exceptions=True)
        finally:
            await self._sweep_if_due()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _range_of(self, ref: PartitionRef) -> tuple[int, int]:
        async with self._bounds_locks[ref.key]:
            group = self._bounds_group
            try:
                return await store_range(self._masters, ref, group)
            except ServerRefused as error:
                if error.code != codes.PARTITION_OCCUPIED:
                    raise
            # An abandoned request was executed later, and its registration occupies the partition. Only in this case use a new
            # group: Brokers keep every group for good, and while one Broker fails, the others receive many of these requests.
            if group == self._bounds_group:
                self._bounds_group = _fresh_group()
            return await store_range(self._masters, ref, self._bounds_group)

    async def read(
        self, ref: PartitionRef, partition: Partition, begin: Position, end: Position | None
    ) -> AsyncGenerator[Batch, None]:
        """Yield the messages of a range in batches; see `Cluster.read`."""
        first, until = _pair(begin), None if end is None else _pair(end)
        try:
            if until is None:
                async with aclosing(read_range(self._masters, ref, _fresh_group(), first, None)) as slices:
                    async for found in slices:
                        yield batch_of(found.pack, found.first, found.last, found.next, partition, self._zone)
            else:
                cells = read_stable_range(self._masters, ref, _fresh_group(), first, until, partial(self._store_end, ref))
                async with aclosing(cells):
                    async for part in cells:
                        yield batch_of(part.pack, part.first, part.last, part.next, partition, self._zone, part.position)
        finally:
            await self._sweep_if_due()

    async def _store_end(self, ref: PartitionRef) -> int:
        return (await self._range_of(ref))[1]

    async def _sweep_if_due(self) -> None:
        self._has_leftovers = True
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            await self.sweep()

    async def sweep(self) -> None:
        """Remove the groups of closed readers at the Brokers."""
        if self._group_admin is None or not self._has_leftovers:
            return
        self._has_leftovers = False
        try:
            await self._group_admin.remove_idle_groups(READER_GROUP_PREFIX)
        except (ClusterError, ProtocolError) as error:
            log.info("removing the temporary groups %s* of closed readers failed: %s", READER_GROUP_PREFIX, error)


def _fresh_group() -> str:
    return READER_GROUP_PREFIX + secrets.token_hex(6)


def _pair(position: Position) -> tuple[int, int]:
    if len(position) != 2:
        raise ClusterError(f"{position} is not a position of TubeMQ: a position is offset:index", Failure.FATAL)
    offset, index = position
    return offset, index
