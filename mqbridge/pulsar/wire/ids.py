"""Message ids, and the bit sets of the messages of a batch that are not acknowledged.

Ids are plain (ledger, entry) pairs of signed numbers, ordered as tuples are; on the wire they are unsigned, and -1 is 2^64-1.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

EntryId = tuple[int, int]
"""Ledger and entry."""

NO_REQUEST = 0xFFFFFFFFFFFFFFFF
"""Request id of errors that answer no request."""
UNSIGNED_NONE = 0xFFFFFFFFFFFFFFFF
"""Ledger and entry id of "no entry", as on the wire."""
EARLIEST: EntryId = (-1, -1)
LATEST: EntryId = ((1 << 63) - 1, (1 << 63) - 1)

_MASK = 0xFFFFFFFFFFFFFFFF


def unsigned(value: int) -> int:
    """Return a signed number as the uint64 of the wire."""
    return value & _MASK


def signed(value: int) -> int:
    """Return a uint64 of the wire as a signed number."""
    return value - (1 << 64) if value >> 63 else value


def entry_id(data: MessageIdData) -> EntryId:
    """Return the ledger and entry of a message id."""
    ledger, entry = data.ledgerId, data.entryId
    if ledger >> 63 or entry >> 63:
        return signed(ledger), signed(entry)
    return ledger, entry


def message_id(ledger: int, entry: int, ack_set: Iterable[int] = ()) -> MessageIdData:
    """Return a message id for the wire."""
    return MessageIdData(ledgerId=ledger & _MASK, entryId=entry & _MASK, ack_set=ack_set)


# --- bit sets ---------------------------------------------------------------------------------------------------------
# In memory a bit set is a Python int: bit i is 1 while message i is not acknowledged. On the wire it is a list of signed 64-bit
# words, lowest first, without trailing words of zero.


def full_mask(count: int) -> int:
    """Return the mask of a batch of `count` messages of which none is acknowledged."""
    return (1 << count) - 1


def to_words(mask: int) -> list[int]:
    """Return a mask as the words of an `ack_set`."""
    words = []
    while mask:
        words.append(signed(mask & _MASK))
        mask >>= 64
    return words


def from_words(words: Iterable[int]) -> int:
    """Return the words of an `ack_set` as a mask."""
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _MASK) << 64 * index
    return mask
