"""The records (stored messages) that one pull returned. They are kept as bytes, and decoded on demand."""

from collections.abc import Collection
from struct import Struct

from mqbridge.errors import RemoteProtocolError
from mqbridge.native import compiled
from mqbridge.rocketmq.client.consumer.unpacked_size import max_unpacked_body_bytes, split_points
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.properties import Name, last_value, name_prefix
from mqbridge.rocketmq.wire.record import IPV6_HOST_BYTES, MIN_RECORD_BYTES, NO_HOST, Record, SysFlag, decode_records

_SIZE = Struct(">i")
"""The size of a record, at its beginning."""
_TAG_NAME = name_prefix(Name.TAGS)
_SIZE_AND_SYS_FLAG = Struct(">i35xB")
"""The size of a record, and the lowest eight bits of its sysFlag."""
_CRC_AT = 8
"""Index of the checksum (4 bytes) in a record."""
_SYS_FLAG_AT = 39
"""Index of the lowest eight bits of the sysFlag in a record."""
_QUEUE_OFFSET_AT = 20
"""Index of the queue offset (8 bytes) in a record."""
_BORN_AT = 40
"""Index of the born timestamp (8 bytes, ms) in a record."""
RECORD_BYTES = 350
"""Approximate memory of a decoded record in addition to its bytes (measured: 352 to 385, with bodies of 0 to 1000 bytes)."""


