"""Frames: golden bytes both ways and at every split; invalid bytes raise only ProtocolError."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ProtocolError, RemoteProtocolError
from mqbridge.pulsar.wire import client_commands, ids, schemas, topic_lists
from mqbridge.pulsar.wire.frame import FRAME_PADDING, FrameMeter, encode_command, encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.wire.cutter import FrameCutter
from tests.pulsar.wire import vectors


def test_commands_equal_those_of_other_clients():
    assert client_commands.PING == vectors.PING
    assert client_commands.PONG == vectors.PONG
    assert client_commands.flow(0, 1000) == vectors.FLOW
    assert client_commands.ack(0, False, [ids.message_id(1, 0, [6])]) == vectors.ACK
    assert client_commands.connect("x", "token", b"secret", None) == vectors.CONNECT_TOKEN
    assert client_commands.connect("x", "tls", b"", None) == vectors.CONNECT_TLS
    assert client_commands.auth_response("x", "token", b"secret") == vectors.AUTH_RESPONSE


@pytest.mark.parametrize("data", vectors.FRAMES, ids=range(len(vectors.FRAMES)))
def test_known_frames_survive_the_round_trip(data):
    frame = parse_frame(data)
    rest = data[frame.entry_offset :]
    assert encode_frame_prefix(frame.command, len(rest)) + rest == data
    assert frame.type == frame.command.type


def test_known_responses_are_parsed():
    connected = parse_frame(vectors.CONNECTED).command.connected
    assert (connected.server_version, connected.protocol_version, connected.max_message_size) == ("emu", 21, 5242880)
    lookup = parse_frame(vectors.LOOKUP_RESPONSE).command.lookupTopicResponse
    assert (lookup.request_id, lookup.response, lookup.authoritative) == (2, lookup.Connect, True)
    assert lookup.brokerServiceUrl == "pulsar://127.0.0.1:6650"
    receipt = parse_frame(vectors.DUPLICATE_RECEIPT).command.send_receipt
    assert (receipt.sequence_id, receipt.highest_sequence_id, ids.entry_id(receipt.message_id)) == (5, 7, (-1, -1))


def test_frames_are_cut_at_every_split_of_the_stream():
    stream = b"".join(vectors.FRAMES)
    for at in range(1, len(stream)):
        cutter = FrameCutter(FrameMeter().measure)
        assert tuple(cutter.feed(stream[:at]) + cutter.feed(stream[at:])) == vectors.FRAMES
    cutter = FrameCutter(FrameMeter().measure)
    assert tuple(frame for byte in stream for frame in cutter.feed(bytes([byte]))) == vectors.FRAMES


def test_a_frame_beyond_the_limit_is_refused_before_its_body_arrives():
    meter = FrameMeter(1000)
    largest = struct.pack(">I", 1000 + FRAME_PADDING)
    assert meter.measure(largest, 0) == 1000 + FRAME_PADDING + 4
    with pytest.raises(RemoteProtocolError):
        meter.measure(struct.pack(">I", 1001 + FRAME_PADDING), 0)
    meter.allow(2000)
    assert meter.measure(struct.pack(">I", 1001 + FRAME_PADDING), 0) == 1005 + FRAME_PADDING


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        struct.pack(">II", 4, 0),
        struct.pack(">II", 6, 3) + b"\x08\x12",  # the command does not fit
        struct.pack(">II", 7, 2) + b"\x08\x12",  # totalSize exceeds the data
        struct.pack(">II", 7, 3) + b"\x08\x12\xff",  # no protobuf
        struct.pack(">II", 6, 2) + b"\x10\x01",  # no type
        client_commands.lookup(1, "t", True).replace(b"t", b"\xff"),  # a topic name that is not UTF-8
        topic_lists.watch_topic_list(1, 2, "a/b", "x", None).replace(b"a/b", b"a\xc3b"),
    ],
)
def test_an_invalid_frame_is_refused(data):
    with pytest.raises(RemoteProtocolError):
        parse_frame(data)


def test_an_unknown_type_keeps_its_number():
    command = b"\x08\x46\xb2\x04\x00"  # type 70 with an empty field 70
    frame = parse_frame(struct.pack(">II", 4 + len(command), len(command)) + command)
    assert frame.type == 70


@given(st.binary(max_size=200))
def test_fuzz_only_protocol_errors(data):
    for candidate in (data, struct.pack(">II", len(data) + 4, len(data)) + data):
        with contextlib.suppress(ProtocolError):
            parse_frame(candidate)
    with contextlib.suppress(ProtocolError):
        FrameCutter(FrameMeter().measure).feed(data)


@given(st.integers(0, (1 << 64) - 1), st.text(min_size=1, max_size=50), st.booleans())
def test_commands_survive_the_round_trip(request_id, topic, create):
    frame = parse_frame(client_commands.partition_metadata(request_id, topic, create))
    command = frame.command.partitionMetadata
    assert frame.type == BaseCommand.PARTITIONED_METADATA
    assert (command.request_id, command.topic, command.metadata_auto_creation_enabled) == (request_id, topic, create)


REQUESTS = {
    BaseCommand.CONNECT: client_commands.connect("x", "none", b"", "host:1"),
    BaseCommand.AUTH_RESPONSE: client_commands.auth_response("x", "token", b"secret"),
    BaseCommand.LOOKUP: client_commands.lookup(1, "t", True),
    BaseCommand.GET_TOPICS_OF_NAMESPACE: topic_lists.topics_of_namespace(1, "a/b", "a/b/x.*", "00000000"),
    BaseCommand.WATCH_TOPIC_LIST: topic_lists.watch_topic_list(1, 2, "a/b", "x", None),
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: topic_lists.watch_topic_list_close(1, 2),
    BaseCommand.GET_SCHEMA: schemas.get_schema(1, "t", bytes(8)),
    BaseCommand.GET_OR_CREATE_SCHEMA: schemas.get_or_create_schema(1, "t", schemas.STRING),
    BaseCommand.PRODUCER: client_commands.producer(1, pb.CommandProducer(topic="t", producer_id=2)),
    BaseCommand.CONSUMER_STATS: client_commands.consumer_stats(1, 2),
    BaseCommand.CLOSE_PRODUCER: client_commands.close_producer(1, 2),
    BaseCommand.SUBSCRIBE: client_commands.subscribe(
        2, pb.CommandSubscribe(topic="t", subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1)
    ),
    BaseCommand.ACK: client_commands.ack(1, True, [ids.message_id(0, -1)], 5),
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: client_commands.redeliver(1, [], 4),
    BaseCommand.SEEK: client_commands.seek(1, 2, to=ids.EARLIEST),
    BaseCommand.GET_LAST_MESSAGE_ID: client_commands.get_last_message_id(1, 2),
    BaseCommand.UNSUBSCRIBE: client_commands.unsubscribe(1, 2),
    BaseCommand.CLOSE_CONSUMER: client_commands.close_consumer(1, 2),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_request_has_its_type_and_its_body(kind):
    frame = parse_frame(REQUESTS[kind])
    assert frame.type == kind
    # The field of a command has the number of its type.
    assert [descriptor.number for descriptor, _ in frame.command.ListFields()] == [1, kind]
    assert encode_command(frame.command) == REQUESTS[kind]
