"""The transport frame: a token, a serial number and a list of blocks, whose data joined are the payload.

    offset  size  field      big-endian
    0       4     token      FF 7F F4 FE
    4       4     serial     picked by the client, repeated by the answer
    8       4     listSize   number of blocks
    12      4     length     of block 0, then its data; the next block follows

The borders of blocks mean nothing. We cut at 8192 bytes and never write an empty block or none at all: C++ clients refuse larger
and empty ones, and a frame without blocks puts the Java decoder out of step for good. We read blocks of any size.
"""

from struct import Struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

TOKEN = 0xFF7FF4FE
BLOCK_BYTES = 8192
MAX_BLOCKS = 3584
"""What the Java side accepts: 20 MiB of message and 8 MiB of everything else, in blocks of 8192."""
MAX_PAYLOAD_BYTES = MAX_BLOCKS * BLOCK_BYTES

_HEADER = Struct(">III")
_LENGTH = Struct(">I")
_ONE_BLOCK = Struct(">IIII")
_header = _HEADER.unpack_from
_length = _LENGTH.unpack_from
_one_block = _ONE_BLOCK.unpack_from

HEADER_BYTES = _HEADER.size
LENGTH_BYTES = _LENGTH.size
DATA_AT = HEADER_BYTES + LENGTH_BYTES


def measure(data: bytes, at: int) -> int:
    """For `FrameCutter`: bytes from `at` that the frame has at least, as far as the lengths of its blocks are known."""
    have = len(data) - at
    if have >= DATA_AT:
        token, _, blocks, length = _one_block(data, at)
        if token == TOKEN and blocks == 1 and length <= MAX_PAYLOAD_BYTES:  # nearly all answers
            return DATA_AT + int(length)
    if have < HEADER_BYTES:
        return HEADER_BYTES
    token, _, blocks = _header(data, at)
    if token != TOKEN:
        raise RemoteProtocolError(f"a TubeMQ frame starts with FF7FF4FE, not {token:08X}: is the other side a TubeMQ port?")
    if not 0 < blocks <= MAX_BLOCKS:
        raise RemoteProtocolError(f"a frame of {blocks} blocks; 1 to {MAX_BLOCKS} are allowed")
    end = HEADER_BYTES
    room = MAX_PAYLOAD_BYTES
    for left in range(blocks, 0, -1):
        if end + LENGTH_BYTES > have:
            return end + LENGTH_BYTES * left
        size: int = _length(data, at + end)[0]
        room -= size
        if room < 0:
            raise RemoteProtocolError(f"a frame of more than {MAX_PAYLOAD_BYTES} bytes")
        end += LENGTH_BYTES + size
        if end > have:
            return end + LENGTH_BYTES * (left - 1)
    return end


def split_frame(frame: bytes) -> tuple[int, bytes]:
    """Serial number and payload of a frame that `measure` found complete."""
    _, serial, blocks = _header(frame)
    if blocks == 1:
        return serial, frame[DATA_AT:]
    view = memoryview(frame)
    pieces = []
    at = HEADER_BYTES
    for _ in range(blocks):
        start = at + LENGTH_BYTES
        at = start + _length(frame, at)[0]
        pieces.append(view[start:at])
    return serial, b"".join(pieces)


def join_frame(serial: int, pieces: tuple[bytes, ...]) -> bytes:
    """The frame of a payload in pieces, which are copied once where it fits a block; see `encode_frame`."""
    size = sum(map(len, pieces))
    if 0 < size <= BLOCK_BYTES:
        return b"".join((_ONE_BLOCK.pack(TOKEN, serial & 0xFFFFFFFF, 1, size), *pieces))
    return encode_frame(serial, b"".join(pieces))


def encode_frame(serial: int, payload: bytes) -> bytes:
    """The frame of a payload. Raises LocalProtocolError when it is empty or above MAX_PAYLOAD_BYTES."""
    size = len(payload)
    if 0 < size <= BLOCK_BYTES:
        return _ONE_BLOCK.pack(TOKEN, serial & 0xFFFFFFFF, 1, size) + payload
    if not 0 < size <= MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"a frame carries 1 to {MAX_PAYLOAD_BYTES} bytes, not {size}")
    view = memoryview(payload)
    pieces: list[bytes | memoryview] = [_HEADER.pack(TOKEN, serial & 0xFFFFFFFF, -(-size // BLOCK_BYTES))]
    full = _LENGTH.pack(BLOCK_BYTES)
    for start in range(0, size, BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        pieces.append(full if len(block) == BLOCK_BYTES else _LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)
