"""Heads of messages in batches that are of a shape which came before, see `mqbridge.mapping.parse_templates`.

The fixed bytes of a shape hold all tags and lengths, so where they fit there is no other way to read the head.
"""

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.lazy_properties import property_names
from mqbridge.mapping.parse_templates import ParseTemplate
from mqbridge.mapping.reserved_properties import CARRIED_NAMES, USER_PREFIX
from mqbridge.message import MSG_TYPE
from mqbridge.pulsar.mapping.batched import BatchedMessage, Carried, CarriedMessage
from mqbridge.wire.varint import decode_varint

# Field tags of SingleMessageMetadata, in the order in which all writers put them.
_PROPERTY, _PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE_ID = 0x0A, 0x12, 0x18, 0x28, 0x40
_FLAGS = frozenset({0x30, 0x48, 0x50})
_NAME, _VALUE = 0x0A, 0x12


class HeadShape(ParseTemplate):
    """The places of what is in a head.

    `users` are those of the values of the user's properties, `texts` these and those of ours and of the key, the others those of
    one value, 0 for none.
    """

    __slots__ = (
        "carried",
        "key_at",
        "kind",
        "lengths",
        "names",
        "sequence_at",
        "size_at",
        "texts",
        "time_at",
        "type_at",
        "users",
    )

    def __init__(self, head: bytes, cutter: "_Cutter") -> None:
        super().__init__(head, cutter.lengths)
        count = len(cutter.names)
        self.names = property_names(tuple(cutter.names))
        self.lengths = tuple(cutter.lengths[1 : 2 * count : 2])
        self.users = slice(1, 2 * count, 2)
        names = self.names.texts
        self.type_at = 2 * names.index(MSG_TYPE) + 1 if MSG_TYPE in names else 0
        self.key_at, self.size_at, self.time_at, self.sequence_at = (
            cutter.places.get(tag, 0) for tag in (_PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE_ID)
        )
        self.texts = slice(1, 2 * (count + len(cutter.carried) + (self.key_at > 0)), 2)
        self.carried = Carried(cutter.carried) if cutter.carried else None
        self.kind = CarriedMessage if cutter.carried else BatchedMessage


def shape_of(head: bytes) -> HeadShape | None:
    """The shape of a head; None for one that has anything out of the ordinary."""
    try:
        return HeadShape(head, _Cutter(head))
    except (Strange, IndexError, RemoteProtocolError, UnicodeDecodeError):
        return None


class Strange(Exception):
    """A head without a shape."""


class _Cutter:
    """Finds the borders between what is fixed in a head and what is a value. Raises Strange, IndexError, RemoteProtocolError."""

    def __init__(self, head: bytes) -> None:
        self.lengths: list[int] = []
        self.names: list[bytes] = []
        self.carried: dict[bytes, int] = {}
        self.places: dict[int, int] = {}
        self._head, self._done = head, 0
        at = last = 0
        while at < len(head):
            tag = head[at]
            if tag < last or (tag == last and tag != _PROPERTY):
                raise Strange
            last = tag
            at = self._field(tag, at + 1)
        self._value(at, at)
        if at != len(head) or _PAYLOAD_SIZE not in self.places:
            raise Strange

    def _field(self, tag: int, at: int) -> int:
        """Read one, and say where the next one begins."""
        if tag in _FLAGS:
            if self._head[at]:
                raise Strange
            return at + 1
        number, start = decode_varint(self._head, at)
        if tag == _PROPERTY:
            return self._property(start, start + number)
        if tag == _PARTITION_KEY:
            end = start + number
        elif tag in {_PAYLOAD_SIZE, _EVENT_TIME, _SEQUENCE_ID}:
            start, end = at, start
        else:
            raise Strange
        self.places[tag] = self._value(start, end)
        return end

    def _property(self, at: int, end: int) -> int:
        head = self._head
        length, start = decode_varint(head, at + 1)
        name_end = start + length
        size, value_at = decode_varint(head, name_end + 1)
        name = head[start:name_end]
        if head[at] != _NAME or head[name_end] != _VALUE or value_at + size != end:
            raise Strange
        place = self._value(value_at, end)
        if name in Carried.NAMES and name not in self.carried:
            self.carried[name] = place
        elif self.carried or name.decode() in CARRIED_NAMES or name.startswith(USER_PREFIX.encode()):
            raise Strange  # a gateway puts the user's first
        else:
            self.names.append(name)
        return end

    def _value(self, start: int, end: int) -> int:
        """A value lies between these; its place among the fields."""
        self.lengths += (start - self._done, end - start)
        self._done = end
        return len(self.lengths) - 1


def read_number(data: bytes) -> int:
    """The number of a varint, -1 for bytes that are not just one."""
    return decode_varint(data, 0)[0] if is_number(data) else -1


def is_number(data: bytes) -> bool:
    """Whether bytes are one varint."""
    return data[-1] < 0x80 and (len(data) == 1 or min(data[:-1]) > 0x7F)
