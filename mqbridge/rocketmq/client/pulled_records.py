"""The records of one pull: bytes, decoded on demand."""

from struct import Struct

from mqbridge.errors import RemoteProtocolError
from mqbridge.native import compiled
from mqbridge.rocketmq.client.unpacked_size import max_unpacked_bytes_of, split_points
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.compression import decompress
from mqbridge.rocketmq.wire.properties import NAME_END, VALUE_END, Name
from mqbridge.rocketmq.wire.record import MIN_RECORD_BYTES, Record, SysFlag, decode_records

_SIZE = Struct(">i")
_TAG = f"{Name.TAGS}{NAME_END}".encode()
_ENTRY_END = VALUE_END.encode()
_SIZE_AND_SYS_FLAG = Struct(">i35xB")
"""The size of a record, and the lowest eight bits of its sysFlag."""
_FIRST_AT = 20
_BORN_AT = 40
RECORD_BYTES = 350
"""Memory of a decoded record besides its bytes (measured with 0 to 1000 bytes of body: 352 to 385)."""


class PulledRecords:
    """Consecutive messages of one queue that pass the filter; there may be none.

    `first` is the requested offset and `next` the one to continue at. `body` are the records as stored by the broker; `records`
    skips those before `first` (of an inner batch), those from `next` on (after a split), and those whose tag is not exactly one
    of `tags`. Records are not kept: they take several times the memory of their bytes.
    """

    __slots__ = (
        "_count",
        "_first_record",
        "_records",
        "batches",
        "body",
        "first",
        "max_unpacked_bytes",
        "next",
        "queue",
        "size",
        "stored",
        "tags",
    )

    def __init__(self, queue: Queue, body: bytes, first: int, next_: int, tags: frozenset[str] = frozenset()) -> None:
        self.queue, self.body, self.first, self.next, self.tags = queue, body, first, next_, tags
        self.size = len(body)
        count = _count if compiled is None else compiled.rocketmq_count_stored
        found, flags = count(body)
        self.batches = bool(flags & SysFlag.INNER_BATCH)
        self.stored: int = next_ - first if self.batches else found
        """The number of messages in `body`, before the filter; an inner batch counts by its offsets."""
        self.max_unpacked_bytes = max_unpacked_bytes_of(body) if flags & (SysFlag.COMPRESSED | SysFlag.INNER_BATCH) else self.size
        """Upper bound of the memory of its messages when decompressed."""
        self._count = -1
        self._first_record = first
        self._records: list[Record] | None = None

    @property
    def records(self) -> list[Record]:
        """The messages, decoded anew each time. Raises RemoteProtocolError if they cannot be decoded."""
        found, self._records = self._records, None
        return self._read() if found is None else found

    def _read(self) -> list[Record]:
        records = decode_records(self.body)
        if records and (records[0].queue_offset < self.first or records[-1].queue_offset >= self.next):
            records = [record for record in records if self.first <= record.queue_offset < self.next]
        if self.tags:
            wanted = {tag.encode() for tag in self.tags}
            records = [record for record in records if tag_of(record) in wanted]
        return records

    @property
    def count(self) -> int:
        """The number of messages in `records`.

        With `tags` they are decoded, and kept until the next use of `records`; the compiled module counts without decoding.
        """
        if not self.tags:
            return self.stored
        if self._count < 0:
            found = None if compiled is None else compiled.rocketmq_count(self.fields, decompress)
            if found is None:
                records = self._records = self._read()
                found = len(records), records[0].queue_offset if records else None
            self._count, first = found
            self._first_record = self.first if first is None else first
        return self._count

    @property
    def fields(self) -> tuple[bytes, int, int, frozenset[str]]:
        """Arguments of the compiled decoder: the bytes, the first offset, the next offset, the tags that pass."""
        return self.body, self.first, self.next, self.tags

    @property
    def held_bytes(self) -> int:
        """Bytes in memory, kept records included."""
        return self.size if self._records is None else self.size + RECORD_BYTES * len(self._records)

    @property
    def first_record(self) -> int:
        """The offset of the first message in `records`."""
        return self._first_record if self.tags and self.count else max(self.first, self.first_stored)

    @property
    def first_stored(self) -> int:
        """The offset of the first record in `body`."""
        return int.from_bytes(self.body[_FIRST_AT : _FIRST_AT + 8], signed=True)

    @property
    def published_ms(self) -> int | None:
        """Born timestamp of the first record in `body`; None if there is none."""
        return int.from_bytes(self.body[_BORN_AT : _BORN_AT + 8], signed=True) or None

    def until(self, end: int) -> "PulledRecords":
        """Return the part before this offset, of records pulled without `tags`."""
        if end >= self.next:
            return self
        at = 0
        while at < self.size and int.from_bytes(self.body[at + _FIRST_AT : at + _FIRST_AT + 8], signed=True) < end:
            at += _SIZE.unpack_from(self.body, at)[0]
        return PulledRecords(self.queue, self.body[:at], self.first, end)

    def split(self, limit: int) -> list["PulledRecords"]:
        """Split into parts of at most `limit` bytes when decompressed, or one record each; usually no split is needed."""
        if self.max_unpacked_bytes <= limit:
            return [self]
        found: list[PulledRecords] = []
        begin, first = 0, self.first
        for end in split_points(self.body, limit):
            rest = self.body[end + _FIRST_AT : end + _FIRST_AT + 8]
            next_ = int.from_bytes(rest, signed=True) if rest else self.next
            found.append(PulledRecords(self.queue, self.body[begin:end], first, next_, self.tags))
            begin, first = end, max(first, next_)
        return found

    def may_contain(self, text: bytes) -> bool:
        """Return True if it may contain these bytes. Properties are not compressed, except inside the body of an inner batch."""
        return self.batches or text in self.body


def tag_of(record: Record) -> bytes | None:
    """Return the tag of a record."""
    return property_of(record, _TAG)


def property_of(record: Record, start: bytes) -> bytes | None:
    """Return one property of a record, the last if repeated, without decoding all; `start` is its name and the separator."""
    properties = record.properties
    at = len(properties)
    while (at := properties.rfind(start, 0, at)) >= 0:
        if at == 0 or properties[at - 1 : at] == _ENTRY_END:
            return properties[at + len(start) :].partition(_ENTRY_END)[0] or None
    return None


def _count(body: bytes) -> tuple[int, int]:
    """Count the records, and combine the lowest eight bits of their flags. Raises RemoteProtocolError for impossible sizes."""
    at = count = flags = 0
    end, read = len(body), _SIZE_AND_SYS_FLAG.unpack_from
    while at < end:
        size, sys_flag = read(body, at) if end - at >= MIN_RECORD_BYTES else (0, 0)
        if size < MIN_RECORD_BYTES or at + size > end:
            raise RemoteProtocolError(f"record {count} of an answer of {end} bytes has {size} bytes where {end - at} are left")
        flags |= sys_flag
        at += size
        count += 1
    return count, flags
