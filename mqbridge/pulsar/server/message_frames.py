"""Encodes the MESSAGE frames of the units that a consumer gets at once.

The compiled module makes one piece of bytes of them. It is not used for units that are acknowledged in part, nor if all are large
entries, which the plain code passes on without copying them.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge import native
from mqbridge.listener.delivered import Delivered
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import Message
from mqbridge.pulsar.mapping.raw_entry import FORM, is_raw
from mqbridge.pulsar.server.entries import OWN_ORIGIN, PRODUCER_NAME, SENT_BY, Chunk, chunk_of, entry_of
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.wire import ids, server_commands

log = logging.getLogger(__name__)

COPIED_BYTES = 16 << 10
"""Entries that are larger on average are not copied."""
_TEXTS = (PRODUCER_NAME, OWN_ORIGIN, RAW_FORM, FORM)


class MessageFrames(NamedTuple):
    """The MESSAGE frames of some units.

    pieces       bytes that make the frames together
    entry_bytes  number of bytes of their entries
    chunks       what entries say about chunked messages of which they are parts, with the numbers of their units
    failed       units that cannot become entries, which have no frame, with the reasons
    """

    pieces: list[bytes]
    entry_bytes: int
    chunks: list[tuple[int, Chunk]]
    failed: list[tuple[Delivered, str]]


class FrameEncoder:
    """Encodes the MESSAGE frames of one consumer."""

    def __init__(self, consumer_id: int, partition: int, message_ids: MessageIds) -> None:
        """`partition` is -1 if the topic is not partitioned."""
        self._consumer_id, self._partition, self._ids = consumer_id, partition, message_ids
        self._encoder = server_commands.MessageEncoder(consumer_id, partition)

    def encode(self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool) -> MessageFrames:
        """Return the frames."""
        if native.compiled is not None:
            frames = self._encode_compiled(units, epoch, counts_deliveries=counts_deliveries)
            if frames is not None:
                return frames
        return self.encode_plain(units, epoch, counts_deliveries=counts_deliveries)

    def _encode_compiled(self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool) -> MessageFrames | None:
        """Return the frames; None if only the plain code can encode one of the units."""
        contents: list[bytes | Message] = []
        numbers: list[tuple[int, int, int, int]] = []
        chunks: list[tuple[int, Chunk]] = []
        entry_id, size = self._ids.entry_id, 0
        for each in units:
            count = each.count
            if each.remaining != (1 if count == 1 else (1 << count) - 1):
                return None
            number = each.number
            ledger, entry = entry_id(number)
            if each.unit is not None:
                contents.append(each.unit.data)
                if count == 1 and (chunk := chunk_of(each.unit.data)) is not None:
                    chunks.append((number, chunk))
            elif each.message is None or each.message.property(SENT_BY) is not None or is_raw(each.message):
                return None
            else:
                contents.append(each.message)
            size += each.size
            numbers.append((number, ledger, entry, each.deliveries if counts_deliveries else 0))
        if size > COPIED_BYTES * len(units) and all(type(content) is bytes for content in contents):
            return None
        assert native.compiled is not None  # noqa: S101 - the caller's condition
        consumer = (self._consumer_id, self._partition, epoch)
        try:
            found: tuple[bytes, int] | None = native.compiled.pulsar_frames(contents, numbers, consumer, _TEXTS)
        except (ValueError, TypeError, OverflowError) as error:  # the plain code finds out which of them it is
            log.debug("the compiled module cannot encode a message: %s", error)
            return None
        return None if found is None else MessageFrames([found[0]], found[1], chunks, [])

    def encode_plain(self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool) -> MessageFrames:
        """Do the same as `encode` in plain Python."""
        frames = MessageFrames([], 0, [], [])
        size = 0
        for each in units:
            try:
                entry = entry_of(each)
            except Exception as error:  # of whatever kind: one message must not keep the others
                log.exception("message %d cannot become an entry", each.number)
                frames.failed.append((each, f"it cannot become an entry: {error!r}"))
                continue
            if (chunk := chunk_of(entry)) is not None:
                frames.chunks.append((each.number, chunk))
            ack_set = ids.to_words(each.remaining) if each.remaining != ids.full_mask(each.count) else ()
            count = each.deliveries if counts_deliveries else 0
            frames.pieces.append(self._encoder.encode(self._ids.entry_id(each.number), len(entry), count, ack_set, epoch))
            frames.pieces.append(entry)
            size += len(entry)
        return frames._replace(entry_bytes=size)
