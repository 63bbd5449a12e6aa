"""Single-message metadata and payloads of a batch.

The properties are written by a template for their names and for the lengths of their values, which repeat from message to
message even where the values do not: a formatting for all of them was measured at a tenth of filling a protobuf object.
"""

import base64
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from mqbridge.mapping.bounded_cache import ENTRIES, BoundedCache, total_length
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage, PropertyNames, is_utf8, split_properties
from mqbridge.mapping.reserved_properties import (
    ATTRIBUTES,
    EVENT_TIME,
    HOPS,
    KEYS,
    ORIGIN,
    TYPE,
    carry_fields,
    escape_user_property,
    join_keys,
    origin_properties,
)
from mqbridge.message import MSG_TYPE, Message, Pair
from mqbridge.pulsar.mapping.properties import type_properties
from mqbridge.pulsar.wire.single_metadata import (
    NULL_VALUE_TRUE,
    ORDERING_KEY_TAG,
    PAYLOAD_SIZE_TAG,
    PropertyPrefixes,
    encode_event_time,
    encode_partition_key,
    encode_property,
    property_prefix,
)
from mqbridge.wire.varint import SMALL, encode_varint

MAX_TEMPLATE_BYTES = 8192
"""Longer templates are used and not kept."""

_pack_size = struct.Struct(">I").pack
_attributes_prefixes, _origin_prefixes = PropertyPrefixes(ATTRIBUTES), PropertyPrefixes(ORIGIN)


class PropertyTemplates:
    """How properties of these names are written: formats that take the values, by the lengths of the values.

    `type` is the index of the property that says the message type, -1 for none.
    """

    __slots__ = ("_names", "by_lengths", "type")

    def __init__(self, names: PropertyNames) -> None:
        self._names = [escape_user_property((name, ""))[0].encode() for name in names.texts]
        self.by_lengths: dict[tuple[int, ...], bytes] = {}
        self.type = names.texts.index(MSG_TYPE) if MSG_TYPE in names.texts else -1

    def make(self, lengths: tuple[int, ...]) -> bytes:
        """One more template."""
        prefixes = [property_prefix(name, length) for name, length in zip(self._names, lengths, strict=True)]
        template = b"".join([prefix.replace(b"%", b"%%") + b"%b" for prefix in prefixes])
        if len(template) <= MAX_TEMPLATE_BYTES:
            _kept.append(self)
            self.by_lengths[lengths] = template
            if len(_kept) > ENTRIES:
                for each in _kept:
                    each.by_lengths.clear()
                _kept.clear()
        return template


_without_names: PropertyTemplates = NO_NAMES.target_cache("pulsar", PropertyTemplates)
_kept: list[PropertyTemplates] = []
"""The owner of each template; when they are too many all templates are forgotten."""


