"""Chooses the target partition of each row: from its column `partition`, or by the target's partition rule.

The sink stores the values of the column `partition` in `Batch.handle`, as a `BatchPartition` or `RowPartitions`. A
`PartitionMode` is one of:

rule     the target's rule chooses the partition
auto     the column chooses it, or the rule if the column of the row is NULL
column   only the column chooses it

Rows without a source have no source partition. For them, the rules modulo and key use the row's key. Rows without a source
and without a key are divided round robin. The rules identity and table choose no partition for rows without a source.

With the rule round_robin and deduplication, a hash of the position chooses the partition. Real round robin depends on the
batches, which differ between attempts: messages would change their partition, and it would be unknown which of them are missing.

Rows without a partition get NO_PARTITION, and a `CheckedOutbound` refuses them.
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
from mqbridge.spark.transfer.spec import PartitionMode

NO_PARTITION = -1
"""The partition index of rows for which neither the column nor the rule chooses a partition."""
MISSED = -2
"""The partition index of messages that `transfer.resume` finds missing, although later ones of their source are stored."""

_REFUSAL_REASONS = {
    NO_PARTITION: "it names no target partition",
    MISSED: "an earlier attempt did not store it, or another task has rows of its source: later messages are stored already",
}


class BatchPartition(NamedTuple):
    """The handle of a batch whose rows all name one target partition; None if their column is NULL."""

    partition: int | None


class RowPartitions(NamedTuple):
    """The handle of a batch whose rows name several target partitions: one value per row."""

    partitions: Sequence[int | None]


class RowPartitioner(Partitioner):
    """Divides batches of rows among target partitions, by the column in their handle or by a rule."""

    def __init__(
        self, rule: PartitionRule, outbound: Outbound, partition_mode: PartitionMode, *, deduplicate: bool = False
    ) -> None:
        super().__init__(rule, outbound)
        self._partition_mode, self._divide_by_rule = partition_mode, self.divide
        self._hashes_positions = deduplicate and rule.by == "round_robin"
        self._keyless_partition = -1
        """The partition of the last rows without source and key: the next ones get the next partition.

        -1 before the first rows, which get partition 0.
        """
        self.divide = self._divide_rows  # an attribute: the base class sets it to the method of the rule

    def _divide_rows(self, share: Share) -> list[PartitionShare]:
        handle = share.batch.handle
        if self._partition_mode == "rule":
            return self._divide_without_column(share)
        if isinstance(handle, RowPartitions):
            return self._divide_rows_by_column(share, handle.partitions)
        if isinstance(handle, BatchPartition) and handle.partition is not None:
            return [(handle.partition, share)]
        return self._divide_nulls(share)

    def _divide_rows_by_column(self, share: Share, column: Sequence[int | None]) -> list[PartitionShare]:
        """Divide by the values of the column. In each partition, the rows keep their order."""
        indexes_of: dict[int, list[int]] = {}
        null_indexes: list[int] = []
        for index, batch_index in enumerate(share.batch_indexes):
            partition = column[batch_index]
            (null_indexes if partition is None else indexes_of.setdefault(partition, [])).append(index)
        if null_indexes:
            share_index = dict(zip(share.batch_indexes, range(share.count), strict=True))
            for partition, nulls in self._divide_nulls(share.subset(null_indexes)):
                indexes_of[partition] = sorted(
                    [*indexes_of.get(partition, ()), *map(share_index.__getitem__, nulls.batch_indexes)]
                )
        return [(partition, share.subset(indexes)) for partition, indexes in indexes_of.items()]

    def _divide_nulls(self, share: Share) -> list[PartitionShare]:
        """Divide rows whose column is NULL."""
        return [(NO_PARTITION, share)] if self._partition_mode == "column" else self._divide_without_column(share)

    def _divide_without_column(self, share: Share) -> list[PartitionShare]:
        """Divide by the rule, with the exceptions that the module's docstring describes."""
        batch = share.batch
        if batch.partition is NO_SOURCE and self.rule.by in ("modulo", "key"):
            return self._divide_rows_by_key(share)
        if batch.partition is NO_SOURCE and self.rule.by != "round_robin":
            return [(NO_PARTITION, share)]
        if self._hashes_positions and batch.partition is not NO_SOURCE:
            return self._divide_rows_by_position(share)
        return self._divide_by_rule(share)

    def _divide_rows_by_position(self, share: Share) -> list[PartitionShare]:
        """Divide by a hash of the position: about evenly, and in the same way in every attempt."""
        indexes_of: dict[int, list[int]] = {}
        for index, message in enumerate(share.originals):  # edits do not change positions
            partition = crc32(format_position(message.position).encode()) % self._outbound.partitions
            indexes_of.setdefault(partition, []).append(index)
        return [(partition, share.subset(indexes)) for partition, indexes in indexes_of.items()]

    def _divide_rows_by_key(self, share: Share) -> list[PartitionShare]:
        """Divide by key. All messages of the share without a key get the same partition, chosen round robin."""
        self._keyless_partition = (self._keyless_partition + 1) % self._outbound.partitions
        indexes_of: dict[int, list[int]] = {}
        for index, key in enumerate(self._picker.keys(share.messages)):
            partition = self._keyless_partition if key is None else self._outbound.partition_of(key)
            indexes_of.setdefault(partition, []).append(index)
        if len(indexes_of) == 1:
            return [(partition, share) for partition in indexes_of]
        return [(partition, share.subset(indexes)) for partition, indexes in indexes_of.items()]


