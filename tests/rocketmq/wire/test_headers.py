"""Headers: those of Java, both versions of the send header, names, defaults, and errors for missing and invalid fields."""

import contextlib
import dataclasses
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.wire.command import decode
from mqbridge.rocketmq.wire.headers.admin import BrokerHeader
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.groups import ResetOffsetHeader, UnregisterHeader
from mqbridge.rocketmq.wire.headers.offsets import QueryOffsetHeader, QueueHeader
from mqbridge.rocketmq.wire.headers.pull import PullHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from tests.example_counts import examples
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.kinds import HEADERS as ALL

VALUES = {str: st.text(max_size=10), int: st.integers(-(1 << 63), (1 << 63) - 1), bool: st.booleans()}


def instances(of: type[Header]) -> st.SearchStrategy[Header]:
    """Return a strategy for headers with any values; optional fields may be None."""
    hints = typing.get_type_hints(of)
    fields = {}
    for field in dataclasses.fields(of):  # type: ignore[arg-type]
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        fields[field.name] = st.one_of(*(st.none() if kind is type(None) else VALUES[kind] for kind in kinds))
    return st.builds(of, **fields)


def test_all_headers_are_found() -> None:
    assert len(ALL) > 35


@settings(max_examples=examples(400))
@given(st.sampled_from(ALL).flatmap(instances))
def test_every_header_survives_the_round_trip(header: Header) -> None:
    ext = header.encode()
    assert all(isinstance(value, str) for value in ext.values())
    assert type(header).decode(ext | {"unknown": "x", "nsd": "true"}) == header


@given(instances(SendHeader))
def test_both_versions_of_a_send_header_have_the_same_fields(header: Header) -> None:
    assert isinstance(header, SendHeader)
    assert SendHeader.decode(header.encode_v1()) == header


def test_send_headers_of_java_are_decoded() -> None:
    second, first = decode(vectors.JAVA_COMMAND_SEND), decode(vectors.JAVA_COMMAND_SEND_V1)
    header = SendHeader(
        "g", "T1", 2, 1700000000000, "TAGS\x01a\x02", default_topic="TBW102", default_topic_queue_nums=4, broker_name="b"
    )
    assert SendHeader.decode(second.ext) == header
    assert header.encode() == second.ext
    assert dataclasses.replace(SendHeader.decode(first.ext), broker_name="b") == header
    header.broker_name = None
    assert header.encode_v1().items() <= first.ext.items() | {("brokerName", "b")}


@pytest.mark.parametrize("frame", [vectors.JAVA_COMMAND_PULL, vectors.JAVA_COMMAND_PULL_BINARY], ids=["json", "binary"])
def test_pull_headers_of_java_are_decoded(frame: bytes) -> None:
    ext = decode(frame).ext
    header = PullHeader("G", "T1", 1, 5, 32, 6, 0, 15000, 3, "*", "TAG")
    assert PullHeader.decode(ext) == header
    assert header.encode().items() <= ext.items()


def test_fields_have_their_names_on_the_wire() -> None:
    assert UnregisterHeader("c", "p").encode() == {"clientID": "c", "producerGroup": "p"}
    assert QueryHeader("t", "k", 1, 2, 3, unique_key=True).encode()["_UNIQUE_KEY_QUERY"] == "true"
    assert SendResultHeader("m", 1, 2, region="R", trace_on=True).encode() == {
        "msgId": "m",
        "queueId": "1",
        "queueOffset": "2",
        "MSG_REGION": "R",
        "TRACE_ON": "true",
    }
    assert BrokerHeader("b", "a", "c", body_crc32=5).encode()["bodyCrc32"] == "5"


def test_names_of_go_clients_in_another_case_are_decoded() -> None:
    assert QueueHeader.decode({"Topic": "T", "QueueId": "4"}) == QueueHeader("T", 4)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)])
def test_booleans_are_parsed_as_in_java(text: str, value: bool) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": "1", "setZeroIfNotFound": text}
    assert QueryOffsetHeader.decode(ext).set_zero_if_not_found is value


def test_an_optional_number_may_be_blank() -> None:
    assert ResetOffsetHeader.decode({"group": "g", "topic": "t", "timestamp": "1", "offset": ""}).offset is None


@pytest.mark.parametrize(
    ("ext", "word"),
    [
        ({"topic": "t"}, "queueId is missing"),
        ({"topic": "t", "queueId": "x"}, "queueId is 'x'"),
        ({"topic": "t", "queueId": ""}, "queueId is ''"),
        ({"topic": "t", "queueId": str(1 << 63)}, "64 bits"),
        ({"topic": "t", "queueId": "9" * 5000}, "queueId"),
    ],
)
def test_an_error_names_the_missing_or_invalid_field(ext: dict[str, str], word: str) -> None:
    with pytest.raises(RemoteProtocolError, match=word):
        QueueHeader.decode(ext)


@settings(max_examples=examples(400))
@given(st.sampled_from(ALL).flatmap(instances), st.data())
def test_any_texts_are_a_protocol_error_or_a_header(header: Header, data: st.DataObject) -> None:
    ext = header.encode()
    names = st.sampled_from(sorted(ext) or ["x"])
    ext |= data.draw(st.dictionaries(names, st.text(max_size=5) | st.sampled_from(["-1", "true", " 7 "]), max_size=3))
    for name in data.draw(st.lists(names, max_size=2)):
        ext.pop(name, None)
    with contextlib.suppress(RemoteProtocolError):
        type(header).decode(ext)
