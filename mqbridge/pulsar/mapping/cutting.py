"""Heads of messages in batches, cut into their fields by hand: those of no known shape, with nothing out of the ordinary.

A property's bytes up to its value repeat from message to message, so what they say is looked up.
"""

import base64
from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8, property_names
from mqbridge.mapping.reserved_properties import ATTRIBUTES, CARRIED_NAMES, ORIGIN, USER_PREFIX, read_carried
from mqbridge.message import MSG_TYPE, Message
from mqbridge.pulsar.mapping.batched import BatchedMessage
from mqbridge.pulsar.mapping.shapes import Strange
from mqbridge.wire.varint import decode_varint

# Field tags of SingleMessageMetadata.
_PROPERTY, _PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _B64_KEY = 0x0A, 0x12, 0x18, 0x28, 0x30
_ORDERING_KEY, _SEQUENCE_ID, _NULL_VALUE, _NULL_KEY = 0x3A, 0x40, 0x48, 0x50
_NUMBERS = frozenset({_PAYLOAD_SIZE, _EVENT_TIME, _B64_KEY, _SEQUENCE_ID, _NULL_VALUE, _NULL_KEY})
_BYTES = frozenset({_PARTITION_KEY, _ORDERING_KEY})
_NAME, _VALUE = 0x0A, 0x12
"""Of a property."""
_USER, _TYPE = USER_PREFIX.encode(), MSG_TYPE.encode()
_OURS = frozenset(name.encode() for name in CARRIED_NAMES)

_names: BoundedCache[bytes, bytes] = BoundedCache()
"""The name of a user's property by all of its bytes up to the value, where its lengths take a byte each."""


class _Head:
    """What a head says, as bytes and numbers: properties of the user and of ours, the others by their tags."""

    __slots__ = ("names", "numbers", "ours", "texts", "values")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        """Raises Strange, IndexError, RemoteProtocolError for a head that is to be read plainly."""
        self.names: list[bytes] = []
        self.values: list[bytes] = []
        self.ours: list[tuple[bytes, bytes]] = []
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, bytes] = {}
        names, values, known = self.names, self.values, _names.get
        while at < end:
            tag = data[at]
            if tag == _PROPERTY:
                value_at = at + data[at + 3] + 6
                name = known(data[at:value_at])
                if name is not None:
                    at += 2 + data[at + 1]
                    names.append(name)
                    values.append(data[value_at:at])
                else:
                    at = self._property(data, at)
            elif tag in _NUMBERS:
                if (number := data[at + 1]) < 0x80:
                    at += 2
                elif data[at + 2] < 0x80:
                    number += (data[at + 2] - 1) << 7
                    at += 3
                else:
                    number, at = decode_varint(data, at + 1)
                self.numbers[tag] = number
            elif tag in _BYTES:
                size, start = decode_varint(data, at + 1)
                at = start + size
                self.texts[tag] = data[start:at]
            else:
                raise Strange
        texts = b"\n".join((*values, self.texts.get(_PARTITION_KEY, b"")))
        if at != end or _PAYLOAD_SIZE not in self.numbers or not is_utf8(texts):
            raise Strange

    def _property(self, data: bytes, at: int) -> int:
        """Read one whose bytes up to the value are not known, and remember them; the place behind it."""
        size, item_at = decode_varint(data, at + 1)
        name_size, name_at = decode_varint(data, item_at + 1)
        name_end, end = name_at + name_size, item_at + size
        value_size, value_at = decode_varint(data, name_end + 1)
        name, value = data[name_at:name_end], data[value_at:end]
        if data[item_at] != _NAME or data[name_end] != _VALUE or value_at + value_size != end or not is_utf8(name):
            raise Strange
        if name in _OURS:
            self.ours.append((name, value))
            return end
        name = name.removeprefix(_USER)
        self.names.append(name)
        self.values.append(value)
        if value_at == at + name_size + 6:
            _names.keep(data[at:value_at], name)
        return end


def cut_head(data: bytes, at: int, end: int) -> tuple[Message, int] | None:
    """The message with its head between two places and its payload behind it, and that payload's length.

    What the entry says, and its position, are left open. None for a head that is to be read plainly.
    """
    try:
        head = _Head(data, at, end)
    except (Strange, IndexError, RemoteProtocolError):
        return None
    names, values, numbers, key = head.names, head.values, head.numbers, head.texts.get(_PARTITION_KEY)
    length = numbers[_PAYLOAD_SIZE]
    if head.ours or _ORDERING_KEY in head.texts or numbers.get(_B64_KEY) or numbers.get(_NULL_VALUE):
        message = _uncommon(head)
        message.payload = None if numbers.get(_NULL_VALUE) else data[end : end + length]
        return (message, length) if not head.ours or _become(message, head.ours, blank=not length) else None
    message = BatchedMessage.__new__(BatchedMessage)
    message.property_names, message.lengths, message.values = property_names(tuple(names)), None, tuple(values)
    message.payload = data[end : end + length]
    message.key = None if key is None else key.decode()
    message.msg_type = values[names.index(_TYPE)].decode() if _TYPE in names else None
    message.event_time = signed(numbers.get(_EVENT_TIME, 0)) or None
    return message, length


def _uncommon(head: _Head) -> Message:
    properties = tuple([(name.decode(), value.decode()) for name, value in zip(head.names, head.values, strict=True)])
    key = head.texts.get(_PARTITION_KEY)
    return Message(
        None,
        properties,
        key=None if key is None else key_of(key.decode(), bool(head.numbers.get(_B64_KEY))),
        ordering_key=head.texts.get(_ORDERING_KEY),
        msg_type=next((value for name, value in properties if name == MSG_TYPE), None),
        event_time=signed(head.numbers.get(_EVENT_TIME, 0)) or None,
    )


def _become(message: Message, ours: Sequence[tuple[bytes, bytes]], *, blank: bool) -> bool:
    """Set what was carried; False when some of it is not ours after all."""
    try:
        said = [(name.decode(), value.decode()) for name, value in ours]
    except UnicodeDecodeError:
        return False
    for name, value in said:
        if name == ATTRIBUTES:
            message.attributes = value.encode()
        elif name == ORIGIN:
            message.origin, message.hops = value, 1
        else:
            break
    else:
        return True
    own, fields = read_carried(said, blank=blank)
    if own or "deliver_at" in fields:
        return False
    for name, value in fields.items():
        setattr(message, name, value)
    return True


def key_of(key: str, is_base64: bool) -> str | bytes:
    """The key that a text stands for."""
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:  # not the base64 that it claims to be: kept as the text that it is
        return key


def signed(value: int) -> int:
    """A 64-bit number with its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value
