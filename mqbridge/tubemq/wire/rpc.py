"""The RPC envelope in a frame's payload: three consecutive protobuf messages, each preceded by its length.

A request is (RpcConnHeader, RequestHeader, RequestBody), a response (RpcConnHeader, ResponseHeader, RspResponseBody or
RspExceptionBody). Bytes after the third message are ignored: C++ clients send up to nine zero bytes there.

Producers make one call per message. So requests and responses in the layouts that Java clients and servers write are handled
without the generated protobuf classes, and a body is copied once. Other layouts are parsed by the generated classes.
"""

from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from mqbridge.errors import Failure, RemoteProtocolError, ServerRefused
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageResponseB2P
from mqbridge.tubemq.wire.pb.rpc_pb2 import RequestBody, RequestHeader, ResponseHeader, RspExceptionBody, RspResponseBody
from mqbridge.wire.varint import decode_varint, encode_varint

MASTER, READ, WRITE = 1, 2, 3
"""Service types: the Master, and the two services of a Broker, for consumers and for producers."""

PRODUCER_REGISTER, PRODUCER_HEARTBEAT, PRODUCER_CLOSE = 1, 2, 3
CONSUMER_REGISTER, CONSUMER_HEARTBEAT, CONSUMER_CLOSE = 4, 5, 6
SEND = 13
PARTITION_REGISTER, PARTITION_HEARTBEAT = 15, 16
GET, COMMIT = 17, 18
BALANCED_REGISTER, BALANCED_HEARTBEAT, PARTITION_META = 20, 21, 22
"""Numbers of the methods. PARTITION_REGISTER registers or unregisters, depending on its opType.
The BALANCED methods are those of consumers that choose their partitions themselves."""

OP_REGISTER, OP_UNREGISTER = 31, 32
"""Values of opType of PARTITION_REGISTER."""

METHOD_NAMES = {
    PRODUCER_REGISTER: "producer register",
    PRODUCER_HEARTBEAT: "producer heartbeat",
    PRODUCER_CLOSE: "producer close",
    CONSUMER_REGISTER: "consumer register",
    CONSUMER_HEARTBEAT: "consumer heartbeat",
    CONSUMER_CLOSE: "consumer close",
    SEND: "send",
    PARTITION_REGISTER: "partition register",
    PARTITION_HEARTBEAT: "partition heartbeat",
    GET: "get",
    COMMIT: "commit",
    BALANCED_REGISTER: "balanced consumer register",
    BALANCED_HEARTBEAT: "balanced consumer heartbeat",
    PARTITION_META: "partition metadata",
}
"""Names of the methods in logs and errors."""

PROTOCOL_VERSION = 3
"""The protocol version that current Java clients and servers send. It only determines the package name of exception classes."""

ERROR, FATAL = ResponseHeader.ERROR, ResponseHeader.FATAL
"""Statuses of error responses; see RemoteError."""

EXCEPTION_PACKAGE = "org.apache.inlong.tubemq.corerpc.exception."
_OLD_PACKAGE_PREFIXES = {1: "com.tencent.tubemq.", 2: "com.apache.tubemq."}
"""Prefixes that replace `org.apache.inlong.tubemq.`, by the version of the request; "com.apache" is what servers really write."""

_REQUEST_FLAG = b"\x02\x08\x00"
_RESPONSE_FLAG = b"\x02\x08\x01"
"""RpcConnHeader with its length; field 1 is 0 in requests, 1 in responses."""
_SUCCESS_PREFIX = _RESPONSE_FLAG + b"\x04\x08\x00\x18\x03"
"""The first bytes of every successful response of a Java server: RpcConnHeader, and ResponseHeader with SUCCESS and version 3."""

_REQUEST_PREFIX = _REQUEST_FLAG + b"\x04\x08"
"""The first bytes of every request of a Java client: RpcConnHeader, and RequestHeader up to the service type."""
_REQUEST_BODY_AT = 8
"""Offset of RequestBody, with its length, behind this prefix, the service type, and the version with its tag."""
_MAX_LENGTH_BYTES = 5
"""Maximum length of the encoding of a length in protobuf."""
_INT64_END = 1 << 63

_TRANSIENT = ("ServerNotReadyException", "ServiceStoppingException")
"""Exceptions of a server that is starting or stopping. They are retried, although the server sends them with status FATAL."""


class RemoteError(ServerRefused):
    """The server responded with an exception of class `name`.

    `code` is the response's status: 1 (ERROR) if the handler of the request failed, 2 (FATAL) if the server could not read it.
    """

    def __init__(self, name: str, text: str, status: int) -> None:
        failure = Failure.FATAL if status == FATAL and not name.endswith(_TRANSIENT) else Failure.RETRY
        super().__init__(f"{name.rpartition('.')[2]}: {text}", status, failure)
        self.name = name


