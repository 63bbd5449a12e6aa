"""Records of a broker's commit log: the bodies of responses to pulls, pops and views, and of transaction checks.

A body is a sequence of records without separators.

    offset  size   field                                    big-endian, signed
    0       4      size of the record, this field included
    4       4      magic: DAA320A7 (V1) or DAA320AB (V2)
    8       4      CRC-32 of the stored body without the sign bit; 0: not computed, as in records of Java tools
    12      4      queue id
    16      4      flag, an application's number
    20      8      queue offset
    28      8      physical offset: where this record begins in the broker's commit log, in bytes
    36      4      system flag, see `SysFlag`
    40      8      born timestamp: the producer's time, ms
    48      8      born host: IPv4 address and port (20 bytes with IPv6)
    56      8      store timestamp: the broker's time, ms
    64      8      store host (20 bytes with IPv6)
    72      4      reconsume times: how often the message was redelivered through the retry topic
    76      8      physical offset of the half message of a transaction; 0 without one
    84      4+n    body size and body (at 96 with one IPv6 host, at 108 with two)
    88+n    1+t    topic size and topic (2+t in V2)
    ...     2+p    size of the property string, and the property string

The sizes must add up exactly, because the end of a record is the only way to the next one. If they add up, other damage inside a
record is a `defect` of that record alone.
"""

import struct
from collections.abc import Sequence
from itertools import chain

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.properties import MAX_BYTES
from mqbridge.wire.checksum import crc32

V1 = 0xDAA320A7
V2 = 0xDAA320AB
"""Magic numbers of the two layouts: V2 has two bytes for the size of the topic, and 4.9 clients cannot read it."""
CHECKSUM_MASK = 0x7FFFFFFF
"""Clears the sign bit of a CRC-32."""

MAX_V1_TOPIC_BYTES = 127
"""The longest topic in layout V1, because Java reads its size as a signed byte."""

MAX_MESSAGE_BYTES = 4 << 20
"""Default limit of a broker for the body of a message and for a whole batch (maxMessageSize)."""
MAX_TOPIC_BYTES = 255
"""Brokers create no topics with longer names."""

MAX_INNER_MESSAGES = 0x7FFF
"""Maximum number of messages in an inner batch: the broker's index counts them with a signed 16-bit number."""
MAX_UNPACKED_BYTES = 256 << 20
"""Limit of the total size to which the compressed bodies and inner batches of one response may unpack.

It is 1024 times the 256 KiB of a broker's response, because zlib compresses by at most about that ratio. Zstandard compresses by
much higher ratios: a body of 30 bytes may unpack to 32 MiB.
"""
OBJECT_BYTES = 512
"""Memory that counts for each unpacked message in addition to its body: a message of an inner batch may have only 22 bytes."""


class SysFlag:
    """Bits of the system flag."""

    COMPRESSED = 1
    """The body is compressed; the bits COMPRESSION name the codec."""
    MULTI_TAGS = 2
    """Defined by RocketMQ; mqbridge does not use it."""
    PREPARED = 4
    """A half message: the first phase of a transaction."""
    COMMIT = 8
    ROLLBACK = 12
    TRANSACTION = 12
    """Mask of PREPARED, COMMIT and ROLLBACK, the states of a transaction."""
    BORN_IPV6 = 16
    STORE_IPV6 = 32
    """The born host, or the store host, is an IPv6 address."""
    NEED_UNWRAP = 64
    INNER_BATCH = 128
    """With NEED_UNWRAP: the body is a `batch`, and every message in it has a queue offset of its own."""
    COMPRESSION = 0x700
    """Mask of the codec, see `compression`."""


_COMPRESSION_BITS = SysFlag.COMPRESSED | SysFlag.COMPRESSION
_IPV6 = SysFlag.BORN_IPV6 | SysFlag.STORE_IPV6
_INNER_BATCH_BITS = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
_SLOW_PATH = SysFlag.COMPRESSED | _IPV6 | _INNER_BATCH_BITS
"""Records with one of these bits count against the budget of unpacked bytes, and go through `_unpack_body`."""

NO_HOST = bytes(8)
"""The IPv4 address 0.0.0.0 and the port 0, for a record without a known host."""
IPV6_HOST_BYTES = 20
"""Bytes of an IPv6 address (16) and a port (4); with IPv4 it is 8."""


def _layout(born_host_size: int, store_host_size: int) -> struct.Struct:
    """Return the layout of the fields up to the size of the body, which is the last."""
    return struct.Struct(f">IIIiiqqiq{born_host_size}sq{store_host_size}siqi")


_FIXED = _layout(8, 8)
_LAYOUTS_BY_IPV6_BITS = {
    0: _FIXED,
    SysFlag.BORN_IPV6: _layout(20, 8),
    SysFlag.STORE_IPV6: _layout(8, 20),
    _IPV6: _layout(20, 20),
}
_unpack_fixed = _FIXED.unpack_from
_U16 = struct.Struct(">H")

