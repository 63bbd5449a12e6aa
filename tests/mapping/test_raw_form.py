"""Copies in raw messages: only as many as the dead-letter topics of all systems can store."""

import pytest

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import Failure
from mqbridge.mapping.raw_form import MAX_COPIED_BYTES, may_be_copied, raw_properties
from mqbridge.message import Message, Pair, Partition
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode
from mqbridge.rocketmq.mapping.stored import decode_record
from mqbridge.rocketmq.wire.record import Record, decode_records, encode_record

SOURCE = Partition("c", "orders", "0", 0)


def test_the_first_properties_are_copied_up_to_the_limit() -> None:
    pairs: list[Pair] = [("a", "x" * 1000), ("mqbridge.raw", "forged"), ("b", "x" * 7000), ("c", "x" * 1000), ("d", "x")]
    assert raw_properties(pairs, "f.v1") == (pairs[0], pairs[2], ("mqbridge.raw", "f.v1"))


def test_keys_are_copied_up_to_the_limit() -> None:
    assert may_be_copied(None, "k", b"k", "k" * (MAX_COPIED_BYTES - 2))
    assert not may_be_copied(None, "k", b"k", "k" * (MAX_COPIED_BYTES - 1))


def unreadable(characters: int, text: str) -> list[Message]:
    """Return raw messages of Pulsar and RocketMQ whose metadata have this many characters of text in the properties."""
    metadata = MessageMetadata(publish_time=1, partition_key=text * characters)
    metadata.encryption_keys.add(key="app", value=b"data key")
    metadata.properties.add(key="a", value="1")
    metadata.properties.add(key="b", value=text * characters)
    block = f"a\x011\x02b\x01{text * characters}\x02KEYS\x01{text * 8000} {text * 8000}\x02".encode()
    [record] = decode_records(encode_record(Record("T", b"x", block, sys_flag=1 | 0x400)))  # an unknown codec
    messages = [*decode_entries([Entry(metadata, b"secret")]), decode_record(record)]
    assert all(message.defect for message in messages)
    return messages


@pytest.mark.parametrize("text", ["x", "=", "\x7f"])
@pytest.mark.parametrize("characters", [8000, 8200, 15_000])
def test_every_dead_letter_fits_into_the_properties_of_rocketmq(characters: int, text: str) -> None:
    messages = unreadable(characters, text)
    assert [message.property("a") for message in messages] == ["1", "1"]
    failures = [MessageFailure(index, Failure.REFUSED, "r" * 2000) for index in range(len(messages))]
    letters = DeadLetters("route", None, "c/dead").make("target", messages, failures, SOURCE)  # type: ignore[arg-type]
    requests, refused = encode(letters.messages, "c|orders|0|", Limits(), 1)
    assert ([request.count for request in requests], refused) == ([2], [])
