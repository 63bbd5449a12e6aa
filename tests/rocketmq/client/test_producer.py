"""The producer's conversations: order, retries, every kind of answer, trouble in every state."""

import asyncio

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused
from mqbridge.net.window import SendWindow
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.queue_producer import QueueProducer
from mqbridge.rocketmq.client.route_table import Queue
from mqbridge.rocketmq.client.send_request import SendResult
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.send import SendResult as SendResultHeader
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import (
    NS,
    TOPIC,
    A,
    B,
    Cluster,
    hangs_up,
    in_turn,
    refuses,
    scripted_client,
    silent,
    store,
    stored_with,
    until,
)

SINGLE, BATCH, ROUTE = Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.GET_ROUTEINFO_BY_TOPIC
A0, B0 = Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-b", 0)


@pytest_asyncio.fixture
async def producer(client: ClusterClient) -> QueueProducer:
    return client.producer("P", TOPIC, max_elapsed_s=5.0)


def bodies(cluster: Cluster, address: str = A, queue: int = 0) -> list[bytes]:
    return [body for body, _ in cluster.stored[address, queue]]


def send(producer: QueueProducer, *payloads: bytes, queue: Queue = A0):
    return [producer.send_single(queue, payload, b"") for payload in payloads]


def elements(*payloads: bytes) -> bytes:
    return b"".join(batch.encode_element(payload, b"") for payload in payloads)


# --- what is sent ---------------------------------------------------------------------------------------------------------


async def test_a_batch_says_nothing_but_its_messages(cluster: Cluster, producer: QueueProducer):
    result = await producer.send_batch(A0, elements(b"a", b"b", b"c"), 3, 1234)
    assert (result.queue, result.offset, result.status, result.address) == (A0, 0, Status.SUCCESS, A)
    assert len(result.message_id.split(",")) == 3
    assert (await producer.send_batch(A0, elements(b"d"), 1, 1234)).offset == 3
    assert bodies(cluster) == [b"a", b"b", b"c", b"d"]
    said = cluster.headers(BATCH)[0]
    assert (said.producer_group, said.topic, said.queue_id, said.born_timestamp) == ("P", TOPIC, 0, 1234)
    assert (said.properties, said.batch, said.sys_flag, said.default_topic) == ("", True, 0, TOPIC)


# --- refused without asking ----------------------------------------------------------------------------------------------


async def test_what_no_broker_takes_is_not_sent(cluster: Cluster, producer: QueueProducer):
    done = await asyncio.gather(
        *send(producer, b"", b"x" * (MAX_MESSAGE_BYTES + 1), b"fine"),
        producer.send_single(A0, b"x", b"p" * 32768),
        producer.send_batch(A0, b"", 0, 1),
        return_exceptions=True,
    )
    kinds = [one.failure if isinstance(one, ClusterError) else one.offset for one in done]
    assert kinds == [Failure.REFUSED, Failure.REFUSED, 0, Failure.REFUSED, Failure.REFUSED]
    assert bodies(cluster) == [b"fine"]


async def test_a_frame_has_its_limit_whatever_the_broker_takes(cluster: Cluster, client: ClusterClient):
    producer = client.producer("P", TOPIC, max_message_bytes=1 << 30)
    with pytest.raises(ClusterError, match="maxMessageSize") as caught:
        await producer.send_single(A0, bytes(16 << 20), b"")
    assert caught.value.failure is Failure.REFUSED
    properties = b'"' * 32767  # JSON doubles them
    await producer.send_single(A0, bytes(producer.max_message_bytes), properties)


def test_names_are_checked():
    client = object()
    for group, topic in (("P", "a b"), ("P", ""), ("P", "x" * 128), ("P", "SCHEDULE_TOPIC_XXXX"), ("", "T"), ("g" * 256, "T")):
        with pytest.raises(ClusterError) as caught:
            QueueProducer(client, group, topic)  # type: ignore[arg-type]
        assert caught.value.failure is Failure.FATAL


# --- order, and how much is on its way ------------------------------------------------------------------------------------


