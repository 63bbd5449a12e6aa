"""Batches of Pulsar for Pulsar: the metadata of each message is copied without its sequence id, and the origin put in.

Nothing becomes a message. One operation checks metadata: as a number, masked, it equals the template of its length. The mask has
all bits of tags, lengths, names and flags, the highest bit of each byte of a text (which then is ASCII) and of a varint (which
then ends where it should). Other metadata is walked through field by field.

A batch with anything that plain code would rewrite or leave out is refused as a whole: properties that a gateway wrote,
tombstones, ordering keys, binary keys, messages that were compacted out, text that is not UTF-8.
"""

import struct
from functools import partial

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8
from mqbridge.mapping.parse_templates import ParseTemplates
from mqbridge.mapping.reserved_properties import ORIGIN
from mqbridge.message import RESERVED_PREFIX
from mqbridge.pulsar.mapping.fast.templates import Numbers
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.single_metadata import (
    EVENT_TIME,
    KEY_IS_BASE64,
    NULL_PARTITION_KEY,
    NULL_VALUE,
    PARTITION_KEY,
    PAYLOAD_SIZE,
    PROPERTY,
    SEQUENCE_ID,
    PropertyPrefixes,
    UnsupportedLayout,
    split_property,
    value_spans,
)
from mqbridge.wire.varint import decode_varint

_SIZE = struct.Struct(">I")
_FLAGS = frozenset({KEY_IS_BASE64, NULL_VALUE, NULL_PARTITION_KEY})
_RESERVED = RESERVED_PREFIX.encode()


PIECES = 6
"""Size, properties, prefix and value of the origin, other metadata, payload."""


class RestampedBatch:
    """Messages of a batch as pieces of an entry's payload, PIECES for each message."""

    __slots__ = ("count", "pieces", "size")

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.count, self.size = len(pieces) // PIECES, sum(map(len, pieces))

    @property
    def first(self) -> bytes:
        """The metadata of the first message, without its origin."""
        return self.pieces[1] + self.pieces[4]

    def split(self, max_messages: int, max_bytes: int) -> "list[RestampedBatch]":
        """Parts within the limits; a message beyond these is one by itself."""
        if self.count <= max_messages and self.size <= max_bytes:
            return [self] if self.pieces else []
        parts: list[RestampedBatch] = []
        begin = size = 0
        for at in range(0, len(self.pieces), PIECES):
            cost = sum(map(len, self.pieces[at : at + PIECES]))
            if at > begin and (size + cost > max_bytes or at - begin >= PIECES * max_messages):
                parts.append(RestampedBatch(self.pieces[begin:at]))
                begin, size = at, 0
            size += cost
        return [*parts, RestampedBatch(self.pieces[begin:])]


class _Template:
    """Metadata that was walked through, as a number: `fixed` is what the masks leave of it.

    `mask` lets texts be ASCII. `any_text` lets them be any bytes: they are UTF-8 if all bytes of `texts`, the properties and the
    key, are, because each text has an ASCII byte before it and behind it. `size` is where the payload size lies; the properties
    end at `properties`, what is copied at `kept`.
    """

    __slots__ = ("any_text", "fixed", "kept", "mask", "properties", "size", "texts")

    def __init__(self, metadata: bytes) -> None:
        """Raises UnsupportedLayout, IndexError, RemoteProtocolError."""
        self.properties, self.kept = 0, len(metadata)
        mask, any_text = bytearray(b"\xff" * self.kept), bytearray(b"\xff" * self.kept)
        for tag, start, end, _ in value_spans(metadata):
            mask[start:end] = any_text[start:end] = b"\x80" * (end - start)
            if tag in _TEXTS:
                any_text[start:end] = bytes(end - start)
                self.properties = end if tag == PROPERTY else self.properties
            elif tag == PAYLOAD_SIZE:
                self.size, self.texts = slice(start, end), slice(start - 1)
            elif tag == SEQUENCE_ID:
                self.kept = start - 1
        self.mask, self.any_text = int.from_bytes(mask, "little"), int.from_bytes(any_text, "little")
        self.fixed = int.from_bytes(metadata, "little") & self.any_text


_TEXTS = frozenset({PROPERTY, PARTITION_KEY})

