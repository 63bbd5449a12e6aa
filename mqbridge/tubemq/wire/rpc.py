"""The RPC envelope in a frame's payload: three consecutive protobuf messages, each preceded by its length.

A request is (RpcConnHeader, RequestHeader, RequestBody), a response (RpcConnHeader, ResponseHeader, RspResponseBody or
RspExceptionBody). Bytes after the third message are ignored: C++ clients send up to nine zero bytes there.

Producers make one call per message. So the common layouts are parsed and built by hand, and the body is copied once; all other
layouts are parsed by the generated classes.
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
"""Service types."""

PRODUCER_REGISTER, PRODUCER_HEARTBEAT, PRODUCER_CLOSE = 1, 2, 3
CONSUMER_REGISTER, CONSUMER_HEARTBEAT, CONSUMER_CLOSE = 4, 5, 6
SEND = 13
PARTITION_REGISTER, PARTITION_HEARTBEAT, GET, COMMIT = 15, 16, 17, 18
BALANCED_REGISTER, BALANCED_HEARTBEAT, PARTITION_META = 20, 21, 22
"""Methods. PARTITION_REGISTER registers or unregisters, depending on its opType."""

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

PROTOCOL_VERSION = 3
"""The version that current Java clients and servers send. It only determines the package name of exception classes."""

ERROR, FATAL = ResponseHeader.ERROR, ResponseHeader.FATAL

EXCEPTIONS = "org.apache.inlong.tubemq.corerpc.exception."
_PREFIX = {1: "com.tencent.tubemq.", 2: "com.apache.tubemq."}
"""Package prefix by the protocol version of the request; servers really spell the second one this way."""

_REQUEST_FLAG = b"\x02\x08\x00"
_RESPONSE_FLAG = b"\x02\x08\x01"
_SUCCESS_PREFIX = _RESPONSE_FLAG + b"\x04\x08\x00\x18\x03"
"""The first bytes of every successful response of a Java server."""


_TRANSIENT = ("ServerNotReadyException", "ServiceStoppingException")
"""Exceptions of a server that is starting or stopping; it sends also these with status FATAL."""


class RemoteError(ServerRefused):
    """The server responded with an exception. `code` is 1 (ERROR) if a handler failed, 2 (FATAL) for an unreadable request."""

    def __init__(self, name: str, text: str, status: int) -> None:
        failure = Failure.FATAL if status == FATAL and not name.endswith(_TRANSIENT) else Failure.RETRY
        super().__init__(f"{name.rpartition('.')[2]}: {text}", status, failure)
        self.name = name


class StandbyError(RemoteError):
    """The Master is a standby; another Master in the list is active."""


class Request(NamedTuple):
    """A request as a server receives it. `timeout_ms` is the time for which the client waits for the response."""

    service: int
    method: int
    version: int
    timeout_ms: int
    body: bytes


M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=SendMessageResponseB2P)


def parse(kind: type[M], data: bytes) -> M:
    """Parse a protobuf message; raises RemoteProtocolError if it is damaged or lacks a required field."""
    message = _parse(kind, data)
    _check_text(message)
    return message


def parse_flat(kind: type[S], data: bytes) -> S:
    """Like `parse`, but faster, for a response whose only text is `errMsg`; producers get one such response per message."""
    message = _parse(kind, data)
    if type(message.errMsg) is not str:
        _check_text(message)
    return message


def _parse(kind: type[M], data: bytes) -> M:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"{kind.DESCRIPTOR.name} of {len(data)} bytes cannot be read: {error}") from error
    if not message.IsInitialized():
        raise RemoteProtocolError(f"{kind.DESCRIPTOR.name} of {len(data)} bytes lacks a required field")
    return message


def _check_text(message: Message) -> None:
    """Raise RemoteProtocolError for text that is not UTF-8: protobuf returns it as bytes."""
    for name, repeated, nested in _texts(message.DESCRIPTOR):
        value = getattr(message, name)
        for each in value if repeated else (value,):
            if nested:
                _check_text(each)
            elif not isinstance(each, str):
                raise RemoteProtocolError(f"{message.DESCRIPTOR.name}.{name} is not UTF-8: {each[:40]!r}")


@cache
def _texts(kind: Descriptor) -> list[tuple[str, bool, bool]]:
    """Return the fields that are text, or messages that contain text, as (name, is repeated, is a message)."""
    found = []
    for field in kind.fields:
        nested = field.message_type
        if field.type == field.TYPE_STRING or (nested is not None and _texts(nested)):
            found.append((field.name, field.is_repeated, nested is not None))
    return found


def _part(payload: bytes, at: int) -> tuple[bytes, int]:
    size, at = decode_varint(payload, at)
    end = at + size
    if end > len(payload):
        raise RemoteProtocolError(f"an RPC message of {size} bytes at {at} exceeds the payload of {len(payload)} bytes")
    return payload[at:end], end


def _delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


@lru_cache(maxsize=256)
def _constant_prefix(service: int, method: int, timeout_ms: int) -> tuple[bytes, bytes]:
    header = RequestHeader(serviceType=service, protocolVer=PROTOCOL_VERSION).SerializeToString()
    body = RequestBody(method=method, timeout=timeout_ms).SerializeToString() + b"\x1a"
    return _REQUEST_FLAG + _delimited(header), body


def encode_request(service: int, method: int, timeout_ms: int, body: bytes) -> bytes:
    """Return the payload of a request. `timeout_ms` must be positive: a server drops requests that waited longer."""
    return b"".join((*request_prefix(service, method, timeout_ms, len(body)), body))


def request_prefix(service: int, method: int, timeout_ms: int, size: int) -> tuple[bytes, ...]:
    """Return, in pieces, the bytes that precede a body of `size` bytes in the payload of a request."""
    start, inner = _constant_prefix(service, method, timeout_ms)
    length = encode_varint(size)
    return start, encode_varint(len(inner) + len(length) + size), inner, length


def decode_request(payload: bytes) -> Request:
    """Parse a request; bytes after it are ignored. Raises RemoteProtocolError."""
    _, at = _part(payload, 0)
    header_bytes, at = _part(payload, at)
    body_bytes, _ = _part(payload, at)
    header, body = parse(RequestHeader, header_bytes), parse(RequestBody, body_bytes)
    return Request(header.serviceType, body.method, header.protocolVer, body.timeout, body.request)


def encode_response(method: int, data: bytes, version: int = PROTOCOL_VERSION) -> bytes:
    """Return the payload of a successful response; `method` must be the method of the request."""
    size = encode_varint(len(data))
    inner = b"\x08" + encode_varint(method) + b"\x12"
    header = b"\x04\x08\x00\x18" + encode_varint(version)
    return b"".join((_RESPONSE_FLAG, header, encode_varint(len(inner) + len(size) + len(data)), inner, size, data))


def encode_error(name: str, text: str, version: int = PROTOCOL_VERSION, *, fatal: bool = False) -> bytes:
    """Return the payload of an error response. `name` is an exception class, by default of the package `EXCEPTIONS`.

    Java clients cut `text` at `#`.
    """
    whole = name if "." in name else EXCEPTIONS + name
    if version in _PREFIX:
        whole = whole.replace("org.apache.inlong.tubemq.", _PREFIX[version])
    header = ResponseHeader(status=FATAL if fatal else ERROR, protocolVer=version).SerializeToString()
    body = RspExceptionBody(exceptionName=whole, stackTrace=text).SerializeToString()
    return _RESPONSE_FLAG + _delimited(header) + _delimited(body)


def decode_response(payload: bytes) -> tuple[int, bytes]:
    """Return the method and the serialized response.

    Raises StandbyError or RemoteError if the response is an exception, RemoteProtocolError for malformed bytes.
    """
    if payload.startswith(_SUCCESS_PREFIX):
        at = len(_SUCCESS_PREFIX)
        # Nearly all responses are short: every length and the method take one byte each.
        end = len(payload)
        if (
            at + 5 <= end < at + 0x80
            and (payload[at], payload[at + 4]) == (end - at - 1, end - at - 5)
            and (payload[at + 1], payload[at + 3]) == (0x08, 0x12)
            and payload[at + 2] < 0x80
        ):
            return payload[at + 2], payload[at + 5 :]
    else:
        _, at = _part(payload, 0)
        header_bytes, at = _part(payload, at)
        header = parse(ResponseHeader, header_bytes)
        if header.status != ResponseHeader.SUCCESS:
            raise _remote_error(header.status, _part(payload, at)[0])
    return _response_body(payload, at)


def _response_body(payload: bytes, at: int) -> tuple[int, bytes]:
    """Parse RspResponseBody. If it consists of its two fields in order, its data is copied only once."""
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
    kind = StandbyError if "StandbyException" in body.exceptionName else RemoteError
    return kind(body.exceptionName, body.stackTrace, status)
