"""The property string of a record, whoever wrote it: properties and fields of the message. See `write_block` for a gateway's.

A string with a pair that only gateways write is a gateway's: then the record's born timestamp is no event time, and a UNIQ_KEY
behind that pair was made by a broker for a message that had none, because brokers append.
"""

from enum import Enum
from typing import Any, NamedTuple

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.reserved_properties import (
    GATEWAY_MARKER,
    is_carried,
    read_carried,
)
from mqbridge.message import RESERVED_PREFIX, Pair
from mqbridge.rocketmq.mapping.broker_order import read_order, restore_order
from mqbridge.rocketmq.mapping.escapes import unescape
from mqbridge.rocketmq.mapping.table import EMPTY, FLAG, IGNORED_NAMES, ORDER, SHARDED
from mqbridge.rocketmq.wire.properties import TRANSIENT_PREFIX, Name, decode

PLACEHOLDER = b"\x00"
"""The body of a message without one: brokers refuse an empty body."""
_FIELD_NAMES = frozenset({Name.TAGS, Name.KEYS, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS})
_MAX_TIME = (1 << 63) - 1
_MAX_DIGITS = len(str(_MAX_TIME))
"""What is longer is no time, and Python takes no more than 4300 digits for a number."""


class ReadBlock(NamedTuple):
    """Properties and message fields of a property string; `payload` is among the fields of a message without a body.

    `from_gateway`: a gateway wrote it.
    """

    properties: tuple[Pair, ...]
    fields: dict[str, Any]
    from_gateway: bool


def read_block(block: bytes, *, flag: int, blank: bool) -> ReadBlock:
    """Read a property string. `flag` is the record's; `blank`: its body is PLACEHOLDER. Raises RemoteProtocolError."""
    parts = _Parts(block, blank=blank)
    own, carried = tuple(parts.users), dict[str, Any]()
    if parts.has_reserved:
        own, carried = read_carried(parts.users + parts.ours, blank=blank)
    fields = _system_fields(parts.system)
    fields.update(carried)
    if "key" not in fields:
        fields["key"] = first_key(fields.get("keys", ()))
    if EMPTY in parts.markers:
        fields.setdefault("payload", b"")
    if flag or Name.SHARDING_KEY in parts.system:
        own += _synthetic(flag, parts.system, fields, own)
    return ReadBlock(own, fields, bool(parts.ours or parts.markers))


def _system_fields(system: dict[str, str]) -> dict[str, Any]:
    """The message fields that the system's own properties say."""
    fields: dict[str, Any] = {}
    for name, value in system.items():
        if name == Name.TAGS:
            fields["msg_type"] = value
        elif name == Name.KEYS:
            fields["keys"] = tuple(value.split(" "))
        elif name == Name.SHARDING_KEY:
            fields["key"] = value
        elif value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS and (time := int(value)) <= _MAX_TIME:
            fields["deliver_at"] = time
    return fields


def first_key(keys: tuple[str, ...]) -> str | None:
    """The key of a message without __SHARDINGKEY: its first index key. KEYS with blanks side by side has empty ones."""
    if keys and keys[0]:  # as usual
        return keys[0]
    return next(filter(None, keys), None)


def _synthetic(flag: int, system: dict[str, str], fields: dict[str, Any], own: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Properties for what no field says, except where the message has a property of that name."""
    found = []
    sharding_key = system.get(Name.SHARDING_KEY)
    if sharding_key is not None and sharding_key == first_key(fields.get("keys", ())):
        found.append((SHARDED, "1"))
    if flag:
        found.append((FLAG, str(flag)))
    names = {name for name, _ in own}
    return tuple(pair for pair in found if pair[0] not in names)


class _Kind(Enum):
    """What a stored property is by its name."""

    USER, UNIQUE, FIELD, IGNORED, RESERVED = range(5)


_USER, _UNIQUE, _FIELD, _IGNORED, _RESERVED = _Kind


def _kind_of(name: str) -> _Kind:
    if name.startswith(RESERVED_PREFIX):
        return _RESERVED
    if name in _FIELD_NAMES:
        return _FIELD
    if name in IGNORED_NAMES or name.startswith(TRANSIENT_PREFIX):
        return _IGNORED
    return _UNIQUE if name == Name.UNIQ_KEY else _USER


_kinds = BoundedCache(_kind_of)


class _Parts:
    """A property string taken apart.

    users     the user's pairs, in order, still under `mqbridge.u.`
    ours      the pairs that carry message fields
    markers   what a gateway says about the record itself: GATEWAY_MARKER, EMPTY, ORDER
    system    the values of the system's own properties that are message fields
    has_reserved   a name begins with `mqbridge.`
    """

    __slots__ = ("_names", "has_reserved", "markers", "ours", "system", "users")

    def __init__(self, block: bytes, *, blank: bool) -> None:
        self.users: list[Pair] = []
        self.ours: list[Pair] = []
        self.markers: dict[str, str] = {}
        self.system: dict[str, str] = {}
        self.has_reserved = False
        self._names: list[str] = []
        """Of the user's pairs as stored."""
        unique_at, made_by_broker = -1, False  # the UNIQ_KEY, and whether it is a broker's if a gateway wrote the rest
        add, add_name, kind_of = self.users.append, self._names.append, _kinds.get
        for pair in decode(block):
            name, value = pair
            kind = kind_of(name) or _kinds[name]
            if kind is _USER:
                add(pair)
                add_name(name)
            elif kind is _FIELD:
                self.system[name] = value
            elif kind is _RESERVED:
                self._read_reserved(name, value, blank=blank)
            elif kind is _UNIQUE and unique_at < 0:
                unique_at, made_by_broker = len(self.users), bool(self.ours or self.markers)
                add(pair)
                add_name(name)
        if ORDER in self.markers:
            self.users = restore_order(self.markers[ORDER], self._names, self.users)
        elif made_by_broker:
            del self.users[unique_at]

    def _read_reserved(self, name: str, value: str, *, blank: bool) -> None:
        self.has_reserved = True
        pair = unescape((name, value))
        if _is_marker(pair, blank=blank):
            self.markers[pair[0]] = value
        elif is_carried(pair, blank=blank):
            self.ours.append(pair)
        else:
            self.users.append(pair)
            self._names.append(name)


def _is_marker(pair: Pair, *, blank: bool) -> bool:
    name, value = pair
    if name == ORDER:
        return read_order(value) is not None
    return pair == GATEWAY_MARKER or (name == EMPTY and value == "1" and blank)
