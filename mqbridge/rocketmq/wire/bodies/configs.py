"""Configurations of topics and consumer groups, and the registration of a broker at a NameServer.

`_write_only_members` returns the members that peers expect, but mqbridge does not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body, member
from mqbridge.rocketmq.wire.bodies.routes import Perm


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """The version of a table of configurations: request and response body of QUERY_DATA_VERSION.

    `timestamp` is in ms. `state_version` (5.x) is the epoch of the master that changed the table; 0 without a controller.
    """

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0


@dataclass(frozen=True, slots=True)
class TopicConfig(Body):
    """Response to GET_TOPIC_CONFIG: the configuration of a topic at one broker.

    `perm` consists of bits of Perm. `attributes` (5.x) are pairs such as `message.type: FIFO`. `order` marks a topic
    whose queue list is fixed at the NameServers. The members for the queue mapping of static topics (5.x) are ignored.
    """

    name: str = member("topicName")
    read_queues: int = member("readQueueNums")
    write_queues: int = member("writeQueueNums")
    perm: int = Perm.READ_WRITE
    order: bool = False
    filter_type: str = member("topicFilterType", "SINGLE_TAG")
    sys_flag: int = member("topicSysFlag", 0)
    attributes: Mapping[str, str] = member("attributes", dict)

    @property
    def is_compacted(self) -> bool:
        """True if brokers keep only the newest message of each key (KEYS), and none without a key."""
        return self.attributes.get("cleanup.policy") == "COMPACTION"


@dataclass(frozen=True, slots=True)
class RuntimeInfo(Body):
    """Response to GET_BROKER_RUNTIME_INFO: figures of a running broker, as texts by name."""

    values: Mapping[str, str] = member("table")


@dataclass(frozen=True, slots=True)
class TopicConfigs(Body):
    """Response to GET_ALL_TOPIC_CONFIG: configurations by topic."""

    topics: Mapping[str, TopicConfig] = member("topicConfigTable")
    version: DataVersion = member("dataVersion", DataVersion())


@dataclass(frozen=True, slots=True)
class GroupConfig(Body):
    """The configuration of a consumer group at one broker.

    It is the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and of the response to GET_SUBSCRIPTIONGROUP_CONFIG. The defaults are
    the broker's own. After `retry_max_times` redeliveries, a message becomes a dead letter. For further pulls, the broker
    suggests `broker_id` (0: the master) to a consumer, or `slow_broker_id` if the consumer reads slowly. With `notify_changes`,
    members are told when another one joins or leaves.
    """

    name: str = member("groupName")
    consume_enable: bool = True
    consume_from_min: bool = member("consumeFromMinEnable", True)
    broadcast_enable: bool = member("consumeBroadcastEnable", True)
    orderly: bool = member("consumeMessageOrderly", False)
    retry_queues: int = member("retryQueueNums", 1)
    retry_max_times: int = 16
    broker_id: int = 0
    slow_broker_id: int = member("whichBrokerWhenConsumeSlowly", 1)
    notify_changes: bool = member("notifyConsumerIdsChangedEnable", True)
    sys_flag: int = member("groupSysFlag", 0)
    consume_timeout_minutes: int = member("consumeTimeoutMinute", 15)
    attributes: Mapping[str, str] = member("attributes", dict)

    def _write_only_members(self) -> dict[str, Any]:
        return {"groupRetryPolicy": {"type": "CUSTOMIZED"}}


@dataclass(frozen=True, slots=True)
class GroupConfigs(Body):
    """Response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG: configurations by group."""

    groups: Mapping[str, GroupConfig] = member("subscriptionGroupTable")
    version: DataVersion = member("dataVersion", DataVersion())

    def _write_only_members(self) -> dict[str, Any]:
        return {"forbiddenTable": {}}


@dataclass(frozen=True, slots=True)
class RegisteredTopics(TopicConfigs):
    """The topics that a broker registers at a NameServer."""

    def _write_only_members(self) -> dict[str, Any]:
        return {
            "mappingDataVersion": self.version.to_json(),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }


@dataclass(frozen=True, slots=True)
class Registration(Body):
    """REGISTER_BROKER, not compressed: the topics of a broker.

    A NameServer accepts changed topics only with a new version. It refuses a registration with exactly one topic from a broker
    that it does not know, because it takes the request for an update of this topic.
    """

    topics: RegisteredTopics = member("topicConfigSerializeWrapper")

    def _write_only_members(self) -> dict[str, Any]:
        return {"filterServerList": []}
