"""Records of the commit log, as pulls, pops, views and transaction checks carry them: back to back, without separators.

    offset  size   field                                    big-endian, signed
    0       4      size of the record, this field included
    4       4      magic: DAA320A7 (V1) or DAA320AB (V2)
    8       4      CRC-32 of the stored body without the sign bit; 0 if not computed (by Java tools)
    12      4      queue id
    16      4      flag, an application's number
    20      8      queue offset
    28      8      physical offset: in the broker's commit log
    36      4      system flag, see `SysFlag`
    40      8      born timestamp: the producer's time, ms
    48      8      born host: IPv4 address and port (20 bytes with IPv6)
    56      8      store timestamp: the broker's time, ms
    64      8      store host (20 bytes with IPv6)
    72      4      reconsume times: passes through the retry topic
    76      8      physical offset of the half message of a transaction
    84      4+n    body
    88+n    1+t    topic (2+t in V2)
    ...     2+p    properties

The sizes must add up exactly: without the end of a record, none of the records behind it can be found. Damage inside a record
whose sizes add up is a `defect` of that record alone.
"""

import struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.properties import MAX_BYTES
from mqbridge.wire.checksum import crc32

V1 = 0xDAA320A7
V2 = 0xDAA320AB
"""Layout with two bytes for the length of the topic; 4.9 clients cannot read it."""
CHECKSUM_MASK = 0x7FFFFFFF

MAX_V1_TOPIC_BYTES = 127
"""Java reads the length as a signed byte."""

MAX_MESSAGE_BYTES = 4 << 20
"""Default limit of a broker for the body of a message and for a whole batch (maxMessageSize)."""
MAX_TOPIC_BYTES = 255
"""Brokers create no topics with longer names."""

MAX_INNER_MESSAGES = 0x7FFF
"""Limit of an inner batch: the broker's index counts its messages with 16 bits."""
MAX_UNPACKED_BYTES = 256 << 20
"""Limit, per response, of the unpacked size of all compressed bodies and inner batches.

It is 1024 times the 256 KiB of a broker's response, because zlib compresses by at most about that ratio. A Zstandard body of 30
bytes may unpack to 32 MiB.
"""
OBJECT_BYTES = 512
"""Bytes charged for each unpacked message in addition to its body, because a message of an inner batch may have only 22 bytes."""


class SysFlag:
    """Bits of the system flag."""

    COMPRESSED = 1
    MULTI_TAGS = 2
    PREPARED = 4
    COMMIT = 8
    ROLLBACK = 12
    TRANSACTION = 12
    """Mask of the three above."""
    BORN_IPV6 = 16
    STORE_IPV6 = 32
    NEED_UNWRAP = 64
    INNER_BATCH = 128
    COMPRESSION = 0x700
    """Mask of the codec, see `compression`."""


_PACKED = SysFlag.COMPRESSED | SysFlag.COMPRESSION
_IPV6 = SysFlag.BORN_IPV6 | SysFlag.STORE_IPV6
_WRAPPED = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
_SPECIAL = SysFlag.COMPRESSED | _IPV6 | _WRAPPED

NO_HOST = bytes(8)
IPV6_HOST_BYTES = 20


def _layout(born: int, stored: int) -> struct.Struct:
    return struct.Struct(f">IIIiiqqiq{born}sq{stored}siqi")


_FIXED = _layout(8, 8)
_LAYOUTS = {
    0: _FIXED,
    SysFlag.BORN_IPV6: _layout(20, 8),
    SysFlag.STORE_IPV6: _layout(8, 20),
    _IPV6: _layout(20, 20),
}
_fixed = _FIXED.unpack_from
_U16 = struct.Struct(">H")

MIN_RECORD_BYTES = _FIXED.size + 3


