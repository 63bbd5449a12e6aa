"""The property string: encoding, decoding, entries that are skipped, and properties that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.properties import MAX_BYTES, SYSTEM_NAMES, Name, decode, encode, find, why_invalid

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
pairs = st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "a"]) | texts, texts), max_size=8)


def test_a_property_string_is_encoded_and_decoded() -> None:
    assert encode([("TAGS", "a"), ("k", "ü")]) == b"TAGS\x01a\x02k\x01\xc3\xbc\x02"
    assert encode([]) == b""


@given(pairs)
def test_round_trip_in_order_with_repeats(properties: list[tuple[str, str]]) -> None:
    data = encode(properties)
    assert decode(data) == properties
    assert decode(data[:-1]) == properties  # the last separator may be missing


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (b"", []),
        (b"a\x01b", [("a", "b")]),
        (b"a\x01\x02b\x01c\x02", [("b", "c")]),
        (b"\x01v\x02b\x01c\x02", [("b", "c")]),
        (b"junk\x02b\x01c\x02\x02\x02", [("b", "c")]),
        (b"a\x01b\x01c\x02", [("a", "b\x01c")]),
        (b"a\x01b\x02a\x01c\x02", [("a", "b"), ("a", "c")]),
        (b"a\x01=,; \x02", [("a", "=,; ")]),
    ],
)
def test_entries_without_name_or_value_are_skipped(data: bytes, properties: list[tuple[str, str]]) -> None:
    assert decode(data) == properties


@pytest.mark.parametrize(
    "pair", [("", "v"), ("k", ""), ("a\x01b", "v"), ("a\x02", "v"), ("k", "\x01"), ("k", "a\x02b"), ("", "")], ids=repr
)
def test_an_invalid_property_is_refused(pair: tuple[str, str]) -> None:
    assert why_invalid(*pair) is not None
    for properties in ([pair], [("x", "y"), pair], [pair, ("x", "y")]):
        with pytest.raises(LocalProtocolError):
            encode(properties)


@given(st.lists(st.tuples(st.text("ab\x01\x02", max_size=3), st.text("ab\x01\x02", max_size=3)), max_size=4))
def test_encode_refuses_exactly_the_pairs_that_why_invalid_names(properties: list[tuple[str, str]]) -> None:
    if any(why_invalid(*pair) for pair in properties):
        with pytest.raises(LocalProtocolError):
            encode(properties)
    else:
        assert decode(encode(properties)) == properties


def test_the_size_has_a_limit() -> None:
    fits = "x" * (MAX_BYTES - 3)
    assert len(encode([("k", fits)])) == MAX_BYTES
    for value in (fits + "x", "ü" * (MAX_BYTES // 2), "\ud800"):
        with pytest.raises(LocalProtocolError):
            encode([("k", value)])


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"\xff"]), max_size=20).map(b"".join))
def test_any_bytes_are_decoded_or_a_protocol_error(data: bytes) -> None:
    try:
        properties = decode(data)
    except RemoteProtocolError:
        return
    assert all(name and value for name, value in properties)
    assert find(data, "TAGS") == dict(properties).get("TAGS")


@given(pairs)
def test_find_returns_the_last_value_that_decode_returns(properties: list[tuple[str, str]]) -> None:
    data = encode(properties)
    for name in ("TAGS", "KEYS", "a", "absent"):
        assert find(data, name) == find(data[:-1], name) == dict(properties).get(name)


def test_find_skips_thousands_of_entries_without_a_value() -> None:
    assert find(b"TAGS\x01a\x02" + b"TAGS\x01\x02" * 5000, "TAGS") == "a"
    assert find(b"TAGS\x01\x02" * 5000, "TAGS") is None
    assert find(b"TAGS\x01\xff", "TAGS") == "\udcff"


def test_system_names_are_complete() -> None:
    assert {Name.KEYS, Name.SHARDING_KEY, "1ST_POP_TIME", "__CRC32#", "__transactionId__"} <= SYSTEM_NAMES
    assert all(isinstance(name, str) for name in SYSTEM_NAMES)
    assert len(SYSTEM_NAMES) > 50
