"""Frames of RocketMQ's remoting protocol: each contains one command, which is a request or a response.

A command consists of a header, in one of two encodings, and a body. Numbers are big-endian.

    offset  size  content
    0       4     bytes that follow
    4       1     encoding of the header: 0 JSON, 1 binary
    5       3     length of the header
    8       n     header
    8+n     rest  body

A server may respond in either encoding, so the receiver reads the encoding from each frame. Binary headers have 16 bits for the
code, so the codes of POP requests (200050 and up) need JSON.
"""

import struct
from typing import Any

import orjson

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.codes import LANGUAGE, VERSION
from mqbridge.wire.limits import shorten

MAX_FRAME_BYTES = 16 << 20
"""The limit of Java's frame decoder, including the first four bytes; it closes the connection for larger frames."""

MAX_REMARK_CHARS = 4096
"""Limit of a decoded remark: it is searched for texts that tell errors apart, and shown in errors. The rest of it is dropped."""

RESPONSE = 1
ONEWAY = 2
"""Bits of `Command.flag`."""

JSON = 0
BINARY = 1
"""Encodings of a header."""

PREFIX_BYTES = 8
"""Bytes before the header."""
_PREFIX = struct.Struct(">II")
_BINARY_FIXED = struct.Struct(">hbhiii")
"""The fixed part of a binary header: code, language, version, opaque, flag, and the length of the remark."""
_KEY_SIZE = struct.Struct(">h")
_TEXT_SIZE = struct.Struct(">i")
_unpack_prefix = _PREFIX.unpack_from

_MAX_HEADER_BYTES = 0xFFFFFF
"""The largest header length that fits its 3 bytes; also the mask of the length in the second half of the prefix."""
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_TLS_FIRST_BYTES = 0x15, 0x16
"""First bytes that a TLS port sends: the record types of an alert and of a handshake."""

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""Names of client languages in JSON headers; in a binary header, a language is its index here."""
OTHER = "OTHER"
"""Language of a command that names none, or an unknown one."""


class Command:
    """A request or a response.

    code       request code or response code, depending on `flag`
    flag       the bits RESPONSE and ONEWAY
    opaque     the request's correlation id, int32, repeated by its response
    ext        the custom header (extFields): values, as text, by field name; never None
    body       the bytes after the header; `code` defines their format
    remark     the server's text, mostly about an error; of a received one at most about MAX_REMARK_CHARS
    language   the client language of the sender, one of LANGUAGES
    version    the sender's version number, like `codes.VERSION`
    binary     True if it was received with a binary header: respond with `encode(response, binary=request.binary)`
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
        """Return a response to this request, with its `opaque` and `binary`. `code` is the response code; 0 means success."""
        return Command(code, ext, body, opaque=self.opaque, flag=RESPONSE, remark=remark, binary=self.binary)

    def __repr__(self) -> str:
        command_type = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f", remark={self.remark!r}" if self.remark else ""
        return f"Command({command_type} {self.code}, opaque={self.opaque}, ext={self.ext}, {len(self.body)} bytes{remark})"


def measure(data: bytes | bytearray, at: int) -> int:
    """Return the size of the frame that starts at index `at`; PREFIX_BYTES as long as its prefix is incomplete.

    `FrameCutter` collects that many bytes, and calls this again if they were only the prefix. Raises RemoteProtocolError for a
    prefix that starts no valid frame.
    """
    if len(data) - at < PREFIX_BYTES:
        # The first byte is the high byte of the length: 0 in a valid frame. 1 means at least 16 MiB, which is reported below.
        if len(data) > at and data[at] > 1:
            raise RemoteProtocolError(_wrong_protocol_problem(data[at]))
        return PREFIX_BYTES
    total, type_and_size = _unpack_prefix(data, at)
    if not 4 <= total <= MAX_FRAME_BYTES - 4:
        raise RemoteProtocolError(
            _wrong_protocol_problem(data[at])
            if data[at] > 1
            else f"a frame announces {total} bytes after its length; allowed are 4 to {MAX_FRAME_BYTES - 4}"
        )
    if type_and_size >> 24 > BINARY or type_and_size & _MAX_HEADER_BYTES > total - 4:
        raise RemoteProtocolError(
            f"a header with encoding {type_and_size >> 24} and {type_and_size & _MAX_HEADER_BYTES} bytes is invalid in a frame of"
            f" {total} bytes: the encoding must be {JSON} or {BINARY}, and the header must fit the frame"
        )
    return int(total) + 4


