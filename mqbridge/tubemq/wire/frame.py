"""The transport frame: a token, a serial number and a list of blocks; the payload is the joined data of the blocks.

    offset  size  field      big-endian
    0       4     token      FF 7F F4 FE
    4       4     serial     chosen by the client, repeated in the response
    8       4     listSize   number of blocks
    12      4     length     of block 0, then its data; the next block follows

Block boundaries have no meaning. We write blocks of 8192 bytes, since C++ clients refuse larger and empty blocks. We never write
a frame without blocks: the Java decoder would lose the frame boundaries for the rest of the connection. We read blocks of any
size.
"""

from struct import Struct

from mqbridge.errors import LocalProtocolError, RemoteProtocolError

TOKEN = 0xFF7FF4FE
BLOCK_BYTES = 8192
MAX_BLOCKS = 3584
"""Limit of Java clients and servers: 28 MiB in blocks of 8192 bytes, 20 MiB for a message and 8 MiB for all other fields."""
MAX_PAYLOAD_BYTES = MAX_BLOCKS * BLOCK_BYTES

_HEADER = Struct(">III")
_LENGTH = Struct(">I")
_ONE_BLOCK = Struct(">IIII")
"""The header and the length of block 0: all that precedes the data in a frame of one block."""
_unpack_header = _HEADER.unpack_from
_unpack_length = _LENGTH.unpack_from
_unpack_one_block = _ONE_BLOCK.unpack_from

HEADER_BYTES = _HEADER.size
LENGTH_BYTES = _LENGTH.size
FIRST_DATA_OFFSET = HEADER_BYTES + LENGTH_BYTES
"""Offset of the data of block 0 in a frame."""


class FrameMeter:
    """Measures the frames of one stream for its `FrameCutter`.

    It remembers how far an incomplete frame is measured, so that it reads the length of each block only once: a peer may send
    thousands of blocks in as many reads.
    """

    __slots__ = ("_blocks_left", "_bytes_left", "_end")

    def __init__(self) -> None:
        self._end = 0
        """End of the measured blocks, counted from the start of the frame; 0 if no frame is incomplete."""
        self._blocks_left = 0
        """Number of blocks after `_end`. They count as empty: each has at least its length field."""
        self._bytes_left = 0
        """Number of bytes that these blocks may have."""

    def measure(self, data: bytes | bytearray, start: int) -> int:
        """Return the minimum size in bytes of the frame that begins at offset `start`.

        The size is exact when the lengths of all blocks are in `data`. If it is larger than what `data` has, the next call must
        be for the same frame, as `FrameCutter` does. Raises RemoteProtocolError if the bytes are no frame.
        """
        available = len(data) - start
        if not self._end:
            if available >= FIRST_DATA_OFFSET:
                token, _, blocks, length = _unpack_one_block(data, start)
                if token == TOKEN and blocks == 1 and length <= MAX_PAYLOAD_BYTES:  # nearly all responses have one block
                    return FIRST_DATA_OFFSET + int(length)
            if available < HEADER_BYTES:
                return HEADER_BYTES
            self._begin(data, start)
        while self._end <= available and self._blocks_left:
            if self._end + LENGTH_BYTES > available:
                return self._end + LENGTH_BYTES * self._blocks_left
            size: int = _unpack_length(data, start + self._end)[0]
            self._bytes_left -= size
            if self._bytes_left < 0:
                raise RemoteProtocolError(f"a TubeMQ frame has more than {MAX_PAYLOAD_BYTES} bytes")
            self._end += LENGTH_BYTES + size
            self._blocks_left -= 1
        needed = self._end + LENGTH_BYTES * self._blocks_left
        if needed <= available:
            self._end = 0  # the frame is complete: the next call is for another one
        return needed

    def _begin(self, data: bytes | bytearray, start: int) -> None:
        """Read the header of a frame. Raises RemoteProtocolError if it is none."""
        token, _, blocks = _unpack_header(data, start)
        if token != TOKEN:
            raise RemoteProtocolError(f"a TubeMQ frame starts with FF7FF4FE, not {token:08X}: is the peer a TubeMQ port?")
        if not 0 < blocks <= MAX_BLOCKS:
            raise RemoteProtocolError(f"a TubeMQ frame has {blocks} blocks; 1 to {MAX_BLOCKS} are allowed")
        self._end, self._blocks_left, self._bytes_left = HEADER_BYTES, blocks, MAX_PAYLOAD_BYTES


def split_frame(frame: bytes) -> tuple[int, bytes]:
    """Return the serial number and the payload of a frame. The frame must be complete: `FrameCutter` returns only such frames."""
    _, serial, blocks = _unpack_header(frame)
    if blocks == 1:
        return serial, frame[FIRST_DATA_OFFSET:]
    view = memoryview(frame)
    pieces = []
    end = HEADER_BYTES
    for _ in range(blocks):
        start = end + LENGTH_BYTES
        end = start + _unpack_length(frame, end)[0]
        pieces.append(view[start:end])
    return serial, b"".join(pieces)


def join_frame(serial: int, pieces: tuple[bytes, ...]) -> bytes:
    """Return the frame of a payload that is given in pieces. A payload that fits into one block is copied only once.

    Raises LocalProtocolError like `encode_frame`.
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
    full_length = _LENGTH.pack(BLOCK_BYTES)
    for start in range(0, size, BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        pieces.append(full_length if len(block) == BLOCK_BYTES else _LENGTH.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)