_templates = ParseTemplates[_Template]()
_numbers = Numbers()
_known_prefixes: BoundedCache[bytes, bool] = BoundedCache()
"""Property bytes up to the value, of users' properties with lengths of one byte."""
_origin_prefixes = PropertyPrefixes(ORIGIN)


def restamp_batch(entry: Entry, origin: bytes | None) -> RestampedBatch | None:
    """The messages of a batch that are to be delivered; None for a batch that is left to the other code.

    `origin` is the prefix of every message's origin, None for no stamps.
    """
    if entry.defect is not None or not entry.is_batch or entry.metadata.HasField("deliver_at_time"):
        return None
    try:
        return _restamp(entry, origin)
    except (struct.error, UnsupportedLayout, IndexError, RemoteProtocolError):
        return None


def _restamp(entry: Entry, origin: bytes | None) -> RestampedBatch | None:
    """For each message: check its metadata, find the payload behind it, copy both."""
    data, ack_set, count, from_bytes = entry.payload, entry.ack_set, entry.count, int.from_bytes
    size_at, pack_size, templates, numbers = _SIZE.unpack_from, _SIZE.pack, _templates.by_length, _numbers
    stem = None if origin is None else b"%b%d:%d:" % (origin, entry.ledger, entry.entry)
    prefix, value = b"", b""
    pieces: list[bytes] = []
    at, size = 0, len(data)
    for index in range(count):
        begin = at + 4
        (metadata_size,) = size_at(data, at)
        end = begin + metadata_size
        metadata = data[begin:end]
        template = templates.get(metadata_size)
        if template is not None and (
            (number := from_bytes(metadata, "little")) & template.mask == template.fixed
            or (number & template.any_text == template.fixed and is_utf8(metadata[template.texts]))
        ):
            middle, kept, length = template.properties, template.kept, numbers[metadata[template.size]]
        else:
            middle, kept, length = _walk(metadata)
            _templates.learn(metadata_size, partial(_Template, metadata))
        at = end + length
        if at > size:
            return None
        if ack_set and not entry.is_due(index):
            continue
        if stem is not None:
            value = b"%b%d" % (stem, index)
            prefix = _origin_prefixes[len(value)]
        pieces += (
            pack_size(kept + len(prefix) + len(value)),
            metadata[:middle],
            prefix,
            value,
            metadata[middle:kept],
            data[end:at],
        )
    if at != size:
        return None
    _templates.read += count
    return RestampedBatch(pieces)


def _walk(metadata: bytes) -> tuple[int, int, int]:
    """Where the properties end, where what is copied ends, and the payload size.

    Raises UnsupportedLayout, IndexError, RemoteProtocolError.
    """
    at, end = 0, len(metadata)
    checked = 0  # texts before this are UTF-8
    while at < end and metadata[at] == PROPERTY:
        if metadata[at : at + metadata[at + 3] + 6] in _known_prefixes:
            at += 2 + metadata[at + 1]
            continue
        name_at, name_end, value_at, value_end = split_property(metadata, at)
        name = metadata[name_at:name_end]
        _check(not name.startswith(_RESERVED) and is_utf8(name))
        if value_at == at + name_end - name_at + 6:  # each length takes one byte
            _known_prefixes.keep(metadata[at:value_at], True)
        else:
            _check(is_utf8(metadata[checked:at]) and is_utf8(metadata[value_at:value_end]))
            checked = value_end
        at = value_end
    _check(is_utf8(metadata[checked:at]))
    middle = at
    if metadata[at] == PARTITION_KEY:
        size, start = decode_varint(metadata, at + 1)
        at = start + size
        _check(is_utf8(metadata[start:at]))
    _check(metadata[at] == PAYLOAD_SIZE)
    length, at = decode_varint(metadata, at + 1)
    kept, last = end, PAYLOAD_SIZE
    while at < end:
        tag = metadata[at]
        _check(tag > last and (tag in {EVENT_TIME, SEQUENCE_ID} or (tag in _FLAGS and not metadata[at + 1])))
        kept = at if tag == SEQUENCE_ID else kept
        last = tag
        _, at = decode_varint(metadata, at + 1)
    return middle, kept, length


def _check(is_supported: bool) -> None:
    if not is_supported:
        raise UnsupportedLayout