def _wrong_protocol_problem(first_byte: int) -> str:
    if first_byte in _TLS_FIRST_BYTES:
        return "the peer speaks TLS: use a TLS address, or the peer's port without TLS"
    return f"a RocketMQ frame starts with the byte 00, not {first_byte:02X}: is the peer's port a RocketMQ port?"


def encode(command: Command, *, binary: bool = False) -> bytes:
    """Encode a command to a frame. `binary` selects the encoding of the header; `command.binary` is ignored.

    Raises LocalProtocolError if the frame is too large or a field does not fit the header.
    """
    return encode_without_body(command, binary=binary) + command.body


def encode_without_body(command: Command, *, binary: bool = False) -> bytes:
    """Encode the prefix and the header; the caller sends `command.body` behind them, without copying it.

    Raises LocalProtocolError if the frame is too large or a field does not fit the header.
    """
    header = _encode_binary(command) if binary else _encode_json(command)
    header_size = len(header)
    total = 4 + header_size + len(command.body)
    if header_size > _MAX_HEADER_BYTES or total > MAX_FRAME_BYTES - 4:
        raise LocalProtocolError(
            f"a frame of {total + 4} bytes, {header_size} of them header, exceeds RocketMQ's limit of {MAX_FRAME_BYTES} bytes"
        )
    return _PREFIX.pack(total, (BINARY << 24 | header_size) if binary else header_size) + header


def decode(frame: bytes) -> Command:
    """Decode a whole frame. Raises RemoteProtocolError if its sizes or its header are invalid."""
    if len(frame) < PREFIX_BYTES or measure(frame, 0) != len(frame):
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes is incomplete, or its prefix announces another length")
    return decode_at(frame, 0, len(frame))


def decode_at(data: bytes, at: int, end: int) -> Command:
    """Decode the complete frame in `data[at:end]`, copying its body once. Raises RemoteProtocolError for an invalid header."""
    type_and_size: int = _unpack_prefix(data, at)[1]
    header_at = at + PREFIX_BYTES
    body_at = header_at + (type_and_size & _MAX_HEADER_BYTES)
    command = _decode_binary(data[at:body_at], body_at - at) if type_and_size >> 24 else _decode_json(data[header_at:body_at])
    command.body = data[body_at:end]
    return command


# --- JSON headers ---------------------------------------------------------------------------------------------------------
# Java requires the member extFields, and strings as its values; old C++ clients send numbers and booleans too. Members are
# written in alphabetical order, as Java's fastjson writes them.


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
        raise LocalProtocolError(f"command {command.code} cannot be encoded as JSON: {error}") from error


def _decode_json(data: bytes) -> Command:
    try:
        members = orjson.loads(data)
    except ValueError as error:
        raise RemoteProtocolError(f"a header of {len(data)} bytes is not JSON: {error}") from error
    if not isinstance(members, dict) or "code" not in members:
        raise RemoteProtocolError(f"a header has no code: {data[:100]!r}")
    ext = members.get("extFields")
    remark = members.get("remark")
    language = members.get("language")
    command = Command(
        _int32_member(members, "code"),
        _ext_fields(ext) if ext else {},
        remark=shorten(remark, MAX_REMARK_CHARS) if isinstance(remark, str) else None,
        language=language if isinstance(language, str) else OTHER,
    )
    command.opaque = _int32_member(members, "opaque")
    command.flag = _int32_member(members, "flag")
    command.version = _int32_member(members, "version")
    return command


