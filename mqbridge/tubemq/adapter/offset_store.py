"""Keeps the offsets of held partitions where the gateway keeps positions."""

from mqbridge.adapter.inbound import HeldPositions
from mqbridge.tubemq.client.consumer.partition_state import Unsettled
from mqbridge.tubemq.client.consumer.read_history import LastRead, ReadPack
from mqbridge.tubemq.wire.string_formats import PartitionRef


class OffsetStore:
    """A `PositionStore` of the client, over the gateway's `HeldPositions`. A position is (offset, 0).

    A trace is (offset up to which messages are confirmed, checksum of the message types), then (offset, first message id, last
    message id) of each pack.
    """

    def __init__(self, positions: HeldPositions) -> None:
        self._positions = positions

    def unsettled(self, ref: PartitionRef) -> Unsettled | None:
        """Return where the group has to go on, if the partition was held and not released."""
        found = self._positions.unsettled(ref.topic, ref.name)
        return None if found is None else Unsettled(found[0][0], found[1][0])

    def last_read(self, ref: PartitionRef) -> LastRead | None:
        """Return what was read of the partition last."""
        if not (trace := self._positions.trace(ref.topic, ref.name)):
            return None
        confirmed, types = trace[0]
        return LastRead(confirmed, types, tuple(ReadPack(*pack) for pack in trace[1:]))

    def record(self, ref: PartitionRef, unsettled: Unsettled, last_read: LastRead) -> None:
        """Record where the group has to go on if the partition is not released, and what was read."""
        trace = ((last_read.confirmed, last_read.types), *last_read.packs)
        self._positions.record(ref.topic, ref.name, (unsettled.offset, 0), (unsettled.limit, 0), trace)

    def released(self, ref: PartitionRef) -> None:
        """Record that the partition was released."""
        self._positions.released(ref.topic, ref.name)
