"""Compression of an entry's payload. `decompress` gives exactly the bytes that the metadata promised, or raises.

LZ4 and Snappy are raw blocks, Zstandard an ordinary frame. Java never finishes its zlib streams (it ends them by a sync flush),
so they are read by a decompressor object, which does not ask for the end.
"""

import zlib
from typing import Literal, get_args

import cramjam

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

MAX_UNCOMPRESSED_BYTES = 64 << 20
"""A larger promise is refused before any memory is taken: clients cut batches at 128 KiB, brokers take 5 MiB compressed."""

CodecName = Literal["none", "lz4", "zlib", "zstd", "snappy"]
"""The codecs as configuration spells them."""
NAMES = {name: pb.CompressionType.Value(name.upper()) for name in get_args(CodecName)}
"""Their numbers."""


def compress(codec: int, data: bytes) -> bytes:
    """The payload as it is sent."""
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
    raise ValueError(f"codec {codec} is not known")


def decompress(codec: int, data: bytes, size: int, limit: int = MAX_UNCOMPRESSED_BYTES) -> bytes:
    """The original `size` bytes. Raises RemoteProtocolError when they are not in there."""
    if codec == pb.NONE:
        return data
    if size > limit:
        raise RemoteProtocolError(f"{size} bytes after decompression are more than the {limit} that are allowed")
    try:
        plain = _decompress(codec, data, size)
    except (cramjam.DecompressionError, zlib.error, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"{len(data)} bytes do not decompress with codec {codec}: {error}") from error
    if len(plain) != size:
        raise RemoteProtocolError(f"{len(plain)} bytes after decompression where {size} were promised")
    return plain


def _decompress(codec: int, data: bytes, size: int) -> bytes:
    if codec == pb.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)  # a byte more, so that a longer stream shows
    out = bytearray(size)
    if codec == pb.LZ4:
        written = cramjam.lz4.decompress_block_into(data, out, output_len=size)
    elif codec == pb.ZSTD:
        written = cramjam.zstd.decompress_into(data, out)
    elif codec == pb.SNAPPY:
        written = cramjam.snappy.decompress_raw_into(data, out)
    else:
        raise RemoteProtocolError(f"codec {codec} is not known")
    return bytes(out) if written == size else bytes(out[:written])
