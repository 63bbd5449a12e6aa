"""Attribute block and body, the checksum, the error table."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.payload import checksum, join_payload, split_payload


def test_checksum_vector() -> None:
    assert checksum(b"hello0") == 1882646930


@given(st.binary())
def test_the_checksum_is_never_negative(data: bytes) -> None:
    assert checksum(data) == crc32(data) & 0x7FFFFFFF


@given(st.one_of(st.none(), st.binary(max_size=50)), st.binary(max_size=50))
def test_payloads_round_trip(attributes: bytes | None, body: bytes) -> None:
    assert split_payload(*join_payload(attributes, body)) == (attributes, body)


def test_golden_payload() -> None:
    attributes = b"$msgType$=t1,$msgTime$=202611202350,k=v1"
    assert join_payload(attributes, b"body") == (b"\x00\x00\x00\x28" + attributes + b"body", 1)
    assert join_payload(None, b"body") == (b"body", 0)
    assert join_payload(b"", b"body") == (b"\x00\x00\x00\x00body", 1)


@pytest.mark.parametrize("data", [b"", b"abc", b"a body without a block", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05four"])
def test_a_flag_without_a_block_is_a_body(data: bytes) -> None:
    """The Java SDK's Message.clearAttribute() leaves such data."""
    assert split_payload(data, 1) == (None, data)


def test_error_codes_have_a_failure_class() -> None:
    error = codes.refusal_error("a message for demo", 419, "memory full")
    assert (error.code, error.failure) == (419, Failure.RETRY)
    assert "419 SERVER_RECEIVE_OVERFLOW" in str(error)
    assert "memory full" in str(error)
    assert codes.refusal_error("x", 400, "").failure is Failure.REFUSED
    assert codes.refusal_error("x", 431, "").failure is Failure.FATAL
    assert codes.refusal_error("x", 777, "").failure is Failure.RETRY
