"""Varints: round trips, and damage is a RemoteProtocolError."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.wire.varint import decode_varint, encode_varint

sizes = st.integers(0, 64).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
"""Values of all lengths."""


@given(sizes)
@example((1 << 64) - 1)
def test_a_varint_has_seven_bits_in_each_byte_and_a_bit_if_more_follow(value: int) -> None:
    count = max(1, -(-value.bit_length() // 7))
    assert encode_varint(value) == bytes([value >> 7 * at & 0x7F | (0x80 if at < count - 1 else 0) for at in range(count)])


@given(value=sizes, rest=st.binary(max_size=3))
def test_varints_round_trip(value: int, rest: bytes) -> None:
    data = encode_varint(value)
    assert decode_varint(b"x" + data + rest, 1) == (value, 1 + len(data))
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_varint(data[:end], 0)


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_varint(b"\xff" * 20, 0)


def test_a_varint_may_be_longer_than_it_must_be() -> None:
    assert decode_varint(b"\x83\x00", 0) == (3, 2)
    assert decode_varint(b"\x83\x80\x00", 0) == (3, 3)
