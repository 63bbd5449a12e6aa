"""Metadata of no known template, decoded field by field without protobuf."""

from collections.abc import Sequence
from typing import ClassVar

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8, property_names
from mqbridge.mapping.reserved_properties import ATTRIBUTES, CARRIED_NAMES, ORIGIN, USER_PREFIX, read_carried
from mqbridge.message import MSG_TYPE, Message
from mqbridge.pulsar.mapping.fast.messages import BatchedMessage
from mqbridge.pulsar.mapping.properties import read_key
from mqbridge.pulsar.wire.ids import signed
from mqbridge.pulsar.wire.single_metadata import (
    EVENT_TIME,
    KEY_IS_BASE64,
    NULL_VALUE,
    ORDERING_KEY,
    PARTITION_KEY,
    PAYLOAD_SIZE,
    SingleMetadataParser,
    UnsupportedLayout,
)

_USER_PREFIX, _TYPE = USER_PREFIX.encode(), MSG_TYPE.encode()
_CARRIED_NAMES = frozenset(name.encode() for name in CARRIED_NAMES)


class _Fields(SingleMetadataParser):
    """Properties of the user under the names that the user gave them, and apart from these the carried ones."""

    __slots__ = ("carried",)
    known_names: ClassVar[BoundedCache[bytes, bytes]] = BoundedCache()

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.carried: list[tuple[bytes, bytes]] = []
        super().__init__(data, at, end)
        if not is_utf8(b"\n".join((*self.values, self.texts.get(PARTITION_KEY, b"")))):
            raise UnsupportedLayout

    def add_property(self, name: bytes, value: bytes, prefix: bytes | None) -> None:
        """Keep it among the user's, whose names become known, or among the carried ones."""
        if not is_utf8(name):
            raise UnsupportedLayout
        if name in _CARRIED_NAMES:
            self.carried.append((name, value))
            return
        name = name.removeprefix(_USER_PREFIX)
        self.names.append(name)
        self.values.append(value)
        if prefix is not None:
            self.known_names.keep(prefix, name)


def decode_fields(data: bytes, at: int, end: int) -> tuple[Message, int] | None:
    """The message with its metadata between two offsets and its payload behind it, and that payload's length.

    Position and the fields of the entry are left open. None for metadata that has to be read by plain code.
    """
    try:
        fields = _Fields(data, at, end)
    except (UnsupportedLayout, IndexError, RemoteProtocolError):
        return None
    names, values, numbers, key = fields.names, fields.values, fields.numbers, fields.texts.get(PARTITION_KEY)
    length = numbers[PAYLOAD_SIZE]
    if fields.carried or ORDERING_KEY in fields.texts or numbers.get(KEY_IS_BASE64) or numbers.get(NULL_VALUE):
        message = _ordinary_message(fields)
        message.payload = None if numbers.get(NULL_VALUE) else data[end : end + length]
        return (message, length) if not fields.carried or _set_carried(message, fields.carried, blank=not length) else None
    message = BatchedMessage.__new__(BatchedMessage)
    message.property_names, message.lengths, message.values = property_names(tuple(names)), None, tuple(values)
    message.payload = data[end : end + length]
    message.key = None if key is None else key.decode()
    message.msg_type = values[names.index(_TYPE)].decode() if _TYPE in names else None
    message.event_time = signed(numbers.get(EVENT_TIME, 0)) or None
    return message, length


def _ordinary_message(fields: _Fields) -> Message:
    properties = tuple([(name.decode(), value.decode()) for name, value in zip(fields.names, fields.values, strict=True)])
    key = fields.texts.get(PARTITION_KEY)
    return Message(
        None,
        properties,
        key=None if key is None else read_key(key.decode(), bool(fields.numbers.get(KEY_IS_BASE64))),
        ordering_key=fields.texts.get(ORDERING_KEY),
        msg_type=next((value for name, value in properties if name == MSG_TYPE), None),
        event_time=signed(fields.numbers.get(EVENT_TIME, 0)) or None,
    )


def _set_carried(message: Message, carried: Sequence[tuple[bytes, bytes]], *, blank: bool) -> bool:
    """Set what was carried; False when a value is none that a gateway writes."""
    try:
        pairs = [(name.decode(), value.decode()) for name, value in carried]
    except UnicodeDecodeError:
        return False
    for name, value in pairs:
        if name == ATTRIBUTES:
            message.attributes = value.encode()
        elif name == ORIGIN:
            message.origin, message.hops = value, 1
        else:
            break
    else:
        return True
    own, fields = read_carried(pairs, blank=blank)
    if own or "deliver_at" in fields:
        return False
    for field, content in fields.items():
        setattr(message, field, content)
    return True
