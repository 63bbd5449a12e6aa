"""Entries as batches: what their size, their positions and the memory that they take are, without decoding them.

An entry may be delivered in part: the mask of its messages that are to be delivered is `Entry.ack_set`.
"""

from collections.abc import Sequence
from typing import Any

from mqbridge import native
from mqbridge.message import Batch, Partition, Position
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId, from_words, full_mask, to_words

FORMAT = "pulsar.entries"
"""`Batch.data` is a sequence of `Entry`, unpacked."""
MAX_ENTRIES = 5000
"""Most entries of a batch."""


def mask_of(entry: Entry) -> int:
    """Which messages of it are to be delivered: bit i is message i. A damaged entry is one message."""
    return full_mask(1) if entry.defect is not None else from_words(entry.ack_set) or full_mask(entry.count)


def count_of(entry: Entry) -> int:
    """How many messages of it are to be delivered."""
    return mask_of(entry).bit_count() if entry.ack_set else entry.count


def position_of(entry: Entry) -> Position:
    """Of its first message that is to be delivered."""
    mask = mask_of(entry)
    return (entry.ledger, entry.entry, (mask & -mask).bit_length() - 1)


def leave_out(entry: Entry, begin: int, end: int | None = None) -> bool:
    """Deliver only messages `begin` to `end`, not included, of it; False when none is left."""
    count = entry.count
    keeps = mask_of(entry) & ~full_mask(min(begin, count)) & full_mask(count if end is None else min(end, count))
    if keeps != full_mask(count):
        entry.ack_set = tuple(to_words(keeps))
    return keeps != 0


def make_batch(partition: Partition, entries: Sequence[Entry], handle: Any = None, following: Position | None = None) -> Batch:
    """These entries, which are not empty; `following` is what comes next where that is not behind the last entry."""
    first, last = entries[0], entries[-1]
    return Batch(
        partition,
        lambda: decode_entries(entries),
        count=sum(map(count_of, entries)),
        size=sum(entry.size for entry in entries),
        first=position_of(first),
        next=(last.ledger, last.entry + 1, 0) if following is None else following,
        format=FORMAT,
        data=entries,
        handle=handle,
        held_bytes=sum(entry.held_bytes for entry in entries),
        mentions=None if native.compiled is not None else lambda text: any(_mentions(entry, text) for entry in entries),
        published_ms=first.publish_time or None,
    )


def masks_of(entries: Sequence[Entry], indexes: Sequence[int]) -> dict[EntryId, int]:
    """Which messages of which entries are those at these indexes of the batch, which are sorted."""
    found: dict[EntryId, int] = {}
    wanted, at = iter(indexes), 0
    index = next(wanted, None)
    for entry in entries:
        due, numbers = _due(entry), []
        while index is not None and index < at + len(due):
            numbers.append(due[index - at])
            index = next(wanted, None)
        if numbers:
            found[entry.place] = _mask(numbers)
        at += len(due)
    return found


def _due(entry: Entry) -> Sequence[int]:
    """The numbers of its messages that are to be delivered."""
    mask = mask_of(entry)
    if mask & (mask + 1) == 0:
        return range(mask.bit_length())
    return [number for number, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def _mask(numbers: Sequence[int]) -> int:
    """These bits set; they ascend. Bit by bit a large integer would be written anew for each of them."""
    bits = bytearray(numbers[-1] // 8 + 1)
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bits, "little")


def _mentions(entry: Entry, text: bytes) -> bool:
    """A batch has the properties of its messages in its payload, a single message has them in the metadata."""
    return text in entry.payload or (not entry.is_batch and text in entry.metadata.SerializePartialToString())
