"""Which target partition a row goes to: its column `partition` where somebody set it, else the rule.

A batch whose rows say something has a `Placement` or `RowPlacements` as its handle.

auto     the placement where there is one; else as by modulo; rows without a source by their key, or in turn
column   the placement, always

By round_robin, messages that are stored once go where their position says: another attempt, whose batches are others, would give
them another turn, and nobody could tell what of them is missing.

What has no place is given to NOWHERE_TO_GO, where a `CheckedOutbound` refuses it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.errors import Failure
from mqbridge.message import NO_SOURCE, Partition, Position, Share, format_position
from mqbridge.routing.partitions import Partitioner, PartitionShare
from mqbridge.spark.transfer.spec import Placing

NOWHERE_TO_GO = -1
"""The partition of rows that say none, or come from none where the rule asks for it."""
MISSED = -2
"""The partition of what an earlier attempt was refused: what came behind it is stored."""

_REASONS = {
    NOWHERE_TO_GO: "it says no partition to go to",
    MISSED: "an earlier attempt could not store it, or another task has rows of its source: what comes behind it is stored",
}


class Placement(NamedTuple):
    """The handle of a batch whose rows say their target partition; None where the column is NULL."""

    partition: int | None


class RowPlacements(NamedTuple):
    """The handle of a batch whose rows go to several partitions: one for each row."""

    partitions: Sequence[int | None]


class RowPartitioner(Partitioner):
    """Divides batches of rows, by their placement or by a rule."""

    def __init__(self, rule: PartitionRule, outbound: Outbound, placing: Placing, *, deduplicate: bool = False) -> None:
        super().__init__(rule, outbound)
        self._to, self._placing, self._by_rule = outbound, placing, self.divide
        self._in_turn_by_position = deduplicate and rule.by == "round_robin"
        self._next = -1
        self.divide = self._place

    def _place(self, share: Share) -> list[PartitionShare]:
        handle = share.batch.handle
        if self._placing == "rule":
            return self._by_itself(share)
        if isinstance(handle, RowPlacements):
            return self._row_by_row(share, handle.partitions)
        if isinstance(handle, Placement) and handle.partition is not None:
            return [(handle.partition, share)]
        return self._unsaid(share)

    def _row_by_row(self, share: Share, wanted: Sequence[int | None]) -> list[PartitionShare]:
        said: dict[int, list[int]] = {}
        unsaid: list[int] = []
        for index, place in enumerate(share.batch_indexes):
            partition = wanted[place]
            (unsaid if partition is None else said.setdefault(partition, [])).append(index)
        if unsaid:
            index_of = dict(zip(share.batch_indexes, range(share.count), strict=True))
            for partition, one in self._unsaid(share.subset(unsaid)):
                said[partition] = sorted([*said.get(partition, ()), *map(index_of.__getitem__, one.batch_indexes)])
        return [(partition, share.subset(indexes)) for partition, indexes in said.items()]

    def _unsaid(self, share: Share) -> list[PartitionShare]:
        return [(NOWHERE_TO_GO, share)] if self._placing == "column" else self._by_itself(share)

    def _by_itself(self, share: Share) -> list[PartitionShare]:
        batch = share.batch
        if batch.partition is NO_SOURCE and self.rule.by in ("modulo", "key"):
            return self._key_or_turn(share)
        if batch.partition is NO_SOURCE and self.rule.by != "round_robin":
            return [(NOWHERE_TO_GO, share)]
        if self._in_turn_by_position and batch.partition is not NO_SOURCE:
            return self._by_position(share)
        return self._by_rule(share)

    def _by_position(self, share: Share) -> list[PartitionShare]:
        """Spread as in turn, and in every attempt in the same way."""
        parts: dict[int, list[int]] = {}
        for index, message in enumerate(share.originals):
            parts.setdefault(crc32(format_position(message.position).encode()) % self._to.partitions, []).append(index)
        return [(partition, share.subset(indexes)) for partition, indexes in parts.items()]

    def _key_or_turn(self, share: Share) -> list[PartitionShare]:
        """By key; all that have none go to the next partition together."""
        self._next = (self._next + 1) % self._to.partitions
        parts: dict[int, list[int]] = {}
        for index, key in enumerate(self._picker.keys(share.messages)):
            parts.setdefault(self._next if key is None else self._to.partition_of(key), []).append(index)
        if len(parts) == 1:
            return [(partition, share) for partition in parts]
        return [(partition, share.subset(indexes)) for partition, indexes in parts.items()]


class CheckedOutbound:
    """An outbound that refuses messages for partitions that it does not have."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    @property
    def formats(self) -> Collection[str]:
        """Those of the outbound."""
        return self._outbound.formats

    @property
    def partitions(self) -> int:
        """Those that there are."""
        return self._outbound.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send, or refuse at once."""
        count = self._outbound.partitions
        if 0 <= partition < count:
            return self._outbound.send(partition, share)
        reason = _REASONS.get(partition, f"it is for partition {partition}, and there are {count} (0 to {count - 1})")
        return refuse(share, reason)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Take back what is not on its way."""
        self._outbound.withdraw(sends)

    def partition_of(self, key: bytes) -> int:
        """As the system's producers choose."""
        return self._outbound.partition_of(key)

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """What is stored of a source."""
        return await self._outbound.resume(source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Close it."""
        await self._outbound.close(deadline)


class NoOutbound:
    """Where rows go that say no topic: it refuses them all."""

    formats: Sequence[str] = ()
    partitions = 1

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":  # noqa: ARG002
        """Refuse it."""
        return refuse(share, self._reason)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Nothing is ever on its way."""

    def partition_of(self, key: bytes) -> int:  # noqa: ARG002
        """The one that there is."""
        return 0

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:  # noqa: ARG002
        """Nothing is stored."""
        return {}

    async def close(self, deadline: float | None = None) -> None:
        """Nothing is open."""


def refuse(share: Share, reason: str) -> "asyncio.Future[Receipt]":
    """The receipt of a share of which nothing is taken."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    failures = [MessageFailure(index, Failure.REFUSED, reason) for index in range(share.count)]
    future.set_result(Receipt([()] * share.count, failures))
    return future
