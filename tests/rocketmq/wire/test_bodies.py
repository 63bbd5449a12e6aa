"""Bodies: Java's are encoded and decoded, all bodies survive a round trip, and damage raises nothing but ProtocolError."""

import contextlib
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
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
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, ConsumerData, ConsumerList, GroupList, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.bodies.offsets import (
    ConsumeOffsets,
    ConsumerOffsets,
    ConsumeStats,
    QueueStats,
    ResetOffsets,
    TopicStats,
)
from mqbridge.rocketmq.wire.bodies.pop import Assignment, AssignmentQuery, Assignments, BatchAck, BatchAcks, MessageRequestMode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo, KvTable, QueueData, RouteData, TopicList
from mqbridge.rocketmq.wire.bodies.running_info import ConsumeDirectlyResult, RunningInfo
from tests.example_counts import examples
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.damaged_bytes import mutated
from tests.rocketmq.wire.kinds import BODIES

QUEUE = Queue("T1", "broker-a", 1)
ROUTE = RouteData((QueueData("broker-a", 4, 3, 6),), (BrokerData("broker-a", "C", {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}),))
SUBSCRIPTION = SubscriptionData("T1", "TagA || TagB", 1700000000000)
CONSUMER = ConsumerData("G", (SUBSCRIPTION,), consume_from="CONSUME_FROM_FIRST_OFFSET")
ACK = BatchAck("G", "T1", "0", 100, 1, 2, 3, 4, 0b100000000000001001)


# --- Java's own -----------------------------------------------------------------------------------------------------------


CLUSTER = ClusterInfo({"broker-a": ROUTE.brokers[0]}, {"C": ("broker-a",)})
CONNECTIONS = ConsumerConnections(
    (ClientConnection("c", "1.2.3.4:5", "JAVA", 479),), (SUBSCRIPTION,), consume_from="CONSUME_FROM_FIRST_OFFSET"
)
BOTH_WAYS: list[tuple[bytes, Body]] = [
    (vectors.JAVA_HEARTBEAT, Heartbeat("ip@1", ("P",), (CONSUMER,))),
    (vectors.JAVA_ROUTE_STANDARD, ROUTE),
    (vectors.JAVA_CLUSTER, CLUSTER),
    (vectors.JAVA_LOCK, LockRequest("c", "G", (QUEUE,))),
    (vectors.JAVA_LOCKED, LockedQueues((QUEUE,))),
    (vectors.JAVA_BATCH_ACK, BatchAcks("broker-a", (ACK,))),
    (vectors.JAVA_TOPIC_CONFIG, TopicConfig("T1", 4, 3)),
    (vectors.JAVA_GROUP_CONFIG, GroupConfig("G")),
    (vectors.JAVA_ASSIGNMENTS, Assignments((Assignment(QUEUE, "POP"),))),
    (vectors.JAVA_ASSIGNMENT_QUERY, AssignmentQuery("T1", "G", "c")),
    (vectors.JAVA_DIRECT, ConsumeDirectlyResult("CR_SUCCESS", 5)),
    (vectors.JAVA_CONNECTIONS, CONNECTIONS),
]


def queue_label(value: object) -> str:
    return value[:25].decode() if isinstance(value, bytes) else type(value).__name__


@pytest.mark.parametrize(("body", "value"), BOTH_WAYS, ids=queue_label)
def test_bodies_are_encoded_like_java_and_decoded(body: bytes, value: Body) -> None:
    assert value.encode() == body


def test_a_route_for_old_clients_is_written_as_java_writes_it() -> None:
    assert ROUTE.encode(standard=False) == vectors.JAVA_ROUTE_LEGACY


@pytest.mark.parametrize(
    ("body", "value"),
    [
        *BOTH_WAYS,
        (vectors.JAVA_ROUTE_LEGACY, ROUTE),
        (vectors.JAVA_TOPIC_STATS, TopicStats({QUEUE: QueueStats(1, 9, 1700000000000)})),
        (vectors.JAVA_CONSUME_STATS, ConsumeStats({QUEUE: ConsumeOffsets(9, 4, 6, 5)}, 1.5)),
        (vectors.JAVA_RESET, ResetOffsets({QUEUE: 123})),
        (vectors.JAVA_RESET_C, ResetOffsets({QUEUE: 123})),
    ],
    ids=queue_label,
)
def test_bodies_of_java_are_decoded(body: bytes, value: Body) -> None:
    assert type(value).decode(body) == value


