"""Administration, offsets and queries: which servers get which requests, and how their responses are combined."""

import pytest

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, RequestTimeout, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route_table import Queue
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.configs import DataVersion, GroupConfig, GroupConfigs, TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.offsets import (
    ConsumeOffsets,
    ConsumerOffsets,
    ConsumeStats,
    QueueStats,
    ResetOffsets,
    TopicStats,
)
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo, TopicList
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.admin import CreateTopicHeader
from mqbridge.rocketmq.wire.headers.groups import ResetOffsetHeader
from mqbridge.rocketmq.wire.headers.offsets import SearchOffsetHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.ids import offset_id, parse_host
from mqbridge.rocketmq.wire.record import Record, encode_record
from mqbridge.wire import limits
from tests.rocketmq.client.broker import (
    NS,
    TOPIC,
    A,
    B,
    Cluster,
    in_turn,
    refuses,
    responds_with,
    route,
    scripted_client,
    success,
)

A0, B0 = Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-b", 0)


@pytest.fixture(autouse=True)
def cluster_of_two_brokers(cluster: Cluster) -> None:
    """Both brokers belong to cluster C; the cluster `empty` has no broker."""
    brokers = {name: BrokerData(name, "C", addresses) for name, addresses in cluster.brokers.items()}
    info = ClusterInfo(brokers, {"C": ("broker-a", "broker-b"), "empty": ()}).encode()
    cluster.on[Code.GET_BROKER_CLUSTER_INFO] = responds_with(info)


def addresses_asked(cluster: Cluster, code: int) -> list[str]:
    """Return the addresses that received requests with this code, sorted; an address once for each request."""
    return sorted(address for address, requests in cluster.requests_to.items() for command in requests if command.code == code)


async def test_masters_of_a_cluster_are_listed_and_an_unknown_cluster_is_an_error(cluster: Cluster, client: ClusterClient):
    assert await client.admin.masters() == {"broker-a": A, "broker-b": B}
    assert await client.admin.masters("C") == {"broker-a": A, "broker-b": B}
    with pytest.raises(ClusterError, match="no cluster 'X'; there are: C, empty") as caught:
        await client.admin.masters("X")
    assert caught.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="no master") as caught:
        await client.admin.masters("empty")
    assert caught.value.failure is Failure.RETRY


