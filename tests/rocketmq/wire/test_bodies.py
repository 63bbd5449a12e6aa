"""Bodies: those of Java both ways, round trips of ours, and nothing but ProtocolError for damage."""

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.wire import bodies
from mqbridge.rocketmq.wire.bodies import (
    Assignment,
    AssignmentQuery,
    BatchAck,
    BrokerData,
    ClusterInfo,
    Connection,
    ConsumeOffsets,
    ConsumerConnections,
    ConsumerData,
    ConsumeStats,
    DataVersion,
    DirectResult,
    GroupConfig,
    Heartbeat,
    LockRequest,
    MessageRequestMode,
    Queue,
    QueueData,
    QueueStats,
    Route,
    SubscriptionData,
    TopicConfig,
)
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.damage import mutated

QUEUE = Queue("T1", "broker-a", 1)
ROUTE = Route((QueueData("broker-a", 4, 3, 6),), (BrokerData("broker-a", "C", {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}),))
SUBSCRIPTION = SubscriptionData("T1", "TagA || TagB", 1700000000000)
CONSUMER = ConsumerData("G", (SUBSCRIPTION,), start="CONSUME_FROM_FIRST_OFFSET")
ACK = BatchAck("G", "T1", "0", 100, 1, 2, 3, 4, 0b100000000000001001)


# --- Java's own -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "encoded"),
    [
        (vectors.JAVA_HEARTBEAT, lambda: bodies.encode_heartbeat("ip@1", ["P"], [CONSUMER])),
        (vectors.JAVA_ROUTE_STANDARD, lambda: bodies.encode_route(ROUTE)),
        (vectors.JAVA_ROUTE_LEGACY, lambda: bodies.encode_route(ROUTE, standard=False)),
        (
            vectors.JAVA_CLUSTER,
            lambda: bodies.encode_cluster_info(ClusterInfo({"broker-a": ROUTE.brokers[0]}, {"C": ("broker-a",)})),
        ),
        (vectors.JAVA_LOCK, lambda: bodies.encode_lock("c", "G", [QUEUE])),
        (vectors.JAVA_LOCKED, lambda: bodies.encode_locked([QUEUE])),
        (vectors.JAVA_BATCH_ACK, lambda: bodies.encode_batch_acks("broker-a", [ACK])),
        (vectors.JAVA_TOPIC_CONFIG, lambda: bodies.encode_topic_config(TopicConfig("T1", 4, 3))),
        (vectors.JAVA_GROUP_CONFIG, lambda: bodies.encode_group_config(GroupConfig("G"))),
        (vectors.JAVA_ASSIGNMENTS, lambda: bodies.encode_assignments([Assignment(QUEUE, "POP")])),
        (vectors.JAVA_ASSIGNMENT_QUERY, lambda: bodies.encode_assignment_query(AssignmentQuery("T1", "G", "c"))),
        (vectors.JAVA_DIRECT, lambda: bodies.encode_direct_result(DirectResult("CR_SUCCESS", 5))),
        (
            vectors.JAVA_CONNECTIONS,
            lambda: bodies.encode_consumer_connections(
                ConsumerConnections(
                    (Connection("c", "1.2.3.4:5", "JAVA", 479),), (SUBSCRIPTION,), start="CONSUME_FROM_FIRST_OFFSET"
                )
            ),
        ),
    ],
    ids=lambda value: "" if callable(value) else value[:25].decode(),
)
def test_written_as_java_writes_it(body: bytes, encoded: Callable[[], bytes]) -> None:
    assert encoded() == body