def test_running_info_of_java_is_decoded() -> None:
    info = RunningInfo.decode(vectors.JAVA_RUNNING)
    assert (info.properties, info.subscriptions) == ({"PROP_CLIENT_VERSION": "V5"}, (SUBSCRIPTION,))
    assert info.queues[QUEUE]["commitOffset"] == 3


# --- round trips ----------------------------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@"), max_size=8)
words = st.text("abcXYZ_|% 0", min_size=1, max_size=8)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
queues = st.builds(Queue, names, names, st.integers(0, 99))
subscriptions = st.builds(SubscriptionData, names, words, numbers, st.sampled_from(["TAG", "SQL92"]))
consumers = st.builds(ConsumerData, names, st.lists(subscriptions, max_size=3).map(tuple), words, words, words, st.booleans())
brokers = st.builds(BrokerData, names, names, st.dictionaries(st.integers(0, 9), names, max_size=3))
routes = st.builds(
    RouteData,
    st.lists(st.builds(QueueData, names, numbers, numbers, numbers, numbers), max_size=3).map(tuple),
    st.lists(brokers, max_size=3).map(tuple),
    names,
    st.just(False),
)
texts = st.dictionaries(names, names, max_size=3)
topics = st.builds(TopicConfig, names, numbers, numbers, numbers, st.booleans(), words, numbers, texts)
acks = st.builds(BatchAck, names, names, words, *[numbers] * 5, st.integers(0, (1 << 300) - 1))

groups = st.builds(GroupConfig, names, *[st.booleans()] * 4, *[numbers] * 4, st.booleans(), numbers, numbers, texts)
versions = st.builds(DataVersion, numbers, numbers, numbers)
assignments = st.lists(st.builds(Assignment, queues, names), max_size=3).map(tuple)
connections = st.lists(st.builds(ClientConnection, names, names, words, numbers), max_size=3).map(tuple)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


