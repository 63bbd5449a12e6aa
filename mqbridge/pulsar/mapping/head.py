"""SingleMessageMetadata by hand: what stands before each message of a batch entry.

The properties are written by a template for their names and for the lengths of their values, which repeat from message to
message even where the values do not: a formatting for all of them was measured at a tenth of filling a protobuf object.
"""

import base64
import struct
from collections.abc import Iterable, Sequence
from functools import partial

from mqbridge.mapping.bounded_cache import ENTRIES, BoundedCache, total_length
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage, PropertyNames, is_utf8, split_properties
from mqbridge.mapping.reserved_properties import (
    ATTRIBUTES,
    EVENT_TIME,
    HOPS,
    KEYS,
    ORIGIN,
    TYPE,
    WITHOUT,
    carry_fields,
    escape_user_property,
    join_keys,
    origin_properties,
)
from mqbridge.message import MSG_TYPE, Message, Pair, format_position
from mqbridge.pulsar.wire.batch import property_bytes
from mqbridge.wire.varint import CONTINUED, SMALL, encode_varint

# Field tags of SingleMessageMetadata.
_PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _B64_KEY = b"\x12", b"\x18", b"\x28", b"\x30\x01"
_ORDERING_KEY, _NULL_VALUE = b"\x3a", b"\x48\x01"
_PROPERTY, _NAME, _VALUE = b"\x0a", b"\x0a", b"\x12"
_UINT64 = (1 << 64) - 1
_length = struct.Struct(">I").pack
"""The length of a head, before it."""


def _head(name: bytes, length: int) -> bytes:
    """What stands before the value of a property, by the length of the value."""
    size = encode_varint(length)
    key = b"".join((_NAME, encode_varint(len(name)), name, _VALUE, size))
    return _PROPERTY + encode_varint(len(key) + length) + key


def _heads(name: str) -> BoundedCache[int, bytes]:
    """All of those of one name."""
    return BoundedCache(partial(_head, name.encode()), longest=MAX_SHORT, length=int)


MAX_SHORT = 8192
"""Lengths of values by which something is remembered, and of templates."""
_attributes_heads, _origin_heads = _heads(ATTRIBUTES), _heads(ORIGIN)


class Plan:
    """How properties of these names are written: `templates` take the values, by their lengths.

    `type_at` is the place of the one that says the message type, -1 for none.
    """

    __slots__ = ("_names", "templates", "type_at")

    def __init__(self, names: PropertyNames) -> None:
        self._names = [escape_user_property((name, ""))[0].encode() for name in names.texts]
        self.templates: dict[tuple[int, ...], bytes] = {}
        self.type_at = names.texts.index(MSG_TYPE) if MSG_TYPE in names.texts else -1

    def template(self, lengths: tuple[int, ...]) -> bytes:
        """One more template."""
        heads = [_head(name, length) for name, length in zip(self._names, lengths, strict=True)]
        template = b"".join([head.replace(b"%", b"%%") + b"%b" for head in heads])
        if len(template) <= MAX_SHORT:
            _kept.append(self)
            self.templates[lengths] = template
            if len(_kept) > ENTRIES:
                for plan in _kept:
                    plan.templates.clear()
                _kept.clear()
        return template


_kept: list[Plan] = []
"""The plan of each template; when they are too many all templates are forgotten."""


