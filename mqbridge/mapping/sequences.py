"""Converts source positions to sequence ids, by which brokers deduplicate, and back. The order of positions is kept.

Sequence ids are non-negative signed 64-bit numbers, so 63 bits hold a position and, as a tag in the leading one or two bits, its
number of components:

    00  offset, 61 bits                                     (offset,): RocketMQ, log
    01  offset, 46 bits   index, 15 bits                    (offset, index): TubeMQ
    1   ledger, 28 bits   entry, 21 bits   index, 13 bits   (ledger, entry, index): Pulsar

TubeMQ's offsets count bytes of an index with 28 bytes per stored message, so 46 bits are 2.5 * 10^12 messages; a read returns at
most 32,768 messages per offset, which is 15 bits. Ledger ids are unique in the whole cluster: 28 bits are 268 million ledgers.
With default settings a ledger is closed after 50,000 entries, but not before it is ten minutes old: 21 bits are 3,495 entries per
second for ten minutes. A position with a larger component is refused: it must then be sent without a sender's name
(`OutboundSpec.sender`), and deduplicated by the origins of stored messages.
"""

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position, format_position

_WIDTHS: dict[int, tuple[int, ...]] = {1: (61,), 2: (46, 15), 3: (28, 21, 13)}
"""Number of components -> width of each component in bits."""
_TAGS = {1: 0, 2: 1 << 61, 3: 1 << 62}
"""Number of components -> the tag in the leading bits, at its place in the sequence id."""


def sequence_of(position: Position) -> int:
    """Return the sequence id of a message at this position. Raises ClusterError (FATAL) if the position does not fit."""
    widths = _WIDTHS.get(len(position))
    if widths is None:
        raise ClusterError(
            f"position {format_position(position)} has {len(position)} components and cannot become a sequence id: "
            "remove the sender's name (in a Spark sink: deduplicate=false)",
            Failure.FATAL,
        )
    packed = 0
    for component, width in zip(position, widths, strict=True):
        if not 0 <= component < 1 << width:
            raise ClusterError(
                f"position {format_position(position)} does not fit into a sequence id: {component} is not in 0 to "
                f"{(1 << width) - 1}; remove the sender's name (in a Spark sink: deduplicate=false)",
                Failure.FATAL,
            )
        packed = packed << width | component
    return _TAGS[len(position)] | packed


def position_of_sequence(sequence: int) -> Position:
    """Return the position of a sequence id made by `sequence_of`.

    Any 63-bit number is accepted: if another producer used this name, there may be no message at the returned position.
    """
    component_count = 3 if sequence >= _TAGS[3] else 2 if sequence >= _TAGS[2] else 1
    packed = sequence ^ _TAGS[component_count]
    position: list[int] = []
    for width in reversed(_WIDTHS[component_count]):
        position.insert(0, packed & (1 << width) - 1)
        packed >>= width
    return tuple(position)
