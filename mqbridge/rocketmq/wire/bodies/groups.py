"""Heartbeats and subscriptions of clients, and lists of the members of a group and of the groups of a topic."""

from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, list_codec, member
from mqbridge.rocketmq.wire.fastjson import as_text
from mqbridge.rocketmq.wire.tags import ALL, TAG, split_expression, tags_code

PASSIVELY = "CONSUME_PASSIVELY"
ACTIVELY = "CONSUME_ACTIVELY"
POP = "CONSUME_POP"
"""Values of `consume_type`: push, pull and pop consumers."""
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
"""Values of `message_model`: the members of a group share the messages, or each member receives all of them."""
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
"""Values of `consume_from`: where a group without committed offsets starts. The timestamp is a setting of the client."""
_CONSUME_TYPES = (ACTIVELY, PASSIVELY, POP)
_MESSAGE_MODELS = (BROADCASTING, CLUSTERING)
_CONSUME_FROM = (
    FROM_LAST, "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET",
    FROM_FIRST, FROM_TIMESTAMP,
)  # fmt: skip
"""The values in the order in which brokers declare them: C++ clients write the index of a value."""


def _text_or(default: str) -> Codec:
    """Return the codec of a text that is `default` if it is empty, because Go clients write "" for the default."""
    return Codec(str, lambda value: as_text(value) or default, default)


def _constant(names: tuple[str, ...], default: str) -> Codec:
    """Return the codec of a constant, which may come as its index in `names`."""

    def read(value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(names):
                raise ValueError(f"{value} is none of the {len(names)} constants {', '.join(names)}")
            return names[value]
        return as_text(value)

    return Codec(str, read, default)


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """A group's subscription to one topic.

    `expression_type` is TAG or SQL92. `version` is the time (ms) of the subscription's last change: a broker applies a change
    only if its version is higher than the last one.
    """

    topic: str
    expression: str = member("subString", ALL, codec=_text_or(ALL))
    version: int = member("subVersion", 0)
    expression_type: str = member("expressionType", TAG, codec=_text_or(TAG))

    @property
    def tags(self) -> list[str]:
        """The tags that the subscription matches; empty if it matches every tag, and for SQL92."""
        return split_expression(self.expression) if self.expression_type == TAG else []

    def _write_only_members(self) -> dict[str, Any]:
        """Return the JSON keys by which brokers filter: the hash codes of the tags (`codeSet`), and the tags."""
        tags = self.tags
        return {"classFilterMode": False, "codeSet": list(dict.fromkeys(map(tags_code, tags))), "tagsSet": tags}


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """A consumer group of a client, with its subscriptions. `unit_mode` marks a deployment of several units, not used here."""

    group: str = member("groupName")
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionDataSet")
    consume_type: str = member("consumeType", PASSIVELY, codec=_constant(_CONSUME_TYPES, PASSIVELY))
    message_model: str = member("messageModel", CLUSTERING, codec=_constant(_MESSAGE_MODELS, CLUSTERING))
    consume_from: str = member("consumeFromWhere", FROM_LAST, codec=_constant(_CONSUME_FROM, FROM_LAST))
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    """A producer group of a client."""

    group: str = member("groupName")


_PRODUCERS_CODEC = list_codec(ProducerData)


@dataclass(frozen=True, slots=True)
class Heartbeat(Body):
    """HEART_BEAT: all producer groups and consumer groups of a client.

    `fingerprint` is a hash of the heartbeat's content; 0 if the client does not use it. `without_subscriptions` means that the
    subscriptions have not changed since the last heartbeat that contained them.
    """

    client_id: str = member("clientID")
    producers: tuple[str, ...] = member(
        "producerDataSet",
        codec=Codec(
            lambda groups: _PRODUCERS_CODEC.write(map(ProducerData, groups)),
            lambda value: tuple(producer.group for producer in _PRODUCERS_CODEC.read(value)),
            [],
        ),
    )
    consumers: tuple[ConsumerData, ...] = member("consumerDataSet")
    fingerprint: int = member("heartbeatFingerprint", 0)
    without_subscriptions: bool = member("withoutSub", False)


@dataclass(frozen=True, slots=True)
class CheckClient(Body):
    """CHECK_CLIENT_CONFIG: ask the broker whether it accepts this subscription."""

    client_id: str
    group: str
    subscription: SubscriptionData = member("subscriptionData")


@dataclass(frozen=True, slots=True)
class ConsumerList(Body):
    """Response to GET_CONSUMER_LIST_BY_GROUP: the ids of the clients in a consumer group."""

    client_ids: tuple[str, ...] = member("consumerIdList")


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Response to QUERY_TOPIC_CONSUME_BY_WHO: the consumer groups of a topic."""

    groups: tuple[str, ...] = member("groupList")
