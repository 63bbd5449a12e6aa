"""Property string of a record (the block) -> properties and fields of the message. `write_block` is the other direction.

A block that contains a pair that only gateways write was written by a gateway. Then the record's born timestamp is no event time,
and a UNIQ_KEY after that pair is dropped, because the broker or the gateway added it.
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
from mqbridge.rocketmq.wire.properties import Name, decode

PLACEHOLDER = b"\x00"
"""The body written for a missing or empty payload, because brokers refuse an empty body."""
_FIELD_NAMES = frozenset({Name.TAGS, Name.KEYS, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS})
"""The system properties that become fields of the message."""
_MAX_TIME = (1 << 63) - 1  # ms, the largest that a message field can have
_MAX_DIGITS = len(str(_MAX_TIME))
"""Longer texts are no valid times. They are not parsed, because Python raises ValueError for more than 4300 digits."""


class BlockContent(NamedTuple):
    """The content of a property string: the properties and fields of the message.

    The fields contain `payload` only if the property string says that it is missing or empty. `from_gateway` is True if a gateway
    wrote the string.
    """

    properties: tuple[Pair, ...]
    fields: dict[str, Any]
    from_gateway: bool


def read_block(block: bytes, *, flag: int, blank: bool) -> BlockContent:
    """Decode a property string. `flag` is the number that the application set for the record.

    `blank` is True if the record's body is PLACEHOLDER, which stands for a missing or empty payload, but may also be the payload
    itself. Bytes that are not UTF-8 are kept, see `wire/text.py`.
    """
    split = _SplitBlock(block, blank=blank)
    properties, carried = tuple(split.user_pairs), dict[str, Any]()
    if split.has_reserved:
        properties, carried = read_carried(split.user_pairs + split.carried_pairs, blank=blank)
    fields = _system_fields(split.system)
    fields.update(carried)
    if "key" not in fields:
        fields["key"] = first_key(fields.get("keys", ()))
    if EMPTY in split.markers:
        fields.setdefault("payload", b"")
    if flag or Name.SHARDING_KEY in split.system:
        properties += _synthetic_properties(flag, split.system, fields, properties)
    return BlockContent(properties, fields, bool(split.carried_pairs or split.markers))


def _system_fields(system: dict[str, str]) -> dict[str, Any]:
    """Return the message fields that the system properties contain, without a delivery time that is no valid number."""
    fields: dict[str, Any] = {}
    for name, value in system.items():
        if name == Name.TAGS:
            fields["msg_type"] = value
        elif name == Name.KEYS:
            fields["keys"] = tuple(value.split(" "))
        elif name == Name.SHARDING_KEY:
            fields["key"] = value
        # The only other name is TIMER_DELIVER_MS.
        elif value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS and (time := int(value)) <= _MAX_TIME:
            fields["deliver_at"] = time
    return fields


def first_key(keys: tuple[str, ...]) -> str | None:
    """Return the first index key that is not empty, which is the key of a message without __SHARDINGKEY.

    There are empty index keys if KEYS contains adjacent blanks.
    """
    if keys and keys[0]:  # the usual case
        return keys[0]
    return next(filter(None, keys), None)


def _synthetic_properties(
    flag: int, system: dict[str, str], fields: dict[str, Any], properties: tuple[Pair, ...]
) -> tuple[Pair, ...]:
    """Return the properties FLAG and SHARDED, for values of the record that no field of a message can hold.

    SHARDED says that the record has a __SHARDINGKEY, although its key equals the first index key, which would be the key without
    it. A property of the same name in the record takes precedence.
    """
    pairs = []
    sharding_key = system.get(Name.SHARDING_KEY)
    if sharding_key is not None and sharding_key == first_key(fields.get("keys", ())):
        pairs.append((SHARDED, "1"))
    if flag:
        pairs.append((FLAG, str(flag)))
    names = {name for name, _ in properties}
    return tuple(pair for pair in pairs if pair[0] not in names)


class _Kind(Enum):
    """The kind of a stored property, which its name determines.

    USER is a user's property; UNIQUE, a UNIQ_KEY; FIELD, a system property that is a message field; IGNORED, a system
    property that is neither read nor copied; RESERVED, a property with a name that begins with `mqbridge.`.
    """

    USER, UNIQUE, FIELD, IGNORED, RESERVED = range(5)


_USER, _UNIQUE, _FIELD, _IGNORED, _RESERVED = _Kind


def _kind_of(name: str) -> _Kind:
    if name.startswith(RESERVED_PREFIX):
        return _RESERVED
    if name in _FIELD_NAMES:
        return _FIELD
    if name in IGNORED_NAMES:
        return _IGNORED
    return _UNIQUE if name == Name.UNIQ_KEY else _USER


_kinds = BoundedCache(_kind_of)
"""The kinds of recent names. `get` is faster than `[name]`, but returns None for a name that is not in the cache."""


class _SplitBlock:
    """A property string, split by kind of property.

    user_pairs     the user's pairs, unescaped, in order; the prefix `mqbridge.u.` of a name is kept: `read_carried` removes it
    carried_pairs  the pairs that carry message fields
    markers        values by name of a gateway's notes about the record itself: GATEWAY_MARKER, EMPTY (the payload is empty),
                   and ORDER (the original order of the user's pairs)
    system         values by name of the system properties that are message fields
    has_reserved   True if a name begins with `mqbridge.`
    """

    __slots__ = ("_names", "carried_pairs", "has_reserved", "markers", "system", "user_pairs")

    def __init__(self, block: bytes, *, blank: bool) -> None:
        self.user_pairs: list[Pair] = []
        self.carried_pairs: list[Pair] = []
        self.markers: dict[str, str] = {}
        self.system: dict[str, str] = {}
        self.has_reserved = False
        self._names: list[str] = []
        """The names of the user's pairs as they are stored, that is, escaped."""
        unique_index = -1  # of the first UNIQ_KEY in `user_pairs`, -1 before it; further ones are ignored
        is_unique_added = False  # True if this UNIQ_KEY follows a gateway's pair: the broker or the gateway added it
        add = self.user_pairs.append
        add_name = self._names.append
        cached_kind = _kinds.get
        for pair in decode(block):
            name, value = pair
            kind = cached_kind(name) or _kinds[name]
            if kind is _USER:
                add(pair)
                add_name(name)
            elif kind is _FIELD:
                self.system[name] = value
            elif kind is _RESERVED:
                self._read_reserved(name, value, blank=blank)
            elif kind is _UNIQUE and unique_index < 0:
                unique_index, is_unique_added = len(self.user_pairs), bool(self.carried_pairs or self.markers)
                add(pair)
                add_name(name)
        if ORDER in self.markers:  # `restore_order` also removes an added UNIQ_KEY
            self.user_pairs = restore_order(self.markers[ORDER], self._names, self.user_pairs)
        elif is_unique_added:
            del self.user_pairs[unique_index]

    def _read_reserved(self, name: str, value: str, *, blank: bool) -> None:
        self.has_reserved = True
        pair = unescape((name, value))
        if _is_marker(pair, blank=blank):
            self.markers[pair[0]] = value
        elif is_carried(pair, blank=blank):
            self.carried_pairs.append(pair)
        else:
            self.user_pairs.append(pair)
            self._names.append(name)


def _is_marker(pair: Pair, *, blank: bool) -> bool:
    """Return True if a gateway wrote this pair as a note about the record itself."""
    name, value = pair
    if name == ORDER:
        return read_order(value) is not None
    return pair == GATEWAY_MARKER or (name == EMPTY and value == "1" and blank)
