"""Temporary groups, with which partitions are read without the Master; no other group's position changes.

Brokers keep temporary groups and their offsets until somebody removes them. With `admin_url` we remove them, after a reader is
closed or when the cluster is closed; without `admin_url` they stay. To create few of them, all requests for bounds (the first and
the next offset of a partition's store) share one group; only a reader has a group of its own.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Collection
from datetime import tzinfo
from functools import partial

from mqbridge.errors import ClusterError, ProtocolError, ServerRefused
from mqbridge.message import Partition, Position
from mqbridge.tubemq.adapter.operations import READER_GROUP_PREFIX, GroupAdmin
from mqbridge.tubemq.adapter.reader import TubeMQReader
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.range_reader import RangeReader, store_range
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef

log = logging.getLogger(__name__)

MIN_SWEEP_INTERVAL_S = 60.0
"""Minimum interval between removals of temporary groups: a removal costs a few requests to every Broker."""


class TemporaryGroups:
    """Opens readers and requests bounds of one cluster with temporary groups.

    Without `group_admin` (no web API) the groups are not removed. `zone` is the time zone of `$msgTime$` in messages.
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

    def reader(self, ref: PartitionRef, partition: Partition, begin: Position, end: Position | None) -> TubeMQReader:
        """Return a reader from `begin` up to `end` (exclusive; None: it continues with new messages); it sends no request yet."""
        ranges = RangeReader(self._masters, ref, _new_group_name)
        return TubeMQReader(ranges, partition, begin, end, self._zone, partial(self._store_end, ref), self._on_group_unused)

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
