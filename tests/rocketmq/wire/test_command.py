"""Frames: golden bytes are encoded and decoded, also when they are split; limits; damage raises nothing but ProtocolError."""

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire.codes import LANGUAGE, VERSION, Code, Status
from mqbridge.rocketmq.wire.command import (
    LANGUAGES,
    MAX_FRAME_BYTES,
    MAX_REMARK_CHARS,
    ONEWAY,
    RESPONSE,
    Command,
    decode,
    encode,
    measure,
)
from mqbridge.wire.cutter import FrameCutter
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.damaged_bytes import mutated

GOLDEN = [vectors.JSON_REQUEST, vectors.BINARY_REQUEST]
JAVA = [
    vectors.JAVA_COMMAND_SEND,
    vectors.JAVA_COMMAND_SEND_V1,
    vectors.JAVA_COMMAND_PULL,
    vectors.JAVA_COMMAND_PULL_BINARY,
    vectors.JAVA_COMMAND_ANSWER,
]


def fields_of(command: Command) -> tuple[object, ...]:
    return tuple(getattr(command, name) for name in sorted(Command.__slots__))


def json_frame(header: object, body: bytes = b"", kind: int = 0) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(data) + len(body), kind << 24 | len(data)) + data + body


@pytest.mark.parametrize("binary", [False, True])
def test_a_long_remark_is_shortened(binary: bool) -> None:
    text = "User:" * 100_000
    remark = decode(encode(Command(16, remark=text, flag=RESPONSE), binary=binary)).remark
    assert remark is not None
    assert len(remark) < 2 * MAX_REMARK_CHARS
    assert remark.startswith(text[:MAX_REMARK_CHARS])
    assert decode(encode(Command(16, remark="short", flag=RESPONSE), binary=binary)).remark == "short"


@pytest.mark.parametrize("frame", GOLDEN, ids=["json", "binary"])
def test_golden_frames_are_encoded_and_decoded(frame: bytes) -> None:
    binary = frame is vectors.BINARY_REQUEST
    command = decode(frame)
    assert (command.code, command.ext, command.opaque, command.flag) == (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, 1, 0)
    assert (command.language, command.version, command.remark, command.body) == (LANGUAGE, VERSION, None, b"")
    assert command.binary is binary
    assert encode(command, binary=binary) == frame


def test_frames_of_java() -> None:
    send, send_v1, pull, binary, answer = map(decode, JAVA)
    assert (send.code, send.opaque, send.language, send.version, send.body) == (310, 7, "JAVA", 0, b"hello")
    assert send.ext["i"] == "TAGS\x01a\x02"
    assert (send_v1.code, send_v1.opaque, send_v1.ext["topic"]) == (10, -2, "T1")
    assert (pull.ext, pull.remark, pull.binary) == (binary.ext, None, False)
    assert (binary.code, binary.remark, binary.binary) == (11, "r", True)
    assert (answer.code, answer.is_response, answer.remark, answer.ext) == (17, True, "No topic ü", {})


@pytest.mark.parametrize("frame", GOLDEN + JAVA)
def test_a_frame_may_be_split_anywhere(frame: bytes) -> None:
    stream = frame + vectors.JSON_REQUEST
    for split in range(1, len(stream)):
        cutter = FrameCutter(measure)
        assert cutter.feed(stream[:split]) + cutter.feed(stream[split:]) == [frame, vectors.JSON_REQUEST]


def test_frames_may_arrive_byte_by_byte() -> None:
    cutter = FrameCutter(measure)
    stream = b"".join(GOLDEN + JAVA)
    frames = [frame for at in range(len(stream)) for frame in cutter.feed(stream[at : at + 1])]
    assert frames == GOLDEN + JAVA
    assert cutter.buffered == 0


def test_measure_never_requires_bytes_beyond_the_frame() -> None:
    frame = vectors.JSON_REQUEST
    for have in range(len(frame)):
        assert have < measure(frame[:have], 0) <= len(frame)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
some = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)


@given(int32, st.dictionaries(texts, texts, max_size=6), st.binary(max_size=50), int32, st.integers(0, 3), st.none() | texts)
def test_json_round_trip(code: int, ext: dict[str, str], body: bytes, opaque: int, flag: int, remark: str | None) -> None:
    command = Command(code, ext, body, opaque=opaque, flag=flag, remark=remark)
    assert fields_of(decode(encode(command))) == fields_of(command)


@given(
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.dictionaries(some, some, max_size=6),
    st.binary(max_size=50),
    int32,
    st.none() | some,
    st.sampled_from(LANGUAGES),
)
def test_binary_round_trip(code: int, ext: dict[str, str], body: bytes, opaque: int, remark: str | None, language: str) -> None:
    command = Command(code, ext, body, opaque=opaque, remark=remark, language=language, binary=True)
    assert fields_of(decode(encode(command, binary=True))) == fields_of(command)


def test_flags_tell_responses_and_oneway_requests() -> None:
    assert (Command(1).is_response, Command(1).is_oneway) == (False, False)
    assert Command(1, flag=RESPONSE).is_response
    assert Command(1, flag=ONEWAY).is_oneway


