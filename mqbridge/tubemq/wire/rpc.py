"""The envelope inside a frame's payload: three protobuf messages in a row, each behind its length.

A request is (RpcConnHeader, RequestHeader, RequestBody), an answer (RpcConnHeader, ResponseHeader, RspResponseBody or
RspExceptionBody). What follows the third is ignored: C++ clients leave up to nine zero bytes there.

Calls travel once per message, so the common shapes are cut and built by hand around the body, which is copied once; anything
unusual takes the way through the generated classes.
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
"""Methods. PARTITION_REGISTER both takes and gives back, by its opType."""

TAKE, GIVE_BACK = 31, 32
"""opType of PARTITION_REGISTER."""

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
"""What current Java clients and servers say; it decides only how class names of exceptions are spelled."""

ERROR, FATAL = ResponseHeader.ERROR, ResponseHeader.FATAL

EXCEPTIONS = "org.apache.inlong.tubemq.corerpc.exception."
_PREFIX = {1: "com.tencent.tubemq.", 2: "com.apache.tubemq."}
"""The package name by the protocol version of the request; the second is how the servers really spell it."""

_REQUEST_FLAG = b"\x02\x08\x00"
_ANSWER_FLAG = b"\x02\x08\x01"
_GOOD = _ANSWER_FLAG + b"\x04\x08\x00\x18\x03"
"""How every good answer of a Java server begins."""


_PASSING = ("ServerNotReadyException", "ServiceStoppingException")
"""What a server says while it starts or stops, as FATAL too."""


class RemoteError(ServerRefused):
    """The server's handler threw. `code` is the status: 1 ERROR (a handler failed), 2 FATAL (it could not read the request)."""

    def __init__(self, name: str, text: str, status: int) -> None:
        failure = Failure.FATAL if status == FATAL and not name.endswith(_PASSING) else Failure.RETRY
        super().__init__(f"{name.rpartition('.')[2]}: {text}", status, failure)
        self.name = name


class Standby(RemoteError):
    """This Master is not the active one; another of the list is."""


class Request(NamedTuple):
    """A request as a server sees it. `timeout_ms` is how long the client waits for the answer."""

    service: int
    method: int
    version: int
    timeout_ms: int
    body: bytes


M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=SendMessageResponseB2P)


def parse(kind: type[M], data: bytes) -> M:
    """Read a protobuf message; raises RemoteProtocolError when it is damaged or lacks a required field."""
    message = _parse(kind, data)
    _check_text(message)
    return message


def parse_flat(kind: type[S], data: bytes) -> S:
    """`parse` for an answer whose only text is `errMsg`: there is one for each message that is sent."""
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
    """Text that is not UTF-8 comes out of protobuf as bytes. Raises RemoteProtocolError."""
    for name, repeated, nested in _texts(message.DESCRIPTOR):
        value = getattr(message, name)
        for each in value if repeated else (value,):
            if nested:
                _check_text(each)
            elif not isinstance(each, str):
                raise RemoteProtocolError(f"{message.DESCRIPTOR.name}.{name} is not UTF-8: {each[:40]!r}")


@cache
def _texts(kind: Descriptor) -> list[tuple[str, bool, bool]]:
    """The fields of a kind of message that are text or messages with text: name, whether repeated, whether a message."""
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
        raise RemoteProtocolError(f"a part of {size} bytes at {at} of a payload of {len(payload)}")
    return payload[at:end], end


def _delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


@lru_cache(maxsize=256)
def _request_start(service: int, method: int, timeout_ms: int) -> tuple[bytes, bytes]:
    header = RequestHeader(serviceType=service, protocolVer=PROTOCOL_VERSION).SerializeToString()
    body = RequestBody(method=method, timeout=timeout_ms).SerializeToString() + b"\x1a"
    return _REQUEST_FLAG + _delimited(header), body


def encode_request(service: int, method: int, timeout_ms: int, body: bytes) -> bytes:
    """The payload of a request. `timeout_ms` must be positive: a server drops a request that waited longer than it."""
    return b"".join((*request_start(service, method, timeout_ms, len(body)), body))


def request_start(service: int, method: int, timeout_ms: int, size: int) -> tuple[bytes, ...]:
    """What stands before the body, of this size, in the payload of a request; in pieces."""
    start, inner = _request_start(service, method, timeout_ms)
    length = encode_varint(size)
    return start, encode_varint(len(inner) + len(length) + size), inner, length


def decode_request(payload: bytes) -> Request:
    """Read a request, whatever follows it. Raises RemoteProtocolError."""
    _, at = _part(payload, 0)
    header, at = _part(payload, at)
    rest, _ = _part(payload, at)
    head, body = parse(RequestHeader, header), parse(RequestBody, rest)
    return Request(head.serviceType, body.method, head.protocolVer, body.timeout, body.request)


def encode_response(method: int, data: bytes, version: int = PROTOCOL_VERSION) -> bytes:
    """The payload of a good answer; `method` must be the request's."""
    size = encode_varint(len(data))
    inner = b"\x08" + encode_varint(method) + b"\x12"
    header = b"\x04\x08\x00\x18" + encode_varint(version)
    return b"".join((_ANSWER_FLAG, header, encode_varint(len(inner) + len(size) + len(data)), inner, size, data))


def encode_error(name: str, text: str, version: int = PROTOCOL_VERSION, *, fatal: bool = False) -> bytes:
    """The payload of a refusal. `name` is a class of `EXCEPTIONS` or a whole Java name; Java clients cut `text` at `#`."""
    whole = name if "." in name else EXCEPTIONS + name
    if version in _PREFIX:
        whole = whole.replace("org.apache.inlong.tubemq.", _PREFIX[version])
    header = ResponseHeader(status=FATAL if fatal else ERROR, protocolVer=version).SerializeToString()
    body = RspExceptionBody(exceptionName=whole, stackTrace=text).SerializeToString()
    return _ANSWER_FLAG + _delimited(header) + _delimited(body)


def decode_response(payload: bytes) -> tuple[int, bytes]:
    """Method and serialized answer. Raises Standby or RemoteError when the server threw, RemoteProtocolError for nonsense."""
    if payload.startswith(_GOOD):
        at = len(_GOOD)
        # Short answers, which are nearly all: every length and the method are one byte each.
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
        head, at = _part(payload, at)
        header = parse(ResponseHeader, head)
        if header.status != ResponseHeader.SUCCESS:
            raise _remote_error(header.status, _part(payload, at)[0])
    return _response_body(payload, at)


def _response_body(payload: bytes, at: int) -> tuple[int, bytes]:
    """RspResponseBody without a second copy of its data, when its two fields come in order and nothing else does."""
    size, at = decode_varint(payload, at)
    end = at + size
    if end > len(payload):
        raise RemoteProtocolError(f"an answer of {size} bytes in a payload of {len(payload)}")
    if payload[at : at + 1] == b"\x08":
        method, place = decode_varint(payload, at + 1)
        if payload[place : place + 1] == b"\x12":
            length, place = decode_varint(payload, place + 1)
            if place + length == end:
                return method, payload[place:end]
    body = parse(RspResponseBody, payload[at:end])
    return body.method, body.data


def _remote_error(status: int, data: bytes) -> RemoteError:
    body = parse(RspExceptionBody, data)
    kind = Standby if "StandbyException" in body.exceptionName else RemoteError
    return kind(body.exceptionName, body.stackTrace, status)
