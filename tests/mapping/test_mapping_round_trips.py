"""A -> B -> A for every ordered pair of systems, through the real encoders and decoders: no field of a message is lost."""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqbridge.log.wire.records import decode_row, encode_record, encode_row
from mqbridge.message import Message, Pair, format_position
from mqbridge.pulsar.mapping import request as pulsar
from mqbridge.pulsar.mapping import stored as pulsar_stored
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.rocketmq.mapping import request as rocketmq_request
from mqbridge.rocketmq.mapping.limits import Limits as RocketMQLimits
from mqbridge.rocketmq.mapping.table import WRITTEN_NAMES
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record
from mqbridge.tubemq.mapping import request as tubemq_request
from mqbridge.tubemq.mapping import stored as tubemq_stored
from mqbridge.wire.text import decode_text
from tests import strategies
from tests.example_counts import examples
from tests.rocketmq.records import decode as decode_rocketmq
from tests.strategies import any_messages, comparable_fields, transferred

NOW = 1 << 61
"""Half of the generated delivery times are later."""
LIMITS = RocketMQLimits(max_delay_ms=1 << 63)
BROKER = b"CLUSTER\x01c\x02MSG_REGION\x01r\x02TRACE_ON\x01true\x02"
PREFIX, BACK = "cluster|topic|1:0|", "cluster|topic|1:1|"
"""The prefixes of the origins on the way there, and on the way back."""


@dataclass(frozen=True)
class System:
    """A system for the test: its native messages, how to decode them, and a way for messages through it."""

    natives: Callable[[], st.SearchStrategy[Any]]
    read: Callable[[Any], list[Message]]
    through: Callable[[Sequence[Message], str | None], list[Message]]


def through_tubemq(messages: Sequence[Message], prefix: str | None) -> list[Message]:
    pack = []
    for message in messages:
        stamp = message.origin if prefix is None else prefix + format_position(message.position)
        data, flag, _, _ = tubemq_request.encode(message, stamp)
        assert data
        pack.append(transferred(data, flag))
    return tubemq_stored.decode(pack, 5)


def through_pulsar(messages: Sequence[Message], prefix: str | None) -> list[Message]:
    entries, failures = pulsar.encode(messages, prefix, pulsar.Limits(max_messages=3))
    assert failures == []
    got: list[Message] = []
    for outgoing in entries:
        outgoing.metadata.producer_name, outgoing.metadata.sequence_id, outgoing.metadata.publish_time = "p", 0, 1
        metadata = MessageMetadata.FromString(outgoing.metadata.SerializeToString())
        got += pulsar_stored.decode_plain(Entry(metadata, outgoing.payload, ledger=1, entry=2))
    return got


def stored(outgoing: rocketmq_request.EncodedRequest) -> list[Record]:
    """Return the records of a send request at a broker: a batch keeps its strings, a single message its order; both grow."""
    if outgoing.is_batch:
        elements = [(flag, body, string + BROKER + b"UNIQ_KEY\x01made\x02") for flag, body, string in decode_batch(outgoing.body)]
    else:
        pairs = outgoing.properties.split(b"\x02")[:-1] + BROKER.split(b"\x02")[:-1]
        assert len({pair.partition(b"\x01")[0] for pair in pairs}) == len(pairs), "a broker keeps one property of a name"
        if not any(pair.startswith(b"UNIQ_KEY\x01") for pair in pairs):
            pairs.append(b"UNIQ_KEY\x01made")
        random.Random(len(pairs)).shuffle(pairs)
        elements = [(outgoing.flag, outgoing.body, b"\x02".join(pairs) + b"\x02")]
    assert all(body for _, body, _ in elements), "RocketMQ refuses empty bodies"
    assert all(len(pair) > 1 for _, _, string in elements for pair in string.split(b"\x02")[:-1])
    return [Record("T", body, string, flag=flag, born_timestamp=outgoing.born) for flag, body, string in elements]


def through_rocketmq(messages: Sequence[Message], prefix: str | None) -> list[Message]:
    sends, failures = rocketmq_request.encode(messages, prefix, LIMITS, NOW)
    assert failures == []
    assert [index for outgoing in sends for index in outgoing.indexes] == list(range(len(messages)))
    return list(decode_rocketmq([record for outgoing in sends for record in stored(outgoing)]))


def through_log(messages: Sequence[Message], prefix: str | None) -> list[Message]:
    records = [encode_record(m, m.origin if prefix is None else prefix + format_position(m.position)) for m in messages]
    return decode_row(encode_row(records), len(records), 0)


def through_wire(record: Record) -> list[Message]:
    return list(decode_rocketmq([record]))


