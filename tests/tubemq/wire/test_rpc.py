"""The RPC envelope: golden bytes in both directions, other SDKs' encodings, errors."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure, ProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageResponseB2P
from mqbridge.tubemq.wire.pb.master_pb2 import RegisterRequestP2M
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