async def test_a_list_of_impossibly_many_topics_is_refused(
    cluster: Cluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "MAX_TOPICS", 2)
    cluster.on[Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = responds_with(TopicList(("a", "b", "c")).encode())
    with pytest.raises(RemoteProtocolError, match="the server lists 3 topics; at most 2 are supported"):
        await client.admin.topics()


async def test_system_topics_are_left_out_of_user_topics(cluster: Cluster, client: ClusterClient):
    names = [
        "z",
        "a",
        "%RETRY%G",
        "%DLQ%G",
        "TBW102",
        "rmq_sys_x",
        "RMQ_SYS_y",
        "C",
        "broker-a",
        "C_REPLY_TOPIC",
        "my_REPLY_TOPIC",
    ]
    cluster.on[Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = responds_with(TopicList(tuple(names)).encode())
    assert await client.admin.topics() == sorted(names)
    assert await client.admin.user_topics() == ["a", "my_REPLY_TOPIC", "z"]
    cluster.on[Code.GET_TOPICS_BY_CLUSTER] = responds_with(TopicList(("x",)).encode())
    assert await client.admin.topics("C") == ["x"]
    assert cluster.requests[Code.GET_TOPICS_BY_CLUSTER][0].ext == {"cluster": "C"}


def create_topic(cluster: Cluster):
    """Return a handler that adds the topic to the route of the cluster."""
    names = {A: "broker-a", B: "broker-b"}

    def answer(link, request):
        header = CreateTopicHeader.decode(request.ext)
        cluster.topics.setdefault(header.topic, {})[names[link.address]] = header.write_queue_nums
        link.answer(request, remark="not set any response code")

    return answer


async def test_a_topic_is_created_at_every_master_and_awaited_in_its_route(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = create_topic(cluster)
    cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = in_turn(refuses(Status.TOPIC_NOT_EXIST), refuses(Status.TOPIC_NOT_EXIST), route)
    await client.admin.create_topic("new", 3, attributes={"message.type": "FIFO", "x": "y"}, order=True)
    assert addresses_asked(cluster, Code.UPDATE_AND_CREATE_TOPIC) == [A, B]
    header = CreateTopicHeader.decode(cluster.requests[Code.UPDATE_AND_CREATE_TOPIC][0].ext)
    assert (header.topic, header.read_queue_nums, header.write_queue_nums, header.perm, header.order) == ("new", 3, 3, 6, True)
    assert (header.attributes, header.topic_filter_type) == ("+message.type=FIFO,+x=y", "SINGLE_TAG")
    assert len(cluster.requests[Code.GET_ROUTEINFO_BY_TOPIC]) == 3
    found = await client.routes.get("new")
    assert found is not None
    assert len(found.write_queues()) == 6


async def test_creating_a_topic_fails_if_its_route_never_shows_it_or_its_name_is_invalid(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = success
    with pytest.raises(RequestTimeout, match="do not show the change"):
        await client.admin.create_topic("new", 3, timeout=1)
    for name in ("a b", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(ClusterError, match=r"cannot be a topic|is a system topic"):
            await client.admin.create_topic(name, 1)
    cluster.at[B, Code.UPDATE_AND_CREATE_TOPIC] = refuses(Status.NO_PERMISSION, "who are you")
    with pytest.raises(ServerRefused, match="who are you"):
        await client.admin.create_topic("new", 3)


async def test_a_topic_is_deleted_at_every_broker_and_name_server(cluster: Cluster):
    client = scripted_client(NS, "ns2:9876")
    await client.connect()
    cluster.on[Code.DELETE_TOPIC_IN_BROKER] = success

    def delete_from_route(link, request):
        if link.address != NS:
            cluster.topics.pop(request.ext["topic"])
        link.answer(request)

    cluster.on[Code.DELETE_TOPIC_IN_NAMESRV] = delete_from_route
    await client.admin.delete_topic(TOPIC)
    assert addresses_asked(cluster, Code.DELETE_TOPIC_IN_BROKER) == [A, B]
    assert addresses_asked(cluster, Code.DELETE_TOPIC_IN_NAMESRV) == ["ns2:9876", NS]
    cluster.on[Code.DELETE_TOPIC_IN_NAMESRV] = refuses(Status.SYSTEM_ERROR)
    with pytest.raises(ServerRefused):
        await client.admin.delete_topic("other")
    await client.close()


async def test_topic_configurations_and_statistics_are_collected_from_all_masters(cluster: Cluster, client: ClusterClient):
    config = TopicConfig(TOPIC, 2, 2, attributes={"message.type": "NORMAL"})
    cluster.at[A, Code.GET_TOPIC_CONFIG] = responds_with(config.encode())
    cluster.at[B, Code.GET_TOPIC_CONFIG] = refuses(Status.TOPIC_NOT_EXIST)
    assert await client.admin.topic_config(TOPIC) == {"broker-a": config}
    for address, queue in ((A, A0), (B, B0)):
        cluster.at[address, Code.GET_TOPIC_STATS_INFO] = responds_with(TopicStats({queue: QueueStats(1, 5, 99)}).encode())
    assert await client.admin.topic_stats(TOPIC) == {A0: QueueStats(1, 5, 99), B0: QueueStats(1, 5, 99)}
    with pytest.raises(ServerRefused, match="knows topic 'none'") as caught:
        await client.admin.topic_stats("none")
    assert caught.value.failure is Failure.FATAL
    cluster.at[A, Code.GET_TOPIC_STATS_INFO] = responds_with(b"[")
    with pytest.raises(RemoteProtocolError):
        await client.admin.topic_stats(TOPIC)


async def test_settings_of_a_broker_are_parsed_and_updated(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.GET_BROKER_CONFIG] = responds_with(b"# a comment\na=1\nb = x=y\n\nc=\n")
    assert await client.admin.broker_config(A) == {"a": "1", "b": "x=y", "c": ""}
    cluster.on[Code.UPDATE_BROKER_CONFIG] = success
    await client.admin.update_broker_config(A, {"a": 2, "b": "z"})
    assert cluster.requests[Code.UPDATE_BROKER_CONFIG][0].body == b"a=2\nb=z\n"


# --- groups ---------------------------------------------------------------------------------------------------------------


async def test_groups_are_created_and_deleted_at_every_master(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] = cluster.on[Code.DELETE_SUBSCRIPTIONGROUP] = success
    config = GroupConfig("G", retry_max_times=3)
    await client.groups.create(config)
    await client.groups.delete("G")
    assert addresses_asked(cluster, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) == [A, B]
    assert GroupConfig.decode(cluster.requests[Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP][0].body) == config
    assert [command.ext for command in cluster.requests[Code.DELETE_SUBSCRIPTIONGROUP]] == [
        {"groupName": "G", "cleanOffset": "true", "removeOffset": "true"}
    ] * 2
    cluster.on[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = responds_with(GroupConfigs({config.name: config}, DataVersion()).encode())
    assert await client.groups.configs() == {"G": {"broker-a": config, "broker-b": config}}
    with pytest.raises(ClusterError, match="cannot be a group"):
        await client.groups.create(GroupConfig("a b"))


async def test_connected_consumers_and_producers_of_all_masters_are_listed_once(cluster: Cluster, client: ClusterClient):
    connection = ClientConnection("id", "1.2.3.4:5")
    cluster.at[A, Code.GET_CONSUMER_CONNECTION_LIST] = refuses(Status.CONSUMER_NOT_ONLINE)
    found = ConsumerConnections((connection,))
    cluster.at[B, Code.GET_CONSUMER_CONNECTION_LIST] = responds_with(found.encode())
    assert await client.groups.consumers("G") == found
    cluster.at[B, Code.GET_CONSUMER_CONNECTION_LIST] = refuses(Status.CONSUMER_NOT_ONLINE)
    assert await client.groups.consumers("G") is None
    cluster.at[A, Code.GET_PRODUCER_CONNECTION_LIST] = refuses(Status.SYSTEM_ERROR, "the producer group[G] not exist")
    cluster.at[B, Code.GET_PRODUCER_CONNECTION_LIST] = responds_with(
        ProducerConnections(
            (
                connection,
                connection,
            )
        ).encode()
    )
    assert await client.groups.producers("G") == [connection]
    cluster.at[B, Code.GET_PRODUCER_CONNECTION_LIST] = refuses(Status.SYSTEM_ERROR, "NullPointerException")
    with pytest.raises(ServerRefused, match="NullPointerException"):
        await client.groups.producers("G")


async def test_topics_of_a_group_and_groups_of_a_topic_are_merged_from_all_masters(cluster: Cluster, client: ClusterClient):
    cluster.at[A, Code.QUERY_TOPICS_BY_CONSUMER] = responds_with(
        TopicList(
            (
                "x",
                "y",
            )
        ).encode()
    )
    cluster.at[B, Code.QUERY_TOPICS_BY_CONSUMER] = responds_with(TopicList(("y",)).encode())
    assert await client.groups.topics_of("G") == ["x", "y"]
    assert cluster.requests[Code.QUERY_TOPICS_BY_CONSUMER][0].ext == {"group": "G"}
    cluster.at[A, Code.QUERY_TOPIC_CONSUME_BY_WHO] = responds_with({"groupList": ["G2"]})
    cluster.at[B, Code.QUERY_TOPIC_CONSUME_BY_WHO] = responds_with({"groupList": ["G1", "G2"]})
    assert await client.groups.groups_of(TOPIC) == ["G1", "G2"]


async def test_progress_offsets_and_resets_of_a_group_cover_all_masters(cluster: Cluster, client: ClusterClient):
    stats = ConsumeStats({A0: ConsumeOffsets(10, 7)})
    cluster.at[A, Code.GET_CONSUME_STATS] = responds_with(stats.encode())
    cluster.at[B, Code.GET_CONSUME_STATS] = responds_with(ConsumeStats({}).encode())
    assert await client.groups.progress("G", TOPIC) == stats.offsets
    offsets = ConsumerOffsets({(TOPIC, "G"): {0: 7}, (TOPIC, "H"): {0: 1}}).encode()
    cluster.at[A, Code.GET_ALL_CONSUMER_OFFSET] = responds_with(offsets)
    cluster.at[B, Code.GET_ALL_CONSUMER_OFFSET] = responds_with(b'{"offsetTable":{}}')
    assert await client.groups.offsets("G") == {("G", A0): 7}
    assert await client.groups.offsets() == {("G", A0): 7, ("H", A0): 1}
    for address, queue in ((A, A0), (B, B0)):
        cluster.at[address, Code.INVOKE_BROKER_TO_RESET_OFFSET] = responds_with(ResetOffsets({queue: 3}).encode())
    assert await client.groups.reset("G", TOPIC, 123) == {A0: 3, B0: 3}
    header = ResetOffsetHeader.decode(cluster.requests[Code.INVOKE_BROKER_TO_RESET_OFFSET][0].ext)
    assert (header.group, header.topic, header.timestamp, header.is_force, header.queue_id) == ("G", TOPIC, 123, True, -1)


async def test_a_written_offset_is_read_back_and_reset_if_the_broker_ignored_it(cluster: Cluster, client: ClusterClient):
    offsets = {A: -1, B: -1}

    def commit(link, request):
        offsets[link.address] = int(request.ext["commitOffset"])
        link.answer(request)

    def query(link, request):
        assert request.ext["setZeroIfNotFound"] == "false"
        link.answer(request, ext={"offset": str(offsets[link.address])})

    def reset(link, request):
        offsets[link.address] = int(request.ext["offset"])
        link.answer(request)

    cluster.on[Code.UPDATE_CONSUMER_OFFSET], cluster.on[Code.QUERY_CONSUMER_OFFSET] = commit, query
    await client.groups.write("G", {A0: 5, B0: 6})
    assert offsets == {A: 5, B: 6}
    cluster.at[A, Code.UPDATE_CONSUMER_OFFSET] = success  # during a reset, a broker responds with SUCCESS but ignores the commit
    cluster.on[Code.INVOKE_BROKER_TO_RESET_OFFSET] = reset
    await client.groups.write("G", {A0: 1, B0: 2})
    assert offsets == {A: 1, B: 2}
    cluster.on[Code.INVOKE_BROKER_TO_RESET_OFFSET] = success
    with pytest.raises(ClusterError, match="did not change in 1 queues, such as T broker-a:0"):
        await client.groups.write("G", {A0: 9, B0: 2})
    cluster.on[Code.QUERY_CONSUMER_OFFSET] = refuses(Status.QUERY_NOT_FOUND)
    assert await client.positions.committed(A0, "G") is None


# --- positions and single messages ----------------------------------------------------------------------------------------


async def test_positions_of_a_queue_are_queried_from_its_master(cluster: Cluster, client: ClusterClient):
    for code, value in ((Code.GET_MIN_OFFSET, 3), (Code.GET_MAX_OFFSET, 9), (Code.SEARCH_OFFSET_BY_TIMESTAMP, 5)):
        cluster.at[B, code] = lambda link, request, value=value: link.answer(request, ext={"offset": str(value)})
    assert (await client.positions.first(B0), await client.positions.next(B0)) == (3, 9)
    assert await client.positions.at(B0, 77, upper=True) == 5
    header = SearchOffsetHeader.decode(cluster.requests[Code.SEARCH_OFFSET_BY_TIMESTAMP][0].ext)
    assert (header.queue_id, header.timestamp, header.boundary_type) == (0, 77, "UPPER")
    cluster.on[Code.GET_EARLIEST_MSG_STORETIME] = in_turn(
        lambda link, request: link.answer(request, ext={"timestamp": "55"}),
        lambda link, request: link.answer(request, ext={"timestamp": "-1"}),
    )
    assert await client.positions.earliest_time(B0) == 55
    assert await client.positions.earliest_time(B0) is None
    with pytest.raises(ClusterError, match="no master for queue T broker-z:0") as caught:
        await client.positions.first(Queue(TOPIC, "broker-z", 0))
    assert caught.value.failure is Failure.REFRESH
    with pytest.raises(ServerRefused, match="knows topic 'none'"):
        await client.positions.first(Queue("none", "broker-a", 0))


def record(keys: str, unique: str, stored: int, offset: int = 0) -> bytes:
    properties = props.encode([("KEYS", keys), ("UNIQ_KEY", unique)])
    return encode_record(Record(TOPIC, b"x", properties, store_timestamp=stored, physical_offset=offset))


async def test_messages_found_by_the_hash_of_a_key_are_compared_with_the_key(cluster: Cluster, client: ClusterClient):
    cluster.at[A, Code.QUERY_MESSAGE] = responds_with(record("k1 k2", "U1", 20) + record("kk", "U2", 5))
    cluster.at[B, Code.QUERY_MESSAGE] = responds_with(record("k2", "U1", 10))
    assert [record.store_timestamp for record in await Query(client).by_key(TOPIC, "k2", begin=1, end=99, most=7)] == [10, 20]
    header = QueryHeader.decode(cluster.requests[Code.QUERY_MESSAGE][0].ext)
    assert (header.key, header.max_num, header.begin_timestamp, header.end_timestamp, header.unique_key) == ("k2", 7, 1, 99, None)
    assert [record.store_timestamp for record in await Query(client).by_unique_key(TOPIC, "U1")] == [10, 20]
    assert cluster.requests[Code.QUERY_MESSAGE][-1].ext["_UNIQUE_KEY_QUERY"] == "true"
    cluster.at[A, Code.QUERY_MESSAGE] = cluster.at[B, Code.QUERY_MESSAGE] = refuses(Status.QUERY_NOT_FOUND)
    assert await Query(client).by_key(TOPIC, "k2") == []
    with pytest.raises(ServerRefused, match="knows topic 'none'"):
        await Query(client).by_key("none", "k2")


async def test_an_offset_id_is_looked_up_at_the_broker_that_it_names(cluster: Cluster, client: ClusterClient):
    message_id = offset_id(parse_host("1.2.3.4:10911"), 1000)
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = responds_with(record("k", "U", 1, offset=1000))
    found = await Query(client).by_offset_id(message_id)
    assert found is not None
    assert found.physical_offset == 1000
    assert addresses_asked(cluster, Code.VIEW_MESSAGE_BY_ID) == ["1.2.3.4:10911"]
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = refuses(Status.SYSTEM_ERROR, "can not find message by the offset, 1000")
    assert await Query(client).by_offset_id(message_id) is None
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = refuses(Status.SYSTEM_ERROR, "disk on fire")
    with pytest.raises(ServerRefused, match="disk on fire"):
        await Query(client).by_offset_id(message_id)
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = responds_with(record("k", "U", 1, offset=7))
    with pytest.raises(RemoteProtocolError):
        await Query(client).by_offset_id(message_id)
    with pytest.raises(RemoteProtocolError, match="not the id of a stored message"):
        await Query(client).by_offset_id("00")
