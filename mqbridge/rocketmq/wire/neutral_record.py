"""The neutral form of a record: the same bytes wherever the message is stored, in any queue, topic and cluster.

It is a record (see `record`) in layout V1 with these fields, and the message's own values in all others:

    queue id, queue offset, physical offset     0: where it is stored
    store timestamp, store host                 0: when and by which broker it was stored; a `Unit` has the time beside it
    born host                                   0, IPv4: no request carries it, the broker stores the address of the connection
    physical offset of the half message         0: only committed messages are delivered
    topic                                       empty: it is stored in another topic elsewhere
    system flag                                 only the bits of a compressed body; those of a transaction and of hosts are clear
    properties                                  as stored, without the entries that a broker adds (ADDED_NAMES); each entry ends
                                                with a separator
    CRC-32 of the body                          as stored; computed if the record has none

A compressed body stays compressed. The messages of an inner batch are records of their own, as the broker stores them in topics
without inner batches; only an inner batch that cannot be split stays one record, with its bits in the system flag.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.wire.properties import VALUE_END, Name, last_value, name_prefix
from mqbridge.rocketmq.wire.record import (
    CHECKSUM_MASK,
    IPV6_HOST_BYTES,
    MIN_RECORD_BYTES,
    NO_HOST,
    V1,
    V2,
    Record,
    SysFlag,
    decode_records,
)
from mqbridge.wire.checksum import crc32

ADDED_NAMES = (Name.CLUSTER, Name.MSG_REGION, Name.TRACE_ON, Name.CRC32, Name.INNER_MULTI_QUEUE_OFFSET)
"""Names of properties that brokers add when they store a message, and that depend on where it is stored.

