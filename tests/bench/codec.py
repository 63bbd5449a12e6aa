"""The cost of encoding and decoding in ns per message for a pack of 500, best of several runs, no sockets.

Decode goes from a whole frame to messages with every field read; encode from messages to whole frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mqbridge.message import Message
from mqbridge.pulsar.mapping import request as pulsar
from mqbridge.pulsar.mapping import stored as pulsar_stored
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry, SendEncoder, decode_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.mapping import request as rocketmq_request
from mqbridge.rocketmq.mapping import stored as rocketmq_stored
from mqbridge.rocketmq.mapping.limits import Limits as RocketMQLimits
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record
from mqbridge.tubemq.client.consumer.partition_calls import parse_get_response
from mqbridge.tubemq.mapping import request as tubemq_request
from mqbridge.tubemq.mapping import stored as tubemq_stored
from mqbridge.tubemq.mapping.share import encode_share
from mqbridge.tubemq.wire import frame as tube_frame
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, TransferedMessage
from mqbridge.tubemq.wire.send import SendRequestEncoder
from tests.bench.ends import BORN, native_pairs, pairs
from tests.kit.oracle import body, message

COUNT = 500
RUNS = 15
ORIGIN = "tube|orders|1:orders:0|"


def best(work: Callable[[], object]) -> float:
    """Return the ns per message of the fastest run."""
    times = []
    for _ in range(RUNS):
        began = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - began)
    return min(times) / COUNT


def tubemq_pack(messages: list[Message]) -> bytes:
    """Return the frame of a Broker's response to a get."""
    response = GetMessageResponseB2C(success=True, errCode=200, currOffset=2800)
    for number, each in enumerate(messages):
        data, flag, _, _ = tubemq_request.encode(each, None)
        item = TransferedMessage(messageId=number, checkSum=checksum(data), payLoadData=data, flag=flag)
        response.messages.append(item)
    return tube_frame.encode_frame(1, rpc.encode_response(rpc.GET, response.SerializeToString()))


def decode_tubemq(frame: bytes) -> Sequence[Message]:
    """Decode the frame of a get response to messages."""
    _, payload = tube_frame.split_frame(frame)
    _, data = rpc.decode_response(payload)
    return tubemq_stored.decode(parse_get_response(data)[1], 2800)


def encode_tubemq(messages: Sequence[Message]) -> list[bytes]:
    """Encode messages as the frames of their send requests."""
    encoder = SendRequestEncoder("c", "orders", 0, -1, 1)
    frames = []
    requests = encode_share(messages, ORIGIN)
    for number in range(len(messages)):
        request = encoder.encode(*requests[number])
        body = rpc.encode_request(rpc.WRITE, rpc.SEND, 10_000, request)
        frames.append(tube_frame.encode_frame(number, body))
    return frames


def encode_pulsar(messages: list[Message], encoder: SendEncoder, limits: pulsar.Limits) -> list[bytes]:
    """Encode messages as SEND frames."""
    entries, _ = pulsar.encode(messages, ORIGIN, limits)
    pieces = []
    for number, entry in enumerate(entries):
        entry.metadata.producer_name, entry.metadata.sequence_id, entry.metadata.publish_time = "p", number, 1
        pieces += [encoder.encode(number, number, entry.count, entry.metadata, entry.payload), entry.payload]
    return pieces


def pulsar_entry(messages: list[Message]) -> bytes:
    """Return an entry as a broker delivers it."""
    pieces = encode_pulsar(messages, SendEncoder(0), pulsar.Limits(max_bytes=64 << 20))
    prefix = pieces[0]
    return prefix[prefix.index(b"\x0e\x01") :] + pieces[1]


def decode_pulsar(data: bytes) -> Sequence[Message]:
    """Decode an entry to messages."""
    read = decode_entry(data)
    return pulsar_stored.decode_entries([Entry(read.metadata, read.payload, ledger=1, entry=2)])