@pytest.mark.parametrize(
    ("decode", "body", "value"),
    [
        (bodies.decode_heartbeat, vectors.JAVA_HEARTBEAT, Heartbeat("ip@1", ("P",), (CONSUMER,))),
        (bodies.decode_route, vectors.JAVA_ROUTE_STANDARD, ROUTE),
        (bodies.decode_route, vectors.JAVA_ROUTE_LEGACY, ROUTE),
        (bodies.decode_cluster_info, vectors.JAVA_CLUSTER, ClusterInfo({"broker-a": ROUTE.brokers[0]}, {"C": ("broker-a",)})),
        (bodies.decode_topic_stats, vectors.JAVA_TOPIC_STATS, {QUEUE: QueueStats(1, 9, 1700000000000)}),
        (bodies.decode_consume_stats, vectors.JAVA_CONSUME_STATS, ConsumeStats({QUEUE: ConsumeOffsets(9, 4, 6, 5)}, 1.5)),
        (bodies.decode_reset_offsets, vectors.JAVA_RESET, {QUEUE: 123}),
        (bodies.decode_reset_offsets, vectors.JAVA_RESET_C, {QUEUE: 123}),
        (bodies.decode_lock, vectors.JAVA_LOCK, LockRequest("c", "G", (QUEUE,))),
        (bodies.decode_locked, vectors.JAVA_LOCKED, [QUEUE]),
        (bodies.decode_batch_acks, vectors.JAVA_BATCH_ACK, ("broker-a", [ACK])),
        (bodies.decode_topic_config, vectors.JAVA_TOPIC_CONFIG, TopicConfig("T1", 4, 3)),
        (bodies.decode_group_config, vectors.JAVA_GROUP_CONFIG, GroupConfig("G")),
        (bodies.decode_assignments, vectors.JAVA_ASSIGNMENTS, [Assignment(QUEUE, "POP")]),
        (bodies.decode_assignment_query, vectors.JAVA_ASSIGNMENT_QUERY, AssignmentQuery("T1", "G", "c")),
        (bodies.decode_direct_result, vectors.JAVA_DIRECT, DirectResult("CR_SUCCESS", 5)),
        (
            bodies.decode_consumer_connections,
            vectors.JAVA_CONNECTIONS,
            ConsumerConnections((Connection("c", "1.2.3.4:5", "JAVA", 479),), (SUBSCRIPTION,), start="CONSUME_FROM_FIRST_OFFSET"),
        ),
    ],
)
def test_read_as_java_wrote_it(decode: Callable[[bytes], object], body: bytes, value: object) -> None:
    assert decode(body) == value


def test_the_running_info_of_java() -> None:
    info = bodies.decode_running_info(vectors.JAVA_RUNNING)
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
    Route,
    st.lists(st.builds(QueueData, names, numbers, numbers, numbers, numbers), max_size=3).map(tuple),
    st.lists(brokers, max_size=3).map(tuple),
    names,
    st.just(False),
)
texts = st.dictionaries(names, names, max_size=3)
topics = st.builds(TopicConfig, names, numbers, numbers, numbers, st.booleans(), words, numbers, texts)
acks = st.builds(BatchAck, names, names, words, *[numbers] * 5, st.integers(0, (1 << 300) - 1))

