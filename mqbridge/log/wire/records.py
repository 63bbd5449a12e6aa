"""Encodes a message as a record, and several records as one row of the log's table; decodes both.

The log is our own system, so every field of a message has its own place in the record: no mapping is needed. If the outbound
stamps a new `origin`, it is stored instead of the message's own, and `hops` is one more. Only `position` is not stored: it is the
base offset of the row plus the index of the record.

    row     version (1 byte), records
    record  prefix, texts, numbers, byte strings
    prefix  flags u16, number of texts u32, bytes of all texts together u32, length of the payload u32    (little endian)
    texts   length of each text in characters (u8 each, or u32 each with WIDE), then all texts as one UTF-8 string, in the
            order key, msg_type, origin, defect (if flagged), keys, then name and value of each property
    numbers event_time, publish_time, deliver_at, delivery_count, hops i64 (if flagged), number of keys u32 (with KEYS)
    bytes   key, ordering_key, attributes (if flagged; u32 length, bytes), then the payload

All texts form one UTF-8 string, with lengths in characters: it is decoded by one call and split by slices, which takes half the
time of one call per text. Lone surrogates in texts (of clients that do not write UTF-8) are stored unchanged.
"""

import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from mqbridge.errors import MappingError, RemoteProtocolError
from mqbridge.message import Message

VERSION = b"\x01"
"""First byte of every row."""

_PREFIX = struct.Struct("<HIII")
_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
_INT64 = range(-(1 << 63), 1 << 63)
_BASE_AND_COUNT = struct.Struct("<QQ")

# Flags. _WIDE: text lengths have four bytes; each other flag: the record has this field.
_PAYLOAD = 0x1
_KEY_TEXT = 0x2
_MSG_TYPE = 0x4
_ORIGIN = 0x8
_DEFECT = 0x10
_KEYS = 0x20
_EVENT_TIME = 0x40
_PUBLISH_TIME = 0x80
_DELIVER_AT = 0x100
_DELIVERY_COUNT = 0x200
_KEY_BYTES = 0x400
_ORDERING_KEY = 0x800
_ATTRIBUTES = 0x1000
_WIDE = 0x2000
_HOPS = 0x4000
"""Set only for two hops or more: an origin without this flag means one hop."""
_ANY_NUMBER = _EVENT_TIME | _PUBLISH_TIME | _DELIVER_AT | _DELIVERY_COUNT | _HOPS | _KEYS
_ANY_BYTES = _KEY_BYTES | _ORDERING_KEY | _ATTRIBUTES
_ALL_FLAGS = (_HOPS << 1) - 1  # _HOPS is the highest flag


def encode_record(message: Message, origin: str | None) -> bytes:
    """Encode one record with `origin` instead of the message's own; if they differ, one hop is added. None stores no origin.

    Without an origin, hops are not stored either. Raises MappingError if a number exceeds 64 bits, or a length 32 bits.
    """
    flags, texts = _collect_texts(message, origin)
    parts: list[bytes] = []
    try:
        flags |= _append_numbers(message, origin, parts) | _append_byte_strings(message, parts)
        lengths = list(map(len, texts))
        try:
            packed_lengths = bytes(lengths)
        except ValueError:  # a text has more than 255 characters
            flags |= _WIDE
            packed_lengths = struct.pack(f"<{len(lengths)}I", *lengths)
        text = "".join(texts).encode("utf-8", "surrogatepass")
        payload = message.payload
        if payload is None:
            payload = b""
        else:
            flags |= _PAYLOAD
        return b"".join((_PREFIX.pack(flags, len(lengths), len(text), len(payload)), packed_lengths, text, *parts, payload))
    except struct.error as error:
        raise MappingError(f"{_oversized_fields(message)} does not fit into the record of the log: {error}") from error


def _oversized_fields(message: Message) -> str:
    """Return, for an error, the number fields of the message that exceed 64 bits, with their values."""
    numbers = {name: getattr(message, name) for name in ("event_time", "publish_time", "deliver_at", "delivery_count", "hops")}
    oversized = [f"{name}={value}" for name, value in numbers.items() if value is not None and value not in _INT64]
    return ", ".join(oversized) or "a count or length of the message"


