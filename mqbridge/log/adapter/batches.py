"""Makes batches of stored rows, which are not decoded before their messages are used.

A row of units of another system is one unit, or many of one message each whose bytes were joined (see `encoding`).
"""

from collections.abc import Sequence
from functools import partial

from mqbridge.adapter.formats import JoinableFormat
from mqbridge.errors import RemoteProtocolError
from mqbridge.log.adapter.unit_formats import decode_unit, joinable
from mqbridge.log.store import read
from mqbridge.log.wire.records import decode_rows
from mqbridge.message import Batch, Message, Partition, Unit

ROWS = "log.rows"
"""Format of batches of our own records, which have no units."""
_make_unit = partial(tuple.__new__, Unit)
"""Makes a unit of its values; `Unit(...)` takes twice the time."""


def make_batch(partition: Partition, found: read.Rows, end: int, run: int = 0) -> Batch:
    """Make a batch of the messages in these rows at offsets from `found.offset` to before `end`; `run` is the lane's run, if any.

    If only some messages of a row are in the batch, its size includes the bytes of the row in proportion to their number. Rows
    that begin at or after `end` add nothing.
    """
    rows, first = found.rows, found.offset
    size = sum(len(records) * max(0, min(end, base + count) - max(first, base)) // count for base, count, records in rows)
    units = None if found.format is None else partial(_units, found, end)
    decode = partial(decode_rows, rows, first, end) if units is None else partial(_decode_units, found, end)
    return Batch(
        partition,
        decode,
        count=end - first,
        size=size,
        first=(first,),
        next=(end,),
        held_bytes=read.held_bytes(rows) + _split_bytes(found),
        format=found.format or ROWS,
        data=rows,
        handle=run,
        published_ms=found.appended_ms[0] if found.appended_ms else None,
        units=units,
        messages_replace_data=units is None,  # unit formats may compress
    )


def _split_bytes(found: read.Rows) -> int:
    """Return the memory that the units of joined rows take besides the rows: their bytes are copied."""
    if joinable(found.format or ROWS) is None:
        return 0
    return sum([len(data) + read.ROW_OVERHEAD_BYTES * count for _, count, data in found.rows if count > 1])


def _units(found: read.Rows, end: int) -> list[Unit]:
    """Return the units in these rows that have messages at offsets from `found.offset` to before `end`."""
    units: list[Unit] = []
    joins = joinable(found.format or ROWS)
    for (base, count, data), time_ms in zip(found.rows, found.appended_ms, strict=True):
        if base >= end:
            break
        pieces = [] if joins is None or count == 1 else _split(joins, data)
        if len(pieces) == count:
            begin = max(0, found.offset - base)
            pieces = pieces[begin : end - base]
            units += [_make_unit((piece, 1, time_ms, (at,), 0)) for at, piece in enumerate(pieces, base + begin)]
        else:
            units.append(Unit(data, count, time_ms, (base,), _left_out(base, count, found.offset, end)))
    return units


def _split(joins: JoinableFormat, data: bytes) -> Sequence[bytes]:
    """Return the bytes of the units that were joined; nothing if they are damaged: they are decoded as one, which says so."""
    try:
        return joins.split(data)
    except RemoteProtocolError:
        return []


def _left_out(base: int, count: int, first: int, end: int) -> int:
    """Return the bits of those of the `count` messages from offset `base` on that are before `first`, or not before `end`."""
    before = (1 << max(0, first - base)) - 1
    kept = (1 << min(count, end - base)) - 1
    return before | ((1 << count) - 1 & ~kept)


def _decode_units(found: read.Rows, end: int) -> list[Message]:
    assert found.format is not None  # noqa: S101 - the caller knows it
    messages: list[Message] = []
    for unit in _units(found, end):
        decoded = decode_unit(found.format, unit)
        messages += [each for index, each in enumerate(decoded) if not unit.left_out >> index & 1] if unit.left_out else decoded
    return messages
