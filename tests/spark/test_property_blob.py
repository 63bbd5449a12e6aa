"""Properties as one binary value: golden bytes, round trips, invalid bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Message
from mqbridge.spark.property_blob import decode_pairs, encode_pairs, encode_properties

any_text = st.text(max_size=12)
"""Any text without lone surrogates, which `st.text()` does not generate. The last golden blob has one."""
any_pairs = st.lists(st.tuples(any_text, st.one_of(any_text, st.text(min_size=60, max_size=300))), max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("pairs", "blob"),
    [
        ((), b""),
        ((("a", ""),), b"\x01\x03\x01\x01a\x00"),
        ((("zone", "eu-1"), ("name", "grün")), b"\x01\x0b\x02\x04\x04zonename\x04\x05eu-1gr\xc3\xbcn"),
        ((("a", "1"), ("a", "2"), ("", "3")), b"\x01\x06\x03\x01\x01\x00aa\x01\x01\x01123"),
        ((("a", "x" * 256),), b"\x02\x03\x01\x01a\x00\x01\x00\x00" + b"x" * 256),
        ((("n" * 200, "\ud800"),), b"\x01\xcb\x01\x01\xc8\x01" + b"n" * 200 + b"\x03\xed\xa0\x80"),
    ],
)
def test_a_blob_has_these_bytes(pairs: tuple[tuple[str, str], ...], blob: bytes) -> None:
    assert encode_pairs(pairs) == blob
    assert decode_pairs(blob) == pairs


@given(st.lists(any_pairs, max_size=4))
def test_pairs_are_read_back_in_order_with_repeated_names(rows: list[tuple[tuple[str, str], ...]]) -> None:
    blobs = encode_properties([Message(b"", pairs) for pairs in rows])
    assert [decode_pairs(blob) for blob in blobs] == rows


def test_null_is_no_property() -> None:
    assert decode_pairs(None) == ()


@given(any_pairs.filter(bool), st.data())
def test_a_damaged_blob_raises_value_error_or_yields_other_pairs(pairs: tuple[tuple[str, str], ...], data: st.DataObject) -> None:
    blob = bytearray(encode_pairs(pairs))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(blob[: data.draw(st.integers(1, len(blob)))])
    with contextlib.suppress(ValueError):
        decode_pairs(damaged)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_raise_no_other_error_than_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_pairs(data)
