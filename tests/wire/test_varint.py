"""Varints: round trips, and damage is a RemoteProtocolError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.wire.varint import decode_varint, encode_varint


@given(value=st.integers(0, (1 << 64) - 1), rest=st.binary(max_size=3))
def test_varints_round_trip(value: int, rest: bytes) -> None:
    data = encode_varint(value)
    assert decode_varint(b"x" + data + rest, 1) == (value, 1 + len(data))
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_varint(data[:end], 0)


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_varint(b"\xff" * 20, 0)
