"""Small formats of the protocol: codes, ids, tags, delay levels, receipts, signatures, compression."""

import contextlib
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import Failure, LocalProtocolError, RemoteProtocolError
from mqbridge.pulsar.wire import hashing
from mqbridge.rocketmq.wire import codes, compression, delay_levels, ids, receipts, signing, tags
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.receipts import ReceiptHandle
from mqbridge.rocketmq.wire.record import decode_records
from mqbridge.wire.javahash import java_string_hash
from tests.rocketmq.wire import vectors

# --- codes ----------------------------------------------------------------------------------------------------------------


def test_codes_have_names() -> None:
    assert codes.request_name(Code.SEND_BATCH_MESSAGE) == "SEND_BATCH_MESSAGE"
    assert codes.request_name(999_999) == "request 999999"
    assert codes.status_name(17) == "TOPIC_NOT_EXIST"
    line = vars(Status).get("__firstlineno__", 109)  # an attribute of each class since Python 3.13
    assert codes.status_name(line) == f"response {line}"


def test_every_status_but_success_has_a_meaning() -> None:
    statuses = {value for name, value in vars(Status).items() if name.isupper()}
    assert statuses - {Status.SUCCESS} == set(codes.MEANINGS)


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (1, Failure.RETRY),
        (2, Failure.RETRY),
        (13, Failure.REFUSED),
        (14, Failure.REFRESH),
        (16, Failure.FATAL),
        (17, Failure.REFRESH),
        (215, Failure.RETRY),
        (1500, Failure.REFRESH),
        (77777, Failure.RETRY),
    ],
)
def test_each_status_has_its_remedy(status: int, failure: Failure) -> None:
    assert codes.failure_of(status) is failure


def test_the_error_of_a_refusal_names_the_request_and_the_reason() -> None:
    error = codes.refusal_error("SEND_MESSAGE_V2 to 127.0.0.1:10911", 13, "\nthe message is illegal\nat Foo.java")
    assert (error.code, error.failure) == (13, Failure.REFUSED)
    assert str(error).startswith("SEND_MESSAGE_V2 to 127.0.0.1:10911 was refused with 13 MESSAGE_ILLEGAL")
    assert str(error).endswith(": the message is illegal")
    assert codes.refusal_error("x", 1, None).failure is Failure.RETRY
    assert codes.refusal_error("x", 1, "org.apache.rocketmq.acl.common.AclException: no").failure is Failure.FATAL


# --- hashes and tags ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("TagA", 2598919), ("TagB", 2598920), ("polygenelubricants", -(1 << 31)), ("\U0001f600", 1772899), ("", 0)],
)
def test_java_hashes_with_their_sign(text: str, value: int) -> None:
    assert java_string_hash(text) == value
    assert hashing.java_string_hash(text) == value & 0x7FFFFFFF
    assert tags.tags_code(text) == value


def test_no_tag_has_code_0() -> None:
    assert tags.tags_code(None) == 0


@pytest.mark.parametrize(
    ("expression", "found"),
    [("*", []), ("", []), (" * ", []), ("a", ["a"]), ("a || b", ["a", "b"]), ("a||b|| a ||", ["a", "b"]), ("a|b", ["a|b"])],
)
def test_tag_expressions(expression: str, found: list[str]) -> None:
    assert tags.split_expression(expression) == found


# --- ids ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("7F00000100002A9F00000000000003E8", "127.0.0.1:10911"),
        ("20010DB800000000000000000000000200002A9F00000000000003E8", "[2001:db8::2]:10911"),
    ],
)
def test_offset_ids_of_java(text: str, host: str) -> None:
    packed, offset = ids.parse_offset_id(text)
    assert (ids.format_host(packed), offset) == (host, 1000)
    assert ids.offset_id(packed, offset) == text
    assert ids.parse_offset_id(text.lower()) == (packed, offset)


