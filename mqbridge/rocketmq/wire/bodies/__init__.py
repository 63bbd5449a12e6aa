"""The JSON bodies of requests and answers.

Written as standard JSON in the order of the names, which every client and server reads; read as fastjson reads, by `lenient`.
Plain data goes in and out: no body refers to a connection, a clock or a client.
"""

# ruff: noqa: D103  # the functions are the former names of what the classes do

from collections.abc import Iterable, Mapping
from typing import Any

from mqbridge.rocketmq.wire.bodies.base import Body
from mqbridge.rocketmq.wire.bodies.configs import (
    DataVersion,
    GroupConfig,
    GroupConfigs,
    RegisteredTopics,
    Registration,
    TopicConfig,
    TopicConfigs,
)
from mqbridge.rocketmq.wire.bodies.connections import Connection, ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import (
    CheckClient,
    ConsumerData,
    ConsumerList,
    GroupList,
    Heartbeat,
    ProducerData,
    SubscriptionData,
)
from mqbridge.rocketmq.wire.bodies.locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.bodies.offsets import (
    ConsumeOffsets,
    ConsumerOffsets,
    ConsumeStats,
    QueueStats,
    ResetOffsets,
    TopicStats,
)
from mqbridge.rocketmq.wire.bodies.pops import Assignment, AssignmentQuery, Assignments, BatchAck, BatchAcks, MessageRequestMode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo, Perm, QueueData, Route, Table, TopicList
from mqbridge.rocketmq.wire.bodies.running import DirectResult, RunningInfo

__all__ = [
    "Assignment",
    "AssignmentQuery",
    "Assignments",
    "BatchAck",
    "BatchAcks",
    "Body",
    "BrokerData",
    "CheckClient",
    "ClusterInfo",
    "Connection",
    "ConsumeOffsets",
    "ConsumeStats",
    "ConsumerConnections",
    "ConsumerData",
    "ConsumerList",
    "ConsumerOffsets",
    "DataVersion",
    "DirectResult",
    "GroupConfig",
    "GroupConfigs",
    "GroupList",
    "Heartbeat",
    "LockRequest",
    "LockedQueues",
    "MessageRequestMode",
    "Perm",
    "ProducerConnections",
    "ProducerData",
    "Queue",
    "QueueData",
    "QueueStats",
    "RegisteredTopics",
    "Registration",
    "ResetOffsets",
    "Route",
    "RunningInfo",
    "SubscriptionData",
    "Table",
    "TopicConfig",
    "TopicConfigs",
    "TopicList",
    "TopicStats",
    "decode_assignment_query",
    "decode_assignments",
    "decode_batch_acks",
    "decode_check_client",
    "decode_cluster_info",
    "decode_consume_stats",
    "decode_consumer_connections",
    "decode_consumer_list",
    "decode_consumer_offsets",
    "decode_direct_result",
    "decode_group_config",
    "decode_group_configs",
    "decode_heartbeat",
    "decode_lock",
    "decode_locked",
    "decode_message_request_mode",
    "decode_producer_connections",
    "decode_registration",
    "decode_reset_offsets",
    "decode_route",
    "decode_running_info",
    "decode_table",
    "decode_topic_config",
    "decode_topic_configs",
    "decode_topic_list",
    "decode_topic_stats",
    "encode_assignment_query",
    "encode_assignments",
    "encode_batch_acks",
    "encode_check_client",
    "encode_cluster_info",
    "encode_consume_stats",
    "encode_consumer_connections",
    "encode_consumer_list",
    "encode_consumer_offsets",
    "encode_data_version",
    "encode_direct_result",
    "encode_group_config",
    "encode_group_configs",
    "encode_heartbeat",
    "encode_lock",
    "encode_locked",
    "encode_message_request_mode",
    "encode_producer_connections",
    "encode_registration",
    "encode_reset_offsets",
    "encode_route",
    "encode_running_info",
    "encode_table",
    "encode_topic_config",
    "encode_topic_configs",
    "encode_topic_list",
    "encode_topic_stats",
]


def encode_topic_config(value: TopicConfig) -> bytes:
    return value.encode()


def encode_group_config(value: GroupConfig) -> bytes:
    return value.encode()


def encode_consumer_connections(value: ConsumerConnections) -> bytes:
    return value.encode()


def encode_consume_stats(value: ConsumeStats) -> bytes:
    return value.encode()


def encode_assignment_query(value: AssignmentQuery) -> bytes:
    return value.encode()


def encode_message_request_mode(value: MessageRequestMode) -> bytes:
    return value.encode()


def encode_direct_result(value: DirectResult) -> bytes:
    return value.encode()


def encode_cluster_info(value: ClusterInfo) -> bytes:
    return value.encode()


def encode_data_version(value: DataVersion) -> bytes:
    return value.encode()


def decode_topic_config(body: bytes) -> TopicConfig:
    return TopicConfig.decode(body)


def decode_group_config(body: bytes) -> GroupConfig:
    return GroupConfig.decode(body)


def decode_consumer_connections(body: bytes) -> ConsumerConnections:
    return ConsumerConnections.decode(body)


def decode_consume_stats(body: bytes) -> ConsumeStats:
    return ConsumeStats.decode(body)


