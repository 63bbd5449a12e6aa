"""Parses and encodes frames. A frame contains a command, and a frame of SEND or MESSAGE also an entry.

    uint32 totalSize (excludes itself) | uint32 commandSize | BaseCommand | entry

Everything outside of protobuf is big-endian. The entry is opaque here: `entry.py` reads and writes it.
"""

import struct

from google.protobuf.message import DecodeError, Message

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

DEFAULT_MAX_MESSAGE_SIZE = 5 << 20
"""Maximum size of an entry's payload as sent, in bytes; CONNECTED may announce another one."""
FRAME_PADDING = 10 << 10
"""Bytes by which a frame may exceed the largest payload, for the command and the metadata."""

_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
_TYPE_TAG = 0x08
"""Tag of BaseCommand.type, which every known implementation writes first."""
_WITHOUT_STRINGS = frozenset(
    {BaseCommand.MESSAGE, BaseCommand.SEND, BaseCommand.SEND_RECEIPT, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG}
)
"""Frequent commands that have no string fields, so they are not searched for invalid strings."""


class FrameMeter:
    """Measures frames for a `FrameCutter`, which cuts the received bytes; limits them by the broker's maxMessageSize."""

    __slots__ = ("limit",)

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self.limit: int
        """Maximum of a frame's size field."""
        self.allow(max_message_size)

    def allow(self, max_message_size: int) -> None:
        """Accept frames with payloads up to this size in bytes."""
        self.limit = max_message_size + FRAME_PADDING

    def measure(self, data: bytes | bytearray, at: int) -> int:
        """Return the size of the frame at offset `at` in bytes; 4, the size of its size field, while that field is incomplete.

        Raises RemoteProtocolError beyond the limit.
        """
        if len(data) - at < 4:
            return 4
        (size,) = _SIZE.unpack_from(data, at)
        if not 4 <= size <= self.limit:
            raise RemoteProtocolError(f"frame of {size} bytes; this connection accepts 4 to {self.limit} bytes")
        return int(size) + 4


class Frame:
    """A parsed frame.

    type          the command's type number on the wire
    command       the parsed command
    data          the bytes of the whole frame
    entry_offset  offset in `data` after the command; there begins the entry of a SEND or MESSAGE
    """

    __slots__ = ("command", "data", "entry_offset", "type")

    def __init__(self, type: int, command: BaseCommand, data: bytes, entry_offset: int) -> None:  # noqa: A002 - the protocol's word
        self.type, self.command = type, command
        self.data, self.entry_offset = data, entry_offset


def parse_frame(data: bytes) -> Frame:
    """Parse a whole frame. Raises RemoteProtocolError if the sizes or the command are invalid.

    `Frame.type` is read from the bytes: if the type is unknown, the protobuf object would show CONNECT.
    """
    if len(data) < 8:
        raise RemoteProtocolError(f"frame of {len(data)} bytes has no command")
    total, size = _SIZES.unpack_from(data)
    end = 8 + size
    if total != len(data) - 4 or end > len(data) or size < 2:  # 2: the tag and the value of the type
        raise RemoteProtocolError(
            f"invalid sizes: command of {size} bytes in a frame of {len(data)} bytes with totalSize {total}"
        )
    try:
        command = BaseCommand.FromString(data[8:end])
    except DecodeError as error:
        raise RemoteProtocolError(f"command of {size} bytes is not a BaseCommand: {error}") from error
    if data[8] == _TYPE_TAG and data[9] < 0x80:  # the usual case: the type is the first field, and a number of one byte
        number = int(data[9])
    elif command.HasField("type"):
        number = command.type
    else:
        raise RemoteProtocolError("command without a known type")
    if number not in _WITHOUT_STRINGS and (number != BaseCommand.ACK or command.ack.properties):  # others have no strings, either
        _check_strings(command)
    return Frame(number, command, data, end)


def _check_strings(message: Message) -> None:
    """Raise RemoteProtocolError for strings that are not UTF-8: protobuf returns them as bytes, which would fail much later."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if isinstance(value, bytes) or (not isinstance(value, str) and any(isinstance(each, bytes) for each in value)):
                raise RemoteProtocolError(f"field {field.name} of a command is not UTF-8")
        elif field.type == field.TYPE_MESSAGE:
            for each in [value] if isinstance(value, Message) else value:
                _check_strings(each)


def encode_command(command: BaseCommand) -> bytes:
    """Return a frame that holds only a command."""
    data = command.SerializeToString()
    return _SIZES.pack(len(data) + 4, len(data)) + data


def encode_frame_prefix(command: BaseCommand, entry_bytes: int) -> bytes:
    """Return the frame up to the end of its command, for an entry of `entry_bytes` bytes."""
    data = command.SerializeToString()
    return _SIZES.pack(len(data) + 4 + entry_bytes, len(data)) + data
