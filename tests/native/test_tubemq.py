"""TubeMQ's compiled decoder and encoder return the same messages, requests and errors as the plain code."""

import re
from collections.abc import Sequence
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.native import compiled
from mqbridge.tubemq.client.consumer.partition_calls import parse_get_response
from mqbridge.tubemq.mapping import stored
from mqbridge.tubemq.mapping.share import PlainRequests, Requests, encode_share
from mqbridge.tubemq.mapping.times import msg_time_texts_of, msg_times_of
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, TransferedMessage
from mqbridge.tubemq.wire.rpc import parse
from tests.example_counts import examples
from tests.strategies import any_messages, attribute_strings, changes, names, transferred, tubemq_natives, values

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")

PREFIX = "c|t|1:0|"
OTHER_BYTES = re.compile(rb"%[89a-fA-F]|[\x80-\xff]")
"""Bytes beyond ASCII, which may be no UTF-8, as they are or percent-encoded."""
ZONES = [UTC, ZoneInfo("Europe/Berlin"), timezone(timedelta(seconds=90)), timezone(timedelta(microseconds=1))]
prefixes = st.sampled_from([None, PREFIX, "größe|t|0|"])


def decode_plainly(pack: Sequence[Any], offset: int, zone: tzinfo, first: int) -> list[Message]:
    return [stored.decode_one(item, (offset, index), msg_times_of(zone)) for index, item in enumerate(pack, first)]


def fields(messages: Sequence[Message]) -> list[dict[str, object]]:
    return [message.as_dict() for message in messages]


def decode_compiled(pack: Sequence[Any], offset: int = 0, zone: tzinfo = UTC, first: int = 0) -> Sequence[Message]:
    """Decode with the compiled code. Packs that it leaves to the plain code, for texts that are not UTF-8, are rejected."""
    assert compiled is not None
    messages: Sequence[Message] | None = compiled.tubemq_decode(pack, offset, first, msg_times_of(zone))
    if messages is None:
        assert any(OTHER_BYTES.search(item.payLoadData) for item in pack)
        reject()
    return messages


def outcome(requests: Requests, count: int) -> list[tuple[object, ...] | str]:
    failures = dict(requests.failures)
    return [failures[index] if index in failures else tuple(requests[index]) for index in range(count)]


def block(attributes: bytes, body: bytes) -> TransferedMessage:
    return transferred(len(attributes).to_bytes(4) + attributes + body, 1)


gateway_items = st.lists(
    st.tuples(names, values).map(lambda pair: f"{pair[0]}={pair[1]}".encode())
    | st.sampled_from([b"mqbridge.v=1", b"mqbridge.null=1", b"mqbridge.key=k", b"mqbridge.hops=2", b"mqbridge.origin=o|t|0|1"])
    | st.sampled_from([b"mqbridge.without=key,msg_type", b"mqbridge.u.a=%", b"%=%25%2C", b"$msgType$=%C3", b"mqbridge.keys=a,b"])
    | st.sampled_from([b"mqbridge.event_time=-5", b"mqbridge.key.b64=YQ==", b"mqbridge.attributes=x%2Cy", b"%6dqbridge.key=1"]),
    max_size=6,
).map(b",".join)
packs = st.lists(
    tubemq_natives() | st.builds(block, attribute_strings | gateway_items, st.sampled_from([b"", b"body"])), max_size=4
)


@settings(max_examples=examples(1000))
@given(
    pack=packs,
    damaged=st.integers(0, 9),
    offset=st.integers(-(1 << 63), (1 << 63) - 1),
    first=st.integers(0, 9),
    zone=st.sampled_from(ZONES),
)
def test_packs_are_decoded_alike(pack: list[TransferedMessage], damaged: int, offset: int, first: int, zone: tzinfo) -> None:
    if damaged < len(pack):
        pack[damaged].checkSum ^= 1
    plain = fields(decode_plainly(pack, offset, zone, first))
    assert fields(stored.decode(pack, offset, zone, first)) == plain
    answer = GetMessageResponseB2C(success=True, errCode=200, messages=pack)
    found, messages = parse_get_response(answer.SerializeToString())
    assert (found.errCode, len(found.messages), len(messages)) == (200, 0, len(pack))
    assert fields(stored.decode(messages, offset, zone, first)) == plain
    assert fields(stored.decode(messages[1:], offset, zone, first + 1)) == plain[1:]
    assert decode_compiled(pack, offset, zone, first).damaged() == [damaged] * (damaged < len(pack))  # type: ignore[attr-defined]


@settings(max_examples=examples(500))
@given(attributes=attribute_strings | gateway_items, change=changes(b"=,a1\xc3%.m"), body=st.sampled_from([b"", b"b"]))
@example(attributes=b"a=1,mqbridge.event_time=9223372036854775807", change=bytes, body=b"")
def test_strings_with_changed_bytes_are_decoded_alike(attributes: bytes, change: Any, body: bytes) -> None:
    pack = [block(change(attributes), body)]
    assert fields(decode_compiled(pack)) == fields(decode_plainly(pack, 0, UTC, 0))


