"""Message ids, and the bit sets that say which messages of a batch are acknowledged.

Ids are plain (ledger, entry) pairs of signed numbers, ordered as tuples are; on the wire they are unsigned, and -1 is 2^64-1.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

EntryId = tuple[int, int]
"""Ledger and entry."""

NO_REQUEST = 0xFFFFFFFFFFFFFFFF
"""The request id of what nobody asked for."""
UNSIGNED_NONE = 0xFFFFFFFFFFFFFFFF
"""Ledger and entry of nothing, as they are on the wire."""
EARLIEST: EntryId = (-1, -1)
LATEST: EntryId = ((1 << 63) - 1, (1 << 63) - 1)

_MASK = 0xFFFFFFFFFFFFFFFF


def unsigned(value: int) -> int:
    """A number as uint64 carries it."""
    return value & _MASK


def signed(value: int) -> int:
    """A uint64 as the number that was meant."""
    return value - (1 << 64) if value >> 63 else value


def entry_id(data: MessageIdData) -> EntryId:
    """Ledger and entry of a message id."""
    ledger, entry = data.ledgerId, data.entryId
    if ledger >> 63 or entry >> 63:
        return signed(ledger), signed(entry)
    return ledger, entry


def message_id(ledger: int, entry: int, ack_set: Iterable[int] = ()) -> MessageIdData:
    """A message id for the wire."""
    return MessageIdData(ledgerId=ledger & _MASK, entryId=entry & _MASK, ack_set=ack_set)


# --- bit sets ---------------------------------------------------------------------------------------------------------
# Here one is a Python int: bit i is 1 while message i is not acknowledged. On the wire it is words of 64 bits as signed
# numbers, lowest first, without words of zero at the end.


def full_mask(count: int) -> int:
    """Nothing of a batch of `count` is acknowledged."""
    return (1 << count) - 1


def to_words(mask: int) -> list[int]:
    """A mask as `ack_set` carries it."""
    words = []
    while mask:
        words.append(signed(mask & _MASK))
        mask >>= 64
    return words


def from_words(words: Iterable[int]) -> int:
    """The mask of an `ack_set`."""
    mask = 0
    for place, word in enumerate(words):
        mask |= (word & _MASK) << 64 * place
    return mask
