"""Fast code for ordinary records, both directions; anything unusual falls back to the plain code of `wire.records`.

Ordinary: a payload, ASCII texts of at most 255 characters, and of the other fields only a text key, type, origin, event time and
publish time. The records of a topic look alike, so what stands before a payload is cut by one `struct` per shape: which fields
are set, and how long each text is. Properties stay bytes, both ways.

`decode_row` and `encode_record` are all that others use. They give what the functions of these names in `records` give.
"""

import struct
from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.log.wire import records
from mqbridge.log.wire.records import EVENT_TIME, HEAD, KEY_TEXT, MSG_TYPE, ORIGIN, PAYLOAD, PUBLISH_TIME
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage, PropertyNames, property_names
from mqbridge.message import Message

_TEXTS, _TIMES = (KEY_TEXT, MSG_TYPE, ORIGIN), (EVENT_TIME, PUBLISH_TIME)
"""In the order in which a record has them; the properties are between."""
_ORDINARY = PAYLOAD | KEY_TEXT | MSG_TYPE | ORIGIN | EVENT_TIME | PUBLISH_TIME
_MOST_TEXTS = 200


class LogMessage(LazyMessage):
    """The message of an ordinary record."""

    __slots__ = ("hops", "origin")
    origin: str | None  # type: ignore[assignment]  # not the constant that other lazy messages have

    keys = ()
    attributes = None
    delivery_count = 0

    def __init__(
        self,
        payload: bytes,
        names: PropertyNames,
        values: tuple[bytes, ...],
        key: str | None,
        msg_type: str | None,
        origin: str | None,
        event_time: int | None,
        publish_time: int | None,
        offset: int,
    ) -> None:
        self.payload = payload
        self.property_names, self.values, self.lengths = names, values, None
        self.key = key
        self.msg_type = msg_type
        self.origin, self.hops = origin, 0 if origin is None else 1
        self.event_time = event_time
        self.publish_time = publish_time
        self.position = (offset,)


class _Shape:
    """How records with these flags, and texts of these lengths, are cut: where each field is in the pieces, -1 for none."""

    __slots__ = ("cut", "event_at", "key_at", "names", "origin_at", "publish_at", "text_size", "type_at", "values")

    def __init__(self, flags: int, lengths: bytes) -> None:
        texts = [bit for bit in _TEXTS if flags & bit]
        times = [bit for bit in _TIMES if flags & bit]
        pieces = [*texts, *([0] * (len(lengths) - len(texts))), *times]
        self.key_at, self.type_at, self.origin_at, self.event_at, self.publish_at = (
            pieces.index(bit) if bit in pieces else -1 for bit in (*_TEXTS, *_TIMES)
        )
        self.names, self.values = slice(len(texts), len(lengths), 2), slice(len(texts) + 1, len(lengths), 2)
        self.text_size = sum(lengths)
        self.cut = struct.Struct("<" + "".join([f"{length}s" for length in lengths]) + "q" * len(times))


def _shape(key: tuple[int, bytes]) -> _Shape | None:
    """None for records that are not ordinary."""
    flags, lengths = key
    properties = len(lengths) - sum(bool(flags & bit) for bit in _TEXTS)
    if flags & ~_ORDINARY or not flags & PAYLOAD or len(lengths) > _MOST_TEXTS or properties < 0 or properties % 2:
        return None
    return _Shape(flags, lengths)


_shapes: BoundedCache[tuple[int, bytes], _Shape | None] = BoundedCache(_shape, length=lambda key: len(key[1]))


def decode_row(row: bytes, count: int, base: int) -> list[Message]:
    """The `count` messages of a row whose first has the offset `base`. Raises RemoteProtocolError for damaged bytes."""
    try:
        return _decode_row(row, count, base)
    except (struct.error, IndexError, ValueError) as error:
        raise RemoteProtocolError(f"the records at offset {base} cannot be read: {error}") from error


