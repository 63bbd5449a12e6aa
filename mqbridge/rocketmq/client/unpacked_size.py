"""Upper bounds of the memory of stored records when decompressed, from their sizes and flags alone.

A compressed body may become a thousand times as large, so a pull is split into parts that are decoded one after the other.
"""

from collections.abc import Iterator
from struct import Struct

from mqbridge.rocketmq.wire.compression import MAX_PLAIN_BYTES
from mqbridge.rocketmq.wire.record import MAX_INNER_MESSAGES, OBJECT_BYTES, SysFlag

_SIZE_AND_SYS_FLAG = Struct(">i32xi")
_ZLIB, _LZ4 = 1032, 255
"""Maximum ratios of decompression."""
_RATIOS = {0: _ZLIB, 0x300: _ZLIB, 0x100: _LZ4}
"""By codec. Zstandard has no bound; `decompress` allows MAX_PLAIN_BYTES of every codec."""
_LEAST_INNER_BYTES = 22
"""Size of the smallest message of an inner batch."""


def max_unpacked_bytes(size: int, sys_flag: int) -> int:
    """Return the bound of a record of this stored size."""
    bound = size + OBJECT_BYTES
    if sys_flag & SysFlag.COMPRESSED:
        ratio = _RATIOS.get(sys_flag & SysFlag.COMPRESSION)
        bound = OBJECT_BYTES + (MAX_PLAIN_BYTES if ratio is None else min(MAX_PLAIN_BYTES, ratio * size))
    if sys_flag & SysFlag.INNER_BATCH:
        bound += min(MAX_INNER_MESSAGES, bound // _LEAST_INNER_BYTES) * OBJECT_BYTES
    return bound


def max_unpacked_bytes_of(body: bytes) -> int:
    """Return the bound of consecutive records."""
    return sum(unpacked for _, unpacked in _records(body))


def split_points(body: bytes, limit: int) -> Iterator[int]:
    """Yield the ends of parts: whole records with a bound of at bound `limit`, or a single record."""
    held = begin = at = 0
    for end, unpacked in _records(body):
        if at > begin and held + unpacked > limit:
            yield at
            begin, held = at, 0
        at, held = end, held + unpacked
    yield at


def _records(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end and the bound of each record."""
    at = 0
    while at < len(body):
        size, sys_flag = _SIZE_AND_SYS_FLAG.unpack_from(body, at)
        at += size
        yield at, max_unpacked_bytes(size, sys_flag)
