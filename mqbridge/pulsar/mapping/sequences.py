"""Positions in a source as sequence ids, for brokers that drop what a producer sends twice: lossless, and in the same order.

Sequence ids are signed 64-bit numbers that are not negative, so 63 bits hold a position and how many parts it has:

    00  offset, 61 bits                                     (offset,): RocketMQ, log
    01  offset, 46 bits   index, 15 bits                    (offset, index): TubeMQ
    1   ledger, 28 bits   entry, 21 bits   index, 13 bits   (ledger, entry, index): Pulsar

TubeMQ's offsets are bytes of an index with 28 for each message of a store, and a reading counts at most 32,768 messages from one
of them: 46 bits are two and a half million million messages. Ledgers are numbered by the whole cluster: 28 bits are 268 million.
A ledger of default settings is closed after 50,000 entries, but not before it is ten minutes old: 21 bits are 3,495 entries per
second for so long. A position beyond its field is refused: its messages can still be deduplicated by their origins.
"""

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position, format_position

_WIDTHS: dict[int, tuple[int, ...]] = {1: (61,), 2: (46, 15), 3: (28, 21, 13)}
"""Bits of each part, by the number of parts."""
_TAGS = {1: 0, 2: 1 << 61, 3: 1 << 62}


def sequence_of(position: Position) -> int:
    """The sequence id of a message at this position. Raises ClusterError (FATAL) for a position that has none."""
    widths = _WIDTHS.get(len(position))
    if widths is None:
        raise ClusterError(f"{position} is no position that can be a sequence id: name no sender", Failure.FATAL)
    packed = 0
    for part, width in zip(position, widths, strict=True):
        if not 0 <= part < 1 << width:
            raise ClusterError(
                f"position {format_position(position)} does not fit into a sequence id: {part} is not below {1 << width}; "
                "name no sender",
                Failure.FATAL,
            )
        packed = packed << width | part
    return _TAGS[len(position)] | packed


def position_of_sequence(sequence: int) -> Position:
    """The position that `sequence_of` made it of; takes any that is not negative and has 63 bits."""
    parts = 3 if sequence >= _TAGS[3] else 2 if sequence >= _TAGS[2] else 1
    packed = sequence ^ _TAGS[parts]
    position: list[int] = []
    for width in reversed(_WIDTHS[parts]):
        position.insert(0, packed & (1 << width) - 1)
        packed >>= width
    return tuple(position)
