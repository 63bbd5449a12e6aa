"""Units of the format `rocketmq.record` -> the body of a server's response to a pull.

A record of the response has the message's own values from the unit (see `wire/neutral_record.py`), and the others from where
the server stores it. In the neutral form all fields before the body have fixed offsets, so it is read without the general
decoder. If the compiled module is installed, it does the same work.
"""

import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.native import compiled
from mqbridge.rocketmq.wire.neutral_record import KEPT_BITS
from mqbridge.rocketmq.wire.properties import MAX_BYTES, VALUE_END, Name, last_value, name_prefix
from mqbridge.rocketmq.wire.record import IPV6_HOST_BYTES, MAX_V1_TOPIC_BYTES, MIN_RECORD_BYTES, NO_HOST, V1, V2, SysFlag

_NEUTRAL = struct.Struct(">IIi4xi16xIq24xi8xi")
"""The fields of the neutral form that have values: size, magic, checksum, flag, system flag, born timestamp, reconsume times and
the size of the body."""
_BODY_AT = _NEUTRAL.size
_TAG_PREFIX = name_prefix(Name.TAGS)
_SEPARATOR = ord(VALUE_END)
_U16 = struct.Struct(">H")
_LAYOUTS = {size: struct.Struct(f">IIiiiqqIq{size}sq{size}siqi") for size in (len(NO_HOST), IPV6_HOST_BYTES)}
"""The fields of a record up to the size of the body, by the size of both hosts."""


class RecordPlace(NamedTuple):
    """The queue in which a server stores records, and what its records have in common.

    topic          UTF-8
    queue_id       number of the queue
    store_host     address and port of the server: 8 bytes with IPv4, 20 bytes with IPv6; it is the born host, too
    physical_base  physical offset of the record with the number 0
    added          entries at the end of each property string; left out where the string would exceed MAX_BYTES
    """

    topic: bytes
    queue_id: int
    store_host: bytes
    physical_base: int
    added: bytes


def encode_served(
    units: Sequence[Unit], numbers: Sequence[int], place: RecordPlace, tags: frozenset[str] = frozenset()
) -> tuple[bytes, int]:
    """Return the records of the units with one of `tags` (without `tags`: with any tag or none), and how many they are.

    `numbers` are the queue offsets of the units. Raises RemoteProtocolError for a unit that is no record in neutral form, or that
    has more than MAX_BYTES of properties, which clients cannot read; also if its tag is not one of `tags`.
    """
    # A lone surrogate becomes bytes that are not UTF-8: such a tag passes no message with a valid one.
    encoded_tags = frozenset([tag.encode("utf-8", "surrogatepass") for tag in tags])
    if compiled is not None:
        served: tuple[bytes, int] | None = compiled.rocketmq_served_records(units, numbers, place, encoded_tags)
        if served is not None:
            return served
    return encode_served_plain(units, numbers, place, encoded_tags)


def encode_served_plain(
    units: Sequence[Unit], numbers: Sequence[int], place: RecordPlace, tags: Collection[bytes]
) -> tuple[bytes, int]:
    """Encode like `encode_served`, without the compiled module; the tags are UTF-8."""
    topic, queue_id, host, physical_base, added = place
    is_v2 = len(topic) > MAX_V1_TOPIC_BYTES
    topic_field = (_U16.pack(len(topic)) if is_v2 else bytes((len(topic),))) + topic
    magic = V2 if is_v2 else V1
    ipv6_bits = SysFlag.BORN_IPV6 | SysFlag.STORE_IPV6 if len(host) == IPV6_HOST_BYTES else 0
    layout = _LAYOUTS[len(host)]
    overhead = layout.size + len(topic_field) + 2
    pieces: list[bytes] = []
    count = 0
    for (data, _, published_ms, *_), number in zip(units, numbers, strict=True):
        _, _, checksum, flag, sys_flag, born_ms, reconsume_times, body_size = _read_neutral(data, number)
        topic_at = _BODY_AT + body_size
        properties = data[topic_at + 3 :]
        if tags and last_value(properties, _TAG_PREFIX) not in tags:
            continue
        end = added if len(properties) + len(added) <= MAX_BYTES else b""
        properties_size = len(properties) + len(end)
        fixed = layout.pack(
            overhead + body_size + properties_size,
            magic,
            checksum,
            queue_id,
            flag,
            number,
            physical_base + number,
            sys_flag | ipv6_bits,
            born_ms,
            host,
            published_ms or 0,
            host,
            reconsume_times,
            0,
            body_size,
        )
        pieces += (fixed, data[_BODY_AT:topic_at], topic_field, _U16.pack(properties_size), properties, end)
        count += 1
    return b"".join(pieces), count


def _read_neutral(data: bytes, number: int) -> tuple[int, ...]:
    """Return the fields `_NEUTRAL` of a unit. Raises RemoteProtocolError if it is no record that can be served."""
    total = len(data)
    if total < MIN_RECORD_BYTES:
        raise _invalid(number, f"it has {total} bytes, and a record has {MIN_RECORD_BYTES} at least")
    fields = size, magic, _, _, sys_flag, _, _, body_size = _NEUTRAL.unpack_from(data)
    if size != total or magic != V1:
        raise _invalid(number, f"a record of {size} bytes with the magic {magic:08X}, in {total} bytes")
    if sys_flag & ~KEPT_BITS:
        raise _invalid(number, f"its system flag is {sys_flag}")
    topic_at = _BODY_AT + body_size
    properties_at = topic_at + 3
    if body_size < 0 or properties_at > size or data[topic_at] or _U16.unpack_from(data, topic_at + 1)[0] != size - properties_at:
        raise _invalid(number, f"the lengths inside do not add up to its {size} bytes")
    if size - properties_at > MAX_BYTES:
        raise _invalid(number, f"it has {size - properties_at} bytes of properties, and clients read at most {MAX_BYTES}")
    if properties_at < size and data[-1] != _SEPARATOR:
        raise _invalid(number, "its last property has no separator")
    return fields


def _invalid(number: int, problem: str) -> RemoteProtocolError:
    """Return the error about a unit; the compiled module uses the same texts."""
    return RemoteProtocolError(f"the unit at offset {number} cannot be served: {problem}")
