"""RocketMQ: frames, headers, bodies, small texts, records, and the mapping of records."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import get_args, get_type_hints

from mqbridge.errors import ClusterError
from mqbridge.rocketmq.client.connection.route import read_route
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.library.pop_receipts import make_receipts
from mqbridge.rocketmq.mapping import stored as stored_module
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode as encode_messages
from mqbridge.rocketmq.mapping.request import encode_plain
from mqbridge.rocketmq.mapping.stored import decode_plain, decode_pulls
from mqbridge.rocketmq.wire import batch, fastjson, ids, properties, receipts, tags
from mqbridge.rocketmq.wire import record as record_module
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import ConsumerList, Heartbeat
from mqbridge.rocketmq.wire.bodies.offsets import ConsumerOffsets, ConsumeStats, ResetOffsets, TopicStats
from mqbridge.rocketmq.wire.bodies.pop import AssignmentQuery, Assignments, BatchAcks
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.bodies.routes import ClusterInfo, KvTable, RouteData, TopicList
from mqbridge.rocketmq.wire.bodies.running_info import ConsumeDirectlyResult, RunningInfo
from mqbridge.rocketmq.wire.command import decode, encode, measure
from mqbridge.rocketmq.wire.compression import ZSTD, compress, decompress
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.pop import PopResult
from mqbridge.rocketmq.wire.record import Record, SysFlag, decode_records, encode_record
from mqbridge.wire.cutter import FrameCutter
from tests.fuzz.target import Choice, Target, check_message, halves, must_equal, text_reader
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.kinds import BODIES as BODY_KINDS
from tests.rocketmq.wire.kinds import HEADERS

# --- frames ---------------------------------------------------------------------------------------------------------------


def read_frames(data: bytes) -> None:
    """Cut anywhere, and written again it reads the same."""
    cutter = FrameCutter(measure)
    frames = [frame for piece in halves(data) for frame in cutter.feed(piece)]
    must_equal(b"".join(frames), data[: len(data) - cutter.buffered])
    for frame in frames:
        command = decode(frame)
        again = decode(encode(command, binary=command.binary))
        for name in ("code", "ext", "body", "opaque", "flag"):
            must_equal(getattr(again, name), getattr(command, name))


JAVA_FRAMES = [value for name, value in vars(vectors).items() if name.startswith("JAVA_COMMAND")]
FRAMES = [vectors.JSON_REQUEST, vectors.BINARY_REQUEST, *JAVA_FRAMES]

# --- headers --------------------------------------------------------------------------------------------------------------


def header_reader(kind: type[Header]):
    """Fields as a frame brings them; written again they read the same."""

    def read(data: bytes) -> None:
        header = kind.decode(dict(properties.decode(data)))
        must_equal(kind.decode(header.encode()), header)

    return read


header_choice = Choice([header_reader(kind) for kind in HEADERS])
SAMPLES = {int: 7, bool: True, str: "x"}


def sample(kind: type[Header]) -> bytes:
    """A header of this kind with every field filled, as the lines that its reader takes."""
    hints = get_type_hints(kind)
    values = {name: SAMPLES[hint if hint in SAMPLES else get_args(hint)[0]] for name, hint in hints.items()}
    return properties.encode(kind(**values).encode().items())


# --- bodies and texts -----------------------------------------------------------------------------------------------------


def read_any_route(data: bytes) -> object:
    """A static topic is refused, by an error that says so."""
    try:
        return read_route("T", data)
    except ClusterError:
        return None


BODIES = [
    (Heartbeat.decode, vectors.JAVA_HEARTBEAT),
    (RouteData.decode, vectors.JAVA_ROUTE_STANDARD),
    (read_any_route, vectors.JAVA_ROUTE_LEGACY),
    (ClusterInfo.decode, vectors.JAVA_CLUSTER),
    (TopicStats.decode, vectors.JAVA_TOPIC_STATS),
    (ConsumeStats.decode, vectors.JAVA_CONSUME_STATS),
    (ResetOffsets.decode, vectors.JAVA_RESET),
    (ResetOffsets.decode, vectors.JAVA_RESET_C),
    (LockRequest.decode, vectors.JAVA_LOCK),
    (LockedQueues.decode, vectors.JAVA_LOCKED),
    (BatchAcks.decode, vectors.JAVA_BATCH_ACK),
    (RunningInfo.decode, vectors.JAVA_RUNNING),
    (TopicConfig.decode, vectors.JAVA_TOPIC_CONFIG),
    (GroupConfig.decode, vectors.JAVA_GROUP_CONFIG),
    (Assignments.decode, vectors.JAVA_ASSIGNMENTS),
    (AssignmentQuery.decode, vectors.JAVA_ASSIGNMENT_QUERY),
    (ConsumeDirectlyResult.decode, vectors.JAVA_DIRECT),
    (ConsumerConnections.decode, vectors.JAVA_CONNECTIONS),
    (ProducerConnections.decode, vectors.JAVA_CONNECTIONS),
    (ConsumerList.decode, ConsumerList(("10.0.0.1@1#2",)).encode()),
    (TopicList.decode, b'{"topicList":["T","%RETRY%G"]}'),
    (KvTable.decode, b'{"table":{"a":"1"}}'),
    (ConsumerOffsets.decode, b'{"offsetTable":{"T@G":{0:5,1:7}}}'),
    (fastjson.loads, b'{a:1,{"b":[1,2]}:"\\u00fc"}'.replace(b"a", b"0")),
]
"""Readers of bodies, each with one that Java wrote, or could have written."""
BODY_READERS = list(dict.fromkeys([*(reader for reader, _ in BODIES), *(kind.decode for kind in BODY_KINDS)]))
body_choice = Choice(BODY_READERS)

text_choice = Choice(
    [
        *map(text_reader, (receipts.parse_receipt, receipts.parse_start_offsets, receipts.parse_message_offsets)),
        *map(text_reader, (receipts.parse_order_counts, ids.parse_offset_id, ids.parse_host, tags.split_expression)),
        properties.decode,
        lambda data: properties.find(data, "TAGS"),
        batch.decode_batch,
    ]
)
SMALL_TEXTS = [
    b"10 1000 60000 3 0 broker-a 0 12", b"0 0 10;2 0 5", b"0 0 10,12;2 0 6", b"0 0 1;0 qo0%5 2",
    b"7F00000100002A9F00000000000003E8", b"127.0.0.1:10911", b"a || b", b"TAGS\x01a\x02KEYS\x01k\x02", b"TAGS\x01a\x02",
    vectors.JAVA_BATCH,
]  # fmt: skip

LOWEST = -(1 << 63)
BEYOND = (1 << 63) - 1

# --- records --------------------------------------------------------------------------------------------------------------


@contextmanager
def small_bodies() -> Iterator[None]:
    """A damaged body is tried up to a limit, and to clear so much memory takes milliseconds; this one is far faster."""
    modules = (record_module, stored_module)
    for module in modules:
        module.decompress = partial(decompress, limit=1 << 20)
    try:
        yield
    finally:
        for module in modules:
            module.decompress = decompress


@small_bodies()
def read_records(data: bytes) -> None:
    """As a pull brings them; a plain record is written again as it was but for its checksum."""
    for record in decode_records(data):
        if record.defect is None:
            must_equal(decode_records(encode_record(_plain(record)))[0].body, record.body)
    pulled = PulledRecords(Queue("T", "b", 0), data, LOWEST, BEYOND)
    if pulled.stored != BEYOND - LOWEST:  # inner batches count by their offsets
        must_equal(pulled.stored, len(pulled.records))
    PulledRecords(Queue("T", "b", 0), data, 5, 6, frozenset({"a"})).records  # noqa: B018 - they are read
    make_receipts("b", PopResult(1000, 60000, 3, 7, "0 3 5", "0 3 5,6"), pulled.records)


def _plain(record: Record) -> Record:
    flags = record.sys_flag & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
    return Record(
        record.topic, record.body, record.properties, flag=record.flag, sys_flag=flags, born_host=record.born_host,
        store_host=record.store_host, queue_offset=record.queue_offset,
    )  # fmt: skip


@small_bodies()
def read_messages(data: bytes) -> None:
    """Decode every field and encode it again, in plain Python and with the compiled module if it is installed."""
    pulls = [PulledRecords(Queue("T", "b", 0), data, LOWEST, BEYOND)]
    messages, plain = decode_pulls(pulls), decode_plain(pulls)
    must_equal(len(messages), len(plain))
    for message, same in zip(messages, plain, strict=True):
        check_message(message)
        must_equal(message.as_dict(), same.as_dict())
    requests, failures = encode_messages(messages, "c|t|p|", Limits(), 5)
    wanted, refused = encode_plain(plain, "c|t|p|", Limits(), 5)
    must_equal(
        [(one.body, one.properties, one.indexes) for one in requests], [(one.body, one.properties, one.indexes) for one in wanted]
    )
    must_equal([one.reason for one in failures], [one.reason for one in refused])


BOMB = Record("T", compress(ZSTD, bytes(1 << 20)), sys_flag=SysFlag.COMPRESSED | ZSTD, queue_id=3, queue_offset=5)
RECORDS = [vectors.RECORD, *(value for name, value in vars(vectors).items() if name.startswith("JAVA_RECORD"))]
RECORDS.append(encode_record(BOMB))
STAMPED = [
    encode_record(Record("T", body, properties.encode(pairs), queue_offset=1, born_timestamp=5, flag=flag))
    for body, pairs, flag in (
        (b"x", [("a", "1"), ("mqbridge.origin", "c|t|p|1:2"), ("UNIQ_KEY", "U")], 0),
        (b"\0", [("TAGS", "t"), ("KEYS", "k1 k2"), ("__SHARDINGKEY", "k"), ("mqbridge.null", "1"), ("mqbridge.hops", "2")], 3),
        (b"y", [("mqbridge.attributes", "a=1,b=2"), ("mqbridge.event_time", "7"), ("mqbridge.u.mqbridge.x", "1")], 0),
        (
            b"z",
            [("TIMER_DELIVER_MS", "9"), ("mqbridge.key.b64", "/w=="), ("mqbridge.order", "0,1"), ("mqbridge.x.0.a", "%01")],
            0,
        ),
    )
]

TARGETS = {
    "rocketmq-frames": Target(read_frames, FRAMES),
    "rocketmq-headers": Target(header_choice, [bytes([at]) + sample(kind) for at, kind in enumerate(HEADERS)]),
    "rocketmq-bodies": Target(body_choice, [body_choice.seed(*one) for one in BODIES]),
    "rocketmq-texts": Target(text_choice, [bytes([at]) + data for at, data in enumerate(SMALL_TEXTS)]),
    "rocketmq-records": Target(read_records, RECORDS),
    "rocketmq-mapping": Target(read_messages, [*RECORDS, *STAMPED]),
}