PAIRS: list[tuple[Callable[[Any], bytes], Callable[[bytes], Any], st.SearchStrategy[Any]]] = [
    (bodies.encode_route, bodies.decode_route, routes),
    (lambda route: bodies.encode_route(route, standard=False), bodies.decode_route, routes),
    (
        bodies.encode_cluster_info,
        bodies.decode_cluster_info,
        st.builds(
            ClusterInfo,
            st.dictionaries(names | st.just("7"), brokers, max_size=3),
            st.dictionaries(names | st.just("7"), st.lists(names, max_size=3).map(tuple), max_size=3),
        ),
    ),
    (bodies.encode_topic_list, bodies.decode_topic_list, st.lists(names)),
    (bodies.encode_table, bodies.decode_table, texts),
    (
        lambda beat: bodies.encode_heartbeat(beat.client_id, beat.producers, beat.consumers),
        bodies.decode_heartbeat,
        st.builds(
            Heartbeat,
            names,
            st.lists(names, max_size=3).map(tuple),
            st.lists(consumers, max_size=3).map(tuple),
            st.just(0),
            st.just(False),
        ),
    ),
    (lambda said: bodies.encode_check_client(*said), bodies.decode_check_client, st.tuples(names, names, subscriptions)),
    (bodies.encode_consumer_list, bodies.decode_consumer_list, st.lists(names)),
    (
        bodies.encode_producer_connections,
        bodies.decode_producer_connections,
        st.lists(st.builds(Connection, names, names, words, numbers), max_size=3).map(tuple),
    ),
    (
        lambda said: bodies.encode_lock(*said),
        bodies.decode_lock,
        st.builds(LockRequest, names, names, st.lists(queues).map(tuple)),
    ),
    (bodies.encode_locked, bodies.decode_locked, st.lists(queues)),
    (bodies.encode_topic_config, bodies.decode_topic_config, topics),
    (
        lambda table: bodies.encode_topic_configs(table.values(), DataVersion(1, 2, 3)),
        bodies.decode_topic_configs,
        st.lists(topics, max_size=3).map(lambda found: {one.name: one for one in found}),
    ),
    (
        lambda table: bodies.encode_group_configs(table.values(), DataVersion()),
        bodies.decode_group_configs,
        st.lists(
            st.builds(GroupConfig, names, *[st.booleans()] * 4, *[numbers] * 4, st.booleans(), numbers, numbers, texts),
            max_size=3,
        ).map(lambda found: {one.name: one for one in found}),
    ),
    (
        lambda said: bodies.encode_registration(said[0].values(), said[1]),
        bodies.decode_registration,
        st.tuples(
            st.lists(topics, max_size=3).map(lambda found: {one.name: one for one in found}),
            st.builds(DataVersion, numbers, numbers, numbers),
        ),
    ),
    (
        bodies.encode_topic_stats,
        bodies.decode_topic_stats,
        st.dictionaries(queues, st.builds(QueueStats, numbers, numbers, numbers), max_size=3),
    ),
    (
        bodies.encode_consume_stats,
        bodies.decode_consume_stats,
        st.builds(
            ConsumeStats,
            st.dictionaries(queues, st.builds(ConsumeOffsets, numbers, numbers, numbers, numbers), max_size=3),
            st.floats(0, 1e9),
        ),
    ),
    (
        bodies.encode_consumer_offsets,
        bodies.decode_consumer_offsets,
        st.dictionaries(st.tuples(names, names), st.dictionaries(st.integers(0, 99), numbers, max_size=3), max_size=3),
    ),
    (bodies.encode_reset_offsets, bodies.decode_reset_offsets, st.dictionaries(queues, numbers, max_size=3)),
    (
        lambda said: bodies.encode_running_info(*said),
        bodies.decode_running_info,
        st.tuples(
            texts, st.lists(subscriptions, max_size=2).map(tuple), st.dictionaries(queues, st.just({"locked": True}), max_size=2)
        ),
    ),
    (
        bodies.encode_direct_result,
        bodies.decode_direct_result,
        st.builds(DirectResult, names, numbers, names, st.booleans(), st.booleans()),
    ),
    (bodies.encode_assignment_query, bodies.decode_assignment_query, st.builds(AssignmentQuery, *[names] * 5)),
    (bodies.encode_assignments, bodies.decode_assignments, st.lists(st.builds(Assignment, queues, names), max_size=3)),
    (
        bodies.encode_message_request_mode,
        bodies.decode_message_request_mode,
        st.builds(MessageRequestMode, names, names, names, numbers),
    ),
    (
        lambda said: bodies.encode_batch_acks(*said),
        bodies.decode_batch_acks,
        st.tuples(names, st.lists(acks, max_size=3)),
    ),
]


@settings(max_examples=300)
@given(st.sampled_from(PAIRS).flatmap(lambda pair: st.tuples(st.just(pair), pair[2])))
def test_round_trips(said: tuple[tuple[Any, Any, Any], Any]) -> None:
    (encode, decode, _), value = said
    assert decode(encode(value)) == value


