"""What a broker's commands are to a connection: the answer to a request, or a push to a producer, a consumer or a watcher."""

from collections.abc import Callable
from typing import Any

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandTopicMigrated

RESPONSES: dict[int, Callable[[BaseCommand], Any]] = {
    BaseCommand.SUCCESS: lambda command: command.success,
    BaseCommand.PRODUCER_SUCCESS: lambda command: command.producer_success,
    BaseCommand.PARTITIONED_METADATA_RESPONSE: lambda command: command.partitionMetadataResponse,
    BaseCommand.LOOKUP_RESPONSE: lambda command: command.lookupTopicResponse,
    BaseCommand.CONSUMER_STATS_RESPONSE: lambda command: command.consumerStatsResponse,
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: lambda command: command.getLastMessageIdResponse,
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: lambda command: command.getTopicsOfNamespaceResponse,
    BaseCommand.GET_SCHEMA_RESPONSE: lambda command: command.getSchemaResponse,
    BaseCommand.ACK_RESPONSE: lambda command: command.ackResponse,
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: lambda command: command.getOrCreateSchemaResponse,
    BaseCommand.WATCH_TOPIC_LIST_SUCCESS: lambda command: command.watchTopicListSuccess,
}
"""The bodies of answers; each has a `request_id`."""

PRODUCER_PUSHES: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.SEND_RECEIPT: lambda command: command.send_receipt.producer_id,
    BaseCommand.SEND_ERROR: lambda command: command.send_error.producer_id,
    BaseCommand.CLOSE_PRODUCER: lambda command: command.close_producer.producer_id,
}
CONSUMER_PUSHES: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.MESSAGE: lambda command: command.message.consumer_id,
    BaseCommand.CLOSE_CONSUMER: lambda command: command.close_consumer.consumer_id,
    BaseCommand.ACTIVE_CONSUMER_CHANGE: lambda command: command.active_consumer_change.consumer_id,
    BaseCommand.REACHED_END_OF_TOPIC: lambda command: command.reachedEndOfTopic.consumer_id,
}
CLOSES = frozenset({BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER})


def is_for_producer(migrated: CommandTopicMigrated) -> bool:
    """Whose id a TOPIC_MIGRATED names."""
    return migrated.resource_type == CommandTopicMigrated.Producer
