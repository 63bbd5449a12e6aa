"""Records of the commit log, as pulls, pops, views and transaction checks carry them: back to back, without separators.

    offset  size   field                                    big-endian, signed
    0       4      size of the record, this field included
    4       4      magic: DAA320A7 (V1) or DAA320AB (V2)
    8       4      CRC-32 of the stored body without the sign bit; 0 where nobody computed it (what Java tools encode)
    12      4      queue id
    16      4      flag, an application's number
    20      8      queue offset
    28      8      physical offset: in the broker's commit log
    36      4      system flag, see `Sys`
    40      8      born: the producer's time, ms
    48      8      born host: IPv4 address and port (20 bytes with IPv6)
    56      8      stored: the broker's time, ms
    64      8      store host (20 bytes with IPv6)
    72      4      how often it went through the retry topic
    76      8      physical offset of the half message of a transaction
    84      4+n    body
    88+n    1+t    topic (2+t in V2)
    ...     2+p    properties

The sizes have to add up exactly: a reader that loses its place here loses every record behind. Damage inside of a record that can
be cut is a `defect` of that record alone.
"""

import struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.properties import MAX_BYTES
from mqbridge.wire.checksum import crc32

V1 = 0xDAA320A7
V2 = 0xDAA320AB
"""With two bytes for the length of the topic; 4.9 clients cannot read it."""
CHECKSUM_MASK = 0x7FFFFFFF

MAX_V1_TOPIC_BYTES = 127
"""Java reads the length as a signed byte."""
MAX_TOPIC_BYTES = 255
"""Brokers create no topics with longer names."""

MAX_INNER_MESSAGES = 0x7FFF
"""Of an inner batch: the broker's index counts them with 16 bits."""
MAX_UNPACKED_BYTES = 256 << 20
"""Of all bodies of one answer that are compressed or inner batches.

A thousand times the 256 KiB that brokers answer with, as much as zlib can ever do; a Zstandard body may claim 32 MiB in 30 bytes.
"""
OBJECT_BYTES = 512
"""What a message that was unpacked takes besides its body: of an inner batch 22 bytes may be one."""


class Sys:
    """Bits of the system flag."""

    COMPRESSED = 1
    MULTI_TAGS = 2
    PREPARED = 4
    COMMIT = 8
    ROLLBACK = 12
    TRANSACTION = 12
    """The mask of the three above."""
    BORN_IPV6 = 16
    STORE_IPV6 = 32
    NEED_UNWRAP = 64
    INNER_BATCH = 128
    COMPRESSION = 0x700
    """The mask of the codec, see `compression`."""


_PACKED = Sys.COMPRESSED | Sys.COMPRESSION
_IPV6 = Sys.BORN_IPV6 | Sys.STORE_IPV6
_WRAPPED = Sys.NEED_UNWRAP | Sys.INNER_BATCH
_SPECIAL = Sys.COMPRESSED | _IPV6 | _WRAPPED

NO_HOST = bytes(8)
IPV6_HOST_BYTES = 20


def _layout(born: int, stored: int) -> struct.Struct:
    return struct.Struct(f">IIIiiqqiq{born}sq{stored}siqi")


