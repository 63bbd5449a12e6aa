"""A message as a record, and the records of one row.

The log is our own system, so it says every field natively: there is no table of mappings, only this layout. `origin` is a field
like the others (what the outbound stamps is put there, and counted in `hops`); only `position` is not stored, as it follows from
where the record lies.

    row     version (1 byte), records
    record  head, texts, numbers, byte strings
    head    flags u16, number of texts u32, bytes of all texts together u32, length of the payload u32    (little endian)
    texts   the length of each in characters (one byte each, u32 each with WIDE), then all of them as one UTF-8 run, in the
            order key, msg_type, origin, defect (where flagged), keys, then name and value of each property
    numbers event_time, publish_time, deliver_at, delivery_count, hops i64 (where flagged), number of keys u32 (with KEYS)
    bytes   key, ordering_key, attributes (where flagged; u32 length, bytes), then the payload

One UTF-8 run with lengths in characters is decoded by one call and cut by slices, which takes half the time of a call per text.
Lone surrogates (attributes of unknown encodings) are carried as they are.
"""

import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from mqbridge.errors import MappingError, RemoteProtocolError
from mqbridge.message import Message

VERSION = b"\x01"
"""First byte of every row."""

HEAD = struct.Struct("<HIII")
_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
_PLACE = struct.Struct("<QQ")

PAYLOAD, KEY_TEXT, MSG_TYPE, ORIGIN, _DEFECT, _KEYS = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
EVENT_TIME, PUBLISH_TIME, _DELIVER_AT, _DELIVERY_COUNT = 0x40, 0x80, 0x100, 0x200
_KEY_BYTES, _ORDERING_KEY, _ATTRIBUTES, _WIDE = 0x400, 0x800, 0x1000, 0x2000
_HOPS = 0x4000
"""From the second gateway on; an origin alone means one."""
_ANY_NUMBER = EVENT_TIME | PUBLISH_TIME | _DELIVER_AT | _DELIVERY_COUNT | _HOPS | _KEYS
_ANY_BYTES = _KEY_BYTES | _ORDERING_KEY | _ATTRIBUTES
_KNOWN = (_HOPS << 1) - 1


def encode_record(message: Message, origin: str | None) -> bytes:
    """One record; `origin` is stored in place of the message's own, and counts one more hop unless it is that.

    Raises MappingError when a number exceeds 64 bits.
    """
    flags, texts = _texts(message, origin)
    tail: list[bytes] = []
    try:
        flags |= _put_numbers(message, origin, tail) | _put_bytes(message, tail)
        lengths = list(map(len, texts))
        try:
            packed = bytes(lengths)
        except ValueError:  # one is longer than a byte can say
            flags |= _WIDE
            packed = struct.pack(f"<{len(lengths)}I", *lengths)
        text = "".join(texts).encode("utf-8", "surrogatepass")
        payload = message.payload
        if payload is None:
            payload = b""
        else:
            flags |= PAYLOAD
        return b"".join((HEAD.pack(flags, len(lengths), len(text), len(payload)), packed, text, *tail, payload))
    except struct.error as error:
        raise MappingError(f"a number of the message does not fit the log's record: {error}") from error


def _texts(message: Message, origin: str | None) -> tuple[int, list[str]]:
    flags = 0
    texts: list[str] = []
    key = message.key
    if isinstance(key, str):
        flags |= KEY_TEXT
        texts.append(key)
    if (msg_type := message.msg_type) is not None:
        flags |= MSG_TYPE
        texts.append(msg_type)
    if origin is not None:
        flags |= ORIGIN
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


def _put_numbers(message: Message, origin: str | None, tail: list[bytes]) -> int:
    flags = 0
    if (event_time := message.event_time) is not None:
        flags |= EVENT_TIME
        tail.append(_I64.pack(event_time))
    if (publish_time := message.publish_time) is not None:
        flags |= PUBLISH_TIME
        tail.append(_I64.pack(publish_time))
    if (deliver_at := message.deliver_at) is not None:
        flags |= _DELIVER_AT
        tail.append(_I64.pack(deliver_at))
    if message.delivery_count:
        flags |= _DELIVERY_COUNT
        tail.append(_I64.pack(message.delivery_count))
    if message.hops and origin is not None:
        hops = message.hops if origin == message.origin else message.hops + 1
        if hops > 1:
            flags |= _HOPS
            tail.append(_I64.pack(hops))
    if message.keys:
        tail.append(_U32.pack(len(message.keys)))
    return flags


def _put_bytes(message: Message, tail: list[bytes]) -> int:
    flags = 0
    key = message.key
    if isinstance(key, bytes):
        flags |= _KEY_BYTES
        tail += (_U32.pack(len(key)), key)
    if (ordering_key := message.ordering_key) is not None:
        flags |= _ORDERING_KEY
        tail += (_U32.pack(len(ordering_key)), ordering_key)
    if (attributes := message.attributes) is not None:
        flags |= _ATTRIBUTES
        tail += (_U32.pack(len(attributes)), attributes)
    return flags


