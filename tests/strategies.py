"""Hypothesis strategies for messages and for the native messages of every system; shared by the mapping tests."""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from mqbridge.message import Message
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES
from mqbridge.rocketmq.wire.record import Record
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
RESERVED_NAMES = (
    "key",
    "key.b64",
    "keys",
    "msg_type",
    "attributes",
    "attributes.b64",
    "event_time",
    "deliver_at",
    "null",
    "without",
    "origin",
)
ODD_NAMES = [
    *(
        "mqbridge." + name
        for name in (*RESERVED_NAMES, "hops", "v", "empty", "order", "u.x", "u.mqbridge.key", "x.0.a", "x.7.%01", "x.", "zzz")
    ),
    *(
        "mqbridge.rocketmq.flag",
        "mqbridge.rocketmq.sharded",
        "$msgType$",
        "$msgTime$",
        "a",
        "b",
        "k=v",
        "a,b",
        "100%",
        "%",
        " ",
        "",
    ),
    *("\x01", "a\x02b", "TAGS", "KEYS", "UNIQ_KEY", "BUYER_ID", "TTL", "CLUSTER", "DELAY", "__SHARDINGKEY", "__RMQ.TRANSIENT.x"),
]
names = st.one_of(text, st.sampled_from(ODD_NAMES))
values = st.one_of(
    text, st.sampled_from(["", " ", "\t", "%", "1", "2", "007", "-", "0,1", "a b", "YQ==", "key", "event_time", "t", "\x01\x02"])
)
pairs = st.tuples(names, values)
ms = st.integers(min_value=0, max_value=(1 << 62))
many = st.integers(0, 200).map(lambda count: tuple((f"name-{index}", f"value {index}") for index in range(count)))
properties = st.one_of(st.lists(pairs, max_size=5).map(tuple), st.lists(pairs, max_size=5).map(tuple), many)
payloads = st.one_of(st.none(), st.just(b""), st.just(b"\x00"), st.binary(max_size=40))


def messages(**fixed: object) -> st.SearchStrategy[Message]:
    """Messages with any combination of fields; `fixed` replaces a field's strategy."""
    fields: dict[str, object] = {
        "payload": payloads,
        "properties": properties,
        "key": st.one_of(st.none(), values, st.binary(max_size=8)),
        "ordering_key": st.one_of(st.none(), st.binary(max_size=8)),
        "keys": st.lists(values, max_size=3).map(tuple),
        "event_time": st.one_of(st.none(), ms),
        "deliver_at": st.one_of(st.none(), ms),
    }
    return st.builds(Message, **(fields | fixed))  # type: ignore[arg-type]


def any_messages() -> st.SearchStrategy[Message]:
    """Messages whose fields may contradict each other, as the embedded log may contain them.

    Except for one case: a message without event time whose attribute string contains a time.
    """
    types = st.one_of(st.none(), values)
    times = st.one_of(st.none(), st.integers(-(1 << 40), 1 << 62))
    strings = st.one_of(st.none(), attribute_strings)
    return messages(msg_type=types, attributes=strings, event_time=times).filter(
        lambda message: message.event_time is not None or b"$msgTime$" not in (message.attributes or b"")
    )


COMPARED_FIELDS = ("payload", "properties", "key", "ordering_key", "keys", "msg_type", "attributes", "event_time", "deliver_at")


def comparable_fields(message: Message) -> dict[str, object]:
    """Return the fields of a message that a round trip must keep: all but its position."""
    return {field: getattr(message, field) for field in COMPARED_FIELDS}


Changes = Callable[[bytes], bytes]


def changes(alphabet: bytes) -> st.SearchStrategy[Changes]:
    """Functions that replace some bytes, or none, by letters of the alphabet."""

    def change(edits: list[tuple[float, int]], data: bytes) -> bytes:
        changed = bytearray(data)
        for position, letter in edits:
            if data:
                changed[int(position * len(data))] = letter
        return bytes(changed)

    edits = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(alphabet))
    return st.lists(edits, max_size=4).map(lambda edits: partial(change, edits))


# --- TubeMQ -------------------------------------------------------------------------------------------------------------

