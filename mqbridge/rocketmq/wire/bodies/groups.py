"""What clients say about their groups, and who is in one: heartbeats, subscriptions, lists of members and connections."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.lenient import flag_of, list_of, map_of, number_of, read, text_of
from mqbridge.rocketmq.wire.tags import ALL, TAG, split_expression, tags_code

PASSIVELY, ACTIVELY, POP = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP"
"""Types of consumers: push, pull, pop."""
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
FROM_LAST, FROM_FIRST, FROM_TIMESTAMP = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(NamedTuple):
    """One topic of a group. `version`, ms, must not go back; tags and their hashes follow from the expression."""

    topic: str
    expression: str = ALL
    version: int = 0
    kind: str = TAG

    @property
    def tags(self) -> list[str]:
        """The tags that are let through; none for everything and for other kinds of expressions."""
        return split_expression(self.expression) if self.kind == TAG else []


class ConsumerData(NamedTuple):
    """A consumer group of a client."""

    group: str
    subscriptions: tuple[SubscriptionData, ...]
    consume_type: str = PASSIVELY
    model: str = CLUSTERING
    start: str = FROM_LAST
    unit_mode: bool = False


class Heartbeat(NamedTuple):
    """All groups of one client. With `without_subscriptions` they are those of the last one that had them."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]
    fingerprint: int = 0
    without_subscriptions: bool = False


def subscription_body(subscription: SubscriptionData) -> dict[str, Any]:
    """The object that stands for a subscription."""
    tags = subscription.tags
    return {
        "classFilterMode": False,
        "codeSet": list(dict.fromkeys(map(tags_code, tags))),
        "expressionType": subscription.kind,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }


def subscription_of(said: dict[str, Any]) -> SubscriptionData:
    """The subscription that an object stands for; Go says "" where it means tags."""
    return SubscriptionData(
        text_of(said, "topic"),
        text_of(said, "subString") or ALL,
        number_of(said, "subVersion"),
        text_of(said, "expressionType") or TAG,
    )


def encode_heartbeat(client_id: str, producers: Iterable[str], consumers: Iterable[ConsumerData]) -> bytes:
    """HEART_BEAT: groups of producers, and of consumers with their subscriptions."""
    return orjson.dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [_consumer_body(consumer) for consumer in consumers],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": group} for group in producers],
            "withoutSub": False,
        }
    )


def _consumer_body(consumer: ConsumerData) -> dict[str, Any]:
    return {
        "consumeFromWhere": consumer.start,
        "consumeType": consumer.consume_type,
        "groupName": consumer.group,
        "messageModel": consumer.model,
        "subscriptionDataSet": [subscription_body(one) for one in consumer.subscriptions],
        "unitMode": consumer.unit_mode,
    }


def decode_heartbeat(body: bytes) -> Heartbeat:
    """HEART_BEAT. Raises RemoteProtocolError."""
    return read("a heartbeat", body, _heartbeat)


def _heartbeat(said: dict[str, Any]) -> Heartbeat:
    return Heartbeat(
        text_of(said, "clientID"),
        tuple(text_of(one, "groupName") for one in list_of(said, "producerDataSet")),
        tuple(_consumer(one) for one in list_of(said, "consumerDataSet")),
        number_of(said, "heartbeatFingerprint"),
        flag_of(said, "withoutSub"),
    )


def _consumer(said: dict[str, Any]) -> ConsumerData:
    return ConsumerData(
        text_of(said, "groupName"),
        tuple(subscription_of(one) for one in list_of(said, "subscriptionDataSet")),
        text_of(said, "consumeType", PASSIVELY),
        text_of(said, "messageModel", CLUSTERING),
        text_of(said, "consumeFromWhere", FROM_LAST),
        flag_of(said, "unitMode"),
    )


def encode_check_client(client_id: str, group: str, subscription: SubscriptionData) -> bytes:
    """CHECK_CLIENT_CONFIG, which asks whether the broker takes this subscription."""
    return orjson.dumps({"clientId": client_id, "group": group, "subscriptionData": subscription_body(subscription)})


def decode_check_client(body: bytes) -> tuple[str, str, SubscriptionData]:
    """Client id, group and subscription. Raises RemoteProtocolError."""
    return read(
        "a check of a subscription",
        body,
        lambda said: (text_of(said, "clientId"), text_of(said, "group"), subscription_of(map_of(said, "subscriptionData"))),
    )


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""
    return orjson.dumps({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> list[str]:
    """The client ids of a group. Raises RemoteProtocolError."""
    return read("a consumer list", body, lambda said: [str(one) for one in list_of(said, "consumerIdList")])


# --- connections, for tools -----------------------------------------------------------------------------------------------


class Connection(NamedTuple):
    """A client's connection to a broker."""

    client_id: str
    address: str
    language: str = "JAVA"
    version: int = 0


class ConsumerConnections(NamedTuple):
    """Who is in a consumer group, and what the group reads."""

    connections: tuple[Connection, ...]
    subscriptions: tuple[SubscriptionData, ...] = ()
    consume_type: str = PASSIVELY
    model: str = CLUSTERING
    start: str = FROM_LAST


def _connection_bodies(connections: Iterable[Connection]) -> list[dict[str, Any]]:
    return [
        {"clientAddr": one.address, "clientId": one.client_id, "language": one.language, "version": one.version}
        for one in connections
    ]


def _connections(said: dict[str, Any]) -> tuple[Connection, ...]:
    return tuple(
        Connection(text_of(one, "clientId"), text_of(one, "clientAddr"), text_of(one, "language"), number_of(one, "version"))
        for one in list_of(said, "connectionSet")
    )


def encode_consumer_connections(who: ConsumerConnections) -> bytes:
    """Answer to GET_CONSUMER_CONNECTION_LIST."""
    return orjson.dumps(
        {
            "connectionSet": _connection_bodies(who.connections),
            "consumeFromWhere": who.start,
            "consumeType": who.consume_type,
            "messageModel": who.model,
            "subscriptionTable": {one.topic: subscription_body(one) for one in who.subscriptions},
        }
    )


def decode_consumer_connections(body: bytes) -> ConsumerConnections:
    """Who is in a consumer group. Raises RemoteProtocolError."""
    return read(
        "the consumer connections",
        body,
        lambda said: ConsumerConnections(
            _connections(said),
            tuple(subscription_of(one) for one in map_of(said, "subscriptionTable").values()),
            text_of(said, "consumeType"),
            text_of(said, "messageModel"),
            text_of(said, "consumeFromWhere"),
        ),
    )


def encode_producer_connections(connections: Iterable[Connection]) -> bytes:
    """Answer to GET_PRODUCER_CONNECTION_LIST."""
    return orjson.dumps({"connectionSet": _connection_bodies(connections)})


def decode_producer_connections(body: bytes) -> tuple[Connection, ...]:
    """Who is in a producer group. Raises RemoteProtocolError."""
    return read("the producer connections", body, _connections)
