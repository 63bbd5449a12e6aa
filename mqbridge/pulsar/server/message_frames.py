"""Encodes the MESSAGE frames of the units that a consumer gets at once.

The compiled module makes one piece of bytes of them. It is not used for units that are acknowledged in part, nor if all are large
entries, which the plain code passes on without copying them.
"""

from collections.abc import Sequence

from mqbridge import native
from mqbridge.listener.delivered import Delivered
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import Message
from mqbridge.pulsar.mapping.raw_entry import FORM
from mqbridge.pulsar.server.entries import OWN_ORIGIN, PRODUCER_NAME, entry_of
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.wire import ids, server_commands

COPIED_BYTES = 16 << 10
"""Entries that are larger on average are not copied."""
_TEXTS = (PRODUCER_NAME, OWN_ORIGIN, RAW_FORM, FORM)


class FrameEncoder:
    """Encodes the MESSAGE frames of one consumer."""

    def __init__(self, consumer_id: int, partition: int, message_ids: MessageIds) -> None:
        """`partition` is -1 if the topic is not partitioned."""
        self._consumer_id, self._partition, self._ids = consumer_id, partition, message_ids
        self._encoder = server_commands.MessageEncoder(consumer_id, partition)

    def encode(self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool) -> tuple[list[bytes], int]:
        """Return pieces of bytes that make the frames together, and the number of bytes of their entries."""
        if native.compiled is not None and (found := self._encode_compiled(units, epoch, counts_deliveries=counts_deliveries)):
            return [found[0]], found[1]
        return self.encode_plain(units, epoch, counts_deliveries=counts_deliveries)

    def _encode_compiled(
        self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool
    ) -> tuple[bytes, int] | None:
        contents: list[bytes | Message] = []
        numbers: list[tuple[int, int, int, int]] = []
        entry_id, size = self._ids.entry_id, 0
        for each in units:
            count = each.count
            if each.remaining != (1 if count == 1 else (1 << count) - 1):
                return None
            size += each.size
            number = each.number
            ledger, entry = entry_id(number)
            contents.append(each.unit.data if each.unit is not None else each.message)  # type: ignore[arg-type]
            numbers.append((number, ledger, entry, each.deliveries if counts_deliveries else 0))
        if size > COPIED_BYTES * len(units) and all(type(content) is bytes for content in contents):
            return None
        assert native.compiled is not None  # noqa: S101 - the caller's condition
        consumer = (self._consumer_id, self._partition, epoch)
        found: tuple[bytes, int] | None = native.compiled.pulsar_frames(contents, numbers, consumer, _TEXTS)
        return found

    def encode_plain(self, units: Sequence[Delivered], epoch: int | None, *, counts_deliveries: bool) -> tuple[list[bytes], int]:
        """Do the same as `encode` in plain Python."""
        pieces: list[bytes] = []
        size = 0
        for each in units:
            entry = entry_of(each)
            ack_set = ids.to_words(each.remaining) if each.remaining != ids.full_mask(each.count) else ()
            count = each.deliveries if counts_deliveries else 0
            pieces.append(self._encoder.encode(self._ids.entry_id(each.number), len(entry), count, ack_set, epoch))
            pieces.append(entry)
            size += len(entry)
        return pieces, size
