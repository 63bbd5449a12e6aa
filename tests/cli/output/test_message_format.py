import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.cli.output.message_format import as_json, compile_format
from mqbridge.errors import ConfigError
from mqbridge.message import Message, Partition

PARTITION = Partition("c", "orders", "b1:2", 2)
MESSAGE = Message(
    "größer".encode(),
    (("a", "1"), ("a", "2")),
    key="k",
    msg_type="paid",
    attributes=b"x=y",
    event_time=5,
    publish_time=7,
    position=(12, 3),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t [%p] %o: %k %s\n", "orders [b1:2] 12:3: k größer\n"),
        ("%S %K %T %g %a %h %%", "8 1 5 paid x=y a=1,a=2 %"),
        (r"\t\r\0\\\x41", "\t\r\0\\A"),
        ("ü{}%s", "ü{}größer"),
        ("", ""),
        ("\\", "\\"),
        ("50%", "50%"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert compile_format(text)(PARTITION, MESSAGE) == expected.encode()


def test_missing_fields_are_formatted_as_empty() -> None:
    assert compile_format("%k|%s|%S|%K|%T|%g|%a|%h")(PARTITION, Message(None)) == b"||-1|-1||||"


def test_a_payload_is_written_byte_for_byte() -> None:
    payload = bytes(range(256))
    assert compile_format("%s")(PARTITION, Message(payload)) == payload


@pytest.mark.parametrize("text", ["%q", r"\q", "%s %é"])
def test_unknown_tokens_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="Known: "):
        compile_format(text)


@given(st.text(alphabet="%\\tpoksSKThga\nx4é "))
def test_any_format_works_or_is_rejected(text: str) -> None:
    try:
        write = compile_format(text)
    except ConfigError:
        return
    assert isinstance(write(PARTITION, MESSAGE), bytes)


def test_json_has_every_field_with_a_value() -> None:
    assert as_json(PARTITION, MESSAGE) == {
        "topic": "orders",
        "partition": "b1:2",
        "position": "12:3",
        "payload": "größer",
        "properties": [["a", "1"], ["a", "2"]],
        "key": "k",
        "msg_type": "paid",
        "attributes": "x=y",
        "event_time": 5,
        "publish_time": 7,
    }


def test_json_distinguishes_null_empty_and_binary_payloads() -> None:
    assert as_json(PARTITION, Message(None))["payload"] is None
    assert as_json(PARTITION, Message(b""))["payload"] == ""
    assert as_json(PARTITION, Message(b"\xff", key=b"\xfe"))["payload_base64"] == "/w=="
    assert as_json(PARTITION, Message(b"\xff", key=b"\xfe"))["key_base64"] == "/g=="
