"""A format of units for tests: the payloads of the messages, one a line."""

from collections.abc import Sequence

import pytest

from mqbridge.adapter.formats import batch_of_units
from mqbridge.log.adapter import unit_formats
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Share, Unit

LINES = "lines.unit"
SDK = Partition("sdk", "producer", "0", 0)


class LineFormat:
    """Decodes a unit to one message a line; a unit of the text `wrong` raises an exception, against the contract."""

    name = LINES

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        if unit.data == b"wrong":
            raise ZeroDivisionError("a fault of the adapter")
        lines = unit.data.split(b"\n")
        return [Message(line, position=position) for line, position in zip(lines, positions, strict=False)]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log find the format, as if an adapter with it were installed."""
    unit_formats.load_formats()
    monkeypatch.setitem(unit_formats.FORMATS, LINES, LineFormat())


def line_unit(*numbers: int, position: Position = ()) -> Unit:
    """Make a unit of numbered messages."""
    return Unit(b"\n".join(b"%d" % number for number in numbers), len(numbers), 1_700_000_000_000, position)


def line_batch(*units: Unit, source: Partition = NO_SOURCE) -> Batch:
    return batch_of_units(LineFormat(), units, source)


def sent_by_sdk(*units: tuple[int, int]) -> Share:
    """Make a share of units of a sender: pairs of the first sequence and the number of messages."""
    made = [line_unit(*range(first, first + count), position=(first,)) for first, count in units]
    return Share(line_batch(*made, source=SDK))
