"""Compresses and decompresses the payloads of entries.

LZ4 and Snappy are raw blocks, Zstandard is an ordinary frame. The Java client never finishes its zlib streams (they end with a
sync flush), so zlib is read by a decompressor object, which does not require the end of the stream.
"""

import zlib
from typing import Literal, get_args

import cramjam

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

MAX_UNCOMPRESSED_BYTES = 64 << 20
"""An entry whose metadata announces a larger payload is refused before memory is allocated. By default clients limit batches to
128 KiB and brokers accept 5 MiB."""

CodecName = Literal["none", "lz4", "zlib", "zstd", "snappy"]
"""Codec names as the configuration spells them."""
CODEC_NUMBERS = {name: pb.CompressionType.Value(name.upper()) for name in get_args(CodecName)}
"""Codec name -> number on the wire."""


def compress(codec: int, data: bytes) -> bytes:
    """Compress a payload with the codec of this number (see `CODEC_NUMBERS`)."""
    match codec:
        case pb.NONE:
            return data
        case pb.LZ4:
            return bytes(cramjam.lz4.compress_block(data, store_size=False))
        case pb.ZLIB:
            return zlib.compress(data)
        case pb.ZSTD:
            return bytes(cramjam.zstd.compress(data))
        case pb.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
    raise ValueError(f"compression codec {codec} is unknown")


def decompress(codec: int, data: bytes, size: int, limit: int = MAX_UNCOMPRESSED_BYTES) -> bytes:
    """Decompress a payload to exactly `size` bytes, the size that the metadata announces.

    Raises RemoteProtocolError if the result has another size, or if `size` is above `limit`. With codec NONE the data is returned
    without checking its size.
    """
    if codec == pb.NONE:
        return data
    if size > limit:
        raise RemoteProtocolError(f"{size} bytes after decompression exceed the limit of {limit}")
    try:
        plain = _decompress(codec, data, size)
    except (cramjam.DecompressionError, zlib.error, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"{len(data)} bytes do not decompress with codec {codec}: {error}") from error
    if len(plain) != size:
        raise RemoteProtocolError(f"{len(plain)} bytes after decompression, expected {size}")
    return plain


def _decompress(codec: int, data: bytes, size: int) -> bytes:
    if codec == pb.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)  # one byte more, to detect a longer stream
    out = bytearray(size)
    if codec == pb.LZ4:
        written = cramjam.lz4.decompress_block_into(data, out, output_len=size)
    elif codec == pb.ZSTD:
        written = cramjam.zstd.decompress_into(data, out)
    elif codec == pb.SNAPPY:
        written = cramjam.snappy.decompress_raw_into(data, out)
    else:
        raise RemoteProtocolError(f"compression codec {codec} is unknown")
    return bytes(out) if written == size else bytes(out[:written])