def encode_row(records: Iterable[bytes]) -> bytes:
    """The bytes of one stored row."""
    return VERSION + b"".join(records)


def checksum(base: int, count: int, row: bytes) -> int:
    """CRC32C of a row and of the place that it was stored for."""
    return crc32c(row, crc32c(_PLACE.pack(base, count)))


def decode_row(row: bytes, count: int, base: int) -> list[Message]:
    """The `count` messages of a row whose first has the offset `base`. Raises RemoteProtocolError for damaged bytes."""
    try:
        return _decode_row(row, count, base)
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteProtocolError(f"the records at offset {base} cannot be read: {error}") from error


def decode_rows(rows: Sequence[tuple[int, int, bytes]], first: int, end: int) -> list[Message]:
    """The messages of stored rows (base offset, count, records) from offset `first` up to `end`. Raises RemoteProtocolError."""
    messages: list[Message] = []
    for base, count, row in rows:
        messages += decode_row(row, count, base)
    return messages[first - rows[0][0] : end - rows[0][0]]


def _decode_row(row: bytes, count: int, base: int) -> list[Message]:
    messages: list[Message] = []
    at = check_version(row)
    for offset in range(base, base + count):
        message, at = decode_record(row, at, offset)
        messages.append(message)
    check_end(row, at)
    return messages


def check_version(row: bytes) -> int:
    """Where the first record begins. Raises ValueError for another version."""
    if row[:1] != VERSION:
        raise ValueError(f"version {row[:1]!r} is not {VERSION!r}, the only one known")
    return 1


def check_end(row: bytes, at: int) -> None:
    """Raise ValueError unless the row ends here."""
    if at != len(row):
        raise ValueError(f"{len(row) - at} bytes follow the last record")


def decode_record(row: bytes, at: int, offset: int) -> tuple[Message, int]:
    """The record that begins here, and where it ends. Raises struct.error, IndexError and ValueError."""
    end = len(row)
    flags, text_count, text_size, payload_size = HEAD.unpack_from(row, at)
    at += HEAD.size
    # Texts are at least a byte of length each; checked before anything is allocated for them.
    if flags > _KNOWN or text_count + text_size + payload_size > end - at:
        raise ValueError(f"the head of the record at byte {at - HEAD.size} does not fit the row")
    message = Message(None)
    texts: list[str] = []
    if text_count:
        texts, at = _read_texts(row, at, text_count, text_size, bool(flags & _WIDE))
    key_count = 0
    if flags & _ANY_NUMBER:
        key_count, at = _read_numbers(message, flags, row, at)
    if flags & _ANY_BYTES:
        at = _read_bytes(message, flags, row, at)
    if texts:
        _assign_texts(message, flags, texts, key_count)
    if flags & PAYLOAD:
        message.payload = row[at : at + payload_size]
    at += payload_size
    if at > end:
        raise ValueError(f"the record of offset {offset} is cut short")
    message.position = (offset,)
    return message, at


def _read_texts(row: bytes, at: int, count: int, size: int, wide: bool) -> tuple[list[str], int]:
    lengths = struct.unpack_from(f"<{count}I", row, at) if wide else row[at : at + count]
    at += count * 4 if wide else count
    text = row[at : at + size].decode("utf-8", "surrogatepass")
    texts, start = [], 0
    for length in lengths:
        texts.append(text[start : start + length])
        start += length
    if start != len(text):
        raise ValueError(f"the texts at byte {at} are {len(text)} characters and not {start}")
    return texts, at + size


def _read_numbers(message: Message, flags: int, row: bytes, at: int) -> tuple[int, int]:
    if flags & EVENT_TIME:
        (message.event_time,) = _I64.unpack_from(row, at)
        at += 8
    if flags & PUBLISH_TIME:
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


def _read_bytes(message: Message, flags: int, row: bytes, at: int) -> int:
    for bit, name in ((_KEY_BYTES, "key"), (_ORDERING_KEY, "ordering_key"), (_ATTRIBUTES, "attributes")):
        if flags & bit:
            (size,) = _U32.unpack_from(row, at)
            at += 4 + size
            setattr(message, name, row[at - size : at])
    return at


def _assign_texts(message: Message, flags: int, texts: list[str], key_count: int) -> None:
    place = 0
    if flags & KEY_TEXT:
        message.key = texts[place]
        place += 1
    if flags & MSG_TYPE:
        message.msg_type = texts[place]
        place += 1
    if flags & ORIGIN:
        message.origin = texts[place]
        message.hops = message.hops or 1
        place += 1
    if flags & _DEFECT:
        message.defect = texts[place]
        place += 1
    if key_count:
        message.keys = tuple(texts[place : place + key_count])
        place += key_count
    if place > len(texts) or (len(texts) - place) % 2:
        raise ValueError(f"{len(texts)} texts do not make up the fields that are flagged ({flags:#x})")
    if place < len(texts):
        message.properties = tuple(zip(texts[place::2], texts[place + 1 :: 2], strict=True))
