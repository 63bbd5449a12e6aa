"""Compression of a message's body: zlib streams, LZ4 frames or Zstandard frames; three bits of the system flag name the codec.

A stored body does not contain its original size, so the caller of `decompress` sets a limit. Clients before 4.9.4 know only zlib:
they write the bits 0 (`OLD_ZLIB`), and read every body as zlib, whatever its bits. So only
groups without such clients can use LZ4 or Zstandard.
"""

import zlib
from collections.abc import Callable

import cramjam

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

OLD_ZLIB = 0
"""zlib, as clients before 4.9.4 write it: without a codec in the system flag."""
LZ4 = 0x100
ZSTD = 0x200
ZLIB = 0x300

NAMES = {"lz4": LZ4, "zstd": ZSTD, "zlib": ZLIB}
"""Codecs by their names in the configuration."""

LEVEL = 5
"""Compression level of zlib and Zstandard, the default of the Java clients."""
MAX_PLAIN_BYTES = 32 << 20
"""Default limit of a decompressed body. By default, clients do not send bodies of more than 4 MiB before compression."""

_FIRST_BUFFER_RATIO = 16
_MIN_FIRST_BUFFER_BYTES = 64 << 10
"""The first buffer for an LZ4 or Zstandard body has the compressed size times this ratio, and at least this minimum.

A buffer of MAX_PLAIN_BYTES for every body would cost milliseconds, because Python clears it. A body that does not fit the first
buffer is decompressed again into a buffer of the whole limit.
"""

_LZ4_HEADER = bytes.fromhex("04224d18 60 70 73")
"""Magic number; flags (independent blocks), code of the maximum block size (4 MiB), and the checksum of these two bytes."""
_LZ4_BLOCK_BYTES = 4 << 20
_LZ4_UNCOMPRESSED = 0x80000000
"""Bit in the size field of a block that is stored uncompressed."""
_LZ4_END = bytes(4)
"""The size 0 in place of a block ends the frame."""


def compress(codec: int, data: bytes) -> bytes:
    """Compress a body. Raises LocalProtocolError for an unknown codec."""
    match codec:
        case 0x300 | 0:  # ZLIB, OLD_ZLIB; numbers, because a pattern without a dot would bind a name
            return zlib.compress(data, LEVEL)
        case 0x100:  # LZ4
            return _lz4_frame(data)
        case 0x200:  # ZSTD
            return bytes(cramjam.zstd.compress(data, LEVEL))
    names = ", ".join(f"{number:#x} ({name})" for name, number in NAMES.items())
    raise LocalProtocolError(f"codec {codec:#x} is unknown; the known codecs are {names}")


def _lz4_frame(data: bytes) -> bytes:
    """Encode an LZ4 frame of independent blocks. cramjam's own frames have dependent blocks, which Java cannot read."""
    pieces = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[at : at + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            pieces += (len(packed).to_bytes(4, "little"), packed)
        else:
            pieces += ((len(plain) | _LZ4_UNCOMPRESSED).to_bytes(4, "little"), plain)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def decompress(codec: int, data: bytes, limit: int = MAX_PLAIN_BYTES) -> bytes:
    """Return the original body. Raises RemoteProtocolError for damage, an unknown codec, or more than `limit` bytes."""
    try:
        match codec:
            case 0x300 | 0:  # ZLIB, OLD_ZLIB
                return _inflate(data, limit)
            case 0x100:  # LZ4
                return _decompress_into(cramjam.lz4.decompress_into, data, limit)
            case 0x200:  # ZSTD
                return _decompress_into(cramjam.zstd.decompress_into, data, limit)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise RemoteProtocolError(
            f"{len(data)} bytes of body do not decompress with codec {codec:#x} (damaged, or above {limit} bytes): {error}"
        ) from error
    raise RemoteProtocolError(f"a body is compressed with the unknown codec {codec:#x}")


def _inflate(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, limit + 1)  # one byte more than the limit reveals a longer stream
    if len(plain) > limit or not stream.eof:
        raise zlib.error(
            f"the decompressed body exceeds {limit} bytes" if len(plain) > limit else "the compressed body is cut off"
        )
    return plain


def _decompress_into(cramjam_function: Callable[[bytes, bytearray], int], data: bytes, limit: int) -> bytes:
    """Decompress with a `decompress_into` of cramjam, into a small buffer, or into one of `limit` bytes if that is too small."""
    size = min(max(len(data) * _FIRST_BUFFER_RATIO, _MIN_FIRST_BUFFER_BYTES), limit)
    out = bytearray(size)
    try:
        return bytes(memoryview(out)[: cramjam_function(data, out)])
    except cramjam.DecompressionError:
        if size == limit:
            raise
    out = bytearray(limit)
    return bytes(memoryview(out)[: cramjam_function(data, out)])
