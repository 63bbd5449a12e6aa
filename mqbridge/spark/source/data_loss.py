"""Messages that are gone before they were read: how that shows in the bounds of partitions."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position, format_position
from mqbridge.spark.source.offsets import Key, spoken


class Kind(Enum):
    """How they went."""

    VANISHED = "it is not there any more"
    ANEW = "it ends before that, as if it were made anew"
    OVERTAKEN = "retention deleted messages"


class Loss(NamedTuple):
    """What was lost of one partition, of which `position` is needed: a reading begins there, or ends."""

    key: Key
    kind: Kind
    position: Position
    held: Bounds | None

    def __str__(self) -> str:
        begin = f"{spoken(self.key)} is needed at {format_position(self.position)}, but "
        if self.held is None:
            return f"{begin}{self.kind.value}"
        first, following = map(format_position, (self.held.first, self.held.next))
        return f"{begin}{self.kind.value}: it holds {first} to {following} now"


WHAT_TO_DO = "Set failOnDataLoss=false to go on with what there is; begin with a new checkpointLocation to read all of it again"


def loss_of(key: Key, position: Position, held: Bounds | None) -> Loss | None:
    """What shows of a loss where a partition is to be read from a position on.

    OVERTAKEN is a suspicion where positions have several numbers: the part of the store that the position ends may be deleted
    without anything behind it. Such a partition also has no bounds of its own while it is empty.
    """
    if held is None:
        return Loss(key, Kind.VANISHED, position, None)
    if position > held.next and (len(position) == 1 or held.first < held.next):
        return Loss(key, Kind.ANEW, position, held)
    if position < held.first:
        return Loss(key, Kind.OVERTAKEN, position, held)
    return None


def losses_of(offsets: Mapping[Key, Position], held: Mapping[Key, Bounds]) -> list[Loss]:
    """Of all these partitions, in order."""
    found = (loss_of(key, position, held.get(key)) for key, position in sorted(offsets.items()))
    return [loss for loss in found if loss is not None]
