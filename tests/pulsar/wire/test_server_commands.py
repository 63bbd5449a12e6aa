"""Commands of a broker: golden bytes, frames of real brokers and of other implementations, and the client's side reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.pulsar.wire import codes, ids, server_commands
from mqbridge.pulsar.wire.frame import parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.wire import vectors

NUMBERS = st.integers(0, (1 << 64) - 1)


def test_a_receipt_of_a_duplicate_is_that_of_a_real_broker():
    encoder = server_commands.ReceiptEncoder(0)
    assert encoder.encode(5, 7, (-1, -1)) == vectors.DUPLICATE_RECEIPT
    encoder.encode(6, 6, (1, 3))
    assert encoder.encode(5, 7, (-1, -1)) == vectors.DUPLICATE_RECEIPT, "nothing stays of the receipt before"


def test_connected_has_the_fields_of_a_known_frame():
    known = parse_frame(vectors.CONNECTED).command.connected
    sent = parse_frame(server_commands.connected("emu", 21, 5242880)).command.connected
    assert sent.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    sent.ClearField("feature_flags")
    assert sent == known


@pytest.mark.parametrize(("client", "agreed"), [(21, 21), (22, 21), (99, 21), (20, 20), (0, 0), (-5, -5)])
def test_the_lower_protocol_version_counts(client, agreed):
    assert parse_frame(server_commands.connected("x", client, 1)).command.connected.protocol_version == agreed


def test_a_lookup_has_the_fields_of_a_known_frame():
    known = parse_frame(vectors.LOOKUP_RESPONSE).command.lookupTopicResponse
    sent = parse_frame(server_commands.lookup(2, "pulsar://127.0.0.1:6650")).command.lookupTopicResponse
    assert sent.proxy_through_service_url, "as standalone brokers answer"
    sent.ClearField("proxy_through_service_url")
    assert sent == known


GOLDEN = [
    (server_commands.success(3), "0000000a 00000006", "080d 6a02 0803"),
    (server_commands.error(3, codes.CONSUMER_BUSY, "no"), "", "080e 7208 0803 1005 1a026e6f"),
    (server_commands.close_producer(4), "", "080f 7a0d 0804 10ffffffffffffffffff01"),
    (server_commands.close_consumer(4), "", "0810 82010d 0804 10ffffffffffffffffff01"),
    (server_commands.partition_metadata(7, 0), "", "0816 b20106 0800 1007 1800"),
    (server_commands.partition_metadata(7, 4), "", "0816 b20106 0804 1007 1800"),
    (server_commands.active_consumer_change(5, is_active=True), "", "081f fa0104 0805 1001"),
    (server_commands.active_consumer_change(5, is_active=False), "", "081f fa0104 0805 1000"),
    (server_commands.ack_response(5, 6), "", "0826 b20204 0805 3006"),
    (server_commands.send_error(1, 2, codes.CHECKSUM, "x"), "", "0808 4209 0801 1002 1809 220178"),
]


@pytest.mark.parametrize(("frame", "sizes", "command"), GOLDEN, ids=range(len(GOLDEN)))
def test_golden_bytes(frame, sizes, command):
    """Written by hand from the numbers of the fields."""
    expected = bytes.fromhex(command)
    if sizes:
        assert frame[:8] == bytes.fromhex(sizes)
    assert frame == (len(expected) + 4).to_bytes(4) + len(expected).to_bytes(4) + expected


def test_a_producer_that_waits_has_no_epoch():
    waiting = parse_frame(
        server_commands.producer_success(1, "n", -1, b"", topic_epoch=None, is_ready=False)
    ).command.producer_success
    assert (waiting.producer_ready, waiting.HasField("topic_epoch"), waiting.last_sequence_id) == (False, False, -1)
    assert waiting.HasField("schema_version")
    ready = parse_frame(server_commands.producer_success(1, "n", 7, b"", topic_epoch=3, is_ready=True)).command.producer_success
    assert (ready.producer_ready, ready.topic_epoch, ready.last_sequence_id) == (True, 3, 7)


def test_errors_have_the_response_that_clients_wait_for():
    frames = {
        BaseCommand.PARTITIONED_METADATA_RESPONSE: server_commands.partition_metadata_error(9, codes.TOPIC_NOT_FOUND, "t"),
        BaseCommand.LOOKUP_RESPONSE: server_commands.lookup_error(9, codes.TOPIC_NOT_FOUND, "t"),
        BaseCommand.GET_SCHEMA_RESPONSE: server_commands.schema_error(9, codes.TOPIC_NOT_FOUND, "t"),
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: server_commands.registered_schema_error(9, codes.TOPIC_NOT_FOUND, "t"),
        BaseCommand.ACK_RESPONSE: server_commands.ack_response(1, 9, codes.TOPIC_NOT_FOUND, "t"),
        BaseCommand.ERROR: server_commands.error(9, codes.TOPIC_NOT_FOUND, "t"),
    }
    for kind, frame in frames.items():
        parsed = parse_frame(frame)
        assert parsed.type == kind
        (part,) = [value for field, value in parsed.command.ListFields() if field.name != "type"]
        assert part.request_id == 9
        assert codes.TOPIC_NOT_FOUND in {getattr(part, "error", None), getattr(part, "error_code", None)}


def test_topics_schemas_and_statistics():
    topics = parse_frame(server_commands.topics_of_namespace(1, ["a", "b"], "h", is_filtered=True, is_changed=True))
    assert list(topics.command.getTopicsOfNamespaceResponse.topics) == ["a", "b"]
    schema = pb.Schema(name="s", type=pb.Schema.Json, schema_data=b"{}")
    found = parse_frame(server_commands.schema(1, schema, b"v")).command.getSchemaResponse
    assert (found.schema, found.schema_version, found.HasField("error_code")) == (schema, b"v", False)
    made = parse_frame(server_commands.registered_schema(1, bytes(8))).command.getOrCreateSchemaResponse
    assert (made.schema_version, made.HasField("error_code")) == (bytes(8), False)
    statistics = pb.CommandConsumerStatsResponse(request_id=4, availablePermits=3)
    assert parse_frame(server_commands.consumer_stats(statistics)).command.consumerStatsResponse == statistics


@given(NUMBERS, st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1), st.integers(-1, 1000))
def test_the_last_message_id_is_read_as_it_was_given(request, ledger, entry, index):
    answer = parse_frame(server_commands.last_message_id(request, (ledger, entry), index, -1, (ledger, -1)))
    parsed = answer.command.getLastMessageIdResponse
    assert ids.entry_id(parsed.last_message_id) == (ledger, entry)
    assert (parsed.last_message_id.batch_index, parsed.last_message_id.partition) == (index, -1)
    assert ids.entry_id(parsed.consumer_mark_delete_position) == (ledger, -1)
    without = parse_frame(server_commands.last_message_id(request, (ledger, entry), index, -1, None))
    assert not without.command.getLastMessageIdResponse.HasField("consumer_mark_delete_position")


MESSAGES = st.tuples(
    st.integers(0, (1 << 63) - 1), st.integers(0, 3), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    st.one_of(st.none(), NUMBERS), st.binary(max_size=20),
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=5), st.integers(-1, 5))
def test_the_encoder_of_messages_keeps_nothing_of_the_one_before(messages, partition):
    encoder, epoch = server_commands.MessageEncoder(7, partition), None
    for number, count, ack_set, new_epoch, entry in messages:
        epoch = epoch if new_epoch is None else new_epoch  # a consumer never gives its epoch up
        frame = parse_frame(encoder.encode((1, number), len(entry), count, ack_set, epoch) + entry)
        message = frame.command.message
        assert (message.consumer_id, ids.entry_id(message.message_id)) == (7, (1, number))
        assert (message.message_id.partition, message.redelivery_count, list(message.ack_set)) == (partition, count, ack_set)
        assert (message.consumer_epoch if message.HasField("consumer_epoch") else None) == epoch
        assert frame.data[frame.entry_offset :] == entry
