"""The transport frame: a token, a serial number and a list of blocks; the payload is the joined data of the blocks.

    offset  size  field      big-endian
    0       4     token      FF 7F F4 FE
    4       4     serial     chosen by the client, repeated in the response
    8       4     listSize   number of blocks
    12      4     length     of block 0, then its data; the next block follows

Block boundaries have no meaning. We write blocks of 8192 bytes, since C++ clients refuse larger and empty blocks. We never write
a frame without blocks, since it desynchronizes the Java decoder for good. We read blocks of any size.
"""

from struct import Struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

TOKEN = 0xFF7FF4FE
BLOCK_BYTES = 8192
MAX_BLOCKS = 3584
"""The limit of Java clients and servers: 20 MiB of message and 8 MiB for all other fields, in blocks of 8192 bytes."""
MAX_PAYLOAD_BYTES = MAX_BLOCKS * BLOCK_BYTES

_HEADER = Struct(">III")
_LENGTH = Struct(">I")
_ONE_BLOCK = Struct(">IIII")
_header = _HEADER.unpack_from
_length = _LENGTH.unpack_from
_one_block = _ONE_BLOCK.unpack_from

HEADER_BYTES = _HEADER.size
LENGTH_BYTES = _LENGTH.size
FIRST_DATA_OFFSET = HEADER_BYTES + LENGTH_BYTES


def measure(data: bytes, at: int) -> int:
    """Return the minimum size of the frame at `at`; the size is exact when the lengths of all blocks are in `data`.

    Used by `FrameCutter`.
    """
    available = len(data) - at
    if available >= FIRST_DATA_OFFSET:
        token, _, blocks, length = _one_block(data, at)
        if token == TOKEN and blocks == 1 and length <= MAX_PAYLOAD_BYTES:  # nearly all responses
            return FIRST_DATA_OFFSET + int(length)
    if available < HEADER_BYTES:
        return HEADER_BYTES
    token, _, blocks = _header(data, at)
    if token != TOKEN:
        raise RemoteProtocolError(f"a TubeMQ frame starts with FF7FF4FE, not {token:08X}: is the peer a TubeMQ port?")
    if not 0 < blocks <= MAX_BLOCKS:
        raise RemoteProtocolError(f"a TubeMQ frame has {blocks} blocks; 1 to {MAX_BLOCKS} are allowed")
    end = HEADER_BYTES
    bytes_left = MAX_PAYLOAD_BYTES
    for blocks_left in range(blocks, 0, -1):
        if end + LENGTH_BYTES > available:
            return end + LENGTH_BYTES * blocks_left
        size: int = _length(data, at + end)[0]
        bytes_left -= size
        if bytes_left < 0:
            raise RemoteProtocolError(f"a TubeMQ frame has more than {MAX_PAYLOAD_BYTES} bytes")
        end += LENGTH_BYTES + size
        if end > available:
            return end + LENGTH_BYTES * (blocks_left - 1)
    return end


def split_frame(frame: bytes) -> tuple[int, bytes]:
    """Return the serial number and the payload of a complete frame, whose size `measure` has returned."""
    _, serial, blocks = _header(frame)
    if blocks == 1:
        return serial, frame[FIRST_DATA_OFFSET:]
    view = memoryview(frame)
    pieces = []
    at = HEADER_BYTES
    for _ in range(blocks):
        start = at + LENGTH_BYTES
        at = start + _length(frame, at)[0]
        pieces.append(view[start:at])
    return serial, b"".join(pieces)


def join_frame(serial: int, pieces: tuple[bytes, ...]) -> bytes:
    """Return the frame of a payload that is given in pieces. A payload that fits into one block is copied only once.

    Raises like `encode_frame`.
    """
    size = sum(map(len, pieces))
    if 0 < size <= BLOCK_BYTES:
        return b"".join((_ONE_BLOCK.pack(TOKEN, serial & 0xFFFFFFFF, 1, size), *pieces))
    return encode_frame(serial, b"".join(pieces))


def encode_frame(serial: int, payload: bytes) -> bytes:
    """Return the frame of a payload. Raises LocalProtocolError if it is empty or larger than MAX_PAYLOAD_BYTES."""
    size = len(payload)
    if 0 < size <= BLOCK_BYTES:
        return _ONE_BLOCK.pack(TOKEN, serial & 0xFFFFFFFF, 1, size) + payload
    if not 0 < size <= MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"a TubeMQ frame has a payload of 1 to {MAX_PAYLOAD_BYTES} bytes, not {size}")
    view = memoryview(payload)
    pieces: list[bytes | memoryview] = [_HEADER.pack(TOKEN, serial & 0xFFFFFFFF, -(-size // BLOCK_BYTES))]
    full = _LENGTH.pack(BLOCK_BYTES)
    for start in range(0, size, BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        pieces.append(full if len(block) == BLOCK_BYTES else _LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)