MIN_RECORD_BYTES = _FIXED.size + 3
_unpack_size = struct.Struct(">I").unpack_from
"""The size of a record in layout V1 with IPv4 hosts whose body, topic and properties are empty."""


class Record:
    """A stored message. Timestamps are in ms since the epoch.

    body                     decompressed, with the compression bits of `sys_flag` cleared; as stored if there is a `defect`
    properties               the property string as stored; UTF-8 unless there is a `defect`
    born_host, store_host    address and port as stored, see `ids.format_host`
    reconsume_times          how often the message was redelivered through the retry topic
    prepared_offset          the physical offset of the half message of a transaction
    defect                   the reason why the body or the properties are unusable; None if they are valid
    """

    __slots__ = (
        "_stored",
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
        self._stored: bytes

    @property
    def is_inner_batch(self) -> bool:
        """True for an inner batch that cannot be split: the messages of all others are records of their own."""
        return self.sys_flag & _INNER_BATCH_BITS == _INNER_BATCH_BITS

    def set_damaged(self, defect: str, stored: bytes) -> None:
        """Set the `defect`, and the bytes of the record as the broker stores it."""
        self.defect, self._stored = defect, stored

    def stored_bytes(self) -> bytes:
        """Return a record with a `defect` as bytes: as the broker stores it, or for a message of an inner batch, alone."""
        try:
            return self._stored
        except AttributeError:  # only damaged records have it, because setting it would cost every record time
            return _pack_record(self)

    def __repr__(self) -> str:
        location = f"{self.topic}:{self.queue_id}:{self.queue_offset}"
        return f"Record({location}, {len(self.body)} bytes{f', defect={self.defect!r}' if self.defect else ''})"


def decode_records(body: bytes) -> list[Record]:  # noqa: PLR0912 - per message; calls cost more than branches
    """Decode all records. An inner batch is decoded to one record for each of its messages.

    Raises RemoteProtocolError for bytes that cannot be split into records, and for records that unpack to more than
    MAX_UNPACKED_BYTES together.

    A broker returns an inner batch as a whole, so if a pull starts inside of one, the records include messages before the
    requested offset: the caller must drop these.
    """
    # The hot path: one unpack assigns the attributes of a record, and the checks use local variables and literals: 88 is the size
    # of `_FIXED`, 0x7FFFFFFF is CHECKSUM_MASK. Most records have the topic of the record before, so a topic is decoded only if
    # its bytes differ.
    records: list[Record] = []
    append, new = records.append, Record.__new__
    unpack, checksum = _unpack_fixed, crc32
    at, end = 0, len(body)
    last_topic_bytes, topic = b"", ""
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
            body_size,
        ) = unpack(body, at)
        body_at = at + 88
        if sys_flag & _IPV6:
            body_at, body_size = _unpack_ipv6(record, body, at, sys_flag)
        record.sys_flag = sys_flag
        record_end = at + size
        topic_at = body_at + body_size
        if record_end > end or body_size < 0 or topic_at + 3 > record_end:
            raise RemoteProtocolError(_malformed(body, at, f"{size} bytes with a body of {body_size}, and {end - at} are left"))
        record.body = stored_body = body[body_at:topic_at]
        if magic == V1:
            properties_at = topic_at + 3 + body[topic_at]
            topic_bytes = body[topic_at + 1 : properties_at - 2]
        elif magic == V2:
            properties_at = topic_at + 4 + (body[topic_at] << 8 | body[topic_at + 1])
            topic_bytes = body[topic_at + 2 : properties_at - 2]
        else:
            raise RemoteProtocolError(_malformed(body, at, f"the magic {magic:08X} is neither {V1:08X} nor {V2:08X}"))
        if properties_at > record_end or body[properties_at - 2] << 8 | body[properties_at - 1] != record_end - properties_at:
            raise RemoteProtocolError(_malformed(body, at, f"the lengths inside do not add up to its {size} bytes"))
        record.properties = body[properties_at:record_end]
        if topic_bytes != last_topic_bytes:
            topic, last_topic_bytes = _decode_topic(body, at, topic_bytes), topic_bytes
        record.topic = topic
        if stored_crc and checksum(stored_body) & 0x7FFFFFFF != stored_crc:
            computed_crc = checksum(stored_body) & 0x7FFFFFFF
            reason = f"the CRC-32 of its body is {computed_crc:08x} where {stored_crc:08x} was stored"
            record.set_damaged(reason, body[at:record_end])
        else:
            record.defect = None
        if sys_flag & _SLOW_PATH and record.defect is None:
            unpacked = _unpack_body(record, body[at:record_end])
            budget = _deduct(budget, unpacked)
            records += unpacked
        else:
            append(record)
        at = record_end
    return records


def are_records(candidates: Sequence[bytes]) -> bool:
    """Return True if each of these is one record, as its size says."""
    sizes = [*map(len, candidates)]
    return min(sizes, default=MIN_RECORD_BYTES) >= MIN_RECORD_BYTES and [*chain(*map(_unpack_size, candidates))] == sizes


