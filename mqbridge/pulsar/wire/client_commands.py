"""Encodes a client's commands, in the order in which a connection uses them.

SEND, schema commands and topic lists are in `frame`, `schemas` and `topic_lists`. Each function returns the whole frame. There
are no functions for responses: `parse_frame` returns them as protobuf objects.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

PROTOCOL_VERSION = 21
"""Protocol version of Pulsar 4.0. The client relies on acknowledgements of several ids (since version 12) and on receipts of
acknowledgements (since version 17)."""

PING = encode_command(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing()))
PONG = encode_command(BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()))


def connect(client_version: str, auth_method: str, auth_data: bytes, proxy_to: str | None) -> bytes:
    """Encode CONNECT. `proxy_to` is host:port of the broker if the connection goes to a proxy, otherwise None."""
    command = pb.CommandConnect(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=auth_method,
        auth_data=auth_data or None,
        proxy_to_broker_url=proxy_to,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )
    return encode_command(BaseCommand(type=BaseCommand.CONNECT, connect=command))


def auth_response(client_version: str, auth_method: str, auth_data: bytes) -> bytes:
    """Encode AUTH_RESPONSE, which answers the broker's AUTH_CHALLENGE with new credentials."""
    data = pb.AuthData(auth_method_name=auth_method, auth_data=auth_data)
    command = pb.CommandAuthResponse(client_version=client_version, response=data, protocol_version=PROTOCOL_VERSION)
    return encode_command(BaseCommand(type=BaseCommand.AUTH_RESPONSE, authResponse=command))


def partition_metadata(request_id: int, topic: str, create: bool) -> bytes:
    """Encode PARTITIONED_METADATA. With `create` the broker may auto-create the topic."""
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id, metadata_auto_creation_enabled=create)
    return encode_command(BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata=command))


def lookup(request_id: int, topic: str, authoritative: bool, listener_name: str | None = None) -> bytes:
    """Encode LOOKUP. `authoritative` is the flag of the response that redirected to this broker, False without a redirect.

    `listener_name` names the listener whose addresses the broker shall return; None: those of its internal listener.
    """
    command = pb.CommandLookupTopic(
        topic=topic, request_id=request_id, authoritative=authoritative, advertised_listener_name=listener_name
    )
    return encode_command(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=command))


# --- producer ---------------------------------------------------------------------------------------------------------


def producer(request_id: int, command: pb.CommandProducer) -> bytes:
    """Encode PRODUCER; sets only the request id, the caller sets all other fields."""
    command.request_id = request_id
    return encode_command(BaseCommand(type=BaseCommand.PRODUCER, producer=command))


def close_producer(request_id: int, producer_id: int) -> bytes:
    """Encode CLOSE_PRODUCER."""
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=command))


# --- consumer ---------------------------------------------------------------------------------------------------------


def subscribe(request_id: int, command: pb.CommandSubscribe) -> bytes:
    """Encode SUBSCRIBE; sets only the request id, the caller sets all other fields."""
    command.request_id = request_id
    return encode_command(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=command))


def flow(consumer_id: int, permits: int) -> bytes:
    """Encode FLOW, which lets the broker send `permits` more messages (at least 1)."""
    return encode_command(
        BaseCommand(type=BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))
    )


def ack(consumer_id: int, cumulative: bool, message_ids: Iterable[pb.MessageIdData], request_id: int | None = None) -> bytes:
    """Encode ACK; the broker sends ACK_RESPONSE only if there is a request id.

    `cumulative` True acknowledges everything up to the only id; False acknowledges just these ids.
    """
    command = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=message_ids,
        request_id=request_id,
    )
    return encode_command(BaseCommand(type=BaseCommand.ACK, ack=command))


def redeliver(consumer_id: int, message_ids: Iterable[pb.MessageIdData], epoch: int | None) -> bytes:
    """Encode REDELIVER_UNACKNOWLEDGED_MESSAGES; without ids it requests all unacknowledged messages of the consumer.

    `epoch` is a new number of the consumer. The broker sends it back with each later entry, which tells them from entries sent
    before; None keeps the number.
    """
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, message_ids=message_ids, consumer_epoch=epoch)
    command_type = BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return encode_command(BaseCommand(type=command_type, redeliverUnacknowledgedMessages=command))


def seek(request_id: int, consumer_id: int, *, to: ids.EntryId | None = None, publish_time: int | None = None) -> bytes:
    """Encode SEEK: move the subscription to this entry, which is then delivered, or to a publish time (ms since the epoch).

    Exactly one of the two is given.
    """
    command = pb.CommandSeek(
        consumer_id=consumer_id,
        request_id=request_id,
        message_id=None if to is None else ids.message_id(*to),
        message_publish_time=publish_time,
    )
    return encode_command(BaseCommand(type=BaseCommand.SEEK, seek=command))


def get_last_message_id(request_id: int, consumer_id: int) -> bytes:
    """Encode GET_LAST_MESSAGE_ID."""
    command = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=command))


def consumer_stats(request_id: int, consumer_id: int) -> bytes:
    """Encode CONSUMER_STATS."""
    command = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.CONSUMER_STATS, consumerStats=command))


def unsubscribe(request_id: int, consumer_id: int, force: bool = False) -> bytes:
    """Encode UNSUBSCRIBE: delete the subscription.

    While other consumers are connected, the broker refuses that, unless `force` is True (4.0 and later).
    """
    command = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id, force=force or None)
    return encode_command(BaseCommand(type=BaseCommand.UNSUBSCRIBE, unsubscribe=command))


def close_consumer(request_id: int, consumer_id: int) -> bytes:
    """Encode CLOSE_CONSUMER."""
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return encode_command(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=command))
