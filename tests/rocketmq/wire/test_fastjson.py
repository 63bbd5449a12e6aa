"""fastjson's JSON: unquoted keys and objects as keys, the same values as standard JSON, and ProtocolError for all else."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.wire import fastjson
from mqbridge.rocketmq.wire.fastjson import MAX_DEPTH, decode_object, loads
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.damaged_bytes import mutated


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        (b'{"t@g":{0:123,-1:45}}', {"t@g": {"0": 123, "-1": 45}}),
        (b'{{"a":1,"b":{0:[]}}:123,{}:4}', {'{"a":1,"b":{0:[]}}': 123, "{}": 4}),
        (
            b' { 0 : [ 1 , 2.5 , -3e2 , true , null , "x\\u00fc\\n" ] , "b" : { } } \n',
            {"0": [1, 2.5, -300.0, True, None, "xü\n"], "b": {}},
        ),
        (b'{0:"tab\there"}', {"0": "tab\there"}),
        (b"[{1:2},[]]", [{"1": 2}, []]),
        (b"{true:1,[1]:2}", {"true": 1, "[1]": 2}),
    ],
)
def test_json_that_orjson_refuses_is_parsed(body: bytes, value: object) -> None:
    assert loads(body) == value


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_standard_json_has_the_same_result_in_both_parsers(value: object, indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with contextlib.suppress(RemoteProtocolError):  # lone surrogates, by orjson only
        assert loads(body) == value
    if "\\ud" not in body.decode("utf-8", "surrogatepass") or ascii_only:
        assert fastjson._parse(body, "a body") == value


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{0:1", b"{0:1}}", b"{0:1,}", b"{0}", b"{0:}", b"{:1}", b"{0:1 1:2}", b"nul", b"\xff", b"{0:01}"]
)
def test_invalid_json_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(body)


@pytest.mark.parametrize("body", [b"{", b"[]", b"{0:1}}"])
def test_the_error_for_an_invalid_body_names_its_class(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the body of TopicStats"):
        decode_object("TopicStats", body, dict)


def test_depth_is_limited() -> None:
    assert loads(b"{0:" * (MAX_DEPTH - 1) + b"[]" + b"}" * (MAX_DEPTH - 1))
    for deep in (b"{0:" * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), b"[" * 100_000, b"{" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(RemoteProtocolError):
            loads(deep)


def test_a_number_of_5000_digits_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError):
        loads(b"{0:" + b"9" * 5000 + b"}")


@given(
    st.text('{}[]":,0123.-eE tfn\\u', max_size=40).map(str.encode) | mutated(vectors.JAVA_TOPIC_STATS, vectors.JAVA_ROUTE_LEGACY)
)
def test_any_text_is_a_protocol_error_or_a_value(body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        loads(body)
