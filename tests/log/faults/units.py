"""A format of units for the workload: the payloads of the messages, each behind its length."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mqbridge.adapter.formats import batch_of_units
from mqbridge.log.adapter import unit_formats
from mqbridge.message import Batch, Message, Partition, Position, Unit

FORMAT = "faults.payloads"
_LENGTH = struct.Struct(">I")


class PayloadFormat:
    """Decodes a unit to messages with its payloads."""

    name = FORMAT

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the messages; bytes that are not such a unit make fewer, which the log reports."""
        messages, at = [], 0
        for position in positions:
            if at + _LENGTH.size > len(unit.data):
                break
            (size,) = _LENGTH.unpack_from(unit.data, at)
            at += _LENGTH.size + size
            messages.append(Message(unit.data[at - size : at], position=position))
        return messages


def install() -> None:
    """Let the log of this process find the format, as if an adapter with it were installed."""
    unit_formats.load_formats()
    unit_formats.FORMATS[FORMAT] = PayloadFormat()


def units_of(payloads: Sequence[bytes], first: int, per_unit: int, source: Partition) -> Batch:
    """Make a batch of units of at most `per_unit` messages; `first` is the position of the first one in the source."""
    units = []
    for begin in range(0, len(payloads), per_unit):
        part = payloads[begin : begin + per_unit]
        data = b"".join(_LENGTH.pack(len(payload)) + payload for payload in part)
        units.append(Unit(data, len(part), None, (first + begin,)))
    return batch_of_units(PayloadFormat(), units, source)
