"""Damaged frames to a connection with a producer, a consumer and a watch: only protocol errors, which end the connection."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import ProtocolError
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.connection_pool import ConnectionPool
from mqbridge.pulsar.client.connection.lookup import Lookup
from mqbridge.pulsar.client.connection.topic_watch import TopicWatch
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.client.producer.entry_producer import EntryProducer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.entry import encode_entry_prefix
from mqbridge.pulsar.wire.frame import encode_command, encode_frame_prefix
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.example_counts import examples
from tests.pulsar.client.broker import Broker, Link, silent

TOPIC = "persistent://public/default/t"


def command(**fields) -> bytes:
    ((name, body),) = fields.items()
    return encode_command(BaseCommand(type=BaseCommand.DESCRIPTOR.fields_by_name[name].number, **{name: body}))


def message(**metadata) -> bytes:
    prefix = encode_entry_prefix(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **metadata), b"hello")
    command_message = pb.CommandMessage(consumer_id=1, message_id=ids.message_id(1, 2), ack_set=[5])
    return (
        encode_frame_prefix(BaseCommand(type=BaseCommand.MESSAGE, message=command_message), len(prefix) + 5) + prefix + b"hello"
    )


WHOLE = [
    client_commands.PING,
    message(),
    message(num_messages_in_batch=2, compression=pb.LZ4, uncompressed_size=99),
    message(uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=10),
    command(send_receipt=pb.CommandSendReceipt(producer_id=0, sequence_id=0, message_id=ids.message_id(1, 1))),
    command(send_error=pb.CommandSendError(producer_id=0, sequence_id=0, error=pb.ChecksumError, message="no")),
    command(
        close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST, assignedBrokerServiceUrl="pulsar://x")
    ),
    command(close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=ids.NO_REQUEST)),
    command(topicMigrated=pb.CommandTopicMigrated(resource_id=0, resource_type=0, brokerServiceUrl="pulsar://x:1")),
    command(watchTopicUpdate=pb.CommandWatchTopicUpdate(watcher_id=2, new_topics=["a"], topics_hash="x")),
    command(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=1, is_active=False)),
    command(reachedEndOfTopic=pb.CommandReachedEndOfTopic(consumer_id=1)),
    command(producer_success=pb.CommandProducerSuccess(request_id=1, producer_name="p", producer_ready=False)),
    command(error=pb.CommandError(request_id=3, error=pb.UnknownError, message="no")),
    command(connected=pb.CommandConnected(server_version="x", max_message_size=100)),
]


@st.composite
def damaged(draw) -> bytes:
    """Return a complete frame with some bytes changed, but not its sizes: those are fuzzed with the frame cutter."""
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(8, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(8, len(data))) :]
        data[0:4] = (len(data) - 4).to_bytes(4, "big")
    return bytes(data)


async def feed(frames: list[bytes]) -> None:
    broker = Broker()
    broker.on[BaseCommand.PRODUCER] = broker.on[BaseCommand.SUBSCRIBE] = broker.on[BaseCommand.CLOSE_CONSUMER] = silent
    connection = Connection()
    link = Link(broker, "fuzz", connection.endpoint)
    connection.endpoint.connection_made(link)
    lookup = Lookup(ConnectionPool([]))
    producer = EntryProducer(lookup, 0, TOPIC, ProducerSettings())
    await producer._registration.cancel_attempt()
    producer._state.begin_register()
    consumer = EntryConsumer(lookup, 1, TOPIC, Subscription("s", Types.Failover))
    consumer._state.begin_subscribe()
    consumer._state.on_activated()
    for role, table in ((producer, connection.producers), (consumer, connection.consumers)):
        table[role._id] = role
        role._registration.connection = connection
        role._registration.reopen = lambda _=0.0: None  # type: ignore[method-assign]  # what follows is another connection's
        role.on_registered(connection)
    connection.watchers[2] = TopicWatch(lookup, 2, "a/b", ".*", 60.0, 1.0)
    sent = producer.send(MessageMetadata(), b"x")
    for data in frames:
        if not connection.alive:
            break
        try:
            connection._on_frames([data])
        except ProtocolError as error:
            connection.endpoint.abort(error)
        while (entry := consumer.take()) is not None:
            assert entry.defect is not None or entry.metadata is not None
    assert consumer.held_bytes >= 0
    link.drop()
    await asyncio.sleep(0)
    consumer.end(ConnectionResetError("over"))  # type: ignore[arg-type]
    await consumer.close()
    producer.end(ConnectionResetError("over"))  # type: ignore[arg-type]
    await producer.close()
    assert sent.done()
    sent.exception()


@settings(max_examples=examples(300))
@given(st.lists(damaged(), max_size=12))
def test_damaged_frames_end_in_protocol_errors_only(frames):
    asyncio.run(feed(frames))
