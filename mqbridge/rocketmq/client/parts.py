"""How much memory the bodies of stored records may need once they are unpacked, by their sizes and flags alone.

What comes compressed may become a thousand times as large, so a pull is cut into parts that can be unpacked one after the other.
"""

from collections.abc import Iterator
from struct import Struct

from mqbridge.rocketmq.wire.compression import MAX_PLAIN_BYTES
from mqbridge.rocketmq.wire.record import MAX_INNER_MESSAGES, OBJECT_BYTES, Sys

_SIZE_AND_SYS_FLAG = Struct(">i32xi")
_ZLIB, _LZ4 = 1032, 255
"""The most that a byte can become."""
_RATIOS = {0: _ZLIB, 0x300: _ZLIB, 0x100: _LZ4}
"""By codec. A few bytes of Zstandard can become any number; all codecs are held to MAX_PLAIN_BYTES."""
_LEAST_INNER_BYTES = 22


def unpacked_bytes(size: int, sys_flag: int) -> int:
    """The most that a record of this size takes when it is unpacked."""
    most = size + OBJECT_BYTES
    if sys_flag & Sys.COMPRESSED:
        ratio = _RATIOS.get(sys_flag & Sys.COMPRESSION)
        most = OBJECT_BYTES + (MAX_PLAIN_BYTES if ratio is None else min(MAX_PLAIN_BYTES, ratio * size))
    if sys_flag & Sys.INNER_BATCH:
        most += min(MAX_INNER_MESSAGES, most // _LEAST_INNER_BYTES) * OBJECT_BYTES
    return most


def most_unpacked(body: bytes) -> int:
    """The most that records take when they are unpacked."""
    return sum(unpacked for _, unpacked in _records(body))


def cut(body: bytes, limit: int) -> Iterator[int]:
    """Where the parts of whole records end that unpack to `limit` at most each, or are one record."""
    held = begin = at = 0
    for end, unpacked in _records(body):
        if at > begin and held + unpacked > limit:
            yield at
            begin, held = at, 0
        at, held = end, held + unpacked
    yield at


def _records(body: bytes) -> Iterator[tuple[int, int]]:
    """The end of each record, and the most that it takes when it is unpacked."""
    at = 0
    while at < len(body):
        size, sys_flag = _SIZE_AND_SYS_FLAG.unpack_from(body, at)
        at += size
        yield at, unpacked_bytes(size, sys_flag)
