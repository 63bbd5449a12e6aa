"""Encodes a broker's commands; those of clients are in `client_commands`. Each function returns the whole frame."""

from collections.abc import Iterable, Sequence

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.frame import encode_command, encode_frame_prefix
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

PROTOCOL_VERSION = 21
"""Protocol version of Pulsar 4.0."""


def connected(server_version: str, client_protocol: int, max_message_size: int) -> bytes:
    """Encode CONNECTED; the connection then has the lower protocol version of both sides.

    Only those features are announced that the listener has: clients then use no others.
    """
    command = pb.CommandConnected(
        server_version=server_version,
        protocol_version=min(PROTOCOL_VERSION, client_protocol),
        max_message_size=max_message_size,
        feature_flags=pb.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True),
    )
    return encode_command(BaseCommand(type=BaseCommand.CONNECTED, connected=command))


def success(request_id: int) -> bytes:
    """Encode SUCCESS."""
    return encode_command(BaseCommand(type=BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))


def error(request_id: int, code: int, message: str) -> bytes:
    """Encode ERROR; `request_id` is `ids.NO_REQUEST` if it answers no request."""
    # The type stubs want the enum's type here and below, but protobuf accepts any number of the enum.
    command = pb.CommandError(request_id=request_id, error=code, message=message)  # type: ignore[arg-type]
    return encode_command(BaseCommand(type=BaseCommand.ERROR, error=command))


# --- topics -----------------------------------------------------------------------------------------------------------


def partition_metadata(request_id: int, partitions: int) -> bytes:
    """Encode the response to PARTITIONED_METADATA; 0 partitions mean a topic that is not partitioned."""
    command = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return encode_command(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=command))


def partition_metadata_error(request_id: int, code: int, message: str) -> bytes:
    """Encode the response to PARTITIONED_METADATA that says why there is none."""
    command = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode_command(BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=command))


def lookup(request_id: int, service_url: str) -> bytes:
    """Encode the response to LOOKUP: the topic is served at this URL, through the connection's own address."""
    command = pb.CommandLookupTopicResponse(
        request_id=request_id,
        brokerServiceUrl=service_url,
        response=pb.CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=True,
    )
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=command))


def lookup_error(request_id: int, code: int, message: str) -> bytes:
    """Encode the response to LOOKUP that says why the topic is not served."""
    command = pb.CommandLookupTopicResponse(
        request_id=request_id,
        response=pb.CommandLookupTopicResponse.Failed,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=command))


def topics_of_namespace(
    request_id: int, topics: Iterable[str], topics_hash: str, *, is_filtered: bool, is_changed: bool
) -> bytes:
    """Encode the response to GET_TOPICS_OF_NAMESPACE."""
    command = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=is_filtered, topics_hash=topics_hash, changed=is_changed
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=command))


# --- schemas ----------------------------------------------------------------------------------------------------------


def schema(request_id: int, found: pb.Schema, version: bytes) -> bytes:
    """Encode the response to GET_SCHEMA."""
    command = pb.CommandGetSchemaResponse(request_id=request_id, schema=found, schema_version=version)
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=command))


def schema_error(request_id: int, code: int, message: str) -> bytes:
    """Encode the response to GET_SCHEMA that says why there is none."""
    command = pb.CommandGetSchemaResponse(
        request_id=request_id,
        error_code=code,  # type: ignore[arg-type]
        error_message=message,
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, getSchemaResponse=command))


def registered_schema(request_id: int, version: bytes) -> bytes:
    """Encode the response to GET_OR_CREATE_SCHEMA."""
    command = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return encode_command(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=command))


def registered_schema_error(request_id: int, code: int, message: str) -> bytes:
    """Encode the response to GET_OR_CREATE_SCHEMA that says why it is not registered."""
    command = pb.CommandGetOrCreateSchemaResponse(
        request_id=request_id,
        error_code=code,  # type: ignore[arg-type]
        error_message=message,
    )
    return encode_command(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=command))


# --- producers --------------------------------------------------------------------------------------------------------


def producer_success(
    request_id: int, name: str, last_sequence_id: int, schema_version: bytes, *, topic_epoch: int | None, is_ready: bool
) -> bytes:
    """Encode PRODUCER_SUCCESS; with `is_ready` False, the producer waits until others have gone."""
    command = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=is_ready,
    )
    return encode_command(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=command))


