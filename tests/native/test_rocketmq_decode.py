"""RocketMQ's compiled decoder returns the same messages, or raises the same error, as the plain code."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.rocketmq.client.consumer import pulled_records
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping.stored import decode_plain, decode_pulls
from mqbridge.rocketmq.wire.batch import encode_batch, encode_element
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.compression import LZ4, OLD_ZLIB, ZLIB, ZSTD, compress, decompress
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES
from mqbridge.rocketmq.wire.record import MAX_UNPACKED_BYTES, Record, SysFlag, encode_record
from tests.example_counts import examples
from tests.rocketmq.wire import vectors
from tests.strategies import Changes, changes, property_string, rocketmq_natives

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")

QUEUE = Queue("T", "b", 0)
MAX_OFFSET = (1 << 63) - 1
JAVA_RECORDS = [vectors.RECORD, *(value for name, value in vars(vectors).items() if name.startswith("JAVA_RECORD"))]


def outcome(decode: Callable[[Sequence[PulledRecords]], Sequence[Message]], pulls: Sequence[PulledRecords]) -> object:
    """Return every field of every message, or the error."""
    try:
        return [message.as_dict() for message in decode(pulls)]
    except (RemoteProtocolError, ValueError) as error:
        return type(error), str(error)


def pull(body: bytes, first: int = -MAX_OFFSET, next_: int = MAX_OFFSET, tags: frozenset[str] = frozenset()) -> PulledRecords:
    """Return a pull whose records have not been measured yet."""
    pulled = PulledRecords(QUEUE, b"", first, next_, tags)
    pulled.body = body
    return pulled


def try_compiled(pulls: Sequence[PulledRecords]) -> Sequence[Message] | None:
    """Return what the compiled code decodes; None if it leaves these pulls to the plain code."""
    assert compiled is not None
    found: Sequence[Message] | None = compiled.rocketmq_decode(
        [each.fields for each in pulls], partial(decompress, limit=1 << 16)
    )
    return found


def decode_compiled(pulls: Sequence[PulledRecords]) -> Sequence[Message]:
    found = try_compiled(pulls)
    assert found is not None
    return found


def check_decode(*pulls: PulledRecords) -> object:
    plain = outcome(decode_plain, pulls)
    assert outcome(decode_pulls, pulls) == plain
    if isinstance(plain, list) and (found := try_compiled(pulls)) is not None:
        # No error: the compiled code finds all damage, of which only the plain code makes messages. To the compiled code, texts
        # that are not UTF-8 are damage too.
        damaged = {index for index, message in enumerate(plain) if message["defect"] is not None}
        assert damaged <= set(found.damaged())  # type: ignore[attr-defined]
    return plain


CODECS = [OLD_ZLIB, LZ4, ZSTD, ZLIB]
HOSTS = st.sampled_from([bytes(8), bytes(20), bytes(range(8))])


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """A record as some broker may store it: any layout, compressed, an inner batch, damaged."""
    record = draw(rocketmq_natives())
    record.topic = draw(st.sampled_from(["T", "", "größe", "t" * 200]))
    record.born_host, record.store_host = draw(HOSTS), draw(HOSTS)
    record.sys_flag = draw(st.sampled_from([0, 0, SysFlag.COMMIT, SysFlag.INNER_BATCH, SysFlag.NEED_UNWRAP, SysFlag.COMPRESSED]))
    if draw(st.integers(0, 3)) == 0:
        inner = draw(st.lists(rocketmq_natives(), max_size=3))
        record.body = b"".join(encode_element(one.body, one.properties, one.flag) for one in inner)
        record.sys_flag |= SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    if draw(st.integers(0, 3)) == 0:
        codec = draw(st.sampled_from(CODECS))
        record.body, record.sys_flag = compress(codec, record.body), record.sys_flag | SysFlag.COMPRESSED | codec
    if draw(st.integers(0, 7)) == 0:
        record.properties += b"a\x01\xff\x02"
    data = bytearray(encode_record(record))
    checksum = draw(st.sampled_from([None, None, bytes(4), b"\x80\0\0\1"]))
    if checksum is not None:
        data[8:12] = checksum
    return bytes(data)


tags = st.sampled_from([frozenset[str](), frozenset({"1"}), frozenset({"a b", "%", "größe"})])


@settings(max_examples=examples(300))
@given(st.lists(rocketmq_natives(), max_size=4))
def test_ordinary_records_are_decoded_alike(records: list[Record]) -> None:
    check_decode(pull(b"".join(map(encode_record, records))))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(stored(), max_size=4), max_size=2), st.integers(-1, 9), st.integers(0, 12), tags)
def test_records_of_all_layouts_are_decoded_alike(
    answers: list[list[bytes]], first: int, next_: int, wanted: frozenset[str]
) -> None:
    check_decode(*(pull(b"".join(answer), first, next_, wanted) for answer in answers))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(stored() | st.sampled_from(JAVA_RECORDS), min_size=1, max_size=3), changes(bytes(range(256))), st.floats(0, 1))
def test_damaged_records_are_decoded_alike(records: list[bytes], change: Changes, kept: float) -> None:
    body = change(b"".join(records))
    body = body[: int(len(body) * kept)] if kept < 0.5 else body
    with pytest.MonkeyPatch.context() as patch:  # a damaged body is unpacked up to the limit, which takes milliseconds
        for module in ("mqbridge.rocketmq.wire.record", "mqbridge.rocketmq.mapping.stored"):
            patch.setattr(f"{module}.decompress", partial(decompress, limit=1 << 16))
        check_decode(pull(body))


@settings(max_examples=examples(300))
@given(rocketmq_natives(), changes(b"\x01\x02ab1,.%mU"))
def test_changed_property_strings_are_decoded_alike(record: Record, change: Changes) -> None:
    record.properties = change(record.properties)
    check_decode(pull(encode_record(record)))


@pytest.mark.parametrize("name", sorted(SYSTEM_NAMES | {"__RMQ.TRANSIENT.x", "__RMQ.TRANSIENT.*", "__RMQ", "TAG", "WAITS"}))
@pytest.mark.parametrize("value", ["v", "1", "0,1", "007", "9" * 18])
def test_every_system_property_is_decoded_alike(name: str, value: str) -> None:
    for pairs in ([(name, value)], [("a", "1"), (name, "x"), ("b", "2"), (name, value), ("mqbridge.v", "1"), ("c", "3")]):
        check_decode(pull(encode_record(Record("T", b"x", property_string(pairs)))))


@pytest.mark.parametrize(
    "pairs",
    [
        [("mqbridge.v", "1"), ("UNIQ_KEY", "broker's"), ("UNIQ_KEY", "again")],
        [("UNIQ_KEY", "mine"), ("mqbridge.v", "1")],
        [("b", "1"), ("UNIQ_KEY", "broker's"), ("a", "2"), ("mqbridge.order", "1,0")],
        [("b", "1"), ("a", "2"), ("mqbridge.order", "1,+0")],
        [("b", "1"), ("a", "2"), ("mqbridge.order", "1,\u0660")],
        [("b", "1"), ("mqbridge.x.0.mqbridge.order", "%2D")],
        [("mqbridge.x.0.mqbridge.order", "0%2C1"), ("UNIQ_KEY", "u")],
        [("mqbridge.x.\u0661.a", "%"), ("mqbridge.x.1.", "a"), ("mqbridge.x.12.%", "%C3%BC%FF")],
        [("mqbridge.hops", "1"), ("a", "1"), ("mqbridge.hops", "3")],
        [("mqbridge.hops", "3"), ("mqbridge.origin", "o|t|p|1")],
        [("mqbridge.empty", "1"), ("mqbridge.null", "1")],
        [("mqbridge.without", "key,msg_type"), ("KEYS", "a  b"), ("TAGS", "t")],
        [("KEYS", " "), ("__SHARDINGKEY", "k")],
        [("KEYS", "k"), ("__SHARDINGKEY", "k"), ("mqbridge.rocketmq.sharded", "mine")],
        [("mqbridge.keys", "a,%20"), ("KEYS", "b"), ("__SHARDINGKEY", "a")],
        [("WAIT", "true"), ("a", "1"), ("WAIT", "true"), ("a", "2"), ("WAIT", "false")],
    ],
)
@pytest.mark.parametrize("body", [b"\0", b"x"])
def test_unusual_combinations_of_properties_are_decoded_alike(pairs: list[tuple[str, str]], body: bytes) -> None:
    check_decode(pull(encode_record(Record("T", body, property_string(pairs), flag=7))))


@pytest.mark.parametrize("value", ["9" * 30, "1" * 5000, "0" * 5000, "0" * 15 + "7", str(MAX_OFFSET), str(1 << 63), "9" * 19])
@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "mqbridge.event_time", "mqbridge.hops"])
def test_large_numbers_are_decoded_alike(name: str, value: str) -> None:
    check_decode(pull(encode_record(Record("T", b"x", property_string([(name, value)])))))


def test_repeated_names_of_java_batches_are_decoded_by_the_compiled_module() -> None:
    """Java's producer writes WAIT into each message of a batch, and the broker appends the properties of the batch, WAIT too."""
    string = property_string([("WAIT", "true"), ("UNIQ_KEY", "A"), ("KEYS", "k"), ("a", "1"), ("WAIT", "true"), ("CLUSTER", "c")])
    [message] = decode_compiled([pull(encode_record(Record("T", b"x", string)))])
    assert message.properties == (("UNIQ_KEY", "A"), ("a", "1"))