def encode_batch(  # noqa: C901, PLR0912, PLR0915 - per message; calls cost more
    messages: Sequence[Message], start: int, origin: bytes | None, max_bytes: int, max_messages: int
) -> tuple[list[bytes], int]:
    """The pieces of a batch of the messages from `start` on, and the index of the first message that is not in it.

    The batch ends at a limit, at a message with a delivery time (which has to be alone), and at one with a defect.

    `origin` is the prefix of every message's origin. All is spelled out in one loop, because calls per message cost more.
    """
    parts: list[bytes] = []
    small, join, pack_size, origin_prefixes = SMALL, b"".join, _pack_size, _origin_prefixes
    size, index = 0, start
    stem, stem_of, encoded_time, time_of = b"", None, b"", None
    message_class, is_lazy, has_its_type = None, False, False
    known, templates = NO_NAMES, _without_names
    keys_of, types_of, partition_keys_of, times_of = _keys.get, _types.get, _partition_keys.get, _times.get
    for index in range(start, min(len(messages), start + max_messages)):
        message: Any = messages[index]
        if message.__class__ is not message_class:  # isinstance for each message would take 3 % of the loop
            message_class = message.__class__
            is_lazy = issubclass(message_class, LazyMessage)
            has_its_type = is_lazy and message.from_attributes
        if is_lazy:
            names, values, lengths = message.property_names, message.values, message.lengths or tuple(map(len, message.values))
        elif message.defect is not None or message.deliver_at is not None:
            return parts, index
        else:
            names, values = split_properties(message.properties)
            lengths = tuple(map(len, values))
        if names is not known:
            known = names
            templates = names.targets.get("pulsar") or names.target_cache("pulsar", PropertyTemplates)
        template = templates.by_lengths.get(lengths)
        pieces = [(templates.make(lengths) if template is None else template) % values]
        if (attributes := message.attributes) is not None:
            if not is_lazy and not is_utf8(attributes):
                pieces += _encode_pairs(carry_fields(message, ("attributes",)))
            else:
                pieces += (_attributes_prefixes[len(attributes)], attributes)
        if keys := message.keys:
            pieces.append(keys_of(keys) or _keys[keys])
        msg_type = message.msg_type
        if templates.type >= 0:
            # A message that is nothing but an attribute string has the type of its pair.
            if not has_its_type and values[templates.type].decode() != msg_type:
                pieces += _encode_pairs(type_properties(message))
        elif msg_type is not None:
            pieces.append(types_of(msg_type) or _types[msg_type])
        if origin is not None:
            position = message.position
            if position[:-1] != stem_of:  # those of an entry or a pack differ in the last number only
                stem_of = position[:-1]
                stem = origin + b"%d:" * len(stem_of) % stem_of
            value = b"%b%d" % (stem, position[-1]) if position else origin
            pieces += (origin_prefixes[len(value)], value)
            if message.hops:
                pieces.append(encode_property(HOPS, b"%d" % (message.hops + 1)))
        elif message.origin is not None:
            pieces += _encode_pairs(origin_properties(message, None))
        if (key := message.key) is not None:
            pieces.append(partition_keys_of(key) or _partition_keys[key])
        payload = message.payload or b""
        length = len(payload)
        if (time := message.event_time) != time_of:
            time_of, encoded_time = time, times_of(time) or _encode_time(time)
        pieces += (PAYLOAD_SIZE_TAG, small[length] if length < 16384 else encode_varint(length), encoded_time)
        if not is_lazy:
            if message.ordering_key is not None:
                pieces += (ORDERING_KEY_TAG, encode_varint(len(message.ordering_key)), message.ordering_key)
            if message.payload is None:
                pieces.append(NULL_VALUE_TRUE)
        metadata = join(pieces)
        cost = len(metadata) + length + 4
        if parts and size + cost > max_bytes:
            return parts, index
        parts += (pack_size(len(metadata)), metadata, payload)
        size += cost
    return parts, index + 1


def _encode_pairs(pairs: Iterable[Pair]) -> list[bytes]:
    return [encode_property(name, value.encode()) for name, value in pairs]


def _encode_keys(keys: tuple[str, ...]) -> bytes:
    return encode_property(KEYS, join_keys(keys).encode())


def _encode_type(msg_type: str) -> bytes:
    return encode_property(TYPE, msg_type.encode())


def _encode_key(key: str | bytes) -> bytes:
    return encode_partition_key(key) if isinstance(key, str) else encode_partition_key(base64.b64encode(key).decode(), True)


_keys: BoundedCache[tuple[str, ...], bytes] = BoundedCache(_encode_keys, length=total_length)
_types: BoundedCache[str, bytes] = BoundedCache(_encode_type)
_partition_keys: BoundedCache[str | bytes, bytes] = BoundedCache(_encode_key)
_times: BoundedCache[int | None, bytes] = BoundedCache(length=None)
"""Of whole minutes, which is what TubeMQ tells; others seldom repeat."""


def _encode_time(time: int | None) -> bytes:
    if time is None:
        return b""
    if time == 0:  # on the wire 0 means none, so the first millisecond of all is carried
        return encode_property(EVENT_TIME, b"0")
    encoded = encode_event_time(time)
    return encoded if time % 60_000 else _times.keep(time, encoded)
