"""The permission that each request needs, in the terms of access control 2.0: Pub, Sub, Get, Create, Update or Delete.

A request in none of the tables needs Sub, so every new request code belongs into one of them, unless it consumes.
"""

from mqbridge.rocketmq.wire.access_denials import ResourceType
from mqbridge.rocketmq.wire.codes import Code

_SENDS = frozenset({Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.END_TRANSACTION, Code.RECALL_MESSAGE})
_QUERIES = frozenset(
    {
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.GET_TOPIC_STATS_INFO,
        Code.GET_TOPIC_CONFIG,
        Code.GET_CONSUME_STATS,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_CONSUMER_OFFSET,
        Code.VIEW_MESSAGE_BY_ID,
    }
)
_CHANGES = {
    Code.UPDATE_AND_CREATE_TOPIC: "Create",
    Code.DELETE_TOPIC_IN_BROKER: "Delete",
    Code.DELETE_SUBSCRIPTIONGROUP: "Delete",
    Code.INVOKE_BROKER_TO_RESET_OFFSET: "Update",
}


def action_of(code: int, resource_type: ResourceType) -> str:
    """Return the action that a request needs on a resource. Requests for which 1.0 checks a resource need only Pub or Sub."""
    if code in _CHANGES:
        return _CHANGES[code]
    if code in _QUERIES or resource_type is ResourceType.CLUSTER:
        return "Get"
    # Sending to a group's retry topic needs Sub of the group.
    return "Pub" if code in _SENDS and resource_type is ResourceType.TOPIC else "Sub"