_ITEMS = [b"$msgType$=t", b"$msgType$=", b"$msgTime$=202611202350", b"$msgTime$=x", b"a=1", b"a", b"=", b"", b"a=\xff", b"k==v"]
_items = st.one_of(
    st.sampled_from(_ITEMS),
    pairs.map(lambda pair: f"{pair[0]}={pair[1]}".encode()),
    st.binary(max_size=8),
)
attribute_strings = st.one_of(st.binary(max_size=30), st.lists(_items, max_size=6).map(b",".join))


def transferred(data: bytes, flag: int) -> TransferedMessage:
    """Return a message as a Broker delivers it."""
    return TransferedMessage(messageId=1, checkSum=checksum(data), payLoadData=data, flag=flag)


def tubemq_natives() -> st.SearchStrategy[TransferedMessage]:
    """Messages with and without attributes, also with a wrong flag."""

    def build(attributes: bytes | None, body: bytes, flagged: bool) -> TransferedMessage:
        if attributes is None:
            return transferred(body, int(flagged))
        return transferred(struct.pack(">i", len(attributes)) + attributes + body, 1)

    return st.builds(build, st.one_of(st.none(), attribute_strings), st.binary(max_size=20), st.booleans())


# --- Pulsar -------------------------------------------------------------------------------------------------------------

_uint64 = st.integers(0, (1 << 64) - 1)


def _metadata(kind: type[Any], extra: dict[str, st.SearchStrategy[object]]) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[object]] = {
        "partition_key": st.one_of(values, st.just("a" * 200)),
        "partition_key_b64_encoded": st.booleans(),
        "ordering_key": st.binary(max_size=8),
        "event_time": _uint64,
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
    }

    def build(properties: tuple[tuple[str, str], ...], fields: dict[str, object]) -> Any:
        metadata = kind(**fields)
        for key, value in properties:
            metadata.properties.add(key=key, value=value)
        return metadata

    return st.builds(build, properties, st.fixed_dictionaries({}, optional=fields | extra))


def pulsar_natives() -> st.SearchStrategy[Entry]:
    """Entries that are batches and entries that are single messages."""
    times = {"deliver_at_time": st.integers(-(1 << 63), (1 << 63) - 1)}
    single = _metadata(SingleMessageMetadata, {"sequence_id": _uint64, "compacted_out": st.booleans()})
    batch_fields = st.fixed_dictionaries({}, optional=times)

    def plain(metadata: MessageMetadata, payload: bytes) -> Entry:
        metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 1, 2
        return Entry(metadata, b"" if metadata.null_value else payload, ledger=1, entry=2)

    def batch(comparable_fields: dict[str, Any], singles: list[tuple[SingleMessageMetadata, bytes]]) -> Entry:
        metadata = MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=len(singles), **comparable_fields
        )
        payload = join_batch([(single, b"" if single.null_value else body) for single, body in singles])
        return Entry(metadata, payload, ledger=1, entry=2)

    bodies = st.binary(max_size=20)
    return st.one_of(
        st.builds(plain, _metadata(MessageMetadata, times), bodies),
        st.builds(batch, batch_fields, st.lists(st.tuples(single, bodies), min_size=1, max_size=4)),
    )


# --- RocketMQ -----------------------------------------------------------------------------------------------------------

_stored = st.one_of(
    pairs,
    st.tuples(st.sampled_from(sorted(SYSTEM_NAMES)), values),
    st.tuples(st.sampled_from(["TAGS", "KEYS", "__SHARDINGKEY", "UNIQ_KEY", "TIMER_DELIVER_MS", "DELAY"]), values),
    st.tuples(st.just("TIMER_DELIVER_MS"), ms.map(str)),
)


def property_string(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> bytes:
    """Write the property string as a careless client does."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def rocketmq_natives() -> st.SearchStrategy[Record]:
    """Records of any client, including odd ones and those of a gateway."""
    strings = st.one_of(st.lists(_stored, max_size=8), many).map(property_string)
    return st.builds(
        Record,
        st.just("T"),
        st.one_of(st.just(b"\x00"), st.binary(min_size=1, max_size=20)),
        st.one_of(strings, strings.map(lambda string: string[:-1])),
        flag=st.one_of(st.just(0), st.integers(-(1 << 31), (1 << 31) - 1)),
        queue_offset=st.integers(0, 9),
        born_timestamp=ms,
        store_timestamp=ms,
        reconsume_times=st.integers(0, 3),
    )
