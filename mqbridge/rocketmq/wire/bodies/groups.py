"""Heartbeats, subscriptions, and lists of members and groups."""

from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, list_codec, member
from mqbridge.rocketmq.wire.fastjson import as_text
from mqbridge.rocketmq.wire.tags import ALL, TAG, split_expression, tags_code

PASSIVELY, ACTIVELY, POP = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP"
"""Types of consumers: push, pull, pop."""
CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
FROM_LAST, FROM_FIRST, FROM_TIMESTAMP = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"


def _text_or(default: str) -> Codec:
    """Go writes "" where it means the default."""
    return Codec(str, lambda value: as_text(value) or default, default)


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body):
    """A group's subscription to one topic. `version`, ms, must not decrease; the expression yields tags and their hashes."""

    topic: str
    expression: str = member("subString", ALL, codec=_text_or(ALL))
    version: int = member("subVersion", 0)
    kind: str = member("expressionType", TAG, codec=_text_or(TAG))

    @property
    def tags(self) -> list[str]:
        """The tags that pass; none if all pass, and for other types of expressions."""
        return split_expression(self.expression) if self.kind == TAG else []

    def _also_written(self) -> dict[str, Any]:
        tags = self.tags
        return {"classFilterMode": False, "codeSet": list(dict.fromkeys(map(tags_code, tags))), "tagsSet": tags}


@dataclass(frozen=True, slots=True)
class ConsumerData(Body):
    """A consumer group of a client."""

    group: str = member("groupName")
    subscriptions: tuple[SubscriptionData, ...] = member("subscriptionDataSet")
    consume_type: str = PASSIVELY
    model: str = member("messageModel", CLUSTERING)
    start: str = member("consumeFromWhere", FROM_LAST)
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(Body):
    """A producer group of a client."""

    group: str = member("groupName")


_PRODUCERS = list_codec(ProducerData)


@dataclass(frozen=True, slots=True)
class Heartbeat(Body):
    """HEART_BEAT: all groups of a client. `without_subscriptions`: those of the last heartbeat that had them are still valid."""

    client_id: str = member("clientID")
    producers: tuple[str, ...] = member(
        "producerDataSet",
        codec=Codec(
            lambda groups: _PRODUCERS.write(map(ProducerData, groups)),
            lambda value: tuple(producer.group for producer in _PRODUCERS.read(value)),
            [],
        ),
    )
    consumers: tuple[ConsumerData, ...] = member("consumerDataSet")
    fingerprint: int = member("heartbeatFingerprint", 0)
    without_subscriptions: bool = member("withoutSub", False)


@dataclass(frozen=True, slots=True)
class CheckClient(Body):
    """CHECK_CLIENT_CONFIG: ask the broker if it accepts this subscription."""

    client_id: str
    group: str
    subscription: SubscriptionData = member("subscriptionData")


@dataclass(frozen=True, slots=True)
class ConsumerList(Body):
    """Response to GET_CONSUMER_LIST_BY_GROUP: the client ids of a group."""

    client_ids: tuple[str, ...] = member("consumerIdList")


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Response to QUERY_TOPIC_CONSUME_BY_WHO: the groups that read a topic."""

    groups: tuple[str, ...] = member("groupList")
