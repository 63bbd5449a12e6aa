"""Detects messages that were deleted before they were read, by the bounds of their partitions."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position, format_position
from mqbridge.spark.source.offsets import PartitionKey, describe_partition

DATA_LOSS_HINT = (
    "Set failOnDataLoss=false to continue with the stored messages; use a new checkpointLocation to read everything again"
)


class LossKind(Enum):
    """How the messages were lost. The value is text for the error, after the position that is required ("that")."""

    MISSING = "the partition does not exist any more"
    RECREATED = "the partition ends before that, as if it was deleted and created again"
    EXPIRED = "retention deleted messages"


class Loss(NamedTuple):
    """A loss in one partition. `bounds` is None if the partition is missing.

    `position` is where reading should begin, or the given end of a read that is not a stream.
    """

    key: PartitionKey
    kind: LossKind
    position: Position
    bounds: Bounds | None

    def __str__(self) -> str:
        prefix = f"{describe_partition(self.key)} is required at {format_position(self.position)}, but "
        if self.bounds is None:
            return f"{prefix}{self.kind.value}"
        first, following = map(format_position, (self.bounds.first, self.bounds.next))
        return f"{prefix}{self.kind.value}: it stores {first} to {following} now"


def detect_loss(key: PartitionKey, position: Position, bounds: Bounds | None) -> Loss | None:
    """Return the loss that the current bounds of a partition show, for a read from `position` on.

    For positions with several numbers (Pulsar), EXPIRED is only a suspicion, which the caller must check: the position may be the
    end of a ledger that was read completely and then deleted. While a Pulsar partition is empty, its bounds do not show whether
    it was recreated, so RECREATED is not reported.
    """
    if bounds is None:
        return Loss(key, LossKind.MISSING, position, None)
    if position > bounds.next and bounds.is_known:
        return Loss(key, LossKind.RECREATED, position, bounds)
    if position < bounds.first:
        return Loss(key, LossKind.EXPIRED, position, bounds)
    return None


def detect_losses(offsets: Mapping[PartitionKey, Position], bounds: Mapping[PartitionKey, Bounds]) -> list[Loss]:
    """Return the losses of all these partitions, ordered by partition."""
    losses = (detect_loss(key, position, bounds.get(key)) for key, position in sorted(offsets.items()))
    return [loss for loss in losses if loss is not None]
