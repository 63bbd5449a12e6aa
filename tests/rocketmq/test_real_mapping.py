"""Requests of the mapping at a real RocketMQ broker: batches in order, delayed and large messages sent alone."""

import time

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import EncodedRequest, encode
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record, decode_records
from tests.kit import rocketmq_remoting as remoting
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.records import decode
from tests.strategies import comparable_fields

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("both_ways")]

SEND_BATCH, SEND, PULL = 320, 310, 11
LITE_WITH_SUBSCRIPTION = 4 | 16
ORIGIN = "c|t|1:0|"


def send(broker: str, topic: str, outgoing: EncodedRequest) -> None:
    fields = {
        "a": "mapping", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": outgoing.sys_flag, "g": outgoing.born, "h": outgoing.flag,
        "i": outgoing.properties.decode(), "j": 0, "k": False, "m": outgoing.is_batch,
    }  # fmt: skip
    remoting.call(broker, SEND_BATCH if outgoing.is_batch else SEND, fields, outgoing.body)


def pull(broker: str, topic: str, count: int) -> list[Record]:
    """Wait until queue 0 has `count` records, and return them."""
    records: list[Record] = []
    deadline = time.monotonic() + SERVER_PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        fields = {
            "consumerGroup": "mapping", "topic": topic, "queueId": 0, "queueOffset": len(records), "maxMsgNums": 32,
            "sysFlag": LITE_WITH_SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        answer = remoting.request(broker, PULL, fields)
        if answer.status == remoting.SUCCESS:
            records += decode_records(answer.body)
        else:
            time.sleep(0.1)
    return records


SENT = [
    Message(b"plain"),
    Message(b"", (("empty", ""), ("a", "1"), ("a", "2"), ("TAGS", "user"), ("x\x01", "\x02"), ("ü", "鍵🚚"))),
    Message(None, key="k", keys=("i", "j"), msg_type="t", event_time=1_700_000_000_123),
    Message(b"keys", keys=("only",), key="only", ordering_key=b"\x00\xff", attributes=b"$msgType$=t,a"),
    Message(b"ours", (("UNIQ_KEY", "7F00000100010000000000000001"), ("b", "1"), ("mqbridge.rocketmq.flag", "7"))),
    Message(b"many", tuple((f"name-{index}", str(index)) for index in range(200)), key=b"\xff", deliver_at=5),
]


def test_batches_are_stored_completely_and_in_order(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    sends, failures = encode(SENT, ORIGIN, Limits(), int(time.time() * 1000))
    assert (failures, [outgoing.count for outgoing in sends]) == ([], [len(SENT)])
    send(rocketmq.broker_address, topic, sends[0])
    records = pull(rocketmq.broker_address, topic, len(SENT))
    got = decode(records)
    assert [comparable_fields(message) for message in got] == [comparable_fields(message) for message in SENT]
    assert [message.hops for message in got] == [1] * len(SENT)
    # The mapping relies on this: brokers append their properties to those of the request.
    names = [name for name, _ in decode_properties(records[0].properties)]
    assert names[0] == "mqbridge.origin"
    assert "CLUSTER" in names[1:]


def test_the_property_order_of_a_single_message_is_restored(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    limits = Limits(max_message_bytes=100_000)
    large = Message(b"x" * 99_990, SENT[-1].properties + SENT[1].properties, key="k", msg_type="t")
    unique = Message(b"x" * 99_990, SENT[4].properties)
    for message in (large, unique):
        [outgoing], _ = encode([message], None, limits, 1)
        assert not outgoing.is_batch
        send(rocketmq.broker_address, topic, outgoing)
    records = pull(rocketmq.broker_address, topic, 2)
    assert [comparable_fields(message) for message in decode(records)] == [comparable_fields(large), comparable_fields(unique)]
    stored = [name for name, _ in decode_properties(records[0].properties) if name.startswith("name-")]
    assert stored != [name for name, _ in SENT[-1].properties], "this broker keeps the order: `mqbridge.order` is not needed"


def test_a_delayed_message_arrives_at_its_time_and_is_delayed_only_once(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    now = int(time.time() * 1000)
    late = Message(b"late", (("z", "1"), ("a", "2")), deliver_at=now + 2000)
    [outgoing], _ = encode([late], None, Limits(), now)
    send(rocketmq.broker_address, topic, outgoing)
    [record] = pull(rocketmq.broker_address, topic, 1)
    assert record.store_timestamp >= now + 1000, "the timer's precision is a second"
    [message] = decode([record])
    assert comparable_fields(message) == comparable_fields(late)
    [again], _ = encode([message], None, Limits(), now + 60_000)
    assert again.is_batch
    assert b"TIMER" not in again.body
