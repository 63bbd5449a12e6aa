"""Keeps the offsets of held partitions where the gateway keeps positions."""

from mqbridge.adapter.inbound import HeldPositions
from mqbridge.tubemq.client.consumer.partition_state import Unsettled
from mqbridge.tubemq.wire.string_formats import PartitionRef


class OffsetStore:
    """A `PositionStore` of the client, over the gateway's `HeldPositions`. A position is (offset, 0)."""

    def __init__(self, positions: HeldPositions) -> None:
        self._positions = positions

    def unsettled(self, ref: PartitionRef) -> Unsettled | None:
        """Return where the group has to go on, if the partition was held and not released."""
        found = self._positions.unsettled(ref.topic, ref.name)
        return None if found is None else Unsettled(found[0][0], found[1][0])

    def record(self, ref: PartitionRef, unsettled: Unsettled) -> None:
        """Record where the group has to go on if the partition is not released."""
        self._positions.record(ref.topic, ref.name, (unsettled.offset, 0), (unsettled.limit, 0))

    def released(self, ref: PartitionRef) -> None:
        """Record that the partition was released."""
        self._positions.released(ref.topic, ref.name)
