"""Reading a range of one partition without moving anybody's group: by a group of its own, past the Master.

What a Broker keeps of such a group is removed by a later reader, or when the cluster is closed, as far as `admin_url` is set.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import tzinfo

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.message import Batch, Partition, Position
from mqbridge.tubemq.adapter.inbound import batch_of
from mqbridge.tubemq.adapter.operations import READERS, Operator
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.range_reader import held_range, read_range
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

SWEEP_S = 60.0
"""The least time between two looks for groups of readers that are gone."""


class Reader:
    """What of one cluster is read without a group."""

    def __init__(self, masters: Masters, operator: Operator | None, zone: tzinfo) -> None:
        self._masters, self._operator, self._zone = masters, operator, zone
        self._has_left = False
        """Groups of readers that were closed may be there."""
        self._swept_at = float("-inf")

    async def range_of(self, ref: PartitionRef) -> tuple[int, int]:
        """First and next offset of a partition, as its Broker says to whoever registers."""
        try:
            return await held_range(self._masters, ref, _fresh_group())
        finally:
            await self._left()

    async def read(
        self, ref: PartitionRef, partition: Partition, begin: Position, end: Position | None
    ) -> AsyncGenerator[Batch, None]:
        """See `Cluster.read`."""
        first, until = _pair(begin), None if end is None else _pair(end)
        try:
            async with aclosing(read_range(self._masters, ref, _fresh_group(), first, until)) as slices:
                async for found in slices:
                    yield batch_of(found.pack, found.first, found.last, found.next, partition, self._zone)
        finally:
            await self._left()

    async def _left(self) -> None:
        self._has_left = True
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            await self.sweep()

    async def sweep(self) -> None:
        """Remove what is left of readers that are gone."""
        if self._operator is None or not self._has_left:
            return
        self._has_left = False
        try:
            await self._operator.sweep(READERS)
        except (ClusterError, ProtocolError) as error:
            log.info("groups of earlier readers stay: %s", error)


def _fresh_group() -> str:
    return READERS + secrets.token_hex(6)


def _pair(position: Position) -> tuple[int, int]:
    if len(position) != 2:
        raise ClusterError(f"{position} is no position of TubeMQ: those are offset:index", Failure.FATAL)
    offset, index = position
    return offset, index
