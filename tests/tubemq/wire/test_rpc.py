"""The RPC envelope: golden bytes in both directions, other SDKs' encodings, errors."""

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqbridge.errors import Failure, ProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageResponseB2P
from mqbridge.tubemq.wire.pb.master_pb2 import RegisterRequestP2M
from mqbridge.tubemq.wire.pb.rpc_pb2 import RequestBody, RequestHeader, RpcConnHeader
from mqbridge.wire.varint import decode_varint
from tests.example_counts import examples
from tests.tubemq.wire.vectors import REGISTER_BODY, REGISTER_PAYLOAD, REGISTER_REQUEST


def test_a_real_request_both_ways() -> None:
    assert rpc.encode_request(rpc.MASTER, rpc.PRODUCER_REGISTER, 10_000, REGISTER_BODY) == REGISTER_PAYLOAD
    request = rpc.decode_request(REGISTER_PAYLOAD)
    assert request == (rpc.MASTER, rpc.PRODUCER_REGISTER, 3, 10_000, REGISTER_BODY)
    assert rpc.parse(RegisterRequestP2M, request.body) == REGISTER_REQUEST
    assert REGISTER_REQUEST.SerializeToString() == REGISTER_BODY


@pytest.mark.parametrize("zeros", range(10))
def test_trailing_zeros_of_cpp_clients(zeros: int) -> None:
    assert rpc.decode_request(REGISTER_PAYLOAD + bytes(zeros)).body == REGISTER_BODY


def test_a_successful_response_of_a_java_server() -> None:
    payload = bytes.fromhex("020801" + "0408001803" + "07" + "080d" + "1203") + b"abc"
    assert rpc.decode_response(payload) == (13, b"abc")
    assert rpc.encode_response(13, b"abc") == payload


@pytest.mark.parametrize(
    "payload",
    [
        bytes.fromhex("020801" + "020800" + "07" + "080d" + "1203") + b"abc",
        bytes.fromhex("020801" + "0608001003" + "1803" + "07" + "080d" + "1203") + b"abc",
        bytes.fromhex("020801" + "0408001803" + "07" + "1203") + b"abc" + bytes.fromhex("080d"),
        bytes.fromhex("020801" + "0408001803" + "09" + "080d" + "1203") + b"abc" + bytes.fromhex("3001"),
    ],
    ids=["no version", "with service type", "fields in another order", "an unknown field"],
)
def test_successful_responses_in_other_layouts(payload: bytes) -> None:
    assert rpc.decode_response(payload) == (13, b"abc")


@given(st.integers(1, 22), st.binary(max_size=70_000), st.sampled_from([1, 2, 3]))
def test_answers_round_trip(method: int, data: bytes, version: int) -> None:
    assert rpc.decode_response(rpc.encode_response(method, data, version)) == (method, data)


@given(st.integers(1, 3), st.integers(1, 22), st.integers(1, 600_000), st.binary(max_size=70_000))
def test_requests_round_trip(service: int, method: int, timeout_ms: int, body: bytes) -> None:
    payload = rpc.encode_request(service, method, timeout_ms, body)
    assert rpc.decode_request(payload) == (service, method, 3, timeout_ms, body)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (1, "com.tencent.tubemq.corerpc.exception.StandbyException"),
        (2, "com.apache.tubemq.corerpc.exception.StandbyException"),
        (3, "org.apache.inlong.tubemq.corerpc.exception.StandbyException"),
    ],
)
def test_standby_in_every_spelling(version: int, name: str) -> None:
    payload = rpc.encode_error("StandbyException", "ask the other one", version)
    with pytest.raises(rpc.StandbyError, match="ask the other one") as caught:
        rpc.decode_response(payload)
    assert caught.value.name == name
    assert caught.value.failure is Failure.RETRY


def test_a_request_that_the_server_could_not_read() -> None:
    payload = rpc.encode_error("java.lang.Exception", "IPC server handle request error :Unsupported method ID :99", fatal=True)
    with pytest.raises(rpc.RemoteError, match="Unsupported method ID :99") as caught:
        rpc.decode_response(payload)
    assert (caught.value.name, caught.value.code, caught.value.failure) == ("java.lang.Exception", 2, Failure.FATAL)


def test_a_server_that_is_starting_is_not_fatal() -> None:
    payload = rpc.encode_error("ServerNotReadyException", "RpcServer is not running yet", fatal=True)
    with pytest.raises(rpc.RemoteError) as caught:
        rpc.decode_response(payload)
    assert caught.value.failure is Failure.RETRY