class Record:
    """A stored message.

    body            decompressed, with the bits of its compression cleared from `sys_flag`; as stored when there is a `defect`
    properties      the property string as stored; UTF-8 unless there is a `defect`
    born_host, store_host     address and port as stored, see `ids.format_host`
    defect          why its body or its properties are unusable
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "defect",
        "flag",
        "physical_offset",
        "prepared_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str = "",
        body: bytes = b"",
        properties: bytes = b"",
        *,
        queue_id: int = 0,
        queue_offset: int = 0,
        physical_offset: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = NO_HOST,
        store_timestamp: int = 0,
        store_host: bytes = NO_HOST,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        defect: str | None = None,
    ) -> None:
        self.topic, self.body, self.properties = topic, body, properties
        self.queue_id, self.queue_offset, self.physical_offset = queue_id, queue_offset, physical_offset
        self.flag, self.sys_flag = flag, sys_flag
        self.born_timestamp, self.born_host = born_timestamp, born_host
        self.store_timestamp, self.store_host = store_timestamp, store_host
        self.reconsume_times, self.prepared_offset, self.defect = reconsume_times, prepared_offset, defect

    def __repr__(self) -> str:
        location = f"{self.topic}:{self.queue_id}:{self.queue_offset}"
        return f"Record({location}, {len(self.body)} bytes{f', defect={self.defect!r}' if self.defect else ''})"


def decode_records(body: bytes) -> list[Record]:  # noqa: PLR0912 - per message; calls cost more than branches
    """Decode every record, inner batches unwrapped.

    Raises RemoteProtocolError for bytes that cannot be split into records, and for records that unpack to more than
    MAX_UNPACKED_BYTES together.

    A broker stores an inner batch as a whole, so a pull that starts inside of it also returns the messages before its offset: the
    caller must drop those.
    """
    # The hot path: one unpack assigns the attributes, and checks use local variables. Most records have the same topic.
    records: list[Record] = []
    append, new, unpack, checksum = records.append, Record.__new__, _fixed, crc32
    at, end = 0, len(body)
    last, topic = b"", ""
    budget = MAX_UNPACKED_BYTES
    while at < end:
        if end - at < MIN_RECORD_BYTES:
            raise RemoteProtocolError(
                _malformed(body, at, f"{end - at} bytes are left, and a record has {MIN_RECORD_BYTES} at least")
            )
        record = new(Record)
        (
            size,
            magic,
            stored_crc,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            sys_flag,
            record.born_timestamp,
            record.born_host,
            record.store_timestamp,
            record.store_host,
            record.reconsume_times,
            record.prepared_offset,
            length,
        ) = unpack(body, at)
        start = at + 88
        if sys_flag & _IPV6:
            start, length = _unpack_ipv6(record, body, at, sys_flag)
        record.sys_flag = sys_flag
        stop = at + size
        topic_at = start + length
        if stop > end or length < 0 or topic_at + 3 > stop:
            raise RemoteProtocolError(_malformed(body, at, f"{size} bytes with a body of {length}, and {end - at} are left"))
        record.body = stored = body[start:topic_at]
        if magic == V1:
            properties_at = topic_at + 3 + body[topic_at]
            name = body[topic_at + 1 : properties_at - 2]
        elif magic == V2:
            properties_at = topic_at + 4 + (body[topic_at] << 8 | body[topic_at + 1])
            name = body[topic_at + 2 : properties_at - 2]
        else:
            raise RemoteProtocolError(_malformed(body, at, f"the magic {magic:08X} is neither {V1:08X} nor {V2:08X}"))
        if properties_at > stop or body[properties_at - 2] << 8 | body[properties_at - 1] != stop - properties_at:
            raise RemoteProtocolError(_malformed(body, at, f"the lengths inside do not add up to its {size} bytes"))
        record.properties = properties = body[properties_at:stop]
        if name != last:
            topic, last = _topic(body, at, name), name
        record.topic = topic
        if stored_crc and checksum(stored) & 0x7FFFFFFF != stored_crc:
            record.defect = f"the CRC-32 of its body is {checksum(stored) & 0x7FFFFFFF:08x} where {stored_crc:08x} was stored"
        elif properties.isascii() or _is_utf8(properties):
            record.defect = None
        else:
            record.defect = "its properties are not UTF-8"
        at = stop
        if sys_flag & _SPECIAL and record.defect is None:
            unpacked = _unpack(record)
            budget = _deduct(budget, unpacked)
            records += unpacked
        else:
            append(record)
    return records


def _unpack_ipv6(record: Record, body: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Decode the fields from the hosts on again, with IPv6 addresses; return the index and the length of the body."""
    layout = _LAYOUTS[sys_flag & _IPV6]
    if len(body) - at < layout.size:
        raise RemoteProtocolError(_malformed(body, at, f"{len(body) - at} bytes are left for a record with IPv6 hosts"))
    (
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_offset,
        length,
    ) = layout.unpack_from(body, at)[9:]
    return at + layout.size, length


