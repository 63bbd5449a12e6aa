"""Administration, offsets and queries: what is asked of whom, and what becomes of the answers."""

import pytest

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, RequestTimeout, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.route_table import Queue
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.configs import DataVersion, GroupConfig, GroupConfigs, TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import Connection, ConsumerConnections, ProducerConnections
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
from tests.rocketmq.client.broker import NS, TOPIC, A, B, Cluster, in_turn, refuses, route, says, scripted_client, success

A0, B0 = Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-b", 0)


@pytest.fixture(autouse=True)
def registered(cluster: Cluster) -> None:
    """Both brokers are in one cluster."""
    brokers = {name: BrokerData(name, "C", addresses) for name, addresses in cluster.brokers.items()}
    info = ClusterInfo(brokers, {"C": ("broker-a", "broker-b"), "empty": ()}).encode()
    cluster.on[Code.GET_BROKER_CLUSTER_INFO] = says(info)


def asked_of(cluster: Cluster, code: int) -> list[str]:
    """The addresses that were asked, sorted."""
    return sorted(address for address, asked in cluster.asked_at.items() for command in asked if command.code == code)


async def test_masters(cluster: Cluster, client: ClusterClient):
    assert await client.admin.masters() == {"broker-a": A, "broker-b": B}
    assert await client.admin.masters("C") == {"broker-a": A, "broker-b": B}
    with pytest.raises(ClusterError, match="no cluster 'X'; there are: C, empty") as caught:
        await client.admin.masters("X")
    assert caught.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="no master") as caught:
        await client.admin.masters("empty")
    assert caught.value.failure is Failure.RETRY