class StandbyError(RemoteError):
    """The Master is a standby; another Master in the list is active."""


class Request(NamedTuple):
    """A request as a server receives it. `version` is its protocol version; the client waits `timeout_ms` for the response."""

    service: int
    method: int
    version: int
    timeout_ms: int
    body: bytes


M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=SendMessageResponseB2P)


def parse(message_class: type[M], data: bytes) -> M:
    """Parse a protobuf message. Raises RemoteProtocolError if it is damaged, lacks a required field, or its text is not UTF-8."""
    message = _parse_unchecked(message_class, data)
    _check_text(message)
    return message


def parse_flat(message_class: type[S], data: bytes) -> S:
    """Like `parse`, but faster, for a response whose only text is `errMsg`; producers get one such response per message."""
    message = _parse_unchecked(message_class, data)
    if type(message.errMsg) is not str:
        _check_text(message)
    return message


def _parse_unchecked(message_class: type[M], data: bytes) -> M:
    """Parse a protobuf message without checking that its text is UTF-8."""
    try:
        message = message_class.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"{message_class.DESCRIPTOR.name} of {len(data)} bytes cannot be read: {error}") from error
    if not message.IsInitialized():
        raise RemoteProtocolError(f"{message_class.DESCRIPTOR.name} of {len(data)} bytes lacks a required field")
    return message


def _check_text(message: Message) -> None:
    """Raise RemoteProtocolError for text that is not UTF-8: protobuf returns such text as bytes."""
    for name, is_repeated, is_message in _text_fields(message.DESCRIPTOR):
        value = getattr(message, name)
        for element in value if is_repeated else (value,):
            if is_message:
                _check_text(element)
            elif not isinstance(element, str):
                raise RemoteProtocolError(f"{message.DESCRIPTOR.name}.{name} is not UTF-8: {element[:40]!r}")


@cache
def _text_fields(descriptor: Descriptor) -> list[tuple[str, bool, bool]]:
    """Return the fields that are text, or messages that contain text, as (name, is repeated, is a message)."""
    fields = []
    for field in descriptor.fields:
        nested = field.message_type
        if field.type == field.TYPE_STRING or (nested is not None and _text_fields(nested)):
            fields.append((field.name, field.is_repeated, nested is not None))
    return fields


def _read_delimited(payload: bytes, start: int) -> tuple[bytes, int]:
    """Return the message whose length is at offset `start`, and the offset at which the message ends."""
    size, data_start = decode_varint(payload, start)
    end = data_start + size
    if end > len(payload):
        raise RemoteProtocolError(
            f"an RPC message of {size} bytes at offset {data_start} exceeds the payload of {len(payload)} bytes"
        )
    return payload[data_start:end], end


def _encode_delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


@lru_cache(maxsize=256)
def _constant_prefix(service: int, method: int, timeout_ms: int) -> tuple[bytes, bytes]:
    """Return the first two messages of a request, and the part of RequestBody that precedes the length of its field `request`."""
    header = RequestHeader(serviceType=service, protocolVer=PROTOCOL_VERSION).SerializeToString()
    request_tag = b"\x1a"
    body = RequestBody(method=method, timeout=timeout_ms).SerializeToString() + request_tag
    return _REQUEST_FLAG + _encode_delimited(header), body


def encode_request(service: int, method: int, timeout_ms: int, body: bytes) -> bytes:
    """Return the payload of a request. The server drops it after `timeout_ms` (positive) in its queue."""
    return b"".join((*request_prefix(service, method, timeout_ms, len(body)), body))


def request_prefix(service: int, method: int, timeout_ms: int, size: int) -> tuple[bytes, ...]:
    """Return, in pieces, the bytes that precede a body of `size` bytes in the payload of a request."""
    headers, body_prefix = _constant_prefix(service, method, timeout_ms)
    length = encode_varint(size)
    return headers, encode_varint(len(body_prefix) + len(length) + size), body_prefix, length


def decode_request(payload: bytes) -> Request:
    """Parse a request; bytes after it are ignored. Raises RemoteProtocolError."""
    if payload.startswith(_REQUEST_PREFIX):
        try:
            request = _decode_java_request(payload)
        except (IndexError, RemoteProtocolError):  # damaged: the general code says how
            request = None
        if request is not None:
            return request
    _, at = _read_delimited(payload, 0)
    header_bytes, at = _read_delimited(payload, at)
    body_bytes, _ = _read_delimited(payload, at)
    header, body = parse(RequestHeader, header_bytes), parse(RequestBody, body_bytes)
    return Request(header.serviceType, body.method, header.protocolVer, body.timeout, body.request)


