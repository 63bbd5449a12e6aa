"""Sends a RocketMQ pull through the installed compiled module to Pulsar, TubeMQ and RocketMQ, and compares with the plain code.

Fails where the module is not used. `native/wheels.py` tries a wheel with it.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from mqbridge import native
from mqbridge.message import Message
from mqbridge.pulsar.mapping import request as pulsar
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping import request as rocketmq
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.stored import decode_plain, decode_pulls
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record
from mqbridge.tubemq.mapping.share import PlainRequests, Requests, encode_share

COUNT = 32
ORIGIN = "cluster|T|0|"
NAMES = [("UNIQ_KEY", "7F0000010000"), ("TAGS", "t"), ("KEYS", "k1 k2"), ("name", "v\u00e4lue"), ("WAIT", "true")]


def main() -> None:
    """The same bytes, for each target."""
    assert native.compiled is not None, native.notice
    records = [Record("T", b"body %d" % at, properties.encode(NAMES), queue_offset=at, born_timestamp=5) for at in range(COUNT)]
    pull = PulledRecords(Queue("T", "broker", 0), b"".join(map(encode_record, records)), 0, COUNT)
    messages, plain = decode_pulls([pull]), decode_plain([pull])
    assert native.is_native(messages)
    assert [one.as_dict() for one in messages] == [one.as_dict() for one in plain]
    assert _written(messages, pulsar.encode, rocketmq.encode, encode_share(messages, ORIGIN)) == _written(
        plain, pulsar.encode_plain, rocketmq.encode_plain, PlainRequests(plain, ORIGIN, UTC)
    )
    print(f"compiled module {native.compiled.VERSION}: {COUNT} messages, the same as by the plain code")


def _written(messages: Sequence[Message], to_pulsar: Any, to_rocketmq: Any, to_tubemq: Requests) -> list[Any]:
    entries, _ = to_pulsar(messages, ORIGIN, pulsar.Limits())
    requests, _ = to_rocketmq(messages, ORIGIN, Limits(), 0)
    return [
        [(one.payload, one.metadata, one.indexes) for one in entries],
        [(one.body, one.properties, one.flag, one.indexes, one.born) for one in requests],
        [to_tubemq[at] for at in range(COUNT)],
    ]


if __name__ == "__main__":
    main()