def test_the_unpacked_bytes_of_a_pull_response_are_limited() -> None:
    assert compiled is not None
    plain = bytes(31 << 20)
    packed = encode_record(Record("t", b"packed", sys_flag=SysFlag.COMPRESSED))
    few = MAX_UNPACKED_BYTES // (len(plain) + 512)
    assert len(compiled.rocketmq_decode([pull(packed * few).fields], lambda *_: plain)) == few
    with pytest.raises(RemoteProtocolError, match="unpack to more"):
        compiled.rocketmq_decode([pull(packed * (few + 1)).fields], lambda *_: plain)


def test_other_errors_of_decompression_are_raised() -> None:
    def fail(codec: int, data: bytes) -> bytes:
        raise MemoryError("no more")

    assert compiled is not None
    record = encode_record(Record("t", b"x", sys_flag=SysFlag.COMPRESSED))
    with pytest.raises(MemoryError, match="no more"):
        compiled.rocketmq_decode([pull(record).fields], fail)
    with pytest.raises(TypeError):
        compiled.rocketmq_decode([pull(record).fields], lambda *_: "text")


# --- counting -----------------------------------------------------------------------------------------------------------


def result_or_error(work: Callable[[], Any]) -> object:
    try:
        return work()
    except RemoteProtocolError as error:
        return str(error)