def _topic(body: bytes, at: int, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(_malformed(body, at, f"its topic is not UTF-8: {name[:40]!r}")) from error


def _malformed(body: bytes, at: int, problem: str) -> str:
    return f"the record at byte {at} of {len(body)} cannot be read: {problem}"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unpack(record: Record) -> list[Record]:
    """Return the record with its body decompressed, or the messages of its inner batch."""
    sys_flag = record.sys_flag
    try:
        if sys_flag & SysFlag.COMPRESSED:
            record.body = decompress(sys_flag & SysFlag.COMPRESSION, record.body)
            record.sys_flag = sys_flag = sys_flag & ~_PACKED
        if sys_flag & _WRAPPED == _WRAPPED:
            return _unwrap(record)
    except RemoteProtocolError as error:
        record.defect = str(error)
    return [record]


def _deduct(budget: int, unpacked: list[Record]) -> int:
    """Return the budget without the bytes of these records. Raises RemoteProtocolError if they exceed it."""
    budget -= sum([len(record.body) + OBJECT_BYTES for record in unpacked])
    if budget < 0:
        raise RemoteProtocolError(f"the records of one response unpack to more than {MAX_UNPACKED_BYTES} bytes: request fewer")
    return budget


def _unwrap(record: Record) -> list[Record]:
    """Return the messages of an inner batch, whose offsets count up from the record's own without gaps."""
    return [
        Record(
            record.topic,
            body,
            properties,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset + index,
            physical_offset=record.physical_offset,
            flag=flag,
            sys_flag=record.sys_flag & ~_WRAPPED,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_offset=record.prepared_offset,
            defect=None if _is_utf8(properties) else "its properties are not UTF-8",
        )
        for index, (flag, body, properties) in enumerate(decode_batch(record.body, MAX_INNER_MESSAGES))
    ]


def encode_record(record: Record) -> bytes:
    """Encode the record as a broker stores it. Raises LocalProtocolError if a field is too large.

    `body` is stored unchanged: it must be compressed if `sys_flag` says so. The size of a host sets its IPv6 bit.
    """
    topic, body, properties = record.topic.encode(), record.body, record.properties
    born, stored = len(record.born_host), len(record.store_host)
    if len(topic) > MAX_TOPIC_BYTES or len(properties) > MAX_BYTES or not {born, stored} <= {8, IPV6_HOST_BYTES}:
        raise LocalProtocolError(
            f"a record has at most {MAX_TOPIC_BYTES} bytes of topic, at most {MAX_BYTES} bytes of properties,"
            f" and hosts of 8 or 20 bytes; this one has {len(topic)}, {len(properties)}, {born} and {stored}"
        )
    family = (SysFlag.BORN_IPV6 if born > 8 else 0) | (SysFlag.STORE_IPV6 if stored > 8 else 0)
    layout = _LAYOUTS[family]
    is_v2 = len(topic) > MAX_V1_TOPIC_BYTES
    size = layout.size + len(body) + (2 if is_v2 else 1) + len(topic) + 2 + len(properties)
    try:
        fixed = layout.pack(
            size,
            V2 if is_v2 else V1,
            crc32(body) & CHECKSUM_MASK,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag & ~_IPV6 | family,
            record.born_timestamp,
            record.born_host,
            record.store_timestamp,
            record.store_host,
            record.reconsume_times,
            record.prepared_offset,
            len(body),
        )
    except struct.error as error:
        raise LocalProtocolError(f"a number of {record!r} does not fit its field: {error}") from error
    topic_size = _U16.pack(len(topic)) if is_v2 else bytes((len(topic),))
    return b"".join((fixed, body, topic_size, topic, _U16.pack(len(properties)), properties))