def test_a_response_repeats_opaque_and_encoding() -> None:
    request = decode(vectors.JAVA_COMMAND_PULL_BINARY)
    answer = request.answer(Status.PULL_NOT_FOUND, {"a": "b"}, b"x", "nothing")
    assert (answer.code, answer.opaque, answer.flag, answer.binary) == (19, 8, RESPONSE, True)
    assert (answer.ext, answer.body, answer.remark) == ({"a": "b"}, b"x", "nothing")


# --- tolerance ------------------------------------------------------------------------------------------------------------


def test_numbers_and_booleans_of_old_cpp_clients_become_text() -> None:
    ext = {"queueId": 3, "big": 1 << 40, "unit": False, "batch": True, "tps": 1.5, "none": None, "text": "x"}
    assert decode(json_frame({"code": 10, "extFields": ext})).ext == {
        "queueId": "3",
        "big": str(1 << 40),
        "unit": "false",
        "batch": "true",
        "tps": "1.5",
        "text": "x",
    }


@pytest.mark.parametrize("ext", [{}, {"extFields": None}, {"extFields": {}}], ids=["absent", "null", "empty"])
def test_absent_fields_are_an_empty_dict(ext: dict[str, object]) -> None:
    command = decode(json_frame({"code": 1} | ext))
    assert command.ext == {}
    assert (command.opaque, command.flag, command.version, command.language) == (0, 0, 0, "OTHER")


def test_unknown_members_blanks_and_quoted_numbers() -> None:
    header = b' {"zone":{"a":[1]}, "code":"34" ,"opaque":null,"serializeTypeCurrentRPC":"JSON"}\n'
    assert decode(json_frame(header)).code == 34


def test_ext_fields_are_written_even_if_empty() -> None:
    """Java dereferences extFields without a check for null."""
    assert json.loads(encode(Command(0))[8:])["extFields"] == {}


def test_an_unknown_language_and_empty_texts_of_a_binary_header() -> None:
    fields = struct.pack(">h", 1) + b"k" + struct.pack(">i", 0) + struct.pack(">h", 0) + struct.pack(">i", 1) + b"v"
    header = struct.pack(">hbhiii", 34, 99, 479, 5, 0, 0) + struct.pack(">i", len(fields)) + fields
    command = decode(json_frame(header, kind=1))
    assert (command.language, command.ext, command.remark) == ("OTHER", {}, None)


# --- limits and damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        (b"\x16\x03\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n", "RocketMQ port"),
        (struct.pack(">II", MAX_FRAME_BYTES - 3, 0), "16777213"),
        (struct.pack(">II", 3, 0), "3 bytes"),
        (struct.pack(">II", 10, 7), "header"),
        (struct.pack(">II", 10, 2 << 24), "encoding 2"),
    ],
    ids=["tls", "http", "too large", "too small", "header beyond the frame", "unknown type"],
)
def test_an_invalid_prefix_is_refused_before_the_frame_is_complete(prefix: bytes, word: str) -> None:
    with pytest.raises(RemoteProtocolError, match=word):
        FrameCutter(measure).feed(prefix)


def test_the_largest_frame_is_encoded_and_a_larger_one_refused() -> None:
    empty = len(encode(Command(0)))
    largest = encode(Command(0, body=bytes(MAX_FRAME_BYTES - empty)))
    assert len(largest) == MAX_FRAME_BYTES
    assert FrameCutter(measure).feed(largest) == [largest]
    with pytest.raises(LocalProtocolError):
        encode(Command(0, body=bytes(MAX_FRAME_BYTES - empty + 1)))


@pytest.mark.parametrize(
    "command",
    [Command(Code.POP_MESSAGE), Command(1, {"k" * 40000: "v"}), Command(1, {"k": "\ud800"}), Command(1, opaque=1 << 31)],
    ids=["code of 32 bits", "long key", "no Unicode", "opaque"],
)
def test_a_field_too_large_for_a_binary_header_is_refused(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode(command, binary=True)


def test_an_ext_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        encode(Command(1, {"k": "\ud800"}))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        {"code": "x"},
        {"code": 1 << 31},
        {"code": [1]},
        {"code": 1, "opaque": 1.5},
        {"code": 1, "extFields": [1]},
        {"code": 1, "extFields": {"a": {"b": 1}}},
    ],
)
def test_invalid_json_headers_are_protocol_errors(header: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(json_frame(header))


@given(mutated(*GOLDEN, *JAVA))
def test_damage_is_a_protocol_error_or_another_command(data: bytes) -> None:
    try:
        for frame in FrameCutter(measure).feed(data):
            decode(frame)
    except ProtocolError:
        pass


@given(st.binary(max_size=100), st.integers(0, 1))
def test_any_header_is_a_protocol_error_or_a_command(header: bytes, kind: int) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode(json_frame(header, kind=kind))


@given(st.binary(max_size=40))
def test_decode_refuses_incomplete_frames(data: bytes) -> None:
    for frame in (data, vectors.JSON_REQUEST + data[:1] + b"x", vectors.JSON_REQUEST[: len(data)]):
        with pytest.raises(RemoteProtocolError):
            decode(frame)
