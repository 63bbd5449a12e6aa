"""Makes batches of entries; counts, sizes and positions are computed without decoding the entries.

Only a part of an entry's messages may have to be delivered, because the others are acknowledged, or outside of a range:
`Entry.ack_set` is the mask of the messages to deliver. It is empty if all of them are to be delivered.

The units of a batch are its entries (see `mapping.unit_format`). A message that was joined from chunks is a batch of its own
without units: its chunks are entries, but only the last one has the position of the message.
"""

from collections.abc import Sequence
from typing import Any

from mqbridge import native
from mqbridge.message import Batch, Partition, Position, Unit
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.mapping.unit_format import FORMAT
from mqbridge.pulsar.wire.entry import Entry, stored_bytes
from mqbridge.pulsar.wire.ids import EntryId, from_words, full_mask, to_words

MAX_ENTRIES = 5000
"""Maximum number of entries of a batch."""


def deliverable_mask(entry: Entry) -> int:
    """Return the mask of the messages to deliver: bit i is message i. A damaged entry is one message, or one for each chunk."""
    count = entry.count
    return full_mask(1) if count == 1 else from_words(entry.ack_set) or full_mask(count)


def deliverable_count(entry: Entry) -> int:
    """Return the number of messages to deliver."""
    return deliverable_mask(entry).bit_count() if entry.ack_set else entry.count


def first_deliverable_position(entry: Entry) -> Position:
    """Return the position of the first message to deliver."""
    mask = deliverable_mask(entry)
    return (entry.ledger, entry.entry, (mask & -mask).bit_length() - 1)  # the index of the lowest bit


def keep_messages(entry: Entry, begin: int, end: int | None = None) -> bool:
    """Restrict the entry to the messages from index `begin` to before index `end` (None: to its last message).

    Return False if none is left to deliver; the caller must then drop the entry.
    """
    count = entry.count
    kept = deliverable_mask(entry) & ~full_mask(min(begin, count)) & full_mask(count if end is None else min(end, count))
    if kept != full_mask(count):
        entry.ack_set = tuple(to_words(kept))
    return kept != 0


def make_batch(partition: Partition, entries: Sequence[Entry], handle: Any = None, following: Position | None = None) -> Batch:
    """Make a batch of at least one entry.

    `handle` is the value with which the batch is acknowledged; None for a batch that needs no acknowledgement (a range is read).
    `following` is the position where reading continues; None if it is the one after the last entry. `Batch.data` is the sequence
    of `Entry` objects, with decompressed payloads.
    """
    first, last = entries[0], entries[-1]
    return Batch(
        partition,
        lambda: decode_entries(entries),
        count=sum(map(deliverable_count, entries)),
        size=sum(entry.size for entry in entries),
        first=first_deliverable_position(first),
        next=(last.ledger, last.entry + 1, 0) if following is None else following,
        format=FORMAT,
        data=entries,
        handle=handle,
        held_bytes=sum(entry.held_bytes for entry in entries),
        # The search for a text lets a filter skip decoding. With the compiled module every batch is decoded anyway (see
        # `PulsarOutbound.formats`), so it would save nothing.
        may_contain=None if native.compiled is not None else lambda text: any(_may_contain(entry, text) for entry in entries),
        published_ms=first.publish_time or None,  # 0: the entry is damaged
        units=None if is_joined(first) else lambda: [_unit_of(entry) for entry in entries],
    )


def is_joined(entry: Entry) -> bool:
    """Return True for a message that was made of several chunks, or of some of them."""
    return entry.first_chunk is not None and (entry.first_chunk != entry.id or bool(entry.chunks))


def _unit_of(entry: Entry) -> Unit:
    """Return the unit of an entry: all that is stored, with the messages that are not to be delivered marked as left out."""
    count = entry.count
    left_out = full_mask(count) & ~deliverable_mask(entry) if entry.ack_set else 0
    return Unit(stored_bytes(entry), count, entry.publish_time or None, (*entry.id, 0), left_out)


def masks_by_entry(entries: Sequence[Entry], indexes: Sequence[int]) -> dict[EntryId, int]:
    """Translate sorted message indexes of a batch into masks by entry id, for the entries that contain one of the messages.

    The indexes in the batch count only messages to deliver; bit i of a mask is message i of the whole entry.
    """
    masks: dict[EntryId, int] = {}
    remaining, first_index = iter(indexes), 0
    index = next(remaining, None)
    for entry in entries:
        deliverable, selected = _deliverable_indexes(entry), []
        while index is not None and index < first_index + len(deliverable):
            selected.append(deliverable[index - first_index])
            index = next(remaining, None)
        if selected:
            masks[entry.id] = _mask_of_indexes(selected)
        first_index += len(deliverable)
    return masks


def _deliverable_indexes(entry: Entry) -> Sequence[int]:
    """Return the indexes, within the entry, of its messages to deliver."""
    mask = deliverable_mask(entry)
    if mask & (mask + 1) == 0:  # all bits up to the highest are set
        return range(mask.bit_length())
    return [index for index, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def _mask_of_indexes(indexes: Sequence[int]) -> int:
    """Return a mask with the bits at these ascending indexes. A bytearray, because each change of a large int would copy it."""
    data = bytearray(indexes[-1] // 8 + 1)
    for index in indexes:
        data[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(data, "little")


def _may_contain(entry: Entry, text: bytes) -> bool:
    """Return True if `text` occurs in the payload, where a batch has its properties, or else in the metadata."""
    return text in entry.payload or (not entry.is_batch and text in entry.metadata.SerializePartialToString())
