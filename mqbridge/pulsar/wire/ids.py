"""Entry ids, and bit sets (`ack_set`) of the messages of a batch that are not acknowledged.

An entry id is a (ledger, entry) pair of signed numbers, and pairs are ordered as tuples. On the wire both numbers are unsigned,
and -1 is 2^64-1.
"""

import struct
from collections.abc import Iterable, Sequence

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

EntryId = tuple[int, int]
"""Ledger id, and index of the entry in the ledger."""

NO_REQUEST = 0xFFFFFFFFFFFFFFFF
"""Request id in an error that belongs to no request."""
UNSIGNED_NONE = 0xFFFFFFFFFFFFFFFF
"""Ledger id and entry id of "no entry" on the wire."""
EARLIEST: EntryId = (-1, -1)
"""The id before the first entry: a new subscription or a seek that starts here begins with the oldest entry."""
LATEST: EntryId = ((1 << 63) - 1, (1 << 63) - 1)
"""The id after the last entry: a new subscription or a seek that starts here begins with the next entry to be stored."""

_UINT64_MASK = 0xFFFFFFFFFFFFFFFF


def unsigned(value: int) -> int:
    """Return a signed number as the uint64 of the wire."""
    return value & _UINT64_MASK


def signed(value: int) -> int:
    """Return a uint64 of the wire as a signed number."""
    return value - (1 << 64) if value >> 63 else value


def entry_id(data: MessageIdData) -> EntryId:
    """Return the entry id of a message id from the wire."""
    ledger, entry = data.ledgerId, data.entryId
    if ledger >> 63 or entry >> 63:
        return signed(ledger), signed(entry)
    return ledger, entry


def message_id(ledger: int, entry: int, ack_set: Iterable[int] = ()) -> MessageIdData:
    """Return an entry id as a message id for the wire; `ack_set` are the words of a bit set; empty means the whole entry."""
    return MessageIdData(ledgerId=ledger & _UINT64_MASK, entryId=entry & _UINT64_MASK, ack_set=ack_set)


# --- bit sets ---------------------------------------------------------------------------------------------------------
# In memory a bit set is a Python int: bit i is 1 while message i is not acknowledged. On the wire it is a list of signed 64-bit
# words, lowest first, without trailing words of zero. Both are converted through bytes, in linear time.


def full_mask(count: int) -> int:
    """Return the mask of a batch of `count` messages of which none is acknowledged."""
    return (1 << count) - 1


def to_words(mask: int) -> list[int]:
    """Return the words of an `ack_set` for a mask."""
    count = -(-mask.bit_length() // 64)
    return list(struct.unpack(f"<{count}q", mask.to_bytes(count * 8, "little")))


def from_words(words: Sequence[int]) -> int:
    """Return the mask for the words of an `ack_set`."""
    return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