A broker also adds UNIQ_KEY to a single message without one. It stays: it is the message's id from then on.
"""
_ADDED_PREFIXES = tuple(map(name_prefix, ADDED_NAMES))
_TAG_PREFIX = name_prefix(Name.TAGS)
_SEPARATOR = VALUE_END.encode()
_INNER_BATCH = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
KEPT_BITS = SysFlag.COMPRESSED | SysFlag.COMPRESSION
"""The bits of the system flag that describe the body, and stay with the message."""
_MAX_PROPERTIES_BYTES = 0xFFFF
"""What the size of a property string can count; clients and brokers take no more than `properties.MAX_BYTES`."""
_FIXED = struct.Struct(">IIIiiqqiq8sq8siqi")
"""The fields of a record with IPv4 hosts, up to the size of the body."""
_BEFORE_HOSTS = struct.Struct(">iIIiiqqiq")
_TAIL = struct.Struct(">iqi")
"""The fields between the store host and the body."""
_TIME = struct.Struct(">q")
_U16 = struct.Struct(">H")


class NeutralRecord(NamedTuple):
    """A record in neutral form, with the place from which it was read.

    data           its bytes
    queue_offset   its offset in the queue
    stored_ms      when it was stored, ms since the epoch; 0 if unknown
    """

    data: bytes
    queue_offset: int
    stored_ms: int


class Content(NamedTuple):
    """The fields of a record in neutral form, by which it can be stored. The body is as stored."""

    flag: int
    sys_flag: int
    born_timestamp: int
    reconsume_times: int
    body: bytes
    properties: bytes


class _Split(NamedTuple):
    """A record as it is stored, split into its fields, and the index after it."""

    content: Content
    checksum: int
    queue_offset: int
    stored_ms: int
    end: int


def neutral_records(
    body: bytes, first: int = 0, next_: int = 1 << 63, tags: frozenset[str] = frozenset()
) -> Iterator[NeutralRecord]:
    """Yield the records of a pull's body in neutral form: those at offsets from `first` to before `next_`, with one of `tags`.

    Without `tags`, those with any tag or none. Raises RemoteProtocolError for bytes that cannot be split into records.
    """
    encoded_tags = {tag.encode() for tag in tags}
    at = 0
    while at < len(body):
        split = _split(body, at)
        is_inner_batch = split.content.sys_flag & _INNER_BATCH == _INNER_BATCH
        found = [_of_record(each) for each in decode_records(body[at : split.end])] if is_inner_batch else [_of_split(split)]
        for content, record in found:
            is_whole = content.sys_flag & _INNER_BATCH == _INNER_BATCH  # which tags are inside is unknown
            if first <= record.queue_offset < next_ and (
                not tags or is_whole or last_value(content.properties, _TAG_PREFIX) in encoded_tags
            ):
                yield record
        at = split.end


def read_neutral(data: bytes) -> Content:
    """Return the fields of a record in neutral form. Raises RemoteProtocolError if this is not one, or its checksum is wrong."""
    split = _split(data, 0)
    content, computed = split.content, crc32(split.content.body) & CHECKSUM_MASK
    if split.end != len(data):
        raise RemoteProtocolError(f"a unit of {len(data)} bytes has a record of {split.end}")
    if split.checksum and split.checksum != computed:
        raise RemoteProtocolError(f"the CRC-32 of its body is {computed:08x} where {split.checksum:08x} was stored")
    if content.sys_flag & _INNER_BATCH == _INNER_BATCH:
        raise RemoteProtocolError("it is an inner batch that cannot be split")
    return content


def encode_neutral(
    body: bytes,
    properties: bytes = b"",
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    reconsume_times: int = 0,
) -> bytes:
    """Encode a record in neutral form. With the bit COMPRESSED in `sys_flag`, `body` is compressed already.

    Raises RemoteProtocolError for a number or a property string that is too large for its field.
    """
    content = Content(flag, sys_flag & KEPT_BITS, born_timestamp, reconsume_times, body, strip_added(properties))
    return _encode(content, 0)


def strip_added(properties: bytes) -> bytes:
    """Return a property string without the entries of ADDED_NAMES, and with a separator after the last entry."""
    entries = properties.split(_SEPARATOR)
    if not entries[-1]:
        entries.pop()
    return b"".join([entry + _SEPARATOR for entry in entries if not entry.startswith(_ADDED_PREFIXES)])


def _split(data: bytes, at: int) -> _Split:
    """Split the record at this index. Raises RemoteProtocolError if its lengths do not add up."""
    left = len(data) - at
    if left < MIN_RECORD_BYTES:
        raise _malformed(data, at, f"{left} bytes are left")
    size, magic, checksum, _, flag, offset, _, sys_flag, born = _BEFORE_HOSTS.unpack_from(data, at)
    end = at + size
    stored_at = at + _BEFORE_HOSTS.size + (IPV6_HOST_BYTES if sys_flag & SysFlag.BORN_IPV6 else len(NO_HOST))
    tail_at = stored_at + _TIME.size + (IPV6_HOST_BYTES if sys_flag & SysFlag.STORE_IPV6 else len(NO_HOST))
    body_at = tail_at + _TAIL.size
    if size > left or body_at > end or magic not in (V1, V2):
        raise _malformed(data, at, f"it has {size} bytes and the magic {magic:08X}, and {left} bytes are left")
    (stored_ms,) = _TIME.unpack_from(data, stored_at)
    reconsume_times, _, body_size = _TAIL.unpack_from(data, tail_at)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 4 > end + (magic == V1):
        raise _malformed(data, at, f"{size} bytes with a body of {body_size}")
    topic_size = data[topic_at] + 1 if magic == V1 else (data[topic_at] << 8 | data[topic_at + 1]) + 2
    properties_at = topic_at + topic_size + 2
    if properties_at > end or _U16.unpack_from(data, properties_at - 2)[0] != end - properties_at:
        raise _malformed(data, at, f"the lengths inside do not add up to its {size} bytes")
    content = Content(flag, sys_flag, born, reconsume_times, data[body_at:topic_at], data[properties_at:end])
    return _Split(content, checksum, offset, stored_ms, end)


def _malformed(data: bytes, at: int, problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the record at byte {at} of {len(data)} cannot be read: {problem}")


def _of_split(split: _Split) -> tuple[Content, NeutralRecord]:
    content = split.content
    sys_flag = content.sys_flag & KEPT_BITS
    neutral = content._replace(sys_flag=sys_flag, properties=strip_added(content.properties))
    return content, NeutralRecord(_encode(neutral, split.checksum), split.queue_offset, split.stored_ms)


def _of_record(record: Record) -> tuple[Content, NeutralRecord]:
    """Return a message of an inner batch, or the inner batch that cannot be split, which has a `defect`."""
    if record.defect is None:
        split = Content(
            record.flag, 0, record.born_timestamp, record.reconsume_times, record.body, strip_added(record.properties)
        )
        checksum = 0
    else:
        stored = _split(record.stored_bytes(), 0)
        sys_flag = stored.content.sys_flag & (KEPT_BITS | _INNER_BATCH)
        split = stored.content._replace(sys_flag=sys_flag, properties=strip_added(stored.content.properties))
        checksum = stored.checksum
    return split, NeutralRecord(_encode(split, checksum), record.queue_offset, record.store_timestamp)


def _encode(content: Content, checksum: int) -> bytes:
    """Encode a record in neutral form; the checksum 0 is replaced by that of the body."""
    flag, sys_flag, born, reconsume_times, body, properties = content
    if len(properties) > _MAX_PROPERTIES_BYTES:
        raise RemoteProtocolError(f"a record cannot hold {len(properties)} bytes of properties")
    size = MIN_RECORD_BYTES + len(body) + len(properties)
    checksum = checksum or crc32(body) & CHECKSUM_MASK
    try:
        fixed = _FIXED.pack(size, V1, checksum, 0, flag, 0, 0, sys_flag, born, NO_HOST, 0, NO_HOST, reconsume_times, 0, len(body))
    except struct.error as error:
        problem = f"the flag {flag}, the born timestamp {born} or {reconsume_times} reconsume times do not fit a record"
        raise RemoteProtocolError(problem) from error
    return b"".join((fixed, body, b"\0", _U16.pack(len(properties)), properties))
