"""Send requests are parsed, and responses encoded, as protobuf does it."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B, SendMessageResponseB2P
from mqbridge.tubemq.wire.received_send import NO_CHECKSUM, ReceivedSend, decode_send, encode_send_response
from mqbridge.tubemq.wire.rpc import parse
from mqbridge.tubemq.wire.send import SendRequestEncoder

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
FIELDS: dict[str, Any] = {
    "clientId": "192.0.2.2-24782-1285255605477-1678253010-2.5.0",
    "topicName": "tøpic",
    "partitionId": 10_002,
    "data": b"body",
    "flag": 1,
    "checkSum": -1,
    "sentAddr": -1073741310,
}
REQUEST = SendMessageRequestP2B(**FIELDS)


@given(st.binary(max_size=300), INT32, st.none() | st.text(max_size=9), st.none() | st.text(max_size=9), st.booleans())
def test_a_request_has_the_fields_of_the_producer(
    data: bytes, flag: int, msg_type: str | None, msg_time: str | None, is_authorized: bool
) -> None:
    encoder = SendRequestEncoder("client", "tøpic", 10_002, -1, -1073741310)
    if is_authorized:
        encoder.authorize(AuthorizedInfo(visitAuthorizedToken=-2, authAuthorizedToken="token"))
    received = decode_send(encoder.encode(data, flag, msg_type, msg_time))
    assert received == ReceivedSend("client", "tøpic", 10_002, data, flag, NO_CHECKSUM, msg_type or None)


@pytest.mark.parametrize("missing", FIELDS)
def test_a_request_without_a_required_field_is_refused(missing: str) -> None:
    request = SendMessageRequestP2B.FromString(REQUEST.SerializeToString())
    request.ClearField(missing)
    with pytest.raises(RemoteProtocolError, match="lacks a required field"):
        decode_send(request.SerializePartialToString())


def test_an_authorization_without_its_required_field_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="lacks a required field"):
        decode_send(REQUEST.SerializeToString() + b"\x52\x00")


@pytest.mark.parametrize("field", [b"\x0a\x01\xff", b"\x12\x01\xff", b"\x42\x01\xff"])
def test_texts_that_are_not_utf8_are_refused(field: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="is not UTF-8"):
        decode_send(REQUEST.SerializeToString() + field)


@given(st.binary(max_size=60), st.integers(0, 90), st.integers(0, 3))
def test_damaged_requests_are_protocol_errors(noise: bytes, at: int, removed: int) -> None:
    body = REQUEST.SerializeToString()
    for damaged in (noise, body[:at] + noise + body[at + removed :]):
        with contextlib.suppress(RemoteProtocolError):
            decode_send(damaged)


@given(INT64, INT64, INT64)
def test_a_response_equals_that_of_protobuf(message_id: int, append_time_ms: int, append_offset: int) -> None:
    expected = SendMessageResponseB2P(
        success=True,
        errCode=200,
        errMsg=str(message_id),
        requireAuth=False,
        messageId=message_id,
        appendTime=append_time_ms,
        appendOffset=append_offset,
    )
    encoded = encode_send_response(message_id, append_time_ms, append_offset)
    assert encoded == expected.SerializeToString()
    assert parse(SendMessageResponseB2P, encoded) == expected