# --- what matters about single ones ---------------------------------------------------------------------------------------


def test_routes_are_compact() -> None:
    """The Go client takes the text apart by hand."""
    for standard in (True, False):
        assert b" " not in bodies.encode_route(ROUTE, standard=standard)


def test_static_topics_show() -> None:
    body = b'{"brokerDatas":[],"queueDatas":[],"topicQueueMappingByBroker":{"b":{"bname":"b"}}}'
    assert bodies.decode_route(body).is_static
    assert not bodies.decode_route(b'{"topicQueueMappingByBroker":null}').is_static


def test_what_older_and_other_servers_leave_out() -> None:
    body = b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"b"}],"queueDatas":[{"brokerName":"b","topicSynFlag":0}]}'
    assert bodies.decode_route(body) == Route((QueueData("b", 0, 0, 0),), (BrokerData("b", "", {0: "a:1"}),))


def test_offsets_of_a_broker_have_bare_keys() -> None:
    body = b'{"dataVersion":{"counter":1},"offsetTable":{"T1@G1":{0:123,1:45},"nonsense":{0:1}}}'
    assert bodies.decode_consumer_offsets(body) == {("T1", "G1"): {0: 123, 1: 45}}


def test_maps_by_queue_are_written_as_standard_json() -> None:
    body = bodies.encode_reset_offsets({QUEUE: 123})
    assert body == b'{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,\\"topic\\":\\"T1\\"}":123}}'
    assert orjson.loads(body)


def test_a_heartbeat_says_tags_and_their_signed_hashes() -> None:
    body = bodies.encode_heartbeat("c", [], [ConsumerData("g", (SubscriptionData("t", "polygenelubricants||TagA"),))])
    said = orjson.loads(body)["consumerDataSet"][0]["subscriptionDataSet"][0]
    assert (said["tagsSet"], said["codeSet"]) == (["polygenelubricants", "TagA"], [-(1 << 31), 2598919])
    for subscription in (SubscriptionData("t"), SubscriptionData("t", "a > 1", 0, "SQL92")):
        said = orjson.loads(bodies.encode_heartbeat("c", [], [ConsumerData("g", (subscription,))]))
        assert said["consumerDataSet"][0]["subscriptionDataSet"][0]["tagsSet"] == []


def test_no_assignment_is_not_an_empty_one() -> None:
    assert bodies.decode_assignments(b"{}") is None
    assert bodies.decode_assignments(b'{"messageQueueAssignments":[]}') == []


def test_a_bit_set_has_a_limit() -> None:
    body = bodies.encode_batch_acks("b", [ACK._replace(mask=1 << 5000)])
    with pytest.raises(RemoteProtocolError, match="bits"):
        bodies.decode_batch_acks(body)


# --- damage ---------------------------------------------------------------------------------------------------------------

DECODERS = [getattr(bodies, name) for name in bodies.__all__ if name.startswith("decode_")]
ORIGINALS = [value for name, value in vars(vectors).items() if isinstance(value, bytes) and value[:1] == b"{"]


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"null", b'"x"', b"{"])
def test_a_body_is_an_object(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(body)


@settings(max_examples=800)
@given(st.sampled_from(DECODERS), mutated(*ORIGINALS) | st.sampled_from(ORIGINALS))
def test_damaged_and_foreign_bodies(decode: Callable[[bytes], object], body: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode(body)


MEMBERS = sorted({name for body in ORIGINALS for name in body.decode().replace("{", '"').split('"') if name.isidentifier()})
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=400)
@given(st.sampled_from(DECODERS), st.dictionaries(st.sampled_from(MEMBERS), nonsense, max_size=5))
def test_members_of_any_type(decode: Callable[[bytes], object], said: dict[str, Any]) -> None:
    try:
        body = orjson.dumps(said, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a number beyond 64 bits
        return
    with contextlib.suppress(RemoteProtocolError):
        decode(body)