class ReceiptEncoder:
    """Encodes the SEND_RECEIPT frames of one producer, with a command object that is reused."""

    __slots__ = ("_command", "_receipt")

    def __init__(self, producer_id: int) -> None:
        self._command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        self._receipt = self._command.send_receipt
        self._receipt.producer_id = producer_id

    def encode(self, sequence_id: int, highest_sequence_id: int, entry: ids.EntryId) -> bytes:
        """Return the frame; the sequence ids are those of the SEND. Clients compare them with what they wait for."""
        receipt = self._receipt
        receipt.sequence_id, receipt.highest_sequence_id = sequence_id, highest_sequence_id
        receipt.message_id.ledgerId, receipt.message_id.entryId = ids.unsigned(entry[0]), ids.unsigned(entry[1])
        return encode_command(self._command)

    def encode_all(self, sequences: Sequence[tuple[int, int]], entries: Sequence[ids.EntryId]) -> bytes:
        """Return the frames of several receipts: of each the sequence ids of the SEND, and the id of the entry."""
        return b"".join(
            self.encode(sequence, highest, entry) for (sequence, highest), entry in zip(sequences, entries, strict=True)
        )


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """Encode SEND_ERROR. Most clients close their connection when they get it, and send the message again."""
    command = pb.CommandSendError(
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode_command(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=command))


def close_producer(producer_id: int) -> bytes:
    """Encode CLOSE_PRODUCER: the client looks the topic up again, and sends again what has no receipt."""
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=ids.NO_REQUEST)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=command))


# --- consumers --------------------------------------------------------------------------------------------------------


class MessageEncoder:
    """Encodes the beginnings of one consumer's MESSAGE frames, with a command object that is reused; the entry follows them."""

    __slots__ = ("_command", "_message")

    def __init__(self, consumer_id: int, partition: int) -> None:
        """`partition` is the index of the partition; -1 if the topic is not partitioned."""
        self._command = BaseCommand(type=BaseCommand.MESSAGE)
        self._message = self._command.message
        self._message.consumer_id = consumer_id
        self._message.message_id.partition = partition

    def encode(
        self, entry: ids.EntryId, entry_bytes: int, redelivery_count: int, ack_set: Sequence[int], epoch: int | None
    ) -> bytes:
        """Return the frame up to its entry of `entry_bytes` bytes.

        `ack_set` has the messages of the batch that are to be delivered; empty means all. `epoch` is the number that the
        consumer gave with its last request to deliver everything again; None leaves it out.
        """
        message = self._message
        message.message_id.ledgerId, message.message_id.entryId = entry
        if redelivery_count:
            message.redelivery_count = redelivery_count
        elif message.redelivery_count:
            message.ClearField("redelivery_count")
        if message.ack_set:
            del message.ack_set[:]
        if ack_set:
            message.ack_set.extend(ack_set)
        if epoch is not None:
            message.consumer_epoch = epoch
        return encode_frame_prefix(self._command, entry_bytes)


def close_consumer(consumer_id: int) -> bytes:
    """Encode CLOSE_CONSUMER: the client drops what it has not processed, and subscribes again."""
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=ids.NO_REQUEST)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=command))


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    """Encode ACTIVE_CONSUMER_CHANGE, for consumers of failover subscriptions."""
    command = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return encode_command(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=command))


def ack_response(consumer_id: int, request_id: int, code: int | None = None, message: str = "") -> bytes:
    """Encode ACK_RESPONSE, with an error code if the acknowledgement failed."""
    command = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if code is not None:
        command.error, command.message = code, message  # type: ignore[assignment]
    return encode_command(BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse=command))


def last_message_id(
    request_id: int, last: ids.EntryId, batch_index: int, partition: int, mark_deleted: ids.EntryId | None
) -> bytes:
    """Encode the response to GET_LAST_MESSAGE_ID; (-1, -1) if there is no message.

    `batch_index` is that of the last message in its batch, -1 without one. `mark_deleted` is the last entry of the acknowledged
    prefix; None leaves it out.
    """
    command = pb.CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=ids.message_id(*last))
    command.last_message_id.partition = partition
    command.last_message_id.batch_index = batch_index
    if mark_deleted is not None:
        command.consumer_mark_delete_position.CopyFrom(ids.message_id(*mark_deleted))
    return encode_command(BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=command))


def consumer_stats(command: pb.CommandConsumerStatsResponse) -> bytes:
    """Encode the response to CONSUMER_STATS."""
    return encode_command(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumerStatsResponse=command))