def _collect_texts(message: Message, origin: str | None) -> tuple[int, list[str]]:
    """Return the flags of the text fields and the texts in stored order."""
    flags = 0
    texts: list[str] = []
    key = message.key
    if isinstance(key, str):
        flags |= _KEY_TEXT
        texts.append(key)
    if (msg_type := message.msg_type) is not None:
        flags |= _MSG_TYPE
        texts.append(msg_type)
    if origin is not None:
        flags |= _ORIGIN
        texts.append(origin)
    if (defect := message.defect) is not None:
        flags |= _DEFECT
        texts.append(defect)
    if message.keys:
        flags |= _KEYS
        texts += message.keys
    for pair in message.properties:
        texts += pair
    return flags, texts


def _append_numbers(message: Message, origin: str | None, parts: list[bytes]) -> int:
    """Append the encoded numbers to `parts` and return their flags."""
    flags = 0
    if (event_time := message.event_time) is not None:
        flags |= _EVENT_TIME
        parts.append(_I64.pack(event_time))
    if (publish_time := message.publish_time) is not None:
        flags |= _PUBLISH_TIME
        parts.append(_I64.pack(publish_time))
    if (deliver_at := message.deliver_at) is not None:
        flags |= _DELIVER_AT
        parts.append(_I64.pack(deliver_at))
    if message.delivery_count:
        flags |= _DELIVERY_COUNT
        parts.append(_I64.pack(message.delivery_count))
    if message.hops and origin is not None:
        hops = message.hops if origin == message.origin else message.hops + 1
        if hops > 1:
            flags |= _HOPS
            parts.append(_I64.pack(hops))
    if message.keys:
        parts.append(_U32.pack(len(message.keys)))
    return flags


def _append_byte_strings(message: Message, parts: list[bytes]) -> int:
    """Append the encoded byte strings to `parts` and return their flags."""
    flags = 0
    key = message.key
    if isinstance(key, bytes):
        flags |= _KEY_BYTES
        parts += (_U32.pack(len(key)), key)
    if (ordering_key := message.ordering_key) is not None:
        flags |= _ORDERING_KEY
        parts += (_U32.pack(len(ordering_key)), ordering_key)
    if (attributes := message.attributes) is not None:
        flags |= _ATTRIBUTES
        parts += (_U32.pack(len(attributes)), attributes)
    return flags


def encode_row(records: Iterable[bytes]) -> bytes:
    """Encode one row of the log's table from encoded records."""
    return VERSION + b"".join(records)


def checksum(base: int, count: int, row: bytes) -> int:
    """Return the CRC32C of the row, its base offset and its message count."""
    return crc32c(row, crc32c(_BASE_AND_COUNT.pack(base, count)))


def decode_row(row: bytes, count: int, base: int) -> list[Message]:
    """Decode the `count` messages of a row that begins at offset `base`. Raises RemoteProtocolError for damaged bytes."""
    try:
        return _parse_row(row, count, base)
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteProtocolError(f"the records from offset {base} on are damaged: {error}") from error


def decode_rows(rows: Sequence[tuple[int, int, bytes]], first: int, end: int) -> list[Message]:
    """Decode rows (base offset, message count, row bytes); return the messages at offsets from `first` to before `end`.

    There must be at least one row, and each must begin where the previous one ends. Raises RemoteProtocolError for damage.
    """
    messages: list[Message] = []
    for base, count, row in rows:
        messages += decode_row(row, count, base)
    return messages[first - rows[0][0] : end - rows[0][0]]


def _parse_row(row: bytes, count: int, base: int) -> list[Message]:
    """Decode the messages of a row. Like all functions below, raises struct.error, IndexError or ValueError for damage."""
    messages: list[Message] = []
    at = _check_version(row)
    for offset in range(base, base + count):
        message, at = _decode_record(row, at, offset)
        messages.append(message)
    _check_end(row, at)
    return messages


def _check_version(row: bytes) -> int:
    """Return the index of the byte at which the first record begins. Raises ValueError for an unknown version."""
    if row[:1] != VERSION:
        raise ValueError(f"the row of the log has version {row[:1]!r}, not {VERSION!r}")
    return 1


def _check_end(row: bytes, at: int) -> None:
    """Raise ValueError unless the row ends here."""
    if at != len(row):
        raise ValueError(f"{len(row) - at} bytes follow the last record of the row")