@pytest.mark.parametrize(
    "text", ["", "x" * 32, "7F", "7F00000100002A9F00000000000003E8AA", "7F 0000100002A9F00000000000003E8", "ü" * 32]
)
def test_invalid_offset_ids_are_protocol_errors(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        ids.parse_offset_id(text)


def test_unique_ids() -> None:
    maker = ids.UniqueIds(bytes([127, 0, 0, 1]), 0x12345, 7)
    assert maker.make(1000) == "7F000001" + "2345" + "00000007" + "000003E8" + "0001"
    assert len(ids.UniqueIds(bytes(16), 1, -1).make(0)) == 56
    with pytest.raises(LocalProtocolError):
        ids.UniqueIds(b"abc", 1, 1)


@pytest.mark.parametrize("clock", [lambda made: made * 0, lambda made: made // 30_000, lambda made: 100 - made // 3000])
def test_unique_ids_never_repeat_although_the_clock_jumps(clock: Callable[[int], int]) -> None:
    maker = ids.UniqueIds(bytes(4), 1, 1, start=65_000)
    made = [maker.make(clock(number)) for number in range(200_000)]
    assert len(set(made)) == len(made)


def test_the_time_of_unique_ids_restarts_with_a_new_month() -> None:
    maker = ids.UniqueIds(bytes(4), 1, 1)
    assert maker.make(30 * 86_400_000)[20:28] == f"{30 * 86_400_000:08X}"
    assert maker.make(5)[20:28] == "00000005"


# --- delays ---------------------------------------------------------------------------------------------------------------


def test_delay_levels() -> None:
    assert [delay_levels.delay_s(level) for level in (-1, 0, 1, 4, 18, 19, 99)] == [0, 0, 1, 30, 7200, 7200, 7200]
    assert [delay_levels.level_of(seconds) for seconds in (-1, 0, 0.2, 1, 1.1, 7, 3601, 7200, 99_999)] == [
        0,
        0,
        1,
        1,
        2,
        3,
        18,
        18,
        18,
    ]
    assert [delay_levels.retry_level(times) for times in (0, 1, 15, 16)] == [3, 4, 18, 18]


@given(st.floats(0.001, 7200))
def test_a_level_is_never_shorter_than_the_delay(seconds: float) -> None:
    level = delay_levels.level_of(seconds)
    assert delay_levels.delay_s(level) >= seconds
    assert level == 1 or delay_levels.delay_s(level - 1) < seconds


# --- receipts -------------------------------------------------------------------------------------------------------------


def test_receipts_are_parsed_and_formatted() -> None:
    receipt = ReceiptHandle(100, 1700000000000, 60000, 3, "0", "broker-a", 1, 105)
    assert str(receipt) == "100 1700000000000 60000 3 0 broker-a 1 105"
    assert receipts.parse_receipt(str(receipt)) == receipt


def test_the_texts_of_a_pop_response_are_parsed() -> None:
    assert receipts.parse_start_offsets("0 1 100;1 0 7") == {("0", 1): 100, ("1", 0): 7}
    assert receipts.parse_message_offsets("0 1 100,105;1 0 7") == {("0", 1): [100, 105], ("1", 0): [7]}
    assert receipts.parse_order_counts("0 1 2;0 qo1%105 3") == {("0", "1"): 2, ("0", "qo1%105"): 3}
    for parse in (receipts.parse_start_offsets, receipts.parse_message_offsets, receipts.parse_order_counts):
        assert parse(None) == parse("") == {}


offsets_by_queue = st.dictionaries(
    st.tuples(st.sampled_from("012"), st.integers(0, 99)), st.integers(0, 1 << 62), min_size=1, max_size=4
)


@given(offsets_by_queue)
def test_offset_infos_round_trip(starts: dict[tuple[str, int], int]) -> None:
    assert receipts.parse_start_offsets(receipts.format_start_offsets(starts)) == starts
    offsets = {queue: [start, start + 1] for queue, start in starts.items()}
    assert receipts.parse_message_offsets(receipts.format_message_offsets(offsets)) == offsets


@given(st.text("0129 ;,%qo-b", max_size=30) | st.text(max_size=20))
def test_invalid_receipts_and_infos_are_protocol_errors(text: str) -> None:
    parsers = (receipts.parse_receipt, receipts.parse_start_offsets, receipts.parse_message_offsets, receipts.parse_order_counts)
    for parse in parsers:
        with contextlib.suppress(RemoteProtocolError):
            parse(text)


# --- signatures -----------------------------------------------------------------------------------------------------------


def test_the_golden_signature() -> None:
    ext = {"topic": "T1"}
    signing.sign(ext, b"body", "ak", "sk")
    assert ext == {"topic": "T1", "AccessKey": "ak", "Signature": "NEcamKdcSLD9Od/YmM/mIw5HlXE="}
    assert signing.is_signed_by(ext, b"body", "sk")
    assert not signing.is_signed_by(ext, b"bodz", "sk")
    assert not signing.is_signed_by(ext, b"body", "other")
    assert not signing.is_signed_by({"topic": "T1"}, b"body", "sk")


def test_names_are_signed_in_the_order_of_utf_16() -> None:
    """As in Java, a character that needs two UTF-16 units sorts before a single unit with a higher number."""
    assert signing.signature({"\uff5e": "2", "\U0001f600": "1", "a": "0"}, b"", "sk") == signing.signature(
        {"a": "012"}, b"", "sk"
    )


def test_the_field_of_queries_by_unique_key_is_not_signed() -> None:
    """4.9 brokers leave the field out of the signature; 5.3.3 brokers only if the request announces version 399 or less."""
    ext = {"topic": "T1", "_UNIQUE_KEY_QUERY": "true"}
    signing.sign(ext, b"body", "ak", "sk")
    assert ext["Signature"] == "NEcamKdcSLD9Od/YmM/mIw5HlXE="
    assert signing.is_signed_by(ext, b"body", "sk")


def test_a_token_is_signed_too_and_signing_again_gives_the_same() -> None:
    ext = {"b": "2", "A": "1"}
    signing.sign(ext, b"", "ak", "sk", "token")
    first = dict(ext)
    signing.sign(ext, b"", "ak", "sk", "token")
    assert ext == first
    assert ext["SecurityToken"] == "token"
    ext["SecurityToken"] = "other"
    assert not signing.is_signed_by(ext, b"", "sk")


# --- compression ----------------------------------------------------------------------------------------------------------

CODECS = [compression.OLD_ZLIB, *compression.NAMES.values()]


@given(st.sampled_from(CODECS), st.binary(max_size=5000), st.integers(1, 50))
def test_every_codec_survives_the_round_trip(codec: int, data: bytes, times: int) -> None:
    assert compression.decompress(codec, compression.compress(codec, data * times)) == data * times


@pytest.mark.parametrize("codec", CODECS)
def test_bodies_larger_than_the_first_buffer_and_than_the_limit(codec: int) -> None:
    data = bytes(3_000_000)
    packed = compression.compress(codec, data)
    assert compression.decompress(codec, packed) == data
    assert compression.decompress(codec, packed, len(data)) == data
    for limit in (0, 1000, len(data) - 1):
        with pytest.raises(RemoteProtocolError, match="do not decompress"):
            compression.decompress(codec, packed, limit)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_bodies_are_protocol_errors(codec: int) -> None:
    packed = compression.compress(codec, b"some text " * 50)
    for end in range(len(packed)):
        with pytest.raises(RemoteProtocolError):
            compression.decompress(codec, packed[:end])


@given(st.sampled_from([*CODECS, 0x400]), st.binary(max_size=100))
def test_any_bytes_are_a_body_or_a_protocol_error(codec: int, data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        compression.decompress(codec, data, 1 << 20)


def test_bodies_of_other_levels_and_writers_are_decompressed() -> None:
    assert compression.decompress(compression.ZLIB, zlib.compress(b"x" * 99, 9)) == b"x" * 99
    assert compression.decompress(compression.ZSTD, bytes(cramjam.zstd.compress(b"x" * 99, 19))) == b"x" * 99


def test_lz4_frames_have_independent_blocks() -> None:
    """Java cannot read dependent blocks, which cramjam's own frames have."""
    body = decode_records(vectors.JAVA_RECORD_LZ4[:36] + bytes(4) + vectors.JAVA_RECORD_LZ4[40:])[0].body
    for data in (b"x" * 300, b"abc", bytes(9 << 20)):
        assert compression.compress(compression.LZ4, data)[:7] == body[:7]
    stored = compression.compress(compression.LZ4, b"abc")
    assert stored[7:] == bytes.fromhex("03000080 616263 00000000")


def test_an_unknown_codec_is_refused() -> None:
    for call in (compression.compress, compression.decompress):
        with pytest.raises((LocalProtocolError, RemoteProtocolError), match="unknown"):
            call(0x400, b"")