_FIXED = _layout(8, 8)
_LAYOUTS = {
    0: _FIXED,
    Sys.BORN_IPV6: _layout(20, 8),
    Sys.STORE_IPV6: _layout(8, 20),
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
    defect          why its body or its properties cannot be used
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
        place = f"{self.topic}:{self.queue_id}:{self.queue_offset}"
        return f"Record({place}, {len(self.body)} bytes{f', defect={self.defect!r}' if self.defect else ''})"


def decode_records(body: bytes) -> list[Record]:  # noqa: PLR0912 - per message; calls cost more than branches
    """Every record, inner batches unwrapped.

    Raises RemoteProtocolError for bytes that cannot be cut into records, and for those that unpack to more than
    MAX_UNPACKED_BYTES: nobody could tell which of them to leave out.

    An inner batch is stored as a whole: a pull that starts inside of it gets the messages before, too. Drop those below the
    offset that was asked for.
    """
    # The hot path: one unpack straight into the attributes, the checks on local names. The topic is mostly the same for all.
    records: list[Record] = []
    append, new, unpack, checksum = records.append, Record.__new__, _fixed, crc32
    at, end = 0, len(body)
    last, topic = b"", ""
    room = MAX_UNPACKED_BYTES
    while at < end:
        if end - at < MIN_RECORD_BYTES:
            raise RemoteProtocolError(_torn(body, at, f"{end - at} bytes are left, and a record has {MIN_RECORD_BYTES} at least"))
        record = new(Record)
        (
            size,
            magic,
            told,
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
            raise RemoteProtocolError(_torn(body, at, f"{size} bytes with a body of {length}, and {end - at} are left"))
        record.body = stored = body[start:topic_at]
        if magic == V1:
            properties_at = topic_at + 3 + body[topic_at]
            name = body[topic_at + 1 : properties_at - 2]
        elif magic == V2:
            properties_at = topic_at + 4 + (body[topic_at] << 8 | body[topic_at + 1])
            name = body[topic_at + 2 : properties_at - 2]
        else:
            raise RemoteProtocolError(_torn(body, at, f"the magic {magic:08X} is neither {V1:08X} nor {V2:08X}"))
        if properties_at > stop or body[properties_at - 2] << 8 | body[properties_at - 1] != stop - properties_at:
            raise RemoteProtocolError(_torn(body, at, f"the lengths inside do not add up to its {size} bytes"))
        record.properties = properties = body[properties_at:stop]
        if name != last:
            topic, last = _topic(body, at, name), name
        record.topic = topic
        if told and checksum(stored) & 0x7FFFFFFF != told:
            record.defect = f"the CRC-32 of its body is {checksum(stored) & 0x7FFFFFFF:08x} where {told:08x} was stored"
        elif properties.isascii() or _is_utf8(properties):
            record.defect = None
        else:
            record.defect = "its properties are not UTF-8"
        at = stop
        if sys_flag & _SPECIAL and record.defect is None:
            unpacked = _unpack(record)
            room = _charged(room, unpacked)
            records += unpacked
        else:
            append(record)
    return records


def _unpack_ipv6(record: Record, body: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Read again what lies behind a host of 20 bytes; where the body starts, and its length."""
    layout = _LAYOUTS[sys_flag & _IPV6]
    if len(body) - at < layout.size:
        raise RemoteProtocolError(_torn(body, at, f"{len(body) - at} bytes are left for a record with IPv6 hosts"))
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
        raise RemoteProtocolError(_torn(body, at, f"its topic is not UTF-8: {name[:40]!r}")) from error


def _torn(body: bytes, at: int, problem: str) -> str:
    return f"the record at byte {at} of {len(body)} cannot be read: {problem}"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unpack(record: Record) -> list[Record]:
    """The record with its body decompressed, or the messages of the inner batch that it is."""
    sys_flag = record.sys_flag
    try:
        if sys_flag & Sys.COMPRESSED:
            record.body = decompress(sys_flag & Sys.COMPRESSION, record.body)
            record.sys_flag = sys_flag = sys_flag & ~_PACKED
        if sys_flag & _WRAPPED == _WRAPPED:
            return _unwrap(record)
    except RemoteProtocolError as error:
        record.defect = str(error)
    return [record]


def _charged(room: int, unpacked: list[Record]) -> int:
    """What is left of MAX_UNPACKED_BYTES after these."""
    room -= sum([len(record.body) + OBJECT_BYTES for record in unpacked])
    if room < 0:
        raise RemoteProtocolError(f"the records of one answer unpack to more than {MAX_UNPACKED_BYTES} bytes, ask for fewer")
    return room


def _unwrap(record: Record) -> list[Record]:
    """An inner batch holds offsets as dense as any: its messages count up from the record's own."""
    return [
        Record(
            record.topic,
            body,
            properties,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset + place,
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
        for place, (flag, body, properties) in enumerate(decode_batch(record.body, MAX_INNER_MESSAGES))
    ]


def encode_record(record: Record) -> bytes:
    """The record as a broker stores it. Raises LocalProtocolError for what does not fit.

    `body` is stored as it is: where `sys_flag` says that it is compressed, it has to be. The bits of the hosts follow
    their sizes.
    """
    topic, body, properties = record.topic.encode(), record.body, record.properties
    born, stored = len(record.born_host), len(record.store_host)
    if len(topic) > MAX_TOPIC_BYTES or len(properties) > MAX_BYTES or not {born, stored} <= {8, IPV6_HOST_BYTES}:
        raise LocalProtocolError(
            f"a record has up to {MAX_TOPIC_BYTES} bytes of topic, {MAX_BYTES} of properties and hosts of 8 or 20,"
            f" not {len(topic)}, {len(properties)}, {born} and {stored}"
        )
    family = (Sys.BORN_IPV6 if born > 8 else 0) | (Sys.STORE_IPV6 if stored > 8 else 0)
    layout = _LAYOUTS[family]
    long = len(topic) > MAX_V1_TOPIC_BYTES
    size = layout.size + len(body) + (2 if long else 1) + len(topic) + 2 + len(properties)
    try:
        fixed = layout.pack(
            size,
            V2 if long else V1,
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
    named = _U16.pack(len(topic)) if long else bytes((len(topic),))
    return b"".join((fixed, body, named, topic, _U16.pack(len(properties)), properties))
