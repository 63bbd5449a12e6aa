"""Frames: a total size, a command, and behind SEND and MESSAGE the stored entry.

    uint32 totalSize (excludes itself) | uint32 commandSize | BaseCommand | the rest

Everything outside of protobuf is big-endian. What follows the command is opaque here: `entry.py` reads and writes it.
"""

import struct

from google.protobuf.message import DecodeError, Message

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

DEFAULT_MAX_MESSAGE_SIZE = 5 << 20
"""Bytes of a payload as sent, until CONNECTED announces another limit."""
FRAME_PADDING = 10 << 10
"""A frame may exceed the largest payload by this much, for the command and the metadata."""

_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
_TYPE_TAG = 0x08
"""The tag of BaseCommand.type, which every known implementation writes first."""
_WITHOUT_TEXT = frozenset(
    {BaseCommand.MESSAGE, BaseCommand.SEND, BaseCommand.SEND_RECEIPT, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG}
)
"""The frequent commands, which have no field of text."""


class FrameMeter:
    """Measures frames for a `FrameCutter`; the limit follows what the broker announces."""

    __slots__ = ("_limit",)

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        self.allow(max_message_size)

    def allow(self, max_message_size: int) -> None:
        """Accept frames that carry payloads up to this size."""
        self._limit = max_message_size + FRAME_PADDING

    def measure(self, data: bytes, at: int) -> int:
        """Bytes needed from `at`. Raises RemoteProtocolError beyond the limit."""
        if len(data) - at < 4:
            return 4
        (size,) = _SIZE.unpack_from(data, at)
        if not 4 <= size <= self._limit:
            raise RemoteProtocolError(f"a frame of {size} bytes; this connection takes 4 to {self._limit}")
        return int(size) + 4


class Frame:
    """A frame taken apart: the number of the command's type, the command, the whole frame and where its rest begins."""

    __slots__ = ("command", "data", "rest", "type")

    def __init__(self, type: int, command: BaseCommand, data: bytes, rest: int) -> None:  # noqa: A002 - the protocol's word
        self.type, self.command, self.data, self.rest = type, command, data, rest


def parse_frame(data: bytes) -> Frame:
    """Read a whole frame. Raises RemoteProtocolError when sizes or the command make no sense.

    `type` is the number on the wire: an unknown one would read as CONNECT from the parsed command.
    """
    if len(data) < 8:
        raise RemoteProtocolError(f"a frame of {len(data)} bytes has no command")
    total, size = _SIZES.unpack_from(data)
    end = 8 + size
    if total != len(data) - 4 or end > len(data) or size < 2:
        raise RemoteProtocolError(f"a command of {size} bytes in a frame of {len(data)} that says {total}")
    try:
        command = BaseCommand.FromString(data[8:end])
    except DecodeError as error:
        raise RemoteProtocolError(f"a command of {size} bytes that is no BaseCommand: {error}") from error
    if data[8] == _TYPE_TAG and data[9] < 0x80:
        number = int(data[9])
    elif command.HasField("type"):
        number = command.type
    else:
        raise RemoteProtocolError("a command without a known type")
    if number not in _WITHOUT_TEXT:
        _check_text(command)
    return Frame(number, command, data, end)


def _check_text(message: Message) -> None:
    """Text that is not UTF-8 would be read as bytes by the protobuf library, and fail much later."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if isinstance(value, bytes) or (not isinstance(value, str) and any(isinstance(each, bytes) for each in value)):
                raise RemoteProtocolError(f"a command whose {field.name} is not UTF-8")
        elif field.type == field.TYPE_MESSAGE:
            for each in [value] if isinstance(value, Message) else value:
                _check_text(each)


def encode_command(command: BaseCommand) -> bytes:
    """A frame that is only a command."""
    data = command.SerializeToString()
    return _SIZES.pack(len(data) + 4, len(data)) + data


def encode_head(command: BaseCommand, rest_bytes: int) -> bytes:
    """The frame up to the end of its command, when `rest_bytes` are going to follow."""
    data = command.SerializeToString()
    return _SIZES.pack(len(data) + 4 + rest_bytes, len(data)) + data