@settings(max_examples=examples(500))
@given(data=st.data(), pack=packs)
def test_damaged_responses_are_parsed_or_refused_as_by_protobuf(data: st.DataObject, pack: list[TransferedMessage]) -> None:
    whole = bytearray(GetMessageResponseB2C(success=True, errCode=200, currOffset=1, messages=pack).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    answer = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        expected = parse(GetMessageResponseB2C, answer)
    except RemoteProtocolError as error:
        problem = str(error)
        with pytest.raises(RemoteProtocolError, match=f"^{re.escape(problem)}$"):
            parse_get_response(answer)
        return
    found, messages = parse_get_response(answer)
    fields = [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in messages]
    assert fields == [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in expected.messages]
    del expected.messages[:], found.messages[:]
    assert found == expected


@settings(max_examples=examples(1000))
@given(
    messages=st.lists(any_messages(), max_size=4),
    origins=st.lists(st.sampled_from([(None, 0), ("o", 1), ("o", 2), ("ö|", 3)]), min_size=4, max_size=4),
    prefix=prefixes,
    zone=st.sampled_from(ZONES),
)
def test_messages_are_encoded_alike(
    messages: list[Message], origins: list[tuple[str | None, int]], prefix: str | None, zone: tzinfo
) -> None:
    for index, (message, origin) in enumerate(zip(messages, origins, strict=False)):
        message.origin, message.hops = origin
        message.position = (7, index, index)[:index]
    assert compiled is not None
    found = compiled.tubemq_encode(messages, prefix, msg_times_of(zone), msg_time_texts_of(zone))
    assert found is not None
    assert outcome(found, len(messages)) == outcome(PlainRequests(messages, prefix, zone), len(messages))


@settings(max_examples=examples(500))
@given(
    pack=packs,
    damaged=st.integers(0, 5),
    prefix=prefixes,
    keep=st.sets(st.integers(0, 3)),
    mixed=st.booleans(),
    zone=st.sampled_from(ZONES),
)
@example(
    pack=[block(b"$msgTime$=202611230848", b"")], damaged=5, prefix=None, keep={0}, mixed=False, zone=ZoneInfo("Europe/Berlin")
)
def test_decoded_messages_are_encoded_alike(
    pack: list[TransferedMessage], damaged: int, prefix: str | None, keep: set[int], mixed: bool, zone: tzinfo
) -> None:
    if damaged < len(pack):
        pack[damaged].checkSum ^= 1
    plain, messages = decode_plainly(pack, 5, UTC, 0), decode_compiled(pack, 5)
    kept = [index for index in sorted(keep) if index < len(pack)]
    chosen: Any = messages.part(kept)  # type: ignore[attr-defined]
    if mixed:  # as after edits of some messages
        chosen = [plain[index].replace() if index % 2 else messages[index] for index in kept]
    expected = outcome(PlainRequests([plain[index] for index in kept], prefix, zone), len(kept))
    assert outcome(encode_share(chosen, prefix, zone), len(kept)) == expected
    assert outcome(PlainRequests(chosen, prefix, zone), len(kept)) == expected


@pytest.mark.parametrize("second", [-1, 59, 60, 119, 90])
def test_minutes_are_those_of_the_time_zone(second: int) -> None:
    """The offset of a zone may have seconds: then the text changes within a minute."""
    for zone in ZONES:
        messages = [Message(b"x", event_time=1000 * each) for each in (second, second + 1, second)]
        assert outcome(encode_share(messages, None, zone), 3) == outcome(PlainRequests(messages, None, zone), 3)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x", (("a", "\ud800"),)),
        Message(b"x", event_time=1 << 63),
        Message(b"x", origin="o", hops=(1 << 63) - 1),
        Message(b"x", position=(1, 2, 3, 4)),
    ],
)
def test_messages_with_unsupported_values_are_encoded_by_the_plain_code(message: Message) -> None:
    assert compiled is not None
    messages = [Message(b"y"), message]
    assert compiled.tubemq_encode(messages, PREFIX, msg_times_of(UTC), msg_time_texts_of(UTC)) is None
    assert outcome(encode_share(messages, PREFIX), 2) == outcome(PlainRequests(messages, PREFIX, UTC), 2)


def test_a_number_beyond_64_bits_is_a_property() -> None:
    pack = [block(b"a=1,mqbridge.event_time=9223372036854775808", b"b")]
    [message] = stored.decode(pack, 0)
    assert (message.event_time, message.property("mqbridge.event_time")) == (None, "9223372036854775808")


def test_tags_and_lengths_have_five_bytes_as_protobuf_reads_them() -> None:
    assert compiled is not None
    success, longer = b"\x08\x01", b"\x88\x80\x80\x80\x00\x01"
    assert compiled.tubemq_split_answer(success + longer) is not None
    assert compiled.tubemq_split_answer(success + b"\x88\x80\x80\x80\x80\x00\x01") is None


def test_exceptions_of_python_callbacks_are_raised() -> None:
    class Broken(dict[Any, Any]):
        def __missing__(self, key: object) -> None:
            raise KeyError(key)

    assert compiled is not None
    with pytest.raises(KeyError):
        compiled.tubemq_decode([block(b"$msgTime$=202611202350", b"")], 0, 0, Broken())
    with pytest.raises(KeyError):
        compiled.tubemq_encode([Message(b"x", event_time=1)], None, Broken(), Broken())
    with pytest.raises(AttributeError):
        compiled.tubemq_decode([object()], 0, 0, Broken())