def _int32_member(members: dict[str, Any], name: str) -> int:
    """Return a member that is a 32-bit number or a string with one; 0 for a missing or null member."""
    value = members.get(name, 0)
    if type(value) is int and _INT32_MIN <= value <= _INT32_MAX:
        return value
    if type(value) is not int:
        if value is None:
            return 0
        try:
            value = int(value) if isinstance(value, str) else None
        except ValueError:
            value = None
    if value is None or not _INT32_MIN <= value <= _INT32_MAX:
        raise RemoteProtocolError(f"the header's {name} is {str(members[name])[:40]!r}, not a 32-bit number")
    return int(value)


def _ext_fields(ext: object) -> dict[str, str]:
    """Return the extFields with every value as text, without those that are null."""
    if not isinstance(ext, dict):
        raise RemoteProtocolError(f"the header's extFields are {str(ext)[:40]!r}, not an object")
    for value in ext.values():
        if type(value) is not str:
            return {name: _ext_text(name, value) for name, value in ext.items() if value is not None}
    return ext


def _ext_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise RemoteProtocolError(f"the header's field {name!r} is neither text, a number nor a boolean: {str(value)[:40]}")


# --- binary headers -------------------------------------------------------------------------------------------------------
# code i16 | language i8 | version i16 | opaque i32 | flag i32 | remark length i32, remark | extFields length i32, extFields
# Each of the extFields: key length i16, key | value length i32, value. Java reads an empty key or value as null, so the decoder
# skips such fields.


def _encode_binary(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index(OTHER)
    try:
        fields: list[bytes] = []
        for name, value in command.ext.items():
            name_bytes, value_bytes = name.encode(), value.encode()
            fields += (_KEY_SIZE.pack(len(name_bytes)), name_bytes, _TEXT_SIZE.pack(len(value_bytes)), value_bytes)
        remark, ext = (command.remark or "").encode(), b"".join(fields)
        fixed = _BINARY_FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"command {command.code} does not fit a binary header ({error}): encode it as JSON") from error
    return fixed + remark + _TEXT_SIZE.pack(len(ext)) + ext


def _decode_binary(frame: bytes, end: int) -> Command:
    """Decode the header of a frame, whose body begins at `end`."""
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(frame, PREFIX_BYTES)
        remark, at = _decode_text(frame, PREFIX_BYTES + _BINARY_FIXED.size, remark_size, end)
        (ext_size,) = _TEXT_SIZE.unpack_from(frame, at)
        at += 4
        if ext_size != end - at:
            raise RemoteProtocolError(f"a binary header announces {ext_size} bytes of extFields, but has {end - at}")
        ext = _decode_ext_fields(frame, at, end)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a binary header of {end - PREFIX_BYTES} bytes cannot be decoded: {error}") from error
    return Command(
        code,
        ext,
        opaque=opaque,
        flag=flag,
        remark=shorten(remark, MAX_REMARK_CHARS) or None,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else OTHER,
        version=version,
        binary=True,
    )


def _decode_ext_fields(frame: bytes, at: int, end: int) -> dict[str, str]:
    ext = {}
    while at < end:
        key, at = _decode_text(frame, at + 2, _KEY_SIZE.unpack_from(frame, at)[0], end)
        value, at = _decode_text(frame, at + 4, _TEXT_SIZE.unpack_from(frame, at)[0], end)
        if key and value:
            ext[key] = value
    return ext


def _decode_text(frame: bytes, at: int, size: int, end: int) -> tuple[str, int]:
    """Return the text of `size` bytes at index `at`, and the index behind it."""
    if not 0 <= size <= end - at:
        raise RemoteProtocolError(f"a text of {size} bytes at byte {at} does not fit a binary header that ends at byte {end}")
    return frame[at : at + size].decode(), at + size