SYSTEMS = {
    "tubemq": System(strategies.tubemq_natives, lambda native: tubemq_stored.decode([native], 3), through_tubemq),
    "pulsar": System(strategies.pulsar_natives, pulsar_stored.decode_plain, through_pulsar),
    "rocketmq": System(strategies.rocketmq_natives, through_wire, through_rocketmq),
    "log": System(any_messages, lambda message: [message], through_log),
}


@pytest.mark.parametrize(("first", "second"), list(product(SYSTEMS, SYSTEMS)))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_messages_survive_a_round_trip(first: str, second: str, data: st.DataObject) -> None:
    here, there = SYSTEMS[first], SYSTEMS[second]
    natives = data.draw(st.lists(here.natives(), min_size=1, max_size=4))
    stamped = data.draw(st.sampled_from([None, PREFIX]))
    messages = [message for native in natives for message in here.read(native)]
    # Decoding is stable: an encoded message is decoded as the same message.
    over = there.through(messages, stamped)
    assert [comparable_fields(message) for message in over] == [comparable_fields(message) for message in messages]
    back = here.through(over, None if stamped is None else BACK)
    assert [comparable_fields(message) for message in back] == [comparable_fields(message) for message in messages]
    if stamped is None:
        assert [(message.origin, message.hops) for message in back] == [(m.origin, m.hops) for m in messages]
    else:
        assert [message.hops for message in back] == [message.hops + 2 for message in messages]
        assert [message.origin for message in back] == [BACK + format_position(message.position) for message in over]


raw_texts = st.one_of(st.binary(max_size=8).map(decode_text), strategies.names)


@pytest.mark.parametrize(("first", "second"), list(product(SYSTEMS, SYSTEMS)))
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(
    properties=st.lists(st.tuples(raw_texts, raw_texts), max_size=3).map(tuple),
    key=st.none() | raw_texts,
    keys=st.lists(raw_texts, max_size=2).map(tuple),
    msg_type=st.none() | raw_texts,
)
def test_bytes_that_are_not_utf8_survive_a_round_trip(
    first: str, second: str, properties: tuple[Pair, ...], key: str | None, keys: tuple[str, ...], msg_type: str | None
) -> None:
    message = Message(b"x", properties, key, keys=keys, msg_type=msg_type, position=(1, 2))
    [over] = SYSTEMS[second].through([message], None)
    [back] = SYSTEMS[first].through([over], None)
    for copy in (over, back):
        assert (copy.properties, copy.key, copy.keys, copy.msg_type) == (properties, key, keys, msg_type)
        assert copy.defect is None


@settings(max_examples=examples(300))
@given(native=strategies.tubemq_natives())
@pytest.mark.parametrize("second", SYSTEMS)
def test_a_tubemq_message_returns_byte_for_byte(second: str, native: Any) -> None:
    """Except for messages with unescaped texts that only a gateway writes."""
    [message] = SYSTEMS["tubemq"].read(native)
    if message.attributes is None or b"mqbridge." in native.payLoadData:
        return
    [over] = SYSTEMS[second].through([message], None)
    assert tubemq_request.encode(over, None)[0] == native.payLoadData
    assert native.payLoadData[:4] == struct.pack(">i", len(message.attributes))


@settings(max_examples=examples(300))
@given(native=strategies.rocketmq_natives())
@pytest.mark.parametrize("second", SYSTEMS)
def test_a_rocketmq_message_returns_with_its_native_fields(second: str, native: Record) -> None:
    """Every copied property keeps its index and name; tag, keys, flag and body are unchanged."""
    stored = decode_properties(native.properties)
    if b"mqbridge." in native.properties or any("\x01" in value for _, value in stored):
        return
    [message] = SYSTEMS["rocketmq"].read(native)
    [over] = SYSTEMS[second].through([message], None)
    [outgoing], failures = rocketmq_request.encode([over], None, LIMITS, 1 << 62)
    assert failures == []
    [(flag, body, string)] = decode_batch(outgoing.body)
    assert (flag, body) == (native.flag, native.body)
    written = decode_properties(string)
    assert [pair for pair in written if is_users(pair[0])] == [pair for pair in unique(stored) if is_users(pair[0])]
    for name in ("TAGS", "KEYS", "__SHARDINGKEY"):
        assert dict(written).get(name) == dict(stored).get(name)


def is_users(name: str) -> bool:
    return name in WRITTEN_NAMES or not (name in SYSTEM_NAMES or name.startswith(("__RMQ.TRANSIENT.", "mqbridge.")))


def unique(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the effective pairs if a name is repeated: the last, but for UNIQ_KEY the first."""
    last = {name: index for index, (name, _) in enumerate(pairs)}
    first = next((index for index, (name, _) in enumerate(pairs) if name == "UNIQ_KEY"), -1)
    return [pair for index, pair in enumerate(pairs) if index == (first if pair[0] == "UNIQ_KEY" else last.get(pair[0]))]