def _decode_row(row: bytes, count: int, base: int) -> list[Message]:
    messages: list[Message] = []
    at, end = records.check_version(row), len(row)
    shape_of, head_of, head_size = _shapes.get, HEAD.unpack_from, HEAD.size
    known: tuple[bytes, ...] = ()
    shared = NO_NAMES
    for offset in range(base, base + count):
        flags, text_count, text_size, payload_size = head_of(row, at)
        texts_at = at + head_size + text_count
        lengths = row[at + head_size : texts_at]
        shape = shape_of((flags, lengths)) or _shapes[flags, lengths]
        # All texts are ASCII if they have as many bytes as characters; a damaged row may have other bytes in them.
        if shape is None or text_size != shape.text_size or not row[texts_at : texts_at + text_size].isascii():
            message, at = records.decode_record(row, at, offset)
            messages.append(message)
            continue
        payload_at = texts_at + shape.cut.size
        at = payload_at + payload_size
        if at > end:
            raise ValueError(f"the record of offset {offset} is cut short")
        pieces = shape.cut.unpack_from(row, texts_at)
        if (names := pieces[shape.names]) != known:
            known, shared = names, property_names(names)
        messages.append(
            LogMessage(
                row[payload_at:at],
                shared,
                pieces[shape.values],
                None if (place := shape.key_at) < 0 else pieces[place].decode(),
                None if (place := shape.type_at) < 0 else pieces[place].decode(),
                None if (place := shape.origin_at) < 0 else pieces[place].decode(),
                None if (place := shape.event_at) < 0 else pieces[place],
                None if (place := shape.publish_at) < 0 else pieces[place],
                offset,
            )
        )
    records.check_end(row, at)
    return messages


def decode_rows(rows: Sequence[tuple[int, int, bytes]], first: int, end: int) -> list[Message]:
    """The messages of stored rows (base offset, count, records) from offset `first` up to `end`. Raises RemoteProtocolError."""
    messages: list[Message] = []
    for base, count, row in rows:
        messages += decode_row(row, count, base)
    return messages[first - rows[0][0] : end - rows[0][0]]


# --- messages -> records ----------------------------------------------------------------------------------------------


class _Form:
    """How properties with these names are written: `text` takes the values, and `lengths` theirs."""

    __slots__ = ("lengths", "text")

    def __init__(self, names: PropertyNames) -> None:
        self.text = b"".join(name.replace(b"%", b"%%") + b"%b" for name in names.names)
        self.lengths = [length for name in names.names for length in (len(name), 0)]


_TIME = struct.Struct("<q")


def encode_record(message: Message, origin: str | None) -> bytes:
    """One record; `origin` is stored in place of the message's own. Raises MappingError when a number exceeds 64 bits."""
    if isinstance(message, LazyMessage) and (record := _encode(message, origin)) is not None:
        return record
    return records.encode_record(message, origin)


def _encode(message: LazyMessage, origin: str | None) -> bytes | None:
    """None for messages that are not ordinary."""
    if message.attributes is not None or message.keys or message.delivery_count or message.deliver_at is not None:
        return None
    if message.hops > 1 or (message.hops and origin is not message.origin):  # more than an origin alone says, or one more
        return None
    form: _Form = message.property_names.target_cache("log", _Form)
    key, values, payload = message.key, message.values, message.payload
    assert payload is not None and not isinstance(key, bytes)  # noqa: S101, PT018 - a lazy message is so
    flags = PAYLOAD
    fixed: list[str] = []
    if key is not None:
        flags |= KEY_TEXT
        fixed.append(key)
    if (msg_type := message.msg_type) is not None:
        flags |= MSG_TYPE
        fixed.append(msg_type)
    if origin is not None:
        flags |= ORIGIN
        fixed.append(origin)
    properties = form.lengths.copy()
    properties[1::2] = map(len, values)
    event_time, publish_time = message.event_time, message.publish_time
    try:
        text = "".join(fixed).encode("ascii") + form.text % values
        lengths = bytes([*map(len, fixed), *properties])
        times = b""
        if event_time is not None:
            flags |= EVENT_TIME
            times = _TIME.pack(event_time)
        if publish_time is not None:
            flags |= PUBLISH_TIME
            times += _TIME.pack(publish_time)
    except (ValueError, struct.error):  # other characters, a text of more than 255, a number that does not fit
        return None
    if not text.isascii():
        return None
    return b"".join((HEAD.pack(flags, len(lengths), len(text), len(payload)), lengths, text, times, payload))