def table(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    return st.lists(values, max_size=3).map(lambda found: {one.name: one for one in found})


ROUND_TRIPS: list[st.SearchStrategy[Body]] = [
    routes,
    st.builds(
        ClusterInfo,
        st.dictionaries(names | st.just("7"), brokers, max_size=3),
        st.dictionaries(names | st.just("7"), some(names), max_size=3),
    ),
    st.builds(TopicList, some(names)),
    st.builds(KvTable, texts),
    st.builds(Heartbeat, names, some(names), some(consumers), numbers, st.booleans()),
    st.builds(CheckClient, names, names, subscriptions),
    st.builds(ConsumerList, some(names)),
    st.builds(GroupList, some(names)),
    st.builds(ConsumerConnections, connections, subscriptions.map(lambda one: (one,)) | st.just(()), names, names, names),
    st.builds(ProducerConnections, connections),
    st.builds(LockRequest, names, names, some(queues), st.booleans()),
    st.builds(LockedQueues, some(queues)),
    topics,
    st.builds(TopicConfigs, table(topics), versions),
    groups,
    st.builds(GroupConfigs, table(groups), versions),
    st.builds(Registration, st.builds(RegisteredTopics, table(topics), versions)),
    st.builds(TopicStats, st.dictionaries(queues, st.builds(QueueStats, numbers, numbers, numbers), max_size=3)),
    st.builds(
        ConsumeStats,
        st.dictionaries(queues, st.builds(ConsumeOffsets, numbers, numbers, numbers, numbers), max_size=3),
        st.floats(0, 1e9),
    ),
    st.builds(
        ConsumerOffsets,
        st.dictionaries(st.tuples(names, names), st.dictionaries(st.integers(0, 99), numbers, max_size=3), max_size=3),
    ),
    st.builds(ResetOffsets, st.dictionaries(queues, numbers, max_size=3)),
    st.builds(RunningInfo, texts, some(subscriptions), st.dictionaries(queues, st.just({"locked": True}), max_size=2)),
    st.builds(ConsumeDirectlyResult, names, numbers, names, st.booleans(), st.booleans()),
    st.builds(AssignmentQuery, *[names] * 5),
    st.builds(Assignments, assignments | st.none()),
    st.builds(MessageRequestMode, names, names, names, numbers),
    st.builds(BatchAcks, names, some(acks)),
]


@settings(max_examples=examples(400))
@given(st.one_of(*ROUND_TRIPS))
def test_round_trips(value: Body) -> None:
    assert type(value).decode(value.encode()) == value


@given(routes)
def test_routes_for_old_clients_round_trip(route: RouteData) -> None:
    assert RouteData.decode(route.encode(standard=False)) == route


# --- what matters about single ones ---------------------------------------------------------------------------------------


def test_routes_contain_no_blanks() -> None:
    """The Go client splits the JSON of a route at commas and colons."""
    for standard in (True, False):
        assert b" " not in ROUTE.encode(standard=standard)


def test_static_topics_are_recognized() -> None:
    body = b'{"brokerDatas":[],"queueDatas":[],"topicQueueMappingByBroker":{"b":{"bname":"b"}}}'
    assert RouteData.decode(body).is_static
    assert not RouteData.decode(b'{"topicQueueMappingByBroker":null}').is_static


def test_missing_members_have_defaults() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b"}],"queueDatas":[{"brokerName":"b","topicSynFlag":0}]}'
    assert RouteData.decode(body) == RouteData((QueueData("b", 0, 0, 0),), (BrokerData("b", "", {0: "a:1"}),))


def test_offsets_of_a_broker_with_unquoted_keys_are_decoded() -> None:
    body = b'{"dataVersion":{"counter":1},"offsetTable":{"T1@G1":{0:123,1:45},"nonsense":{0:1}}}'
    assert ConsumerOffsets.decode(body).offsets == {("T1", "G1"): {0: 123, 1: 45}}


def test_maps_by_queue_are_written_as_standard_json() -> None:
    body = ResetOffsets({QUEUE: 123}).encode()
    assert body == b'{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,\\"topic\\":\\"T1\\"}":123}}'
    assert orjson.loads(body)


def test_constants_in_heartbeats_of_cpp_clients_are_indexes() -> None:
    consumer = b'{"consumeFromWhere":4,"consumeType":1,"groupName":"g","messageModel":0,"subscriptionDataSet":[]}'
    (read,) = Heartbeat.decode(b'{"clientID":"c","consumerDataSet":[%s],"producerDataSet":[]}' % consumer).consumers
    assert (read.consume_from, read.consume_type, read.message_model) == (
        "CONSUME_FROM_FIRST_OFFSET", "CONSUME_PASSIVELY", "BROADCASTING",
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="2 is none of the 2 constants"):
        Heartbeat.decode(b'{"clientID":"c","consumerDataSet":[%s]}' % consumer.replace(b'"messageModel":0', b'"messageModel":2'))


def test_a_heartbeat_contains_tags_and_their_signed_hashes() -> None:
    body = Heartbeat("c", (), (ConsumerData("g", (SubscriptionData("t", "polygenelubricants||TagA"),)),)).encode()
    subscription_json = orjson.loads(body)["consumerDataSet"][0]["subscriptionDataSet"][0]
    assert (subscription_json["tagsSet"], subscription_json["codeSet"]) == (["polygenelubricants", "TagA"], [-(1 << 31), 2598919])
    for subscription in (SubscriptionData("t"), SubscriptionData("t", "a > 1", 0, "SQL92")):
        heartbeat = orjson.loads(Heartbeat("c", (), (ConsumerData("g", (subscription,)),)).encode())
        assert heartbeat["consumerDataSet"][0]["subscriptionDataSet"][0]["tagsSet"] == []


def test_a_missing_assignment_differs_from_an_empty_one() -> None:
    assert Assignments.decode(b"{}").assignments is None
    assert Assignments.decode(b'{"messageQueueAssignments":[]}').assignments == ()


def test_an_acknowledgement_mask_has_a_limit() -> None:
    body = BatchAcks("b", (replace(ACK, mask=1 << 5000),)).encode()
    with pytest.raises(RemoteProtocolError, match="bits"):
        BatchAcks.decode(body)


# --- damage ---------------------------------------------------------------------------------------------------------------

ORIGINALS = [value for name, value in vars(vectors).items() if isinstance(value, bytes) and value[:1] == b"{"]


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"null", b'"x"', b"{"])
def test_a_body_that_is_no_object_is_a_protocol_error(kind: type[Body], body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        kind.decode(body)


@settings(max_examples=examples(1000))
@given(st.sampled_from(BODIES), mutated(*ORIGINALS) | st.sampled_from(ORIGINALS))
def test_damaged_and_foreign_bodies_are_a_protocol_error_or_a_body(kind: type[Body], body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        kind.decode(body)


MEMBERS = sorted({name for body in ORIGINALS for name in body.decode().replace("{", '"').split('"') if name.isidentifier()})
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(400))
@given(st.sampled_from(BODIES), st.dictionaries(st.sampled_from(MEMBERS), nonsense, max_size=5))
def test_members_of_any_type_are_a_protocol_error_or_a_body(kind: type[Body], members: dict[str, Any]) -> None:
    try:
        body = orjson.dumps(members, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a number beyond 64 bits
        return
    with contextlib.suppress(RemoteProtocolError):
        kind.decode(body)
