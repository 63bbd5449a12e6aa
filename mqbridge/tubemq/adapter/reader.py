"""Reading a range of one partition without moving anybody's group: by a group of its own, past the Master.

What a Broker keeps of such a group is removed by a later reader, or when the cluster is closed, as far as `admin_url` is set.
Without it, it stays for good. So all questions for bounds are one group's, and only reads have one each.
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
from mqbridge.tubemq.adapter.operations import READERS, Operator
from mqbridge.tubemq.client.cell_reader import read_cells
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.range_reader import held_range, read_range
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.text import Key, PartitionRef

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
        self._asking_group = _fresh_group()
        """What questions for bounds register as."""
        self._asking: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a partition is asked for its bounds: a group has it once."""

    async def ranges_of(self, refs: Collection[PartitionRef]) -> list[tuple[int, int]]:
        """First and next offset of partitions, as their Brokers say to whoever registers; none is held any more after that."""
        try:
            found = await asyncio.gather(*map(self._range_of, refs), return_exceptions=True)
        finally:
            await self._left()
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [one for one in found if not isinstance(one, BaseException)]

    async def _range_of(self, ref: PartitionRef) -> tuple[int, int]:
        async with self._asking[ref.key]:
            group = self._asking_group
            try:
                return await held_range(self._masters, ref, group)
            except ServerRefused as error:
                if error.code != codes.PARTITION_OCCUPIED:
                    raise
            # By a question that was given up and carried out later. Only then another group asks: Brokers keep each for good, and
            # those that are well are asked again and again while another one fails.
            if group == self._asking_group:
                self._asking_group = _fresh_group()
            return await held_range(self._masters, ref, self._asking_group)

    async def read(
        self, ref: PartitionRef, partition: Partition, begin: Position, end: Position | None
    ) -> AsyncGenerator[Batch, None]:
        """See `Cluster.read`."""
        first, until = _pair(begin), None if end is None else _pair(end)
        try:
            if until is None:
                async with aclosing(read_range(self._masters, ref, _fresh_group(), first, None)) as slices:
                    async for found in slices:
                        yield batch_of(found.pack, found.first, found.last, found.next, partition, self._zone)
            else:
                cells = read_cells(self._masters, ref, _fresh_group(), first, until, partial(self._store_end, ref))
                async with aclosing(cells):
                    async for part in cells:
                        yield batch_of(part.pack, part.first, part.last, part.next, partition, self._zone, part.position)
        finally:
            await self._left()

    async def _store_end(self, ref: PartitionRef) -> int:
        return (await self._range_of(ref))[1]

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