@settings(max_examples=examples(300))
@given(st.lists(stored() | st.sampled_from(JAVA_RECORDS), max_size=3), changes(b"\0\1\xff"), st.booleans())
def test_records_are_counted_alike(records: list[bytes], change: Changes, torn: bool) -> None:
    assert compiled is not None
    body = change(b"".join(records))
    body = body[:-3] if torn else body
    native = compiled.rocketmq_count_stored
    assert result_or_error(lambda: native(body)) == result_or_error(lambda: pulled_records._count_stored(body))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(stored(), max_size=4), st.integers(-1, 9), st.integers(0, 12), tags.filter(bool))
def test_wanted_messages_are_counted_alike(records: list[bytes], first: int, next_: int, wanted: frozenset[str]) -> None:
    here, plain = pull(b"".join(records), first, next_, wanted), pull(b"".join(records), first, next_, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulled_records, "compiled", None)
        expected = result_or_error(lambda: (plain.count, plain.first_record_offset))
    assert result_or_error(lambda: (here.count, here.first_record_offset)) == expected
    assert compiled is not None
    if compiled.rocketmq_count(here.fields, decompress) is not None:  # else the plain code has decoded the records to count them
        assert here.held_bytes == here.size


def test_an_inner_batch_that_cannot_be_split_passes_the_filter_by_tags() -> None:
    """The tags of its messages are unknown, so to leave it out would be to lose them."""
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    torn = encode_record(Record("T", b"torn", sys_flag=flags))
    whole = encode_record(Record("T", encode_batch([(0, b"a", b"TAGS\x01a"), (0, b"b", b"TAGS\x01b")]), sys_flag=flags))
    found = check_decode(pull(torn + whole, tags=frozenset({"a"})))
    assert [message["defect"] is not None for message in found] == [True, False]  # type: ignore[attr-defined]
    pulled = PulledRecords(QUEUE, torn + whole, 0, 9, frozenset({"a"}))
    assert pulled.count == len(pulled.records) == 2


def test_the_messages_of_an_inner_batch_with_other_bytes_in_its_own_properties_are_counted() -> None:
    """Only the plain code reads properties that are not UTF-8; to the compiled code the batch must not seem to be one message."""
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    body = encode_batch([(0, payload, b"TAGS\x01a") for payload in (b"1", b"2", b"3")])
    pulled = PulledRecords(QUEUE, encode_record(Record("T", body, b"k\x01\xff", sys_flag=flags)), 0, 9, frozenset({"a"}))
    assert pulled.count == len(pulled.records) == 3
