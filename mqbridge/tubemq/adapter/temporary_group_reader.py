"""Reads a range of one partition with a temporary group, without the Master; no other group's position changes.

Brokers keep temporary groups and their offsets until somebody removes them. With `admin_url` we remove them, after a later read
or when the cluster is closed; without `admin_url` they stay. To create few of them, all requests for bounds (the first and the
next offset of a partition's store) share one group; only a read has a group of its own.
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
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.range_reader import read_range, store_range
from mqbridge.tubemq.client.consumer.stable_range_reader import read_stable_range
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef

log = logging.getLogger(__name__)

MIN_SWEEP_INTERVAL_S = 60.0
"""Minimum interval between removals of temporary groups: a removal costs a few requests to every Broker."""


class TemporaryGroupReader:
    """Reads ranges and bounds of one cluster with temporary groups. Without `group_admin` (no web API) they are not removed.

    `zone` is the time zone of `$msgTime$` in messages.
    """

    def __init__(self, masters: Masters, group_admin: GroupAdmin | None, zone: tzinfo) -> None:
        self._masters, self._group_admin, self._zone = masters, group_admin, zone
        self._has_leftovers = False
        """True if temporary groups without members may exist at the Brokers."""
        self._swept_at = float("-inf")
        """Event loop time of the last removal of such groups."""
        self._bounds_group = _new_group_name()
        """The group with which requests for bounds register."""
        self._bounds_locks: defaultdict[PartitionKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks around the requests for a partition's bounds: a group can register a partition only once at a time."""

    async def bounds_of(self, refs: Collection[PartitionRef]) -> list[tuple[int, int]]:
        """Return (first offset, offset of the next message) of each partition's store, in the order of `refs`.

        Each partition is registered at its Broker and released again. Raises the first error if some partitions fail.
        """
        try:
            results = await asyncio.gather(*map(self._bounds_of_one, refs), return_exceptions=True)
        finally:
            await self._on_group_unused()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _bounds_of_one(self, ref: PartitionRef) -> tuple[int, int]:
        async with self._bounds_locks[ref.key]:
            group = self._bounds_group
            try:
                return await store_range(self._masters, ref, group)
            except ServerRefused as error:
                if error.code != codes.PARTITION_OCCUPIED:
                    raise
            # An earlier registration, whose response we did not wait for, still occupies the partition. Use a new group only in
            # this case, because Brokers keep every group. A concurrent call may have made it already.
            if group == self._bounds_group:
                self._bounds_group = _new_group_name()
            return await store_range(self._masters, ref, self._bounds_group)

    async def read(
        self, ref: PartitionRef, partition: Partition, begin: Position, end: Position | None
    ) -> AsyncGenerator[Batch, None]:
        """Yield the messages from `begin` up to `end` (exclusive; None: continue with new messages) in batches.

        With an `end`, a message has the same position each time the range is read; see `read_stable_range`.
        """
        first, end_position = _offset_and_index(begin), None if end is None else _offset_and_index(end)
        group = _new_group_name()
        try:
            if end_position is None:
                async with aclosing(read_range(self._masters, ref, group, first, None)) as slices:
                    async for slice_ in slices:
                        yield batch_of(slice_.pack, slice_.first, slice_.last, slice_.next, partition, self._zone)
            else:
                stable_slices = read_stable_range(self._masters, ref, group, first, end_position, partial(self._store_end, ref))
                async with aclosing(stable_slices):
                    async for stable in stable_slices:
                        yield batch_of(
                            stable.pack, stable.first, stable.last, stable.next, partition, self._zone, stable.position
                        )
        finally:
            await self._on_group_unused()

    async def _store_end(self, ref: PartitionRef) -> int:
        """Return the offset that the next message in the partition's store will get."""
        return (await self._bounds_of_one(ref))[1]

    async def _on_group_unused(self) -> None:
        """Note that a temporary group has no members now; remove such groups, at most every MIN_SWEEP_INTERVAL_S.

        The bounds group may be removed too: Brokers create it again with the next request.
        """
        self._has_leftovers = True
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= MIN_SWEEP_INTERVAL_S:
            self._swept_at = now
            await self.sweep()

    async def sweep(self) -> None:
        """Remove the temporary groups without members from the Brokers; a failure is logged, and the next call tries again."""
        if self._group_admin is None or not self._has_leftovers:
            return
        self._has_leftovers = False
        try:
            await self._group_admin.remove_idle_groups(READER_GROUP_PREFIX)
        except (ClusterError, ProtocolError) as error:
            self._has_leftovers = True
            text = "cluster %s: removing the temporary groups %s* failed, a later read or closing tries again: %s"
            log.info(text, self._masters.connections.connectivity.name, READER_GROUP_PREFIX, error)


def _new_group_name() -> str:
    return READER_GROUP_PREFIX + secrets.token_hex(6)


def _offset_and_index(position: Position) -> tuple[int, int]:
    """Return a position as (offset, index): the message that follows `index` others of the partition from this offset on.

    Raises ClusterError (FATAL) for a position of another system.
    """
    if len(position) != 2:
        raise ClusterError(f"{position} is not a position of TubeMQ: a position is offset:index", Failure.FATAL)
    offset, index = position
    return offset, index
