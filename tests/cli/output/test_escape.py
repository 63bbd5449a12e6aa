import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.cli.output.escape import escape_line, indent_json, payload_kind, payload_lines
from mqbridge.cli.output.message_format import as_json
from mqbridge.message import Message, Partition


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (None, "tombstone"),
        (b"", "empty"),
        (b"hello\r\n\tworld", "text"),
        ("Grüße, 世界".encode(), "text"),
        (b'{"a": 1}', "JSON"),
        (b" [1]", "JSON"),
        (b"[oops", "text"),
        (b"17", "text"),
        (b"\xff\xfe", "binary"),
        (b"a\x00b", "binary"),
        (b"\x1b[31mred", "binary"),
        ("left\u202eright".encode(), "binary"),
    ],
)
def test_payload_kinds(payload: bytes | None, kind: str) -> None:
    assert payload_kind(Message(payload)) == kind


CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\t"}


@given(st.binary(max_size=200), st.integers(0, 300))
def test_no_control_character_reaches_a_terminal(payload: bytes, limit: int) -> None:
    for shown in payload_lines(Message(payload), limit):
        assert not set(shown) & CONTROLS
    assert escape_line(payload).isprintable() or not payload.isascii()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_indented_json_has_the_same_value(value: object) -> None:
    assert json.loads(indent_json(json.dumps(value))) == value
    assert json.loads(indent_json(json.dumps(value, ensure_ascii=False, indent=3))) == value


def test_indenting_changes_no_number_and_drops_no_key() -> None:
    assert indent_json('{"a":1.10,"a":123456789012345678901234567890,"b":{},"c":[ ]}').split() == [
        "{", '"a":', "1.10,", '"a":', "123456789012345678901234567890,", '"b":', "{},", '"c":', "[]", "}",
    ]  # fmt: skip


def test_a_hex_dump() -> None:
    assert payload_lines(Message(bytes(range(18)) + b"A"), 100) == [
        "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................",
        "00000010  10 11 41                                         ..A",
    ]


def test_bytes_that_are_not_utf8_are_escaped_in_texts() -> None:
    """They are lone surrogates in Python, which neither a terminal nor JSON takes."""
    message = Message(b"x", (("ci\udcb4", "é\udcf3"),), "k\udcff", keys=("\ud800",), position=(1,))
    fields = as_json(Partition("c", "t", "0", 0), message)
    assert fields["properties"] == [["ci\\xb4", "é\\xf3"]]
    assert (fields["key"], fields["keys"]) == ("k\\xff", ["\\ud800"])
    assert orjson.loads(orjson.dumps(fields)) == fields
    assert escape_line("a\udcb4\n") == "a\\xb4\\x0a"