class PulledRecords:
    """Consecutive messages of one queue that pass the filter; there may be none.

    `first` is the requested offset, `next` the offset at which to continue. `body` contains the records as the broker returned
    them. `records` are the messages in `body` with offsets from `first` up to, but not including, `next`, and with one of `tags`
    (without `tags`: with any tag or none), and the inner batches that cannot be split. Others are there because a broker returns
    an inner batch (one record with several messages) as a whole, and compares tags by their hash only. Decoded records are not
    kept, because they take several times the memory of their bytes.
    """

    __slots__ = (
        "_count",
        "_first_record_offset",
        "_records",
        "body",
        "first",
        "has_inner_batches",
        "is_packed",
        "max_unpacked_bytes",
        "next",
        "queue",
        "size",
        "stored",
        "tags",
    )

    def __init__(self, queue: Queue, body: bytes, first: int, next_: int, tags: frozenset[str] = frozenset()) -> None:
        self.queue, self.body = queue, body
        self.first, self.next, self.tags = first, next_, tags
        self.size = len(body)
        count_stored = _count_stored if compiled is None else compiled.rocketmq_count_stored
        record_count, flags = count_stored(body)
        self.has_inner_batches = bool(flags & SysFlag.INNER_BATCH)
        self.stored: int = next_ - first if self.has_inner_batches else record_count
        """The number of messages before the filter by tags. With inner batches, the number of offsets from `first` to `next`."""
        self.is_packed = bool(flags & (SysFlag.COMPRESSED | SysFlag.INNER_BATCH))
        """True if a record is compressed, or has several messages: decoding takes more memory than `body`."""
        self.max_unpacked_bytes = max_unpacked_body_bytes(body) if self.is_packed else self.size
        """Upper bound of the memory of all messages when decompressed, in bytes."""
        self._count = -1
        """The result of `count` with `tags`; -1 before its first use."""
        self._first_record_offset = first
        """The result of `first_record_offset` with `tags`, set together with `_count`."""
        self._records: list[Record] | None = None
        """Records that `count` has decoded, until `records` returns them."""

    @property
    def records(self) -> list[Record]:
        """The messages, decoded anew each time. Raises RemoteProtocolError if they cannot be decoded."""
        records, self._records = self._records, None
        return self._decode() if records is None else records

    def _decode(self) -> list[Record]:
        records = decode_records(self.body)
        if records and (records[0].queue_offset < self.first or records[-1].queue_offset >= self.next):
            records = [record for record in records if self.first <= record.queue_offset < self.next]
        if self.tags:
            encoded_tags = {tag.encode() for tag in self.tags}
            records = [record for record in records if may_have_tag(record, encoded_tags)]
        return records

    @property
    def count(self) -> int:
        """The number of messages in `records`.

        With `tags` or inner batches, of which one that is damaged is a single message, the compiled module counts without
        decoding. If it is not installed, or cannot count these records, they are decoded here, and kept until the next use of
        `records`.
        """
        if not self.tags and not self.has_inner_batches:
            return self.stored
        if self._count < 0:
            count_and_first = None if compiled is None else compiled.rocketmq_count(self.fields, decompress)
            if count_and_first is None:
                records = self._records = self._decode()
                count_and_first = len(records), records[0].queue_offset if records else None
            self._count, first_record_offset = count_and_first
            self._first_record_offset = self.first if first_record_offset is None else first_record_offset
        return self._count

    @property
    def fields(self) -> tuple[bytes, int, int, frozenset[str]]:
        """The arguments of the compiled decoder: the bytes, the first and the next offset, and the tags that pass the filter."""
        return self.body, self.first, self.next, self.tags

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: `body`, and the records that `count` has decoded and keeps."""
        return self.size if self._records is None else self.size + RECORD_BYTES * len(self._records)

    @property
    def first_record_offset(self) -> int:
        """The offset of the first message in `records`; without messages, the larger one of `first` and `first_stored_offset`."""
        return self._first_record_offset if self.tags and self.count else max(self.first, self.first_stored_offset)

    @property
    def first_stored_offset(self) -> int:
        """The offset of the first record in `body`; 0 if `body` is empty."""
        return int.from_bytes(self.body[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], signed=True)

    @property
    def published_ms(self) -> int | None:
        """When the first record in `body` was sent (born timestamp, ms since the epoch); None if it is 0 or `body` is empty."""
        return int.from_bytes(self.body[_BORN_AT : _BORN_AT + 8], signed=True) or None

    def until(self, end: int) -> "PulledRecords":
        """Return the records before offset `end` (exclusive). Only for records that were pulled without `tags`."""
        if end >= self.next:
            return self
        at = 0
        while at < self.size and int.from_bytes(self.body[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8], signed=True) < end:
            at += _SIZE.unpack_from(self.body, at)[0]
        return PulledRecords(self.queue, self.body[:at], self.first, end)

    def only(self, offsets: Collection[int]) -> "PulledRecords":
        """Return a copy with only the records at these offsets, for `records`. With inner batches, return all: `self`."""
        if self.has_inner_batches:
            return self
        kept, at = [], 0
        while at < self.size:
            end = at + _SIZE.unpack_from(self.body, at)[0]
            if int.from_bytes(self.body[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8], signed=True) in offsets:
                kept.append(self.body[at:end])
            at = end
        return PulledRecords(self.queue, b"".join(kept), self.first, self.next, self.tags)

    def split(self, limit: int) -> list["PulledRecords"]:
        """Split into parts that take at most `limit` bytes when decompressed; a part with a single record may take more.

        Usually everything fits, and the result is [self].
        """
        if self.max_unpacked_bytes <= limit:
            return [self]
        parts: list[PulledRecords] = []
        begin, first = 0, self.first
        for end in split_points(self.body, limit):
            next_offset = self.body[end + _QUEUE_OFFSET_AT : end + _QUEUE_OFFSET_AT + 8]  # of the next part; empty after the last
            next_ = int.from_bytes(next_offset, signed=True) if next_offset else self.next
            parts.append(PulledRecords(self.queue, self.body[begin:end], first, next_, self.tags))
            begin, first = end, max(first, next_)
        return parts

    def may_contain(self, text: bytes) -> bool:
        """Return False only if no property of any message contains these bytes.

        Properties are not compressed, except inside the body of an inner batch.
        """
        return self.has_inner_batches or text in self.body


def first_record_identity(body: bytes) -> tuple[int, bytes]:
    """Return the queue offset of the first record in `body`, and bytes that tell it from another message at this offset.

    They contain the checksum and the times of sending and storing, which stay the same on slaves and in tiered storage. Raises
    RemoteProtocolError if there is no complete record.
    """
    if len(body) < MIN_RECORD_BYTES:
        raise RemoteProtocolError(f"a response has {len(body)} bytes, which is less than one record")
    host_bytes = IPV6_HOST_BYTES if body[_SYS_FLAG_AT] & SysFlag.BORN_IPV6 else len(NO_HOST)
    stored_at = _BORN_AT + 8 + host_bytes
    times = body[_BORN_AT : _BORN_AT + 8] + body[stored_at : stored_at + 8]
    return int.from_bytes(body[_QUEUE_OFFSET_AT : _QUEUE_OFFSET_AT + 8], signed=True), body[_CRC_AT : _CRC_AT + 4] + times


def stored_ms(identity: bytes) -> int:
    """Return the store timestamp (ms since the epoch) in the identity of a record."""
    return int.from_bytes(identity[-8:], signed=True)


def may_have_tag(record: Record, tags: Collection[bytes]) -> bool:
    """Return True if the record has one of the tags. So may an inner batch that cannot be split: those inside are unknown."""
    return tag_of(record) in tags or record.is_inner_batch


def tag_of(record: Record) -> bytes | None:
    """Return the tag of a record; None if it has none."""
    return property_of(record, _TAG_NAME)


def property_of(record: Record, name: bytes) -> bytes | None:
    """Return the value of one property, without decoding the others; None if it is missing or empty.

    `name` is the property's name followed by NAME_END. If the property is repeated, the last value counts.
    """
    return last_value(record.properties, name)


def _count_stored(body: bytes) -> tuple[int, int]:
    """Return the number of records, and the lowest eight bits of their sysFlags, combined by OR.

    Raises RemoteProtocolError for impossible sizes.
    """
    at = count = flags = 0
    end, read = len(body), _SIZE_AND_SYS_FLAG.unpack_from
    while at < end:
        size, sys_flag = read(body, at) if end - at >= MIN_RECORD_BYTES else (0, 0)
        if size < MIN_RECORD_BYTES or at + size > end:
            raise RemoteProtocolError(f"record {count} of a response of {end} bytes has {size} bytes where {end - at} are left")
        flags |= sys_flag
        at += size
        count += 1
    return count, flags