async def test_one_request_of_a_queue_keeps_the_order(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1", b"2", b"3")
    other = send(producer, b"b", queue=B0)
    await until(lambda: len(cluster.asked[SINGLE]) == 2)
    await asyncio.sleep(0.01)
    assert len(cluster.asked[SINGLE]) == 2, "one for each queue"
    cluster.on[SINGLE] = store
    for request in list(cluster.asked[SINGLE]):
        store(cluster.link_to(A if request.body == b"1" else B), request)
    await asyncio.gather(*sent, *other)
    assert bodies(cluster) == [b"1", b"2", b"3"]


async def test_unordered_sends_overlap(cluster: Cluster, client: ClusterClient):
    cluster.on[SINGLE] = silent
    producer = client.producer("P", TOPIC, in_flight_per_queue=3)
    sent = send(producer, *[b"x"] * 5)
    await until(lambda: len(cluster.asked[SINGLE]) == 3)
    await asyncio.sleep(0.01)
    assert len(cluster.asked[SINGLE]) == 3
    cluster.on[SINGLE] = store
    for request in list(cluster.asked[SINGLE]):
        store(cluster.link_to(A), request)
    await asyncio.gather(*sent)


async def test_all_producers_of_a_client_share_a_window(cluster: Cluster, client: ClusterClient):
    client.window = SendWindow(max_sends=4, max_bytes=1000)
    cluster.on[SINGLE] = silent
    one, two = (client.producer("P", TOPIC, in_flight_per_queue=10) for _ in range(2))
    sent = [*send(one, *[b"x"] * 4), *send(two, *[b"y"] * 4, queue=B0)]
    await until(lambda: len(cluster.asked[SINGLE]) == 4)
    await asyncio.sleep(0.01)
    assert (len(cluster.asked[SINGLE]), client.window.sends) == (4, 4)
    cluster.on[SINGLE] = store
    for request in list(cluster.asked[SINGLE]):
        (link,) = [link for link in cluster.links if request in cluster.asked_at[link.address]]
        store(link, request)
    await asyncio.gather(*sent)
    big = [*send(one, b"x" * 600, b"x" * 600), *send(two, b"y" * 2000)]
    await asyncio.gather(*big)
    assert client.window.sends == 0


async def test_who_gives_up_is_not_sent(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1", b"2", b"3")
    await until(lambda: cluster.asked[SINGLE])
    sent[1].cancel()
    cluster.on[SINGLE] = store
    store(cluster.link_to(A), cluster.asked[SINGLE][0])
    await asyncio.gather(sent[0], sent[2])
    assert bodies(cluster) == [b"1", b"3"]


# --- answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_SLAVE_TIMEOUT])
async def test_stored_is_stored(cluster: Cluster, producer: QueueProducer, code: int):
    cluster.on[SINGLE] = stored_with(code)
    (result,) = await asyncio.gather(*send(producer, b"x"))
    assert (result.status, result.offset, len(cluster.asked[SINGLE])) == (code, 0, 1)


@pytest.mark.parametrize(
    "code", [Status.SYSTEM_ERROR, Status.SYSTEM_BUSY, Status.SERVICE_NOT_AVAILABLE, Status.TOPIC_NOT_EXIST, 999]
)
async def test_what_may_pass_is_sent_again_in_order(cluster: Cluster, producer: QueueProducer, code: int):
    cluster.on[SINGLE] = in_turn(store, refuses(code), refuses(code), store)
    results = await asyncio.gather(*send(producer, b"1", b"2", b"3"))
    assert [result.offset for result in results] == [0, 1, 2]
    assert bodies(cluster) == [b"1", b"2", b"3"]
    assert [request.body for request in cluster.asked[SINGLE]] == [b"1", b"2", b"2", b"2", b"3"]


async def test_a_message_that_is_refused_fails_alone(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(store, refuses(Status.MESSAGE_ILLEGAL, "too long"), store)
    done = await asyncio.gather(*send(producer, b"1", b"2", b"3"), return_exceptions=True)
    assert isinstance(done[1], ServerRefused)
    assert (done[1].failure, done[1].code) == (Failure.REFUSED, 13)
    assert bodies(cluster) == [b"1", b"3"]


async def test_an_oversized_batch_is_not_tried_again(cluster: Cluster, producer: QueueProducer):
    cluster.on[BATCH] = refuses(Status.SYSTEM_ERROR, "java.lang.RuntimeException: message body size exceeded, x")
    with pytest.raises(ServerRefused) as caught:
        await producer.send_batch(A0, elements(b"x"), 1, 1)
    assert (caught.value.failure, len(cluster.asked[BATCH])) == (Failure.REFUSED, 1)


@pytest.mark.parametrize(
    ("code", "failure"), [(Status.INVALID_PARAMETER, Failure.REFUSED), (Status.NO_PERMISSION, Failure.FATAL)]
)
async def test_a_doubtful_answer_is_believed_after_a_look_at_the_route(cluster: Cluster, producer: QueueProducer, code, failure):
    cluster.on[SINGLE] = in_turn(store, refuses(code), store)
    done = await asyncio.gather(*send(producer, b"1", b"2", b"3"), return_exceptions=True)
    assert isinstance(done[1], ServerRefused)
    assert (done[1].failure, done[1].code) == (failure, code)
    assert bodies(cluster) == [b"1", b"3"]
    assert len(cluster.asked[ROUTE]) >= 2


@pytest.mark.parametrize("code", [Status.INVALID_PARAMETER, Status.NO_PERMISSION])
async def test_a_queue_that_is_gone_says_so(cluster: Cluster, producer: QueueProducer, code):
    await producer.send_single(Queue(TOPIC, "broker-a", 1), b"x", b"")
    cluster.topics[TOPIC]["broker-a"] = 1
    cluster.on[SINGLE] = refuses(code)
    done = await asyncio.gather(*send(producer, b"1", b"2", queue=Queue(TOPIC, "broker-a", 1)), return_exceptions=True)
    assert [one.failure for one in done if isinstance(one, ClusterError)] == [Failure.REFRESH] * 2
    assert "topic has fewer queues now" in str(done[0])


async def test_an_answer_that_makes_no_sense_ends_the_connection(cluster: Cluster, producer: QueueProducer):
    wrong_queue = SendResultHeader("00", 77, 5).encode()
    for ext in ({}, wrong_queue, SendResultHeader("00", 0, -5).encode()):
        cluster.on[SINGLE] = in_turn(lambda link, request, ext=ext: link.answer(request, ext=ext), store)
        await asyncio.gather(*send(producer, b"x"))
    assert cluster.dialled.count(A) == 4


async def test_a_broker_that_goes_away_gets_no_more(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(refuses(Status.GO_AWAY), store)
    await asyncio.gather(*send(producer, b"1", b"2"))
    assert (bodies(cluster), cluster.dialled.count(A)) == ([b"1", b"2"], 2)


# --- trouble --------------------------------------------------------------------------------------------------------------


async def test_a_lost_connection_sends_the_same_again(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(hangs_up, hangs_up, store)
    await asyncio.gather(*send(producer, b"1", b"2"))
    assert bodies(cluster) == [b"1", b"2"]
    same = [(request.body, request.ext) for request in cluster.asked[SINGLE][:3]]
    assert same[0] == same[1] == same[2]


async def test_an_outage_is_one_warning_and_one_line_and_what_is_sent_again_is_counted(
    cluster: Cluster, client: ClusterClient, producer: QueueProducer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    cluster.on[SINGLE] = in_turn(hangs_up, store)
    cluster.unreachable.add(A)
    sent = send(producer, b"1", b"2", b"3")
    await until(lambda: client.connectivity.failures > 3)
    assert client.connectivity.unreachable_s is not None
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert (client.connectivity.unreachable_s, client.connectivity.retries) == (None, 1)
    said = [(record.levelname, record.name) for record in caplog.records]
    assert said == [("WARNING", "mqbridge.net.connectivity"), ("INFO", "mqbridge.net.connectivity")]


async def test_a_stored_message_whose_answer_was_lost_is_stored_twice(cluster: Cluster, producer: QueueProducer):
    def stores_and_hangs_up(link, request):
        link.open, was = False, link.open
        store(link, request)
        link.open = was
        link.drop()

    cluster.on[SINGLE] = in_turn(stores_and_hangs_up, store)
    (result,) = await asyncio.gather(*send(producer, b"1"))
    assert (result.offset, bodies(cluster)) == (1, [b"1", b"1"])


async def test_no_answer_in_time_is_sent_again_over_a_new_connection(cluster: Cluster):
    client = scripted_client(request=0.05)
    await client.connect()
    cluster.on[SINGLE] = in_turn(silent, store)
    producer = client.producer("P", TOPIC)
    await asyncio.gather(*send(producer, b"1"))
    assert (bodies(cluster), cluster.dialled.count(A)) == ([b"1"], 2)
    await client.close()


async def test_it_waits_for_a_broker_that_cannot_be_reached(cluster: Cluster, producer: QueueProducer):
    cluster.unreachable.add(A)
    sent = send(producer, b"1", b"2")
    await until(lambda: cluster.dialled.count(A) >= 3)
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert bodies(cluster) == [b"1", b"2"]


async def test_a_master_that_moved_is_followed(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.brokers["broker-a"][0] = B
    cluster.at[A, SINGLE] = refuses(Status.SERVICE_NOT_AVAILABLE, "I am a slave now")
    await asyncio.gather(*send(producer, b"2"))
    assert (bodies(cluster, A), bodies(cluster, B)) == ([b"1"], [b"2"])


async def test_a_broker_without_master_is_waited_for(cluster: Cluster, producer: QueueProducer):
    cluster.brokers["broker-a"] = {1: "slave:1"}
    sent = send(producer, b"1")
    await until(lambda: len(cluster.asked[ROUTE]) >= 3)
    assert cluster.dialled.count("slave:1") == 0
    cluster.brokers["broker-a"] = {0: A}
    await asyncio.gather(*sent)


async def test_an_address_that_is_a_lie_is_asked_of_the_next_name_server(cluster: Cluster):
    client = scripted_client(NS, "ns2:9876")
    await client.connect()
    cluster.unreachable.add("nowhere:1")

    def lie(link, request):
        brokers, link.cluster.brokers = link.cluster.brokers, {"broker-a": {0: "nowhere:1"}, "broker-b": {0: B}}
        try:
            routes(link, request)
        finally:
            link.cluster.brokers = brokers

    routes = cluster.on[ROUTE]
    cluster.at[NS, ROUTE] = lie
    producer = client.producer("P", TOPIC)
    await asyncio.gather(*send(producer, b"1"))
    assert bodies(cluster) == [b"1"]
    await client.close()


async def test_name_servers_are_not_needed_while_brokers_stay(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.unreachable.add(NS)
    cluster.link_to(NS).drop()
    cluster.link_to(A).drop()
    await producer.send_single(A0, b"2", b"")
    assert bodies(cluster) == [b"1", b"2"]


async def test_a_forgetful_name_server_is_no_end(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.on[ROUTE], route = refuses(Status.TOPIC_NOT_EXIST), cluster.on[ROUTE]
    cluster.unreachable.add(A)  # or it is connected again at once, and the route is not asked for
    cluster.link_to(A).drop()
    await asyncio.sleep(0.01)
    sent = send(producer, b"2")
    asked = len(cluster.asked[ROUTE])
    await until(lambda: len(cluster.asked[ROUTE]) > asked + 2)
    cluster.on[ROUTE] = route
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert bodies(cluster) == [b"1", b"2"]


async def test_a_broker_that_dies_is_missed_at_once_though_name_servers_forget_it(
    cluster: Cluster, client: ClusterClient, producer: QueueProducer, caplog: pytest.LogCaptureFixture
):
    """Nobody would dial it again before the next heartbeat."""
    caplog.set_level("INFO")
    await asyncio.gather(*send(producer, b"1"))
    cluster.on[ROUTE], route = refuses(Status.TOPIC_NOT_EXIST), cluster.on[ROUTE]
    cluster.unreachable.add(A)
    cluster.link_to(A).drop()
    await until(lambda: client.connectivity.unreachable_s is not None)
    sent = send(producer, b"2")
    asked = len(cluster.asked[ROUTE])
    await until(lambda: len(cluster.asked[ROUTE]) > asked + 2)
    assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "mqbridge.net.connectivity")]
    cluster.on[ROUTE] = route
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert (client.connectivity.unreachable_s, bodies(cluster)) == (None, [b"1", b"2"])


async def test_a_topic_that_nobody_has_is_fatal(cluster: Cluster, client: ClusterClient, producer: QueueProducer):
    missing = client.producer("P", "missing")
    for sent in (missing.queues(), missing.send_single(Queue("missing", "broker-a", 0), b"x", b"")):
        with pytest.raises(ServerRefused, match="no name server knows topic 'missing'") as caught:
            await sent
        assert caught.value.failure is Failure.FATAL
    await asyncio.gather(*send(producer, b"1"))
    del cluster.topics[TOPIC]
    cluster.on[SINGLE] = refuses(Status.TOPIC_NOT_EXIST)
    with pytest.raises(ServerRefused) as caught:
        await producer.send_single(A0, b"2", b"")
    assert caught.value.failure is Failure.FATAL


async def test_a_static_topic_is_fatal(cluster: Cluster, client: ClusterClient):
    from tests.rocketmq.client.broker import route_body, says

    cluster.on[ROUTE] = says(route_body(cluster, TOPIC, topicQueueMappingByBroker={"broker-a": {"bname": "broker-a"}}))
    with pytest.raises(ClusterError, match="static topic") as caught:
        await client.producer("P", TOPIC).send_single(A0, b"x", b"")
    assert caught.value.failure is Failure.FATAL


async def test_after_the_longest_time_all_that_waits_fails_and_the_next_may_live(cluster: Cluster):
    client = scripted_client(request=0.02)
    await client.connect()
    cluster.on[SINGLE] = silent
    producer = client.producer("P", TOPIC, max_elapsed_s=0.1)
    done = await asyncio.gather(*send(producer, b"1", b"2"), return_exceptions=True)
    assert [type(one) for one in done] == [RequestTimeout] * 2
    assert [one.failure for one in done if isinstance(one, ClusterError)] == [Failure.RETRY] * 2
    cluster.on[SINGLE] = store
    await asyncio.gather(*send(producer, b"3"))
    assert bodies(cluster) == [b"3"]
    await client.close()


async def test_movable_requests_leave_a_dead_broker(cluster: Cluster, producer: QueueProducer):
    await producer.queues()
    cluster.unreachable.add(A)
    cluster.at[A, SINGLE] = hangs_up
    sends = [producer.send_single(producer.choose(), b"%d" % n, b"", movable=True) for n in range(20)]
    assert {result.address for result in await asyncio.gather(*sends)} <= {A, B}
    waiting = producer.send_single(A0, b"stays", b"")
    await asyncio.sleep(0.05)
    assert not waiting.done()
    sends = [producer.send_single(producer.choose(), b"%d" % n, b"", movable=True) for n in range(20)]
    assert {result.address for result in await asyncio.gather(*sends)} == {B}
    cluster.unreachable.clear()
    del cluster.at[A, SINGLE]
    assert (await waiting).address == A


# --- the end --------------------------------------------------------------------------------------------------------------


async def test_close_waits_for_what_is_on_its_way(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1")
    await until(lambda: cluster.asked[SINGLE])
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    store(cluster.link_to(A), cluster.asked[SINGLE][0])
    await closing
    assert (await sent[0]).offset == 0
    with pytest.raises(ClusterError, match="closed"):
        await producer.send_single(A0, b"2", b"")


async def test_close_gives_up_in_the_end(cluster: Cluster, producer: QueueProducer):
    cluster.unreachable.add(A)
    sent = send(producer, b"1", b"2")
    await until(lambda: cluster.dialled.count(A))
    await producer.close(timeout=0.01)
    done = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in done] == [ConnectionLost] * 2


# --- ordered failure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Status.TOPIC_NOT_EXIST, Status.NO_PERMISSION, Status.SYSTEM_ERROR])
async def test_nothing_overtakes_what_failed(cluster: Cluster, client: ClusterClient, code: int) -> None:
    """What is behind fails too, also what is sent before the sender could know; what is sent after that is stored."""
    limit = 0.0 if code == Status.SYSTEM_ERROR else None
    producer = client.producer("p", TOPIC, fail_behind=True, max_elapsed_s=limit)
    queue = (await producer.queues())[0]
    if code == Status.TOPIC_NOT_EXIST:
        cluster.topics.pop(TOPIC)
    cluster.on[Code.SEND_MESSAGE_V2] = in_turn(refuses(code), store)
    sent_late: list[asyncio.Future[SendResult]] = []
    first = producer.send_single(queue, b"1", b"")
    behind = [producer.send_single(queue, b"%d" % n, b"") for n in (2, 3)]
    first.add_done_callback(lambda _: sent_late.append(producer.send_single(queue, b"4", b"")))
    outcomes = await asyncio.gather(first, *behind, return_exceptions=True)
    assert all(isinstance(outcome, ClusterError) and outcome.failure is not Failure.REFUSED for outcome in outcomes)
    late = await asyncio.gather(*sent_late, return_exceptions=True)
    assert [type(outcome) for outcome in late] == [type(outcomes[0])]
    assert sum(map(len, cluster.stored.values())) == 0
    await producer.send_single(queue, b"5", b"")
    assert [body for stored in cluster.stored.values() for body, _ in stored] == [b"5"]
    await producer.close()


@pytest.mark.parametrize("numbers", [("", "5"), ("0", ""), ("²", "5"), ("0", "1" * 40)])
async def test_an_answer_with_numbers_that_are_none_is_not_believed(
    cluster: Cluster, client: ClusterClient, numbers: tuple[str, str]
) -> None:
    ext = {"queueId": numbers[0], "queueOffset": numbers[1], "msgId": "x"}
    producer = client.producer("p", TOPIC)
    queue = (await producer.queues())[0]
    cluster.on[Code.SEND_MESSAGE_V2] = in_turn(lambda link, request: link.answer(request, 0, ext), store)
    async with asyncio.timeout(PATIENCE_S):
        result = await producer.send_single(queue, b"1", b"")
    assert (result.queue, result.offset) == (queue, 0)
    await producer.close()


async def test_a_refused_message_holds_up_nothing_behind_it(cluster: Cluster, client: ClusterClient) -> None:
    producer = client.producer("p", TOPIC, fail_behind=True)
    queue = (await producer.queues())[0]
    cluster.on[Code.SEND_MESSAGE_V2] = in_turn(refuses(Status.MESSAGE_ILLEGAL), store)
    first, second = producer.send_single(queue, b"1", b""), producer.send_single(queue, b"2", b"")
    with pytest.raises(ClusterError) as refused:
        await first
    assert refused.value.failure is Failure.REFUSED
    assert (await second).offset == 0
    await producer.close()


async def test_closing_leaves_no_send_undecided(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.SEND_MESSAGE_V2] = silent
    producer = client.producer("p", TOPIC)
    queue = (await producer.queues())[0]
    sends = [producer.send_single(queue, b"1", b""), producer.send_single(queue, b"2", b"")]
    await until(lambda: cluster.asked[Code.SEND_MESSAGE_V2])
    await producer.close(timeout=0.01)
    assert [type(outcome) for outcome in await asyncio.gather(*sends, return_exceptions=True)] == [ConnectionLost] * 2
