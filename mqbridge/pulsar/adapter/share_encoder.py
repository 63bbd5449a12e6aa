"""Encodes the shares of one outbound into entries to send.

A share consists of messages that are encoded, or with `OutboundSpec.keep_units` of units that are stored as they are. Units keep
the metadata of the producer that made them. So they are decoded and encoded anew if an origin is stamped, and by options that
change entries: `batch_by_key`, `restore_entries`, and a schema, whose version in the metadata would be that of another cluster.

A broker that loads a topic again takes the sequence ids of producers from the metadata of entries. So units of a sender are
stored as they are only if their metadata have its name, and the sequence ids that it sends beside them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mqbridge import native
from mqbridge.adapter.formats import message_positions
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.mapping.sequences import sequence_of
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.sender_sequence import MessagePositions, SenderSequence, UnitPositions
from mqbridge.pulsar.client.producer.pending_entry import stored_exceeds_limit
from mqbridge.pulsar.mapping.passthrough import encode_entries
from mqbridge.pulsar.mapping.request import (
    EncodedEntry,
    Limits,
    encode,
    encode_by_key,
    encode_restored,
    unreadable_failure,
)
from mqbridge.pulsar.mapping.stored_units import UnitToStore, units_to_store
from mqbridge.pulsar.mapping.unit_format import FORMAT
from mqbridge.pulsar.wire.entry import Entry


class EncodedShare(NamedTuple):
    """The entries of a share, and the failures of the messages that cannot be sent.

    `positions` are those of all messages of the share, for the sequence ids of a sender; empty without one.
    """

    entries: Sequence[EncodedEntry | UnitToStore]
    failures: list[MessageFailure]
    positions: Sequence[Position] = ()


class ShareEncoder:
    """Encodes shares for one topic; `has_schema` is True if its producers have a schema."""

    def __init__(self, spec: OutboundSpec, options: PulsarOutboundOptions, *, has_schema: bool) -> None:
        changes_entries = options.batch_by_key or options.restore_entries or has_schema
        self._keeps_units = spec.keep_units and not changes_entries
        self._encode_messages = encode_restored if options.restore_entries else encode
        # With the compiled module, decoding and encoding is faster than copying without it.
        self._copies_entries = native.compiled is None and not options.restore_entries
        self._batch_by_key = options.batch_by_key
        is_undecoded = self._keeps_units or (self._copies_entries and not spec.keep_units)
        self.formats = (FORMAT,) if is_undecoded else ()
        """Formats of batches that are sent without decoding them."""
        self._origin_of = spec.origin_of

    def encode(self, share: Share, limits: Limits) -> EncodedShare:
        """Encode a share: as its units, or as its messages."""
        if (units := self._units_of(share, limits)) is not None:
            return units
        batch, origin = share.batch, self._origin_of(share.batch.partition)
        if self._batch_by_key:
            encoded = encode_by_key(share.messages, origin, limits, self._encode_messages)
        elif self._copies_entries and _has_entries(batch) and share.indexes is None and not share.is_edited:
            encoded = encode_entries(batch.data, origin, limits)
        else:
            encoded = self._encode_messages(share.messages, origin, limits)
        return EncodedShare(*encoded)

    def encode_unstored(self, sequence: SenderSequence, partition: int, share: Share, limits: Limits) -> EncodedShare:
        """Encode the messages of a share of a sender that the target partition has not stored yet.

        Raises ClusterError if a message must not be sent now (see `SenderSequence`).
        """
        if (units := self._units_of(share, limits)) is not None:
            unstored = _unstored_units(sequence, partition, share, units)
            if unstored is not None:
                return unstored
        source, messages = share.batch.partition, share.messages
        if not len(messages):
            return EncodedShare([], [])
        positions = MessagePositions(messages)
        stored_count = sequence.count_stored_first(partition, source, positions)
        unstored_messages = messages[stored_count:] if stored_count else messages
        entries, failures = self._encode_messages(unstored_messages, self._origin_of(source), limits, stored_count)
        return EncodedShare(entries, _unreadable_failures(messages, stored_count) + failures, positions)

    def _units_of(self, share: Share, limits: Limits) -> EncodedShare | None:
        """Return the units of a share that are stored as they are; None if the share must be sent as messages.

        That is also so if one of them is above the broker's limit, because its messages may be small enough, or sent in chunks.
        """
        batch = share.batch
        if not (self._keeps_units and batch.format == FORMAT and batch.has_units) or share.indexes is not None or share.is_edited:
            return None
        if self._origin_of(batch.partition) is not None or (units := batch.units) is None:
            return None
        if (encoded := units_to_store(units)) is None:
            return None
        limit = limits.max_message_size
        if any(stored_exceeds_limit(len(entry.data), entry.payload_size, limit) for entry in encoded[0]):
            return None
        return EncodedShare(*encoded)


def _has_entries(batch: Batch) -> bool:
    """Return True for a batch of a lane or a reader; other batches may have units of the same format."""
    return batch.format == FORMAT and bool(batch.data) and isinstance(batch.data[0], Entry)


def _unstored_units(sequence: SenderSequence, partition: int, share: Share, encoded: EncodedShare) -> EncodedShare | None:
    """Return the units that are not stored yet; None if they have to be sent as messages.

    That is so if they have no positions, if the metadata of one are not those of an entry of the sender, or if one of them is
    stored in part: then its messages were sent before, not as a unit.
    """
    units = share.batch.units or ()
    if not all(unit.position for unit in units):
        return None
    positions = UnitPositions(
        [position for unit in units for position in message_positions(unit)], {failure.index for failure in encoded.failures}
    )
    stored_count = sequence.count_stored_first(partition, share.batch.partition, positions)
    unstored = [entry for entry in encoded.entries if entry.indexes[-1] >= stored_count]
    if unstored and unstored[0].indexes[0] < stored_count:
        return None
    if not all(_is_of_sender(entry, sequence.sender, positions) for entry in unstored):
        return None
    return EncodedShare(unstored, encoded.failures, positions)


def _is_of_sender(entry: EncodedEntry | UnitToStore, sender: str, positions: Sequence[Position]) -> bool:
    """Return True if a broker finds in the metadata what the sender sends beside the entry: its name and the sequence ids."""
    metadata = entry.metadata
    first, last = (sequence_of(positions[entry.indexes[index]]) for index in (0, -1))
    is_numbered = metadata.sequence_id == first and max(first, metadata.highest_sequence_id) == last
    return is_numbered and metadata.producer_name == sender


def _unreadable_failures(messages: Sequence[Message], count: int) -> list[MessageFailure]:
    """Return failures for the messages with a defect among the first `count`, which are skipped as if they were stored."""
    defects = ((index, messages[index].defect) for index in range(count))
    return [unreadable_failure(index, defect) for index, defect in defects if defect is not None]