def pulsar_batches(size: int) -> list[Entry]:
    """Return batches of 100 messages as Java producers send them."""
    entries = []
    for begin in range(0, COUNT, 100):
        batch = []
        for number in range(begin, begin + 100):
            metadata = SingleMessageMetadata(partition_key=f"key {number % 50:02d}", event_time=BORN, sequence_id=number)
            for name, value in pairs(0, number):
                metadata.properties.add(key=name, value=value)
            batch.append((metadata, body(0, number, size)))
        entry_metadata = MessageMetadata(producer_name="p", sequence_id=begin, publish_time=BORN, num_messages_in_batch=100)
        entries.append(Entry(entry_metadata, join_batch(batch), ledger=1, entry=begin))
    return entries


def decode_and_encode_pulsar(entries: list[Entry], limits: pulsar.Limits) -> object:
    """Decode entries and encode their messages again."""
    return pulsar.encode(pulsar_stored.decode_entries(entries), ORIGIN, limits)


def plain_pulsar(entries: list[Entry], limits: pulsar.Limits) -> object:
    """Decode entries and encode their messages again with the plain code."""
    return pulsar.encode_plain([message for entry in entries for message in pulsar_stored.decode_plain(entry)], ORIGIN, limits)


def rocketmq_response(size: int) -> bytes:
    """Return the body of a broker's response to a pull, with messages as Java producers send them."""
    strings = [properties.encode([*native_pairs(0, number, f"{number:032X}"), ("CLUSTER", "c")]) for number in range(COUNT)]
    records = (
        Record("orders", body(0, n, size), string, born_timestamp=BORN, queue_offset=n) for n, string in enumerate(strings)
    )
    return b"".join(map(encode_record, records))


def rocketmq_pull(response: bytes) -> list[PulledRecords]:
    """Return a pull response as a lane receives it."""
    return [PulledRecords(Queue("orders", "broker", 0), response, 0, COUNT)]


def decode_rocketmq(response: bytes) -> Sequence[Message]:
    """Decode a pull response to messages."""
    return rocketmq_stored.decode_pulls(rocketmq_pull(response))


def encode_rocketmq(messages: Sequence[Message], limits: RocketMQLimits) -> list[bytes]:
    """Encode messages as the bodies of send requests."""
    sends, _ = rocketmq_request.encode(messages, ORIGIN, limits, BORN)
    return [out.body for out in sends]


def decode_rocketmq_plain(response: bytes) -> Sequence[Message]:
    """Decode a pull response with the plain code."""
    return rocketmq_stored.decode_plain(rocketmq_pull(response))


def encode_rocketmq_plain(messages: Sequence[Message], limits: RocketMQLimits) -> list[bytes]:
    """Encode messages with the plain code."""
    sends, _ = rocketmq_request.encode_plain(messages, ORIGIN, limits, BORN)
    return [out.body for out in sends]


def measure(size: int) -> dict[str, float]:
    """Return the ns per message by operation, for bodies of this size with five attributes."""
    messages = [message(0, number, size) for number in range(COUNT)]
    frame, entry = tubemq_pack(messages), pulsar_entry(messages)
    arrived = decode_tubemq(frame)
    response = rocketmq_response(size)
    pulled = decode_rocketmq(response)
    batches = pulsar_batches(size)
    encoder, limits = SendEncoder(0), pulsar.Limits()
    return {
        "TubeMQ decode": best(lambda: decode_tubemq(frame)),
        "TubeMQ encode": best(lambda: encode_tubemq(messages)),
        "Pulsar encode": best(lambda: encode_pulsar(arrived, encoder, limits)),
        "Pulsar decode": best(lambda: decode_pulsar(entry)),
        "RocketMQ encode": best(lambda: encode_rocketmq(arrived, RocketMQLimits())),
        "RocketMQ encode, plain": best(lambda: encode_rocketmq_plain(messages, RocketMQLimits())),
        "RocketMQ decode": best(lambda: decode_rocketmq(response)),
        "RocketMQ decode, plain": best(lambda: decode_rocketmq_plain(response)),
        "RocketMQ to RocketMQ": best(lambda: encode_rocketmq(decode_rocketmq(response), RocketMQLimits())),
        "RocketMQ to Pulsar": best(lambda: encode_pulsar(pulled, encoder, limits)),
        "Pulsar to Pulsar": best(lambda: decode_and_encode_pulsar(batches, limits)),
        "Pulsar to Pulsar, plain": best(lambda: plain_pulsar(batches, limits)),
    }