def decode_assignment_query(body: bytes) -> AssignmentQuery:
    return AssignmentQuery.decode(body)


def decode_message_request_mode(body: bytes) -> MessageRequestMode:
    return MessageRequestMode.decode(body)


def decode_direct_result(body: bytes) -> DirectResult:
    return DirectResult.decode(body)


def decode_cluster_info(body: bytes) -> ClusterInfo:
    return ClusterInfo.decode(body)


def decode_route(body: bytes) -> Route:
    return Route.decode(body)


def decode_heartbeat(body: bytes) -> Heartbeat:
    return Heartbeat.decode(body)


def decode_lock(body: bytes) -> LockRequest:
    return LockRequest.decode(body)


def decode_running_info(body: bytes) -> RunningInfo:
    return RunningInfo.decode(body)


def encode_route(route: Route, *, standard: bool = True) -> bytes:
    return route.encode(standard=standard)


def encode_topic_list(topics: Iterable[str]) -> bytes:
    return TopicList(tuple(topics)).encode()


def decode_topic_list(body: bytes) -> list[str]:
    return list(TopicList.decode(body).topics)


def encode_table(table: Mapping[str, str]) -> bytes:
    return Table(table).encode()


def decode_table(body: bytes) -> Mapping[str, str]:
    return Table.decode(body).table


def encode_topic_configs(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    return TopicConfigs({one.name: one for one in topics}, version).encode()


def decode_topic_configs(body: bytes) -> Mapping[str, TopicConfig]:
    return TopicConfigs.decode(body).topics


def encode_group_configs(groups: Iterable[GroupConfig], version: DataVersion) -> bytes:
    return GroupConfigs({one.name: one for one in groups}, version).encode()


def decode_group_configs(body: bytes) -> Mapping[str, GroupConfig]:
    return GroupConfigs.decode(body).groups


def encode_registration(topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
    return Registration(RegisteredTopics({one.name: one for one in topics}, version)).encode()


def decode_registration(body: bytes) -> tuple[Mapping[str, TopicConfig], DataVersion]:
    topics = Registration.decode(body).topics
    return topics.topics, topics.version


def encode_heartbeat(client_id: str, producers: Iterable[str], consumers: Iterable[ConsumerData]) -> bytes:
    return Heartbeat(client_id, tuple(producers), tuple(consumers)).encode()


def encode_check_client(client_id: str, group: str, subscription: SubscriptionData) -> bytes:
    return CheckClient(client_id, group, subscription).encode()


def decode_check_client(body: bytes) -> tuple[str, str, SubscriptionData]:
    found = CheckClient.decode(body)
    return found.client_id, found.group, found.subscription


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return ConsumerList(tuple(client_ids)).encode()


def decode_consumer_list(body: bytes) -> list[str]:
    return list(ConsumerList.decode(body).client_ids)


def encode_producer_connections(connections: Iterable[Connection]) -> bytes:
    return ProducerConnections(tuple(connections)).encode()


def decode_producer_connections(body: bytes) -> tuple[Connection, ...]:
    return ProducerConnections.decode(body).connections


def encode_lock(client_id: str, group: str, queues: Iterable[tuple[str, str, int]]) -> bytes:
    return LockRequest(client_id, group, tuple(Queue(*one) for one in queues)).encode()


def encode_locked(queues: Iterable[tuple[str, str, int]]) -> bytes:
    return LockedQueues(tuple(Queue(*one) for one in queues)).encode()


def decode_locked(body: bytes) -> list[Queue]:
    return list(LockedQueues.decode(body).queues)


def encode_topic_stats(stats: Mapping[Queue, QueueStats]) -> bytes:
    return TopicStats(stats).encode()


def decode_topic_stats(body: bytes) -> Mapping[Queue, QueueStats]:
    return TopicStats.decode(body).queues


def encode_consumer_offsets(offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> bytes:
    return ConsumerOffsets(offsets).encode()


def decode_consumer_offsets(body: bytes) -> Mapping[tuple[str, str], Mapping[int, int]]:
    return ConsumerOffsets.decode(body).offsets


def encode_reset_offsets(offsets: Mapping[Queue, int]) -> bytes:
    return ResetOffsets(offsets).encode()


def decode_reset_offsets(body: bytes) -> Mapping[Queue, int]:
    return ResetOffsets.decode(body).offsets


def encode_running_info(
    properties: Mapping[str, str],
    subscriptions: Iterable[SubscriptionData] = (),
    queues: Mapping[Queue, Mapping[str, Any]] | None = None,
) -> bytes:
    return RunningInfo(properties, tuple(subscriptions), queues or {}).encode()


def encode_assignments(assignments: Iterable[Assignment]) -> bytes:
    return Assignments(tuple(assignments)).encode()


def decode_assignments(body: bytes) -> list[Assignment] | None:
    found = Assignments.decode(body).assignments
    return None if found is None else list(found)


def encode_batch_acks(broker: str, acks: Iterable[BatchAck]) -> bytes:
    return BatchAcks(broker, tuple(acks)).encode()


def decode_batch_acks(body: bytes) -> tuple[str, list[BatchAck]]:
    found = BatchAcks.decode(body)
    return found.broker, list(found.acks)
