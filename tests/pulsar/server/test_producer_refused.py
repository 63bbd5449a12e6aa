"""A batch that is stored nowhere, and never will be, fails at the client, which would send it again for ever otherwise."""

import pytest

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.publisher import Stored
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.producer import ServedProducer, ServedProducerState
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSend, MessageMetadata


class RecordingLink:
    """The link of a client that records what it is sent."""

    peer, is_writable = "client", True

    def __init__(self, client_version):
        self.client_version, self.sent, self.pending_sends = client_version, [], 0

    def send(self, *pieces):
        for piece in pieces:
            command = BaseCommand()
            command.ParseFromString(piece[8 : 8 + int.from_bytes(piece[4:8], "big")])
            self.sent.append(command)

    def on_answered(self):
        pass


class RefusingPublisher:
    """A publisher whose backing never accepts a message, nor its dead letter."""

    def keeps(self, format_name):
        return False

    def publish(self, partition, batch, done):
        done(Stored(problem=ClusterError("too large", Failure.REFUSED)))


def entry():
    metadata = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1, num_messages_in_batch=3).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata


@pytest.mark.parametrize(
    ("client_version", "code", "sequence"),
    [
        ("Pulsar-Java-v4.2.4", codes.NOT_ALLOWED, 7),
        ("Pulsar-CPP-v4.2.0", codes.CHECKSUM, 5),
        ("3.1.2", codes.CHECKSUM, 5),
        ("Pulsar Go 0.12", codes.NOT_ALLOWED, 7),
    ],
)
def test_each_client_gets_the_error_with_which_it_fails_the_batch(client_version, code, sequence):
    link = RecordingLink(client_version)
    producer = ServedProducer(link, 3, "p", MessageIds(OffsetNumbering()), epoch=0, is_named=False)
    producer.opened(RefusingPublisher(), 0, None)
    producer.send(CommandSend(producer_id=3, sequence_id=5, highest_sequence_id=7), entry(), 0)
    (command,) = link.sent
    error = command.send_error
    assert (error.producer_id, error.sequence_id, error.error) == (3, sequence, code)
    assert producer.state is ServedProducerState.OPEN
