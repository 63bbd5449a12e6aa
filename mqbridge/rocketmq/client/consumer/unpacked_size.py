"""Upper bounds of the memory that stored records take when decompressed, computed from their sizes and flags alone.

A compressed body may grow a thousand times. So the records of one pull are split into parts of limited size, which are decoded
one after the other.
"""

from collections.abc import Iterator
from struct import Struct

from mqbridge.rocketmq.wire.compression import MAX_PLAIN_BYTES
from mqbridge.rocketmq.wire.record import MAX_INNER_MESSAGES, OBJECT_BYTES, SysFlag

_SIZE_AND_SYS_FLAG = Struct(">i32xi")
"""The size of a record, which is its first field, and its sysFlag."""
_ZLIB_RATIO, _LZ4_RATIO = 1032, 255
"""How many times larger than its compressed form a body can be at most."""
_RATIOS = {0: _ZLIB_RATIO, 0x300: _ZLIB_RATIO, 0x100: _LZ4_RATIO}
"""The maximum ratio by the codec's bits in sysFlag (0: old clients, which always use zlib).

Zstandard, which is missing here, has no maximum. `decompress` returns at most MAX_PLAIN_BYTES with every codec.
"""
_MIN_INNER_BYTES = 22
"""Size of the smallest message in an inner batch (a record that contains several messages)."""


def max_unpacked_record_bytes(size: int, sys_flag: int) -> int:
    """Return the upper bound, in bytes, for one record with this stored size and sysFlag."""
    bound = size + OBJECT_BYTES  # the record's bytes, and the memory of its Python object
    if sys_flag & SysFlag.COMPRESSED:
        ratio = _RATIOS.get(sys_flag & SysFlag.COMPRESSION)
        bound = OBJECT_BYTES + (MAX_PLAIN_BYTES if ratio is None else min(MAX_PLAIN_BYTES, ratio * size))
    if sys_flag & SysFlag.INNER_BATCH:
        bound += min(MAX_INNER_MESSAGES, bound // _MIN_INNER_BYTES) * OBJECT_BYTES
    return bound


def max_unpacked_body_bytes(body: bytes) -> int:
    """Return the upper bound, in bytes, for all records in `body`."""
    return sum(bound for _, bound in _ends_and_bounds(body))


def split_points(body: bytes, limit: int) -> Iterator[int]:
    """Yield the indexes in `body` at which parts end; the last one is the end of the last record (0 if there is no record).

    A part consists of whole records whose bounds add up to at most `limit` bytes, or of one record with a bound above it.
    """
    part_bound = part_begin = part_end = 0
    for record_end, record_bound in _ends_and_bounds(body):
        if part_end > part_begin and part_bound + record_bound > limit:
            yield part_end
            part_begin, part_bound = part_end, 0
        part_end, part_bound = record_end, part_bound + record_bound
    yield part_end


def _ends_and_bounds(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the index after each record, and the record's upper bound. `PulledRecords` has checked the sizes in `body`."""
    at = 0
    while at < len(body):
        size, sys_flag = _SIZE_AND_SYS_FLAG.unpack_from(body, at)
        at += size
        yield at, max_unpacked_record_bytes(size, sys_flag)
