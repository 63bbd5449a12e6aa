"""Frames: a command is a header, in one of two encodings, and a body. Requests and responses share one form.

    offset  size  content                                  big-endian
    0       4     bytes that follow
    4       1     encoding of the header: 0 JSON, 1 binary
    5       3     length of the header
    8       n     header
    8+n     rest  body

A server may respond in either encoding, so the receiver reads the encoding of each frame. Binary headers have 16 bits for the
code, too few for the codes of POP requests.
"""

import struct
from typing import Any

import orjson

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.codes import LANGUAGE, VERSION

MAX_FRAME_BYTES = 16 << 20
"""The limit of Java's frame decoder, with the four bytes of the length; it closes the connection for larger frames."""

RESPONSE = 1
ONEWAY = 2

JSON = 0
BINARY = 1

PREFIX_BYTES = 8
_PREFIX = struct.Struct(">II")
_FIXED = struct.Struct(">hbhiii")
_KEY_SIZE = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_unpack_prefix = _PREFIX.unpack_from

_MAX_HEADER_BYTES = 0xFFFFFF
_TLS_RECORD = 0x15, 0x16
"""First bytes from a TLS port: an alert, a handshake."""

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""The index is a language's number in a binary header."""
OTHER = "OTHER"


class Command:
    """A request or a response.

    code     request code or response code, depending on `flag`
    opaque   the request's correlation id, int32, repeated by its response
    ext      the custom header (extFields), text by name; never None
    remark   the server's text, mostly about an error
    binary   True if it was received with a binary header: respond with `encode(response, binary=request.binary)`
    """

    __slots__ = ("binary", "body", "code", "ext", "flag", "language", "opaque", "remark", "version")

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: str = LANGUAGE,
        version: int = VERSION,
        binary: bool = False,
    ) -> None:
        self.code, self.body = code, body
        self.ext: dict[str, str] = {} if ext is None else ext
        self.opaque, self.flag, self.remark = opaque, flag, remark
        self.language, self.version, self.binary = language, version, binary

    @property
    def is_response(self) -> bool:
        """True for a response."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """True if no response may be sent, not even an error."""
        return bool(self.flag & ONEWAY)

    def answer(self, code: int = 0, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None) -> "Command":
        """Make the response to this request, in its encoding."""
        return Command(code, ext, body, opaque=self.opaque, flag=RESPONSE, remark=remark, binary=self.binary)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f", remark={self.remark!r}" if self.remark else ""
        return f"Command({kind} {self.code}, opaque={self.opaque}, ext={self.ext}, {len(self.body)} bytes{remark})"


def measure(data: bytes, at: int) -> int:
    """For `FrameCutter`: return the size of the frame at `at`, or the bytes needed to know it."""
    if len(data) - at < PREFIX_BYTES:
        if len(data) > at and data[at] > 1:
            raise RemoteProtocolError(_wrong_protocol(data[at]))
        return PREFIX_BYTES
    total, type_and_size = _unpack_prefix(data, at)
    if not 4 <= total <= MAX_FRAME_BYTES - 4:
        raise RemoteProtocolError(
            _wrong_protocol(data[at]) if data[at] > 1 else f"a frame of {total} bytes; allowed are 4 to {MAX_FRAME_BYTES - 4}"
        )
    if type_and_size >> 24 > BINARY or type_and_size & _MAX_HEADER_BYTES > total - 4:
        raise RemoteProtocolError(
            f"a header of type {type_and_size >> 24} and {type_and_size & _MAX_HEADER_BYTES} bytes in a frame of {total}"
        )
    return int(total) + 4


def _wrong_protocol(byte: int) -> str:
    if byte in _TLS_RECORD:
        return "the other side speaks TLS: use a TLS address, or the plain port"
    return f"a RocketMQ frame starts with 00, not {byte:02X}: is the other side a RocketMQ port?"


def encode(command: Command, *, binary: bool = False) -> bytes:
    """Encode the whole frame. Raises LocalProtocolError if it is too large."""
    return encode_without_body(command, binary=binary) + command.body


def encode_without_body(command: Command, *, binary: bool = False) -> bytes:
    """Encode the frame up to its body, to send the body uncopied. Raises LocalProtocolError if the frame is too large."""
    header = _encode_binary(command) if binary else _encode_json(command)
    size = len(header)
    total = 4 + size + len(command.body)
    if size > _MAX_HEADER_BYTES or total > MAX_FRAME_BYTES - 4:
        raise LocalProtocolError(
            f"a frame of {total + 4} bytes, {size} of them header, exceeds RocketMQ's limit of {MAX_FRAME_BYTES}"
        )
    return _PREFIX.pack(total, (BINARY << 24 | size) if binary else size) + header


def decode(frame: bytes) -> Command:
    """Decode a whole frame. Raises RemoteProtocolError if its sizes or its header are invalid."""
    if len(frame) < PREFIX_BYTES or measure(frame, 0) != len(frame):
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes does not have the length in its prefix")
    return decode_at(frame, 0, len(frame))


def decode_at(data: bytes, at: int, end: int) -> Command:
    """Decode the complete frame in `data[at:end]`, copying its body once. Raises RemoteProtocolError for an invalid header."""
    type_and_size: int = _unpack_prefix(data, at)[1]
    header = at + PREFIX_BYTES
    body = header + (type_and_size & _MAX_HEADER_BYTES)
    command = _decode_binary(data[at:body], body - at) if type_and_size >> 24 else _decode_json(data[header:body])
    command.body = data[body:end]
    return command


# --- JSON headers ---------------------------------------------------------------------------------------------------------
# Java requires extFields, and strings as their values. Members are written in alphabetical order, as fastjson writes them.
# Old C++ clients send numbers and booleans as values.


def _encode_json(command: Command) -> bytes:
    members = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
    }
    if command.remark is not None:
        members["remark"] = command.remark
    members["version"] = command.version
    try:
        return orjson.dumps(members)
    except TypeError as error:
        raise LocalProtocolError(f"request {command.code} cannot be written as JSON: {error}") from error


def _decode_json(data: bytes) -> Command:
    try:
        members = orjson.loads(data)
    except ValueError as error:
        raise RemoteProtocolError(f"a header of {len(data)} bytes that is not JSON: {error}") from error
    if not isinstance(members, dict) or "code" not in members:
        raise RemoteProtocolError(f"a header without a code: {data[:100]!r}")
    ext = members.get("extFields")
    remark = members.get("remark")
    language = members.get("language")
    command = Command(
        _number(members, "code"),
        _read_ext(ext) if ext else {},
        remark=remark if isinstance(remark, str) else None,
        language=language if isinstance(language, str) else OTHER,
    )
    command.opaque, command.flag, command.version = (
        _number(members, "opaque"),
        _number(members, "flag"),
        _number(members, "version"),
    )
    return command


def _number(members: dict[str, Any], name: str) -> int:
    value = members.get(name, 0)
    if type(value) is int and -0x80000000 <= value <= 0x7FFFFFFF:
        return value
    if type(value) is not int:
        try:
            value = int(value) if isinstance(value, str) else 0 if value is None else None
        except ValueError:
            value = None
    if value is None or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise RemoteProtocolError(f"the header's {name} is {str(members[name])[:40]!r} and no 32-bit number")
    return int(value)


def _read_ext(ext: object) -> dict[str, str]:
    if not isinstance(ext, dict):
        raise RemoteProtocolError(f"the header's extFields are {str(ext)[:40]!r} and no object")
    for value in ext.values():
        if type(value) is not str:
            return {name: _text(name, value) for name, value in ext.items() if value is not None}
    return ext


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise RemoteProtocolError(f"the header's field {name!r} is neither text nor a number: {str(value)[:40]}")


# --- binary headers -------------------------------------------------------------------------------------------------------
# code i16, language i8, version i16, opaque i32, flag i32, remark (i32 length), ext fields (i32 length of all together, then
# key with i16 and value with i32 length). Java reads an empty key or value as null, so both are skipped here.


def _encode_binary(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index(OTHER)
    try:
        fields: list[bytes] = []
        for name, value in command.ext.items():
            key, text = name.encode(), value.encode()
            fields += (_KEY_SIZE.pack(len(key)), key, _SIZE.pack(len(text)), text)
        remark, ext = (command.remark or "").encode(), b"".join(fields)
        fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"request {command.code} does not fit a binary header ({error}): send it as JSON") from error
    return fixed + remark + _SIZE.pack(len(ext)) + ext


def _decode_binary(frame: bytes, end: int) -> Command:
    try:
        code, language, version, opaque, flag, size = _FIXED.unpack_from(frame, PREFIX_BYTES)
        remark, at = _take(frame, PREFIX_BYTES + _FIXED.size, size, end)
        (size,) = _SIZE.unpack_from(frame, at)
        at += 4
        if size != end - at:
            raise RemoteProtocolError(f"a binary header announces {size} bytes of fields, and has {end - at}")
        ext = _read_fields(frame, at, end)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a binary header of {end - PREFIX_BYTES} bytes that cannot be read: {error}") from error
    return Command(
        code,
        ext,
        opaque=opaque,
        flag=flag,
        remark=remark or None,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else OTHER,
        version=version,
        binary=True,
    )


def _read_fields(frame: bytes, at: int, end: int) -> dict[str, str]:
    ext = {}
    while at < end:
        key, at = _take(frame, at + 2, _KEY_SIZE.unpack_from(frame, at)[0], end)
        value, at = _take(frame, at + 4, _SIZE.unpack_from(frame, at)[0], end)
        if key and value:
            ext[key] = value
    return ext


def _take(frame: bytes, at: int, size: int, end: int) -> tuple[str, int]:
    if not 0 <= size <= end - at:
        raise RemoteProtocolError(f"a text of {size} bytes at byte {at} of a binary header that ends at {end}")
    return frame[at : at + size].decode(), at + size