@given(st.binary(max_size=120))
def test_nonsense_is_a_protocol_error(data: bytes) -> None:
    for decode in (rpc.decode_request, rpc.decode_response):
        with contextlib.suppress(ProtocolError, ServerRefused):
            decode(data)


@given(st.integers(0, len(REGISTER_PAYLOAD)), st.binary(max_size=20))
def test_a_damaged_request_is_a_protocol_error(at: int, noise: bytes) -> None:
    data = REGISTER_PAYLOAD[:at] + noise + REGISTER_PAYLOAD[at + len(noise) :]
    with contextlib.suppress(ProtocolError):
        rpc.decode_request(data)


def test_a_missing_required_field() -> None:
    with pytest.raises(RemoteProtocolError, match="SendMessageResponseB2P"):
        rpc.parse(SendMessageResponseB2P, b"\x08\x01")


def parse_by_protobuf(payload: bytes) -> rpc.Request | None:
    """Return the request as protobuf parses it; None if it is damaged."""
    parts, at = [], 0
    try:
        for _ in range(3):
            size, start = decode_varint(payload, at)
            if start + size > len(payload):
                return None
            parts.append(payload[start : (at := start + size)])
        header, body = rpc.parse(RequestHeader, parts[1]), rpc.parse(RequestBody, parts[2])
    except RemoteProtocolError:
        return None
    return rpc.Request(header.serviceType, body.method, header.protocolVer, body.timeout, body.request)


def must_agree(payload: bytes) -> None:
    expected = parse_by_protobuf(payload)
    if expected is None:
        with pytest.raises(RemoteProtocolError):
            rpc.decode_request(payload)
    else:
        found = rpc.decode_request(payload)
        assert found == expected
        assert type(found) is rpc.Request
        assert type(found.body) is bytes


def delimited(*messages: bytes) -> bytes:
    return b"".join(rpc._encode_delimited(message) for message in messages)


int32s, int64s = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
small = st.integers(0, 200)


@given(
    st.fixed_dictionaries({}, optional={"serviceType": small | int32s, "protocolVer": small | int32s}),
    st.fixed_dictionaries({"method": small | int32s}, optional={"timeout": small | int64s, "request": st.binary(max_size=300)}),
    st.booleans(),
    st.binary(max_size=9),
)
def test_requests_are_parsed_as_by_protobuf(header: dict[str, int], body: dict[str, object], traced: bool, after: bytes) -> None:
    connection = RpcConnHeader(flag=0, traceId=1 if traced else None)
    parts = (connection, RequestHeader(**header), RequestBody(**body))  # type: ignore[arg-type]
    must_agree(delimited(*(part.SerializeToString() for part in parts)) + after)


request_bytes = st.sampled_from(
    [
        *(b"\x08", b"\x0d", b"\x8d\x00", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x10", b"\x90\x4e", b"\x1a", b"\x03"),
        *(b"abc", b"\x00", b"\x83\x00", b"\x83\x80\x80\x80\x80\x00", b"\x08\x0d\x10\x90\x4e\x1a\x03abc", b"\x20\x01", b"\x0c"),
        b"\xff" * 10,
    ]
)


@settings(max_examples=examples(2000))
@given(st.lists(request_bytes, max_size=8).map(b"".join), st.lists(request_bytes, max_size=4).map(b"".join))
@example(b"\x08\x0d\x10\x90\x4e\x1a\x83\x80\x80\x80\x80\x00abc", b"\x08\x03\x10\x03")
@example(b"\x08\x0d\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x03abc", b"\x08\x03\x10\x03")
@example(b"\x08\x0d\x10\x05\x1a\x04abc", b"\x08\x03\x10\x03")
@example(b"\x08\x0d\x10\x05\x1a\x02abc", b"\x08\x03\x10\x03")
def test_odd_requests_are_parsed_as_by_protobuf(body: bytes, header: bytes) -> None:
    must_agree(b"\x02\x08\x00" + delimited(header, body))


@settings(max_examples=examples(2000))
@given(st.integers(0, len(REGISTER_PAYLOAD)), st.binary(max_size=6), st.integers(0, 6))
def test_damaged_requests_are_parsed_as_by_protobuf(at: int, noise: bytes, removed: int) -> None:
    must_agree(REGISTER_PAYLOAD[:at] + noise + REGISTER_PAYLOAD[at + removed :])


def test_every_truncation_of_a_request_is_a_protocol_error() -> None:
    for end in range(len(REGISTER_PAYLOAD)):
        with pytest.raises(RemoteProtocolError):
            rpc.decode_request(REGISTER_PAYLOAD[:end])