class CheckedOutbound:
    """Wraps an outbound, and refuses messages for partitions that the topic does not have."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    @property
    def formats(self) -> Collection[str]:
        """The formats that the wrapped outbound writes without decoding the messages."""
        return self._outbound.formats

    @property
    def partitions(self) -> int:
        """The number of partitions of the topic."""
        return self._outbound.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send, or return a receipt that refuses all messages if the partition does not exist."""
        count = self._outbound.partitions
        if 0 <= partition < count:
            return self._outbound.send(partition, share)
        reason = _REFUSAL_REASONS.get(partition, f"it is for partition {partition}, and there are {count} (0 to {count - 1})")
        return refused_receipt(share, reason)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Cancel the sends whose bytes were not handed to the network yet."""
        self._outbound.withdraw(sends)

    def partition_of(self, key: bytes) -> int:
        """Return the partition that the target system's own producers would choose for this key."""
        return self._outbound.partition_of(key)

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of the source that each partition stores; see `Outbound.resume`."""
        if partitions is None:
            return await self._outbound.resume(source, since)
        return await self._outbound.resume(source, since, partitions)

    async def close(self, deadline: float | None = None) -> None:
        """Close the wrapped outbound."""
        await self._outbound.close(deadline)


class RefusingOutbound:
    """Refuses all messages: those for a topic that does not exist, and those of rows that name no target topic."""

    formats: Sequence[str] = ()
    partitions = 1

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":  # noqa: ARG002
        """Return a receipt that refuses all messages."""
        return refused_receipt(share, self._reason)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Do nothing: every send has its receipt already."""

    def partition_of(self, key: bytes) -> int:  # noqa: ARG002
        """Return 0, the only partition."""
        return 0

    async def resume(
        self,
        source: Partition,  # noqa: ARG002
        since: Mapping[int, Position] | None = None,  # noqa: ARG002
        partitions: Collection[int] | None = None,  # noqa: ARG002
    ) -> Mapping[int, Position]:
        """Return no positions: nothing is stored."""
        return {}

    async def close(self, deadline: float | None = None) -> None:
        """Do nothing: nothing is open."""


def refused_receipt(share: Share, reason: str) -> "asyncio.Future[Receipt]":
    """Return a finished receipt that refuses every message of a share."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    failures = [MessageFailure(index, Failure.REFUSED, reason) for index in range(share.count)]
    future.set_result(Receipt([()] * share.count, failures))
    return future
