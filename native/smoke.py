"""Smoke test of the installed compiled module, which `native/wheels.py` runs with each new wheel for its machine.

It decodes a RocketMQ pull, and encodes the messages for Pulsar, RocketMQ and TubeMQ, with the module and with the plain code. It
fails if the results differ, or if the module is not in use.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from mqbridge import native
from mqbridge.message import Message
from mqbridge.pulsar.mapping import request as pulsar
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
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
    """Compare the encoded bytes for each system."""
    assert native.compiled is not None, native.notice
    records = [Record("T", b"body %d" % at, properties.encode(NAMES), queue_offset=at, born_timestamp=5) for at in range(COUNT)]
    pull = PulledRecords(Queue("T", "broker", 0), b"".join(map(encode_record, records)), 0, COUNT)
    messages, plain = decode_pulls([pull]), decode_plain([pull])
    assert native.is_native(messages)
    assert [message.as_dict() for message in messages] == [message.as_dict() for message in plain]
    assert _encode_for_all(messages, pulsar.encode, rocketmq.encode, encode_share(messages, ORIGIN)) == _encode_for_all(
        plain, pulsar.encode_plain, rocketmq.encode_plain, PlainRequests(plain, ORIGIN, UTC)
    )
    print(f"compiled module {native.compiled.VERSION}: {COUNT} messages, with the same results as the plain code")


def _encode_for_all(
    messages: Sequence[Message], encode_pulsar: Any, encode_rocketmq: Any, tubemq_requests: Requests
) -> list[Any]:
    """Return the content of the entries and requests for the messages. TubeMQ's requests are already encoded."""
    entries, _ = encode_pulsar(messages, ORIGIN, pulsar.Limits())
    requests, _ = encode_rocketmq(messages, ORIGIN, Limits(), 0)
    return [
        [(entry.payload, entry.metadata, entry.indexes) for entry in entries],
        [(request.body, request.properties, request.flag, request.indexes, request.born) for request in requests],
        [tubemq_requests[at] for at in range(COUNT)],
    ]


if __name__ == "__main__":
    main()