async def test_topics_and_those_of_the_system(cluster: Cluster, client: ClusterClient):
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
    cluster.on[Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = says(TopicList(tuple(names)).encode())
    assert await client.admin.topics() == sorted(names)
    assert await client.admin.user_topics() == ["a", "my_REPLY_TOPIC", "z"]
    cluster.on[Code.GET_TOPICS_BY_CLUSTER] = says(TopicList(("x",)).encode())
    assert await client.admin.topics("C") == ["x"]
    assert cluster.asked[Code.GET_TOPICS_BY_CLUSTER][0].ext == {"cluster": "C"}


def creates(cluster: Cluster):
    """A broker that registers what it is told."""
    names = {A: "broker-a", B: "broker-b"}

    def answer(link, request):
        said = CreateTopicHeader.decode(request.ext)
        cluster.topics.setdefault(said.topic, {})[names[link.address]] = said.write_queue_nums
        link.answer(request, remark="not set any response code")

    return answer


async def test_a_topic_is_made_at_every_master_and_shown(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = creates(cluster)
    cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = in_turn(refuses(Status.TOPIC_NOT_EXIST), refuses(Status.TOPIC_NOT_EXIST), route)
    await client.admin.create_topic("new", 3, attributes={"message.type": "FIFO", "x": "y"}, order=True)
    assert asked_of(cluster, Code.UPDATE_AND_CREATE_TOPIC) == [A, B]
    said = CreateTopicHeader.decode(cluster.asked[Code.UPDATE_AND_CREATE_TOPIC][0].ext)
    assert (said.topic, said.read_queue_nums, said.write_queue_nums, said.perm, said.order) == ("new", 3, 3, 6, True)
    assert (said.attributes, said.topic_filter_type) == ("+message.type=FIFO,+x=y", "SINGLE_TAG")
    assert len(cluster.asked[Code.GET_ROUTEINFO_BY_TOPIC]) == 3
    found = await client.routes.get("new")
    assert found is not None
    assert len(found.write_queues()) == 6


async def test_a_topic_that_is_never_shown(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = success
    with pytest.raises(RequestTimeout, match="do not show the change"):
        await client.admin.create_topic("new", 3, timeout=0.1)
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

    def forgets(link, request):
        if link.address != NS:
            cluster.topics.pop(request.ext["topic"])
        link.answer(request)

    cluster.on[Code.DELETE_TOPIC_IN_NAMESRV] = forgets
    await client.admin.delete_topic(TOPIC)
    assert asked_of(cluster, Code.DELETE_TOPIC_IN_BROKER) == [A, B]
    assert asked_of(cluster, Code.DELETE_TOPIC_IN_NAMESRV) == ["ns2:9876", NS]
    cluster.on[Code.DELETE_TOPIC_IN_NAMESRV] = refuses(Status.SYSTEM_ERROR)
    with pytest.raises(ServerRefused):
        await client.admin.delete_topic("other")
    await client.close()


async def test_configurations_and_statistics(cluster: Cluster, client: ClusterClient):
    config = TopicConfig(TOPIC, 2, 2, attributes={"message.type": "NORMAL"})
    cluster.at[A, Code.GET_TOPIC_CONFIG] = says(config.encode())
    cluster.at[B, Code.GET_TOPIC_CONFIG] = refuses(Status.TOPIC_NOT_EXIST)
    assert await client.admin.topic_config(TOPIC) == {"broker-a": config}
    for address, queue in ((A, A0), (B, B0)):
        cluster.at[address, Code.GET_TOPIC_STATS_INFO] = says(TopicStats({queue: QueueStats(1, 5, 99)}).encode())
    assert await client.admin.topic_stats(TOPIC) == {A0: QueueStats(1, 5, 99), B0: QueueStats(1, 5, 99)}
    with pytest.raises(ServerRefused, match="knows topic 'none'") as caught:
        await client.admin.topic_stats("none")
    assert caught.value.failure is Failure.FATAL
    cluster.at[A, Code.GET_TOPIC_STATS_INFO] = says(b"[")
    with pytest.raises(RemoteProtocolError):
        await client.admin.topic_stats(TOPIC)


async def test_a_brokers_settings(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.GET_BROKER_CONFIG] = says(b"# a comment\na=1\nb = x=y\n\nc=\n")
    assert await client.admin.broker_config(A) == {"a": "1", "b": "x=y", "c": ""}
    cluster.on[Code.UPDATE_BROKER_CONFIG] = success
    await client.admin.update_broker_config(A, {"a": 2, "b": "z"})
    assert cluster.asked[Code.UPDATE_BROKER_CONFIG][0].body == b"a=2\nb=z\n"


# --- groups ---------------------------------------------------------------------------------------------------------------


async def test_groups_are_made_and_deleted_at_every_master(cluster: Cluster, client: ClusterClient):
    cluster.on[Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP] = cluster.on[Code.DELETE_SUBSCRIPTIONGROUP] = success
    config = GroupConfig("G", retry_max_times=3)
    await client.groups.create(config)
    await client.groups.delete("G")
    assert asked_of(cluster, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) == [A, B]
    assert GroupConfig.decode(cluster.asked[Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP][0].body) == config
    assert [one.ext for one in cluster.asked[Code.DELETE_SUBSCRIPTIONGROUP]] == [{"groupName": "G", "cleanOffset": "true"}] * 2
    cluster.on[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = says(
        GroupConfigs({one.name: one for one in [config]}, DataVersion()).encode()
    )
    assert await client.groups.configs() == {"G": {"broker-a": config, "broker-b": config}}
    with pytest.raises(ClusterError, match="cannot be a group"):
        await client.groups.create(GroupConfig("a b"))


async def test_who_is_connected(cluster: Cluster, client: ClusterClient):
    connection = Connection("id", "1.2.3.4:5")
    cluster.at[A, Code.GET_CONSUMER_CONNECTION_LIST] = refuses(Status.CONSUMER_NOT_ONLINE)
    found = ConsumerConnections((connection,))
    cluster.at[B, Code.GET_CONSUMER_CONNECTION_LIST] = says(found.encode())
    assert await client.groups.consumers("G") == found
    cluster.at[B, Code.GET_CONSUMER_CONNECTION_LIST] = refuses(Status.CONSUMER_NOT_ONLINE)
    assert await client.groups.consumers("G") is None
    cluster.at[A, Code.GET_PRODUCER_CONNECTION_LIST] = refuses(Status.SYSTEM_ERROR, "the producer group[G] not exist")
    cluster.at[B, Code.GET_PRODUCER_CONNECTION_LIST] = says(
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


async def test_topics_of_a_group_and_groups_of_a_topic(cluster: Cluster, client: ClusterClient):
    cluster.at[A, Code.QUERY_TOPICS_BY_CONSUMER] = says(
        TopicList(
            (
                "x",
                "y",
            )
        ).encode()
    )
    cluster.at[B, Code.QUERY_TOPICS_BY_CONSUMER] = says(TopicList(("y",)).encode())
    assert await client.groups.topics_of("G") == ["x", "y"]
    assert cluster.asked[Code.QUERY_TOPICS_BY_CONSUMER][0].ext == {"group": "G"}
    cluster.at[A, Code.QUERY_TOPIC_CONSUME_BY_WHO] = says({"groupList": ["G2"]})
    cluster.at[B, Code.QUERY_TOPIC_CONSUME_BY_WHO] = says({"groupList": ["G1", "G2"]})
    assert await client.groups.groups_of(TOPIC) == ["G1", "G2"]


async def test_offsets_of_groups(cluster: Cluster, client: ClusterClient):
    stats = ConsumeStats({A0: ConsumeOffsets(10, 7)})
    cluster.at[A, Code.GET_CONSUME_STATS] = says(stats.encode())
    cluster.at[B, Code.GET_CONSUME_STATS] = says(ConsumeStats({}).encode())
    assert await client.groups.progress("G", TOPIC) == stats.offsets
    offsets = ConsumerOffsets({(TOPIC, "G"): {0: 7}, (TOPIC, "H"): {0: 1}}).encode()
    cluster.at[A, Code.GET_ALL_CONSUMER_OFFSET] = says(offsets)
    cluster.at[B, Code.GET_ALL_CONSUMER_OFFSET] = says(b'{"offsetTable":{}}')
    assert await client.groups.offsets("G") == {("G", A0): 7}
    assert await client.groups.offsets() == {("G", A0): 7, ("H", A0): 1}
    for address, queue in ((A, A0), (B, B0)):
        cluster.at[address, Code.INVOKE_BROKER_TO_RESET_OFFSET] = says(ResetOffsets({queue: 3}).encode())
    assert await client.groups.reset("G", TOPIC, 123) == {A0: 3, B0: 3}
    said = ResetOffsetHeader.decode(cluster.asked[Code.INVOKE_BROKER_TO_RESET_OFFSET][0].ext)
    assert (said.group, said.topic, said.timestamp, said.is_force, said.queue_id) == ("G", TOPIC, 123, True, -1)


async def test_written_offsets_are_read_back(cluster: Cluster, client: ClusterClient):
    held = {A: -1, B: -1}

    def commits(link, request):
        held[link.address] = int(request.ext["commitOffset"])
        link.answer(request)

    def tells(link, request):
        assert request.ext["setZeroIfNotFound"] == "false"
        link.answer(request, ext={"offset": str(held[link.address])})

    def resets(link, request):
        held[link.address] = int(request.ext["offset"])
        link.answer(request)

    cluster.on[Code.UPDATE_CONSUMER_OFFSET], cluster.on[Code.QUERY_CONSUMER_OFFSET] = commits, tells
    await client.groups.write("G", {A0: 5, B0: 6})
    assert held == {A: 5, B: 6}
    cluster.at[A, Code.UPDATE_CONSUMER_OFFSET] = success  # a reset is pending: it answers well and ignores it
    cluster.on[Code.INVOKE_BROKER_TO_RESET_OFFSET] = resets
    await client.groups.write("G", {A0: 1, B0: 2})
    assert held == {A: 1, B: 2}
    cluster.on[Code.INVOKE_BROKER_TO_RESET_OFFSET] = success
    with pytest.raises(ClusterError, match="did not change in T broker-a:0"):
        await client.groups.write("G", {A0: 9, B0: 2})
    cluster.on[Code.QUERY_CONSUMER_OFFSET] = refuses(Status.QUERY_NOT_FOUND)
    assert await client.positions.committed(A0, "G") is None


# --- positions and single messages ----------------------------------------------------------------------------------------


async def test_positions_of_a_queue(cluster: Cluster, client: ClusterClient):
    for code, value in ((Code.GET_MIN_OFFSET, 3), (Code.GET_MAX_OFFSET, 9), (Code.SEARCH_OFFSET_BY_TIMESTAMP, 5)):
        cluster.at[B, code] = lambda link, request, value=value: link.answer(request, ext={"offset": str(value)})
    assert (await client.positions.first(B0), await client.positions.next(B0)) == (3, 9)
    assert await client.positions.at(B0, 77, upper=True) == 5
    said = SearchOffsetHeader.decode(cluster.asked[Code.SEARCH_OFFSET_BY_TIMESTAMP][0].ext)
    assert (said.queue_id, said.timestamp, said.boundary_type) == (0, 77, "UPPER")
    cluster.on[Code.GET_EARLIEST_MSG_STORETIME] = in_turn(
        lambda link, request: link.answer(request, ext={"timestamp": "55"}),
        lambda link, request: link.answer(request, ext={"timestamp": "-1"}),
    )
    assert await client.positions.earliest_time(B0) == 55
    assert await client.positions.earliest_time(B0) is None
    with pytest.raises(ClusterError, match="no master for T broker-z:0") as caught:
        await client.positions.first(Queue(TOPIC, "broker-z", 0))
    assert caught.value.failure is Failure.REFRESH
    with pytest.raises(ServerRefused, match="knows topic 'none'"):
        await client.positions.first(Queue("none", "broker-a", 0))


def record(keys: str, unique: str, stored: int, offset: int = 0) -> bytes:
    properties = props.encode([("KEYS", keys), ("UNIQ_KEY", unique)])
    return encode_record(Record(TOPIC, b"x", properties, store_timestamp=stored, physical_offset=offset))


async def test_what_is_found_by_hash_is_checked_by_key(cluster: Cluster, client: ClusterClient):
    cluster.at[A, Code.QUERY_MESSAGE] = says(record("k1 k2", "U1", 20) + record("kk", "U2", 5))
    cluster.at[B, Code.QUERY_MESSAGE] = says(record("k2", "U1", 10))
    assert [one.store_timestamp for one in await Query(client).by_key(TOPIC, "k2", begin=1, end=99, most=7)] == [10, 20]
    said = QueryHeader.decode(cluster.asked[Code.QUERY_MESSAGE][0].ext)
    assert (said.key, said.max_num, said.begin_timestamp, said.end_timestamp, said.unique_key) == ("k2", 7, 1, 99, None)
    assert [one.store_timestamp for one in await Query(client).by_unique_key(TOPIC, "U1")] == [10, 20]
    assert cluster.asked[Code.QUERY_MESSAGE][-1].ext["_UNIQUE_KEY_QUERY"] == "true"
    cluster.at[A, Code.QUERY_MESSAGE] = cluster.at[B, Code.QUERY_MESSAGE] = refuses(Status.QUERY_NOT_FOUND)
    assert await Query(client).by_key(TOPIC, "k2") == []
    with pytest.raises(ServerRefused, match="knows topic 'none'"):
        await Query(client).by_key("none", "k2")


async def test_an_offset_id_names_its_broker(cluster: Cluster, client: ClusterClient):
    message_id = offset_id(parse_host("1.2.3.4:10911"), 1000)
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = says(record("k", "U", 1, offset=1000))
    found = await Query(client).by_offset_id(message_id)
    assert found is not None
    assert found.physical_offset == 1000
    assert asked_of(cluster, Code.VIEW_MESSAGE_BY_ID) == ["1.2.3.4:10911"]
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = refuses(Status.SYSTEM_ERROR, "can not find message by the offset, 1000")
    assert await Query(client).by_offset_id(message_id) is None
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = refuses(Status.SYSTEM_ERROR, "disk on fire")
    with pytest.raises(ServerRefused, match="disk on fire"):
        await Query(client).by_offset_id(message_id)
    cluster.on[Code.VIEW_MESSAGE_BY_ID] = says(record("k", "U", 1, offset=7))
    with pytest.raises(RemoteProtocolError):
        await Query(client).by_offset_id(message_id)
    with pytest.raises(RemoteProtocolError, match="not the id of a stored message"):
        await Query(client).by_offset_id("00")