def encode_run(  # noqa: C901, PLR0912, PLR0915 - per message; calls cost more
    messages: Sequence[Message], start: int, origin: bytes | None, max_bytes: int, max_messages: int
) -> tuple[list[bytes], int]:
    """The pieces of a batch of the messages from `start` on, and where it ended: at a limit or at a message that is to be alone.

    All of it is spelled out in one loop, because this is where the gateway spends most of its time.
    """
    parts: list[bytes] = []
    small, join, pack_length, origin_heads = SMALL, b"".join, _length, _origin_heads
    size, index = 0, start
    stem, stem_of, said_time, time_of = b"", None, b"", None
    known, plan = NO_NAMES, NO_NAMES.target_cache("pulsar", Plan)
    keys_of, types_of, routing_keys_of, times_of = _encoded_keys.get, _encoded_types.get, _routing_keys.get, _encoded_times.get
    for index in range(start, min(len(messages), start + max_messages)):
        message = messages[index]
        if lazy := isinstance(message, LazyMessage):
            names, values, lengths = message.property_names, message.values, message.lengths or tuple(map(len, message.values))
        elif message.defect is not None or message.deliver_at is not None:
            return parts, index
        else:
            names, values = split_properties(message.properties)
            lengths = tuple(map(len, values))
        if names is not known:
            known, plan = names, names.target_cache("pulsar", Plan)
        template = plan.templates.get(lengths)
        pieces = [(plan.template(lengths) if template is None else template) % values]
        if (attributes := message.attributes) is not None:
            if not lazy and not is_utf8(attributes):
                pieces += _pairs(carry_fields(message, ("attributes",)))
            else:
                pieces += (_attributes_heads[len(attributes)], attributes)
        if keys := message.keys:
            pieces.append(keys_of(keys) or _encoded_keys[keys])
        msg_type = message.msg_type
        if plan.type_at >= 0:
            # Where the attribute string says everything, the type is that of its pair.
            if not (isinstance(message, LazyMessage) and message.from_attributes) and values[plan.type_at].decode() != msg_type:
                pieces += _pairs(carried_type(message))
        elif msg_type is not None:
            pieces.append(types_of(msg_type) or _encoded_types[msg_type])
        if origin is not None:
            position = message.position
            if position[:-1] != stem_of:  # those of an entry or a pack differ in the last number only
                stem_of = position[:-1]
                stem = origin + (f"{format_position(stem_of)}:" if stem_of else "").encode()
            value = b"%b%d" % (stem, position[-1]) if position else origin
            pieces += (origin_heads[len(value)], value)
            if message.hops:
                pieces.append(property_bytes(HOPS, b"%d" % (message.hops + 1)))
        elif message.origin is not None:
            pieces += _pairs(origin_properties(message, None))
        if (key := message.key) is not None:
            pieces.append(routing_keys_of(key) or _routing_keys[key])
        payload = message.payload or b""
        length = len(payload)
        if (time := message.event_time) != time_of:
            time_of, said_time = time, times_of(time) or _encode_time(time)
        pieces += (_PAYLOAD_SIZE, small[length] if length < 16384 else encode_varint(length), said_time)
        if not lazy:
            if message.ordering_key is not None:
                pieces += (_ORDERING_KEY, encode_varint(len(message.ordering_key)), message.ordering_key)
            if message.payload is None:
                pieces.append(_NULL_VALUE)
        head = join(pieces)
        cost = len(head) + length + 4
        if parts and size + cost > max_bytes:
            return parts, index
        parts += (pack_length(len(head)), head, payload)
        size += cost
    return parts, index + 1


def carried_type(message: Message) -> list[Pair]:
    """A message type that no property says; or that a property seems to say one."""
    if message.property(MSG_TYPE) == message.msg_type:
        return []
    return [(WITHOUT, "msg_type")] if message.msg_type is None else [(TYPE, message.msg_type)]


def _pairs(pairs: Iterable[Pair]) -> list[bytes]:
    return [property_bytes(key, value.encode()) for key, value in pairs]


def _encode_keys(keys: tuple[str, ...]) -> bytes:
    return property_bytes(KEYS, join_keys(keys).encode())


def _encode_type(msg_type: str) -> bytes:
    return property_bytes(TYPE, msg_type.encode())


def _encode_key(key: str | bytes) -> bytes:
    text, flag = (key.encode(), b"") if isinstance(key, str) else (base64.b64encode(key), _B64_KEY)
    return _PARTITION_KEY + encode_varint(len(text)) + text + flag


def _encode_time(time: int | None) -> bytes:
    if time is None:
        return b""
    if 1 << 28 <= time < 1 << 42:  # all of our days: six bytes, each two of them from a table
        said = b"".join((_EVENT_TIME, CONTINUED[time & 0x3FFF], CONTINUED[time >> 14 & 0x3FFF], SMALL[time >> 28]))
        return said if time % 60_000 else _encoded_times.keep(time, said)
    # On the wire 0 means none, so the first millisecond of all is carried.
    return _EVENT_TIME + encode_varint(time & _UINT64) if time else property_bytes(EVENT_TIME, b"0")


_encoded_keys: BoundedCache[tuple[str, ...], bytes] = BoundedCache(_encode_keys, length=total_length)
_encoded_types: BoundedCache[str, bytes] = BoundedCache(_encode_type)
_routing_keys: BoundedCache[str | bytes, bytes] = BoundedCache(_encode_key)
_encoded_times: BoundedCache[int | None, bytes] = BoundedCache(length=None)
"""Of whole minutes, which is what TubeMQ tells; others seldom repeat."""