def _decode_record(row: bytes, at: int, offset: int) -> tuple[Message, int]:
    """Decode the record at index `at`; return its message and the index behind it.

    Raises struct.error, IndexError, ValueError for damaged bytes.
    """
    end = len(row)
    flags, text_count, text_size, payload_size = _PREFIX.unpack_from(row, at)
    at += _PREFIX.size
    # Each text needs at least one byte for its length. This check comes before memory for the texts is allocated.
    if flags > _ALL_FLAGS or text_count + text_size + payload_size > end - at:
        raise ValueError(f"the record at byte {at - _PREFIX.size} has unknown flags or is longer than its row")
    message = Message(None)
    texts: list[str] = []
    if text_count:
        texts, at = _read_texts(row, at, text_count, text_size, bool(flags & _WIDE))
    key_count = 0
    if flags & _ANY_NUMBER:
        key_count, at = _read_numbers(message, flags, row, at)
    if flags & _ANY_BYTES:
        at = _read_byte_strings(message, flags, row, at)
    if texts:
        _assign_texts(message, flags, texts, key_count)
    if flags & _PAYLOAD:
        message.payload = row[at : at + payload_size]
    at += payload_size
    if at > end:
        raise ValueError(f"the record of offset {offset} is truncated")
    message.position = (offset,)
    return message, at


def _read_texts(row: bytes, at: int, count: int, size: int, wide: bool) -> tuple[list[str], int]:
    """Return the `count` texts at index `at`, which have `size` bytes together, and the index behind them.

    `wide` means that each length has four bytes, not one.
    """
    lengths = struct.unpack_from(f"<{count}I", row, at) if wide else row[at : at + count]
    at += count * 4 if wide else count
    text = row[at : at + size].decode("utf-8", "surrogatepass")
    texts, start = [], 0
    for length in lengths:
        texts.append(text[start : start + length])
        start += length
    if start != len(text):
        raise ValueError(f"the texts at byte {at} have {len(text)} characters, their lengths add up to {start}")
    return texts, at + size


def _read_numbers(message: Message, flags: int, row: bytes, at: int) -> tuple[int, int]:
    """Set the numbers of the message; return the number of its keys, and the index behind the numbers."""
    if flags & _EVENT_TIME:
        (message.event_time,) = _I64.unpack_from(row, at)
        at += 8
    if flags & _PUBLISH_TIME:
        (message.publish_time,) = _I64.unpack_from(row, at)
        at += 8
    if flags & _DELIVER_AT:
        (message.deliver_at,) = _I64.unpack_from(row, at)
        at += 8
    if flags & _DELIVERY_COUNT:
        (message.delivery_count,) = _I64.unpack_from(row, at)
        at += 8
    if flags & _HOPS:
        (message.hops,) = _I64.unpack_from(row, at)
        at += 8
    if not flags & _KEYS:
        return 0, at
    return _U32.unpack_from(row, at)[0], at + 4


def _read_byte_strings(message: Message, flags: int, row: bytes, at: int) -> int:
    """Set the byte strings of the message; return the index behind them."""
    for bit, name in ((_KEY_BYTES, "key"), (_ORDERING_KEY, "ordering_key"), (_ATTRIBUTES, "attributes")):
        if flags & bit:
            (size,) = _U32.unpack_from(row, at)
            at += 4 + size
            setattr(message, name, row[at - size : at])
    return at


def _assign_texts(message: Message, flags: int, texts: list[str], key_count: int) -> None:
    """Set the text fields, keys and properties of the message from its texts, in stored order."""
    index = 0
    if flags & _KEY_TEXT:
        message.key = texts[index]
        index += 1
    if flags & _MSG_TYPE:
        message.msg_type = texts[index]
        index += 1
    if flags & _ORIGIN:
        message.origin = texts[index]
        message.hops = message.hops or 1  # one hop is not stored
        index += 1
    if flags & _DEFECT:
        message.defect = texts[index]
        index += 1
    if key_count:
        message.keys = tuple(texts[index : index + key_count])
        index += key_count
    if index > len(texts) or (len(texts) - index) % 2:
        raise ValueError(f"the record has {len(texts)} texts, which do not match the fields that its flags ({flags:#x}) announce")
    if index < len(texts):
        message.properties = tuple(zip(texts[index::2], texts[index + 1 :: 2], strict=True))