def _decode_java_request(payload: bytes) -> Request | None:
    """Parse a request in the layout of Java clients, which begins with _REQUEST_PREFIX; None for another layout.

    Raises IndexError or RemoteProtocolError if the payload is too short.
    """
    service, version_tag, version = payload[5], payload[6], payload[7]
    if service > 0x7F or version_tag != 0x10 or version > 0x7F:
        return None
    # RequestBody: 08, the method, 10, the timeout, 1a, the length of the request, the request. The method takes one byte.
    size, at = decode_varint(payload, _REQUEST_BODY_AT)
    end = at + size
    method = payload[at + 1]
    if payload[at] != 0x08 or method > 0x7F or payload[at + 2] != 0x10:
        return None
    timeout_ms, at = decode_varint(payload, at + 3)
    if payload[at] != 0x1A or timeout_ms >= _INT64_END:
        return None
    length, start = decode_varint(payload, at + 1)
    if start + length != end or end > len(payload) or start - at > 1 + _MAX_LENGTH_BYTES:
        return None
    return Request(service, method, version, timeout_ms, payload[start:end])


def encode_response(method: int, data: bytes, version: int = PROTOCOL_VERSION) -> bytes:
    """Return the payload of a successful response; `method` must be the method of the request."""
    # The bytes are protobuf tags: status (SUCCESS) and version in ResponseHeader, method and data in RspResponseBody.
    header = b"\x04\x08\x00\x18" + encode_varint(version)
    body_prefix = b"\x08" + encode_varint(method) + b"\x12" + encode_varint(len(data))
    return b"".join((_RESPONSE_FLAG, header, encode_varint(len(body_prefix) + len(data)), body_prefix, data))


def encode_error(name: str, text: str, version: int = PROTOCOL_VERSION, *, fatal: bool = False) -> bytes:
    """Return the payload of an error response.

    `name` is the name of an exception class, without a package for a class of EXCEPTION_PACKAGE. `version` is the version of the
    request. Java clients show `text` only up to the first `#`.
    """
    class_name = name if "." in name else EXCEPTION_PACKAGE + name
    if version in _OLD_PACKAGE_PREFIXES:
        class_name = class_name.replace("org.apache.inlong.tubemq.", _OLD_PACKAGE_PREFIXES[version])
    header = ResponseHeader(status=FATAL if fatal else ERROR, protocolVer=version).SerializeToString()
    body = RspExceptionBody(exceptionName=class_name, stackTrace=text).SerializeToString()
    return _RESPONSE_FLAG + _encode_delimited(header) + _encode_delimited(body)


def decode_response(payload: bytes) -> tuple[int, bytes]:
    """Return the method number and the serialized response of the method.

    Raises StandbyError or RemoteError if the response is an exception, RemoteProtocolError for malformed bytes.
    """
    if payload.startswith(_SUCCESS_PREFIX):
        at = len(_SUCCESS_PREFIX)
        # RspResponseBody follows: its length, 08, the method, 12, the length of the data, the data. Nearly all responses are
        # short: the method and both lengths take one byte each. Other responses are left to `_response_body`.
        end = len(payload)
        if (
            at + 5 <= end < at + 0x80
            and (payload[at], payload[at + 4]) == (end - at - 1, end - at - 5)
            and (payload[at + 1], payload[at + 3]) == (0x08, 0x12)
            and payload[at + 2] < 0x80
        ):
            return payload[at + 2], payload[at + 5 :]
    else:
        _, at = _read_delimited(payload, 0)
        header_bytes, at = _read_delimited(payload, at)
        header = parse(ResponseHeader, header_bytes)
        if header.status != ResponseHeader.SUCCESS:
            raise _remote_error(header.status, _read_delimited(payload, at)[0])
    return _response_body(payload, at)


def _response_body(payload: bytes, at: int) -> tuple[int, bytes]:
    """Parse the RspResponseBody whose length is at offset `at`. If it has both fields, in order, the data is copied only once."""
    size, at = decode_varint(payload, at)
    end = at + size
    if end > len(payload):
        raise RemoteProtocolError(f"a response of {size} bytes exceeds its payload of {len(payload)} bytes")
    if payload[at : at + 1] == b"\x08":
        method, data_at = decode_varint(payload, at + 1)
        if payload[data_at : data_at + 1] == b"\x12":
            length, data_at = decode_varint(payload, data_at + 1)
            if data_at + length == end:
                return method, payload[data_at:end]
    body = parse(RspResponseBody, payload[at:end])
    return body.method, body.data


def _remote_error(status: int, data: bytes) -> RemoteError:
    body = parse(RspExceptionBody, data)
    error_class = StandbyError if "StandbyException" in body.exceptionName else RemoteError
    return error_class(body.exceptionName, body.stackTrace, status)
