"""Classification of a broker's commands: a response to a request, or a command that is pushed to a producer or consumer.

`connection.py` processes all other commands, such as ERROR (for a request), PING, TOPIC_MIGRATED and updates of topic lists.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandTopicMigrated

RESPONSES: dict[int, Callable[[BaseCommand], Any]] = {
    BaseCommand.SUCCESS: attrgetter("success"),
    BaseCommand.PRODUCER_SUCCESS: attrgetter("producer_success"),
    BaseCommand.PARTITIONED_METADATA_RESPONSE: attrgetter("partitionMetadataResponse"),
    BaseCommand.LOOKUP_RESPONSE: attrgetter("lookupTopicResponse"),
    BaseCommand.CONSUMER_STATS_RESPONSE: attrgetter("consumerStatsResponse"),
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: attrgetter("getLastMessageIdResponse"),
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: attrgetter("getTopicsOfNamespaceResponse"),
    BaseCommand.GET_SCHEMA_RESPONSE: attrgetter("getSchemaResponse"),
    BaseCommand.ACK_RESPONSE: attrgetter("ackResponse"),
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: attrgetter("getOrCreateSchemaResponse"),
    BaseCommand.WATCH_TOPIC_LIST_SUCCESS: attrgetter("watchTopicListSuccess"),
}
"""Command type -> function that returns the body of a successful response; each body has a `request_id`."""

# Command type -> function that returns the id of the producer or consumer that a pushed command is for.
PRODUCER_PUSHES: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.SEND_RECEIPT: attrgetter("send_receipt.producer_id"),
    BaseCommand.SEND_ERROR: attrgetter("send_error.producer_id"),
    BaseCommand.CLOSE_PRODUCER: attrgetter("close_producer.producer_id"),
}
CONSUMER_PUSHES: dict[int, Callable[[BaseCommand], int]] = {
    BaseCommand.MESSAGE: attrgetter("message.consumer_id"),
    BaseCommand.CLOSE_CONSUMER: attrgetter("close_consumer.consumer_id"),
    BaseCommand.ACTIVE_CONSUMER_CHANGE: attrgetter("active_consumer_change.consumer_id"),
    BaseCommand.REACHED_END_OF_TOPIC: attrgetter("reachedEndOfTopic.consumer_id"),
}
CLOSES = frozenset({BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER})
"""Commands with which the broker closes a producer or consumer."""


def is_for_producer(migrated: CommandTopicMigrated) -> bool:
    """Return True if TOPIC_MIGRATED names a producer, False for a consumer."""
    return migrated.resource_type == CommandTopicMigrated.Producer
