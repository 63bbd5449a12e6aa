"""Configurations of topics and consumer groups, and what a broker registers at a NameServer."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.bodies.routes import Perm
from mqbridge.rocketmq.wire.lenient import flag_of, map_of, number_of, read, text_of, texts_of

NONE: Mapping[str, str] = MappingProxyType({})


class DataVersion(NamedTuple):
    """How a reader sees that a table changed. `timestamp` in ms."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0


class TopicConfig(NamedTuple):
    """A topic at one broker. Attributes (5.x) are like `message.type: FIFO`."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = Perm.READ_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = NONE


class GroupConfig(NamedTuple):
    """A consumer group at one broker, with the broker's own defaults."""

    name: str
    consume_enable: bool = True
    consume_from_min: bool = True
    broadcast_enable: bool = True
    orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_changes: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = NONE


def _version_body(version: DataVersion) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp}


def _version(said: dict[str, Any]) -> DataVersion:
    return DataVersion(number_of(said, "counter"), number_of(said, "timestamp"), number_of(said, "stateVersion"))


def encode_data_version(version: DataVersion) -> bytes:
    """QUERY_DATA_VERSION, request and answer."""
    return orjson.dumps(_version_body(version))


# --- topics ---------------------------------------------------------------------------------------------------------------


def _topic_body(topic: TopicConfig) -> dict[str, Any]:
    return {
        "attributes": dict(topic.attributes),
        "order": topic.order,
        "perm": topic.perm,
        "readQueueNums": topic.read_queues,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queues,
    }


def _topic(said: dict[str, Any]) -> TopicConfig:
    return TopicConfig(
        text_of(said, "topicName"),
        number_of(said, "readQueueNums"),
        number_of(said, "writeQueueNums"),
        number_of(said, "perm", Perm.READ_WRITE),
        flag_of(said, "order"),
        text_of(said, "topicFilterType", "SINGLE_TAG"),
        number_of(said, "topicSysFlag"),
        texts_of(said, "attributes"),
    )


def encode_topic_config(topic: TopicConfig) -> bytes:
    """Answer to GET_TOPIC_CONFIG."""
    return orjson.dumps(_topic_body(topic))


def decode_topic_config(body: bytes) -> TopicConfig:
    """Answer to GET_TOPIC_CONFIG; 5.x adds the queue mapping of static topics. Raises RemoteProtocolError."""
    return read("a topic's configuration", body, _topic)


def encode_topic_configs(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    """Answer to GET_ALL_TOPIC_CONFIG."""
    return orjson.dumps(_topics_body(topics, version))


def _topics_body(topics: Iterable[TopicConfig], version: DataVersion) -> dict[str, Any]:
    return {"dataVersion": _version_body(version), "topicConfigTable": {topic.name: _topic_body(topic) for topic in topics}}


def decode_topic_configs(body: bytes) -> dict[str, TopicConfig]:
    """Answer to GET_ALL_TOPIC_CONFIG, by topic. Raises RemoteProtocolError."""
    return read("the topics' configurations", body, _topics)


def _topics(said: dict[str, Any]) -> dict[str, TopicConfig]:
    return {name: _topic(one) for name, one in map_of(said, "topicConfigTable").items()}


# --- groups ---------------------------------------------------------------------------------------------------------------


def _group_body(group: GroupConfig) -> dict[str, Any]:
    return {
        "attributes": dict(group.attributes),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min,
        "consumeMessageOrderly": group.orderly,
        "consumeTimeoutMinute": group.consume_timeout_minutes,
        "groupName": group.name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": group.sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_changes,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queues,
        "whichBrokerWhenConsumeSlowly": group.slow_broker_id,
    }


def _group(said: dict[str, Any]) -> GroupConfig:
    return GroupConfig(
        text_of(said, "groupName"),
        flag_of(said, "consumeEnable", True),
        flag_of(said, "consumeFromMinEnable", True),
        flag_of(said, "consumeBroadcastEnable", True),
        flag_of(said, "consumeMessageOrderly"),
        number_of(said, "retryQueueNums", 1),
        number_of(said, "retryMaxTimes", 16),
        number_of(said, "brokerId"),
        number_of(said, "whichBrokerWhenConsumeSlowly", 1),
        flag_of(said, "notifyConsumerIdsChangedEnable", True),
        number_of(said, "groupSysFlag"),
        number_of(said, "consumeTimeoutMinute", 15),
        texts_of(said, "attributes"),
    )


def encode_group_config(group: GroupConfig) -> bytes:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and the answer to GET_SUBSCRIPTIONGROUP_CONFIG."""
    return orjson.dumps(_group_body(group))


def decode_group_config(body: bytes) -> GroupConfig:
    """A group's configuration. Raises RemoteProtocolError."""
    return read("a group's configuration", body, _group)


def encode_group_configs(groups: Iterable[GroupConfig], version: DataVersion) -> bytes:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return orjson.dumps(
        {
            "dataVersion": _version_body(version),
            "forbiddenTable": {},
            "subscriptionGroupTable": {group.name: _group_body(group) for group in groups},
        }
    )


def decode_group_configs(body: bytes) -> dict[str, GroupConfig]:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, by group. Raises RemoteProtocolError."""
    return read(
        "the groups' configurations",
        body,
        lambda said: {name: _group(one) for name, one in map_of(said, "subscriptionGroupTable").items()},
    )


# --- registration ---------------------------------------------------------------------------------------------------------


def encode_registration(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    """REGISTER_BROKER: the topics of a broker.

    A NameServer takes changes only with another version, and refuses a first registration of exactly one topic.
    """
    wrapper = _topics_body(topics, version) | {
        "mappingDataVersion": _version_body(version),
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


def decode_registration(body: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
    """The topics of an uncompressed registration and their version. Raises RemoteProtocolError."""

    def build(said: dict[str, Any]) -> tuple[dict[str, TopicConfig], DataVersion]:
        wrapper = map_of(said, "topicConfigSerializeWrapper")
        return _topics(wrapper), _version(map_of(wrapper, "dataVersion"))

    return read("a broker's registration", body, build)
