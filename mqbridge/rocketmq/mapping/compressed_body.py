"""Compression of the body of a message that is sent alone: brokers store batches with a body for each message, uncompressed."""

from typing import Literal

from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire.record import SysFlag

Compression = Literal["none", "zlib", "lz4", "zstd"]
"""Compression of message bodies. Java consumers before 4.9.4 can decompress only zlib."""
MIN_COMPRESSED_BYTES = 4096
"""Smaller bodies are not compressed; the same limit as in the Java clients."""


def compress_body(codec: int | None, body: bytes) -> tuple[bytes, int]:
    """Return the body, compressed if that makes it smaller, and the bits of the system flag that name the compression.

    `codec` is one of `compression.NAMES`; None compresses nothing.
    """
    if codec is None or len(body) < MIN_COMPRESSED_BYTES:
        return body, 0
    compressed = compression.compress(codec, body)
    return (compressed, SysFlag.COMPRESSED | codec) if len(compressed) < len(body) else (body, 0)
