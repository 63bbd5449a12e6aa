"""Which target partition a message goes to.

By identity a source partition keeps to one target partition, so its order survives. By key, messages of one key keep theirs.
Round robin spreads whole batches and promises nothing about order.
"""

from collections.abc import Sequence
from typing import Literal

from mqbridge.adapter import Outbound
from mqbridge.message import Batch, Message

By = Literal["identity", "key", "round_robin"]

Share = tuple[int, Sequence[Message]]
"""A target partition and the messages for it, in order."""


class Partitioner:
    """Divides batches among the partitions of one outbound."""

    def __init__(self, by: By, outbound: Outbound) -> None:
        self._by = by
        self._outbound = outbound
        self._turn = 0

    def divide(self, batch: Batch, messages: Sequence[Message]) -> list[Share]:
        """The shares of a batch; `messages` is what the filter left of it."""
        count = self._outbound.partitions
        if self._by == "round_robin":
            self._turn = (self._turn + 1) % count
            return [(self._turn, messages)]
        own = batch.partition.index % count
        if self._by == "identity" or count == 1:
            return [(own, messages)]
        shares: dict[int, list[Message]] = {}
        for message in messages:
            key = message.key
            # Messages without a key stay with their source partition, where at least their own order is kept.
            place = own if key is None else self._outbound.partition_of(key.encode() if isinstance(key, str) else key)
            shares.setdefault(place, []).append(message)
        return list(shares.items())
