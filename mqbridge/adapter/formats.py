"""Formats of units: what a system stores and delivers as one, as bytes that can be stored elsewhere as they are.

A unit that passes through another system unchanged keeps all that no `Message` can hold: the boundaries of batches, compression,
encryption, chunks, the names and numbers of producers. The name of a format is that of its system and of the unit, such as
`pulsar.entry`, so that a reader finds the adapter which can decode it.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Unit

MAX_UNIT_MESSAGES = 100_000
"""Maximum number of messages in a unit: a small compressed one may claim any number, and each becomes an object."""
MESSAGE_BYTES = 100
"""Memory that a budget counts for each message of a unit, besides its bytes: for its position, and what a receipt says of it."""


class UnitFormat(Protocol):
    """A format of units. Adapters register theirs (`Adapter.formats`)."""

    name: str

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the messages of the unit, `unit.message_count` of them, with these positions; raises nothing.

        A message that cannot be decoded has a defect: damaged bytes, encryption, a chunk of a larger message.
        """


class JoinableFormat(UnitFormat, Protocol):
    """A format whose units have one message each, and whose bytes tell where they end: a store may keep many as one."""

    def are_whole(self, units: Sequence[bytes]) -> bool:
        """Return True if each of these is exactly one unit, as far as their sizes tell."""

    def split(self, data: bytes) -> Sequence[bytes]:
        """Return the bytes of each unit. Raises RemoteProtocolError for damaged bytes."""


def message_positions(unit: Unit) -> list[Position]:
    """Return the positions of the unit's messages: the last component of `unit.position` counts them. All () if it has none."""
    if not unit.position:
        return [()] * unit.message_count
    *leading, first = unit.position
    return [(*leading, first + index) for index in range(unit.message_count)]


def _last_position(unit: Unit) -> Position:
    if not unit.position:
        return ()
    *leading, first = unit.position
    return (*leading, first + unit.message_count - 1)


def batch_of_units(unit_format: UnitFormat, units: Sequence[Unit], source: Partition = NO_SOURCE) -> Batch:
    """Make a batch of one or more units, to store them. Raises ValueError for a number of messages that no unit has.

    With a `source`, the units have positions there, and `Outbound.resume` finds them again (see `OutboundSpec.sender`). `next` is
    the position of the last message, because the one after it is unknown.
    """

    def decode() -> list[Message]:
        return [message for unit in units for message in unit_format.decode(unit, message_positions(unit))]

    size = count = 0
    for data, messages, _, _, _ in units:
        if not 0 < messages <= MAX_UNIT_MESSAGES:
            raise ValueError(f"a unit has 1 to {MAX_UNIT_MESSAGES} messages")
        size += len(data)
        count += messages
    if not units:
        raise ValueError(f"a unit has 1 to {MAX_UNIT_MESSAGES} messages, and a batch has a unit")
    return Batch(
        source,
        decode,
        count=count,
        size=size,
        held_bytes=size + count * MESSAGE_BYTES,
        first=units[0].position,
        next=_last_position(units[-1]),
        format=unit_format.name,
        units=lambda: units,
        published_ms=units[0].published_ms,
    )