def split_records(body: bytes) -> list[bytes]:
    """Return the bytes of each record, without a look inside. Raises RemoteProtocolError if their sizes do not add up."""
    found: list[bytes] = []
    at, end = 0, len(body)
    while at < end:
        size = int.from_bytes(body[at : at + 4], "big")
        if not MIN_RECORD_BYTES <= size <= end - at:
            raise RemoteProtocolError(_malformed(body, at, f"a record of {size} bytes in {end - at} bytes"))
        found.append(body[at : at + size])
        at += size
    return found


def _unpack_ipv6(record: Record, body: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Decode the born host and all fields after it again, now with IPv6 sizes; return the index and the size of the body."""
    layout = _LAYOUTS_BY_IPV6_BITS[sys_flag & _IPV6]
    if len(body) - at < layout.size:
        raise RemoteProtocolError(_malformed(body, at, f"{len(body) - at} bytes are left for a record with IPv6 hosts"))
    (
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_offset,
        body_size,
    ) = layout.unpack_from(body, at)[9:]
    return at + layout.size, body_size


def _decode_topic(body: bytes, at: int, topic_bytes: bytes) -> str:
    try:
        return topic_bytes.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(_malformed(body, at, f"its topic is not UTF-8: {topic_bytes[:40]!r}")) from error


def _malformed(body: bytes, at: int, problem: str) -> str:
    """Return the text of an error; the compiled module uses the same texts."""
    return f"the record at byte {at} of {len(body)} cannot be read: {problem}"


def _unpack_body(record: Record, stored: bytes) -> list[Record]:
    """Decompress the body of a record; return the record, or the messages of its inner batch. Damage becomes its `defect`.

    `stored` is the record as the broker stores it.
    """
    sys_flag = record.sys_flag
    try:
        if sys_flag & SysFlag.COMPRESSED:
            record.body = decompress(sys_flag & SysFlag.COMPRESSION, record.body)
            record.sys_flag = sys_flag = sys_flag & ~_COMPRESSION_BITS
        if sys_flag & _INNER_BATCH_BITS == _INNER_BATCH_BITS:
            return _split_inner_batch(record)
    except RemoteProtocolError as error:
        record.set_damaged(str(error), stored)
    return [record]


def _deduct(budget: int, unpacked: list[Record]) -> int:
    """Return the budget minus, for each record, its body and OBJECT_BYTES. Raises RemoteProtocolError if they exceed it."""
    budget -= sum([len(record.body) + OBJECT_BYTES for record in unpacked])
    if budget < 0:
        raise RemoteProtocolError(f"the records of one response unpack to more than {MAX_UNPACKED_BYTES} bytes: request fewer")
    return budget


def _split_inner_batch(record: Record) -> list[Record]:
    """Return the messages of an inner batch. Their queue offsets are consecutive; the first one is that of the batch's record."""
    return [
        Record(
            record.topic,
            body,
            properties,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset + index,
            physical_offset=record.physical_offset,
            flag=flag,
            sys_flag=record.sys_flag & ~_INNER_BATCH_BITS,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_offset=record.prepared_offset,
        )
        for index, (flag, body, properties) in enumerate(decode_batch(record.body, MAX_INNER_MESSAGES))
    ]


def encode_record(record: Record) -> bytes:
    """Encode the record as a broker stores it. Raises LocalProtocolError if a field is too large.

    The body is not compressed here: if `sys_flag` has the bit COMPRESSED, `body` must be compressed already. The IPv6 bits of
    `sys_flag` are set by the sizes of the hosts. A topic of more than MAX_V1_TOPIC_BYTES selects the layout V2.
    """
    topic, properties = record.topic.encode(), record.properties
    born_host_size, store_host_size = len(record.born_host), len(record.store_host)
    if (
        len(topic) > MAX_TOPIC_BYTES
        or len(properties) > MAX_BYTES
        or not {born_host_size, store_host_size} <= {8, IPV6_HOST_BYTES}
    ):
        raise LocalProtocolError(
            f"a record has at most {MAX_TOPIC_BYTES} bytes of topic, at most {MAX_BYTES} bytes of properties,"
            f" and hosts of 8 or 20 bytes; this one has {len(topic)}, {len(properties)}, {born_host_size} and {store_host_size}"
        )
    return _pack_record(record)


def _pack_record(record: Record) -> bytes:
    """Encode the record, also with texts that brokers do not store. Raises LocalProtocolError if a number is too large."""
    topic, body, properties = record.topic.encode(), record.body, record.properties
    born_host_size, store_host_size = len(record.born_host), len(record.store_host)
    ipv6_bits = (SysFlag.BORN_IPV6 if born_host_size > 8 else 0) | (SysFlag.STORE_IPV6 if store_host_size > 8 else 0)
    layout = _LAYOUTS_BY_IPV6_BITS[ipv6_bits]
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
            record.sys_flag & ~_IPV6 | ipv6_bits,
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
