"""The producer: order of messages, retries, all kinds of responses, lost connections and brokers, closing."""

import asyncio

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused
from mqbridge.net.waiting_sends import Caller
from mqbridge.net.window import RequestWindow
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route_table import Queue
from mqbridge.rocketmq.client.producer.queue_producer import QueueProducer
from mqbridge.rocketmq.client.producer.send_request import SendResult
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.send import SendResultHeader
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
    route,
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


# --- requests -------------------------------------------------------------------------------------------------------------


async def test_a_batch_request_has_no_properties_of_its_own(cluster: Cluster, producer: QueueProducer):
    result = await producer.send_batch(A0, elements(b"a", b"b", b"c"), 3, 1234)
    assert (result.queue, result.offset, result.status, result.address) == (A0, 0, Status.SUCCESS, A)
    assert len(result.message_id.split(",")) == 3
    assert (await producer.send_batch(A0, elements(b"d"), 1, 1234)).offset == 3
    assert bodies(cluster) == [b"a", b"b", b"c", b"d"]
    header = cluster.headers(BATCH)[0]
    assert (header.producer_group, header.topic, header.queue_id, header.born_timestamp) == ("P", TOPIC, 0, 1234)
    assert (header.properties, header.batch, header.sys_flag, header.default_topic) == ("", True, 0, TOPIC)


# --- refused without a request --------------------------------------------------------------------------------------------


async def test_messages_that_no_broker_accepts_are_refused_before_sending(cluster: Cluster, producer: QueueProducer):
    done = await asyncio.gather(
        *send(producer, b"", b"x" * (MAX_MESSAGE_BYTES + 1), b"fine"),
        producer.send_single(A0, b"x", b"p" * 32768),
        producer.send_batch(A0, b"", 0, 1),
        return_exceptions=True,
    )
    results = [outcome.failure if isinstance(outcome, ClusterError) else outcome.offset for outcome in done]
    assert results == [Failure.REFUSED, Failure.REFUSED, 0, Failure.REFUSED, Failure.REFUSED]
    assert bodies(cluster) == [b"fine"]


async def test_a_message_too_large_for_a_frame_is_refused_with_any_configured_limit(cluster: Cluster, client: ClusterClient):
    producer = client.producer("P", TOPIC, max_message_bytes=1 << 30)
    with pytest.raises(ClusterError, match="maxMessageSize") as caught:
        await producer.send_single(A0, bytes(16 << 20), b"")
    assert caught.value.failure is Failure.REFUSED
    properties = b'"' * 32767  # JSON escapes each quote
    await producer.send_single(A0, bytes(producer.max_message_bytes), properties)


def test_invalid_names_of_groups_and_topics_are_fatal():
    client = object()
    for group, topic in (("P", "a b"), ("P", ""), ("P", "x" * 128), ("P", "SCHEDULE_TOPIC_XXXX"), ("", "T"), ("g" * 256, "T")):
        with pytest.raises(ClusterError) as caught:
            QueueProducer(client, group, topic)  # type: ignore[arg-type]
        assert caught.value.failure is Failure.FATAL


# --- order and requests in flight -----------------------------------------------------------------------------------------


async def test_each_queue_has_one_request_in_flight_and_keeps_the_order(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1", b"2", b"3")
    other = send(producer, b"b", queue=B0)
    await until(lambda: len(cluster.requests[SINGLE]) == 2)
    await asyncio.sleep(0.01)
    assert len(cluster.requests[SINGLE]) == 2, "one request for each queue"
    cluster.on[SINGLE] = store
    for request in list(cluster.requests[SINGLE]):
        store(cluster.link_to(A if request.body == b"1" else B), request)
    await asyncio.gather(*sent, *other)
    assert bodies(cluster) == [b"1", b"2", b"3"]


async def test_several_requests_of_a_queue_may_be_in_flight(cluster: Cluster, client: ClusterClient):
    cluster.on[SINGLE] = silent
    producer = client.producer("P", TOPIC, in_flight_per_queue=3)
    sent = send(producer, *[b"x"] * 5)
    await until(lambda: len(cluster.requests[SINGLE]) == 3)
    await asyncio.sleep(0.01)
    assert len(cluster.requests[SINGLE]) == 3
    cluster.on[SINGLE] = store
    for request in list(cluster.requests[SINGLE]):
        store(cluster.link_to(A), request)
    await asyncio.gather(*sent)


async def test_all_producers_of_a_client_share_its_send_window(cluster: Cluster, client: ClusterClient):
    client.window = RequestWindow(max_sends=4, max_bytes=1000)
    cluster.on[SINGLE] = silent
    one, two = (client.producer("P", TOPIC, in_flight_per_queue=10) for _ in range(2))
    sent = [*send(one, *[b"x"] * 4), *send(two, *[b"y"] * 4, queue=B0)]
    await until(lambda: len(cluster.requests[SINGLE]) == 4)
    await asyncio.sleep(0.01)
    assert (len(cluster.requests[SINGLE]), client.window.sends) == (4, 4)
    cluster.on[SINGLE] = store
    for request in list(cluster.requests[SINGLE]):
        (link,) = [link for link in cluster.links if request in cluster.requests_to[link.address]]
        store(link, request)
    await asyncio.gather(*sent)
    big = [*send(one, b"x" * 600, b"x" * 600), *send(two, b"y" * 2000)]
    await asyncio.gather(*big)
    assert client.window.sends == 0


async def test_a_cancelled_send_is_not_sent(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1", b"2", b"3")
    await until(lambda: cluster.requests[SINGLE])
    sent[1].cancel()
    cluster.on[SINGLE] = store
    store(cluster.link_to(A), cluster.requests[SINGLE][0])
    await asyncio.gather(sent[0], sent[2])
    assert bodies(cluster) == [b"1", b"3"]


# --- responses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_SLAVE_TIMEOUT])
async def test_a_message_stored_without_flush_or_slave_counts_as_stored(cluster: Cluster, producer: QueueProducer, code: int):
    cluster.on[SINGLE] = stored_with(code)
    (result,) = await asyncio.gather(*send(producer, b"x"))
    assert (result.status, result.offset, len(cluster.requests[SINGLE])) == (code, 0, 1)


async def test_messages_stored_without_replica_are_counted_and_have_one_warning(
    cluster: Cluster, client: ClusterClient, producer: QueueProducer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="mqbridge.rocketmq.client.connection.unreplicated")
    cluster.on[SINGLE] = cluster.on[BATCH] = stored_with(Status.SLAVE_NOT_AVAILABLE)
    await asyncio.gather(*send(producer, *[b"x"] * 5), producer.send_batch(A0, elements(b"a", b"b", b"c"), 3, 1))
    assert client.connectivity.unreplicated == 8
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "broker broker-a stores messages without the flush or the replica" in caplog.text
    assert "SLAVE_NOT_AVAILABLE (stored, but no slave was available for a copy)" in caplog.text
    cluster.on[SINGLE] = cluster.on[BATCH] = store
    await asyncio.gather(*send(producer, b"y", b"y"), *send(producer, b"z", queue=B0))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    cluster.on[SINGLE] = stored_with(Status.SLAVE_NOT_AVAILABLE)
    await asyncio.gather(*send(producer, b"x"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"], "a broker that changes often is no news"


@pytest.mark.parametrize("code", [Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_SLAVE_TIMEOUT])
async def test_messages_are_sent_again_until_they_have_the_replica_that_is_required(
    cluster: Cluster, client: ClusterClient, code: int
):
    producer = client.producer("P", TOPIC, require_replica=True)
    cluster.on[BATCH] = in_turn(stored_with(code), stored_with(code), store)
    result = await producer.send_batch(A0, elements(b"a", b"b"), 2, 1)
    assert (result.status, result.offset) == (Status.SUCCESS, 4)
    assert bodies(cluster) == [b"a", b"b"] * 3
    assert client.connectivity.unreplicated == 4
    await producer.close()


@pytest.mark.parametrize(
    "code", [Status.SYSTEM_ERROR, Status.SYSTEM_BUSY, Status.SERVICE_NOT_AVAILABLE, Status.TOPIC_NOT_EXIST, 999]
)
async def test_a_temporary_refusal_is_retried_in_order(cluster: Cluster, producer: QueueProducer, code: int):
    cluster.on[SINGLE] = in_turn(store, refuses(code), refuses(code), store)
    results = await asyncio.gather(*send(producer, b"1", b"2", b"3"))
    assert [result.offset for result in results] == [0, 1, 2]
    assert bodies(cluster) == [b"1", b"2", b"3"]
    assert [request.body for request in cluster.requests[SINGLE]] == [b"1", b"2", b"2", b"2", b"3"]


@pytest.mark.parametrize("code", [Status.SYSTEM_BUSY, Status.SERVICE_NOT_AVAILABLE])
async def test_the_cause_of_refused_sends_is_known_until_one_is_stored(cluster: Cluster, producer: QueueProducer, code: int):
    cluster.on[SINGLE] = refuses(code)
    (sent,) = send(producer, b"1")
    await until(lambda: any(queue.failures > 2 for queue in producer.failing))
    (failing,) = producer.failing
    assert failing.failing_since is not None
    assert f"refused with {code} " in failing.reason
    cluster.on[SINGLE] = store
    await sent
    assert failing.failing_since is None


async def test_a_refused_message_fails_alone(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(store, refuses(Status.MESSAGE_ILLEGAL, "too long"), store)
    done = await asyncio.gather(*send(producer, b"1", b"2", b"3"), return_exceptions=True)
    assert isinstance(done[1], ServerRefused)
    assert (done[1].failure, done[1].code) == (Failure.REFUSED, 13)
    assert bodies(cluster) == [b"1", b"3"]


async def test_an_oversized_batch_is_not_retried(cluster: Cluster, producer: QueueProducer):
    cluster.on[BATCH] = refuses(Status.SYSTEM_ERROR, "java.lang.RuntimeException: message body size exceeded, x")
    with pytest.raises(ServerRefused) as caught:
        await producer.send_batch(A0, elements(b"x"), 1, 1)
    assert (caught.value.failure, len(cluster.requests[BATCH])) == (Failure.REFUSED, 1)


@pytest.mark.parametrize(
    ("code", "failure"), [(Status.INVALID_PARAMETER, Failure.REFUSED), (Status.NO_PERMISSION, Failure.FATAL)]
)
async def test_an_ambiguous_refusal_is_raised_after_the_route_is_refreshed(
    cluster: Cluster, producer: QueueProducer, code, failure
):
    cluster.on[SINGLE] = in_turn(store, refuses(code), store)
    done = await asyncio.gather(*send(producer, b"1", b"2", b"3"), return_exceptions=True)
    assert isinstance(done[1], ServerRefused)
    assert (done[1].failure, done[1].code) == (failure, code)
    assert bodies(cluster) == [b"1", b"3"]
    assert len(cluster.requests[ROUTE]) >= 2


@pytest.mark.parametrize("code", [Status.INVALID_PARAMETER, Status.NO_PERMISSION])
async def test_the_error_of_a_removed_queue_reports_that_the_topic_has_fewer_queues(
    cluster: Cluster, producer: QueueProducer, code
):
    await producer.send_single(Queue(TOPIC, "broker-a", 1), b"x", b"")
    cluster.topics[TOPIC]["broker-a"] = 1
    cluster.on[SINGLE] = refuses(code)
    done = await asyncio.gather(*send(producer, b"1", b"2", queue=Queue(TOPIC, "broker-a", 1)), return_exceptions=True)
    assert [one.failure for one in done if isinstance(one, ClusterError)] == [Failure.REFRESH] * 2
    assert "topic has fewer queues now" in str(done[0])


async def test_an_impossible_send_result_ends_the_connection(cluster: Cluster, producer: QueueProducer):
    wrong_queue = SendResultHeader("00", 77, 5).encode()
    for ext in ({}, wrong_queue, SendResultHeader("00", 0, -5).encode()):
        cluster.on[SINGLE] = in_turn(lambda link, request, ext=ext: link.answer(request, ext=ext), store)
        await asyncio.gather(*send(producer, b"x"))
    assert cluster.dialled.count(A) == 4


async def test_a_send_refused_with_go_away_is_repeated_on_a_new_connection(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(refuses(Status.GO_AWAY), store)
    await asyncio.gather(*send(producer, b"1", b"2"))
    assert (bodies(cluster), cluster.dialled.count(A)) == ([b"1", b"2"], 2)


# --- faults ---------------------------------------------------------------------------------------------------------------


async def test_a_send_lost_with_its_connection_is_repeated_unchanged(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = in_turn(hangs_up, hangs_up, store)
    await asyncio.gather(*send(producer, b"1", b"2"))
    assert bodies(cluster) == [b"1", b"2"]
    same = [(request.body, request.ext) for request in cluster.requests[SINGLE][:3]]
    assert same[0] == same[1] == same[2]


async def test_an_outage_logs_its_begin_and_end_and_counts_repeated_sends(
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
    logged = [(record.levelname, record.name) for record in caplog.records]
    assert logged == [("WARNING", "mqbridge.net.connectivity"), ("INFO", "mqbridge.net.connectivity")]


async def test_a_stored_message_whose_response_was_lost_is_stored_twice(cluster: Cluster, producer: QueueProducer):
    def store_and_hang_up(link, request):
        link.open, was = False, link.open
        store(link, request)
        link.open = was
        link.drop()

    cluster.on[SINGLE] = in_turn(store_and_hang_up, store)
    (result,) = await asyncio.gather(*send(producer, b"1"))
    assert (result.offset, bodies(cluster)) == (1, [b"1", b"1"])


async def test_a_send_without_response_in_time_is_repeated_on_a_new_connection(cluster: Cluster):
    client = scripted_client(request=0.05)
    await client.connect()
    cluster.on[SINGLE] = in_turn(silent, store)
    producer = client.producer("P", TOPIC)
    await asyncio.gather(*send(producer, b"1"))
    assert (bodies(cluster), cluster.dialled.count(A)) == ([b"1"], 2)
    await client.close()


async def test_sends_wait_for_an_unreachable_broker(cluster: Cluster, producer: QueueProducer):
    cluster.unreachable.add(A)
    sent = send(producer, b"1", b"2")
    await until(lambda: cluster.dialled.count(A) >= 3)
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert bodies(cluster) == [b"1", b"2"]


async def test_a_send_follows_a_master_to_its_new_address(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.brokers["broker-a"][0] = B
    cluster.at[A, SINGLE] = refuses(Status.SERVICE_NOT_AVAILABLE, "I am a slave now")
    await asyncio.gather(*send(producer, b"2"))
    assert (bodies(cluster, A), bodies(cluster, B)) == ([b"1"], [b"2"])


async def test_a_send_waits_for_a_broker_to_have_a_master(cluster: Cluster, producer: QueueProducer):
    cluster.brokers["broker-a"] = {1: "slave:1"}
    sent = send(producer, b"1")
    await until(lambda: len(cluster.requests[ROUTE]) >= 3)
    assert cluster.dialled.count("slave:1") == 0
    cluster.brokers["broker-a"] = {0: A}
    await asyncio.gather(*sent)


async def test_an_unreachable_address_in_a_route_is_queried_from_the_next_name_server(cluster: Cluster):
    client = scripted_client(NS, "ns2:9876")
    await client.connect()
    cluster.unreachable.add("nowhere:1")

    def unreachable_address(link, request):
        brokers, link.cluster.brokers = link.cluster.brokers, {"broker-a": {0: "nowhere:1"}, "broker-b": {0: B}}
        try:
            routes(link, request)
        finally:
            link.cluster.brokers = brokers

    routes = cluster.on[ROUTE]
    cluster.at[NS, ROUTE] = unreachable_address
    producer = client.producer("P", TOPIC)
    await asyncio.gather(*send(producer, b"1"))
    assert bodies(cluster) == [b"1"]
    await client.close()


async def test_sends_continue_without_name_servers_while_brokers_stay(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.unreachable.add(NS)
    cluster.link_to(NS).drop()
    cluster.link_to(A).drop()
    await producer.send_single(A0, b"2", b"")
    assert bodies(cluster) == [b"1", b"2"]


async def test_sends_continue_after_name_servers_forgot_the_topic_for_a_while(cluster: Cluster, producer: QueueProducer):
    await asyncio.gather(*send(producer, b"1"))
    cluster.on[ROUTE], route = refuses(Status.TOPIC_NOT_EXIST), cluster.on[ROUTE]
    cluster.unreachable.add(A)  # otherwise the client reconnects at once and does not query the route
    cluster.link_to(A).drop()
    await asyncio.sleep(0.01)
    sent = send(producer, b"2")
    count = len(cluster.requests[ROUTE])
    await until(lambda: len(cluster.requests[ROUTE]) > count + 2)
    cluster.on[ROUTE] = route
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert bodies(cluster) == [b"1", b"2"]


async def test_a_dead_broker_is_reported_at_once_even_if_name_servers_forget_it(
    cluster: Cluster, client: ClusterClient, producer: QueueProducer, caplog: pytest.LogCaptureFixture
):
    """Without a route, no request would dial the broker again before the next heartbeat."""
    caplog.set_level("INFO")
    await asyncio.gather(*send(producer, b"1"))
    cluster.on[ROUTE], route = refuses(Status.TOPIC_NOT_EXIST), cluster.on[ROUTE]
    cluster.unreachable.add(A)
    cluster.link_to(A).drop()
    await until(lambda: client.connectivity.unreachable_s is not None)
    sent = send(producer, b"2")
    count = len(cluster.requests[ROUTE])
    await until(lambda: len(cluster.requests[ROUTE]) > count + 2)
    assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "mqbridge.net.connectivity")]
    cluster.on[ROUTE] = route
    cluster.unreachable.clear()
    await asyncio.gather(*sent)
    assert (client.connectivity.unreachable_s, bodies(cluster)) == (None, [b"1", b"2"])


async def test_sending_to_a_missing_topic_is_fatal(cluster: Cluster, client: ClusterClient, producer: QueueProducer):
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


async def test_sending_to_a_static_topic_is_fatal(cluster: Cluster, client: ClusterClient):
    from tests.rocketmq.client.broker import responds_with, route_body

    cluster.on[ROUTE] = responds_with(route_body(cluster, TOPIC, topicQueueMappingByBroker={"broker-a": {"bname": "broker-a"}}))
    with pytest.raises(ClusterError, match="static topic") as caught:
        await client.producer("P", TOPIC).send_single(A0, b"x", b"")
    assert caught.value.failure is Failure.FATAL


async def test_all_waiting_sends_fail_after_the_time_limit_and_later_ones_succeed(cluster: Cluster):
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


async def test_waiting_sends_fail_if_their_broker_is_unreachable_for_too_long(cluster: Cluster, client: ClusterClient):
    producer = client.producer("P", TOPIC, max_elapsed_s=0.1)
    cluster.unreachable.add(A)
    done = await asyncio.wait_for(asyncio.gather(*send(producer, b"1", b"2"), return_exceptions=True), PATIENCE_S)
    assert [one.failure for one in done if isinstance(one, ClusterError)] == [Failure.RETRY] * 2


async def test_a_withdrawn_send_with_an_ambiguous_refusal_does_not_fail_those_behind(cluster: Cluster, client: ClusterClient):
    producer = client.producer("P", TOPIC, fail_behind=True)
    await asyncio.gather(*send(producer, b"1"))
    queries: list = []
    cluster.on[SINGLE] = in_turn(refuses(Status.NO_PERMISSION), store)
    cluster.on[ROUTE] = lambda link, request: queries.append((link, request))
    withdrawn, behind = (
        producer.send_single(A0, name.encode(), b"", caller=Caller(name, name, ())) for name in ("withdrawn", "behind")
    )
    await until(lambda: queries)
    producer.withdraw({"withdrawn"})
    route(*queries[0])
    await behind
    with pytest.raises(ClusterError, match="withdrawn"):
        await withdrawn
    assert bodies(cluster) == [b"1", b"behind"]


async def test_a_send_that_moves_after_an_ambiguous_refusal_is_decided_by_its_new_queue(
    cluster: Cluster, producer: QueueProducer
):
    """Its old queue forgets it, and does not let it fail when it next finds out why sends are refused there."""
    await asyncio.gather(*send(producer, b"1"))
    cluster.at[A, SINGLE], cluster.at[B, SINGLE] = refuses(Status.NO_PERMISSION), silent
    moved = producer.send_single(A0, b"moved", b"", movable=True)
    await until(lambda: any(request.body == b"moved" for request in cluster.requests_to[B]))
    assert producer._send_queues[A0]._ambiguous == []
    refused = send(producer, b"refused")[0]
    with pytest.raises(ClusterError):
        await refused
    assert not moved.done()
    (request,) = [request for request in cluster.requests_to[B] if request.body == b"moved"]
    store(cluster.link_to(B), request)
    assert (await moved).address == B


# --- closing --------------------------------------------------------------------------------------------------------------


async def test_close_waits_for_sends_in_flight(cluster: Cluster, producer: QueueProducer):
    cluster.on[SINGLE] = silent
    sent = send(producer, b"1")
    await until(lambda: cluster.requests[SINGLE])
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    store(cluster.link_to(A), cluster.requests[SINGLE][0])
    await closing
    assert (await sent[0]).offset == 0
    with pytest.raises(ClusterError, match="closed"):
        await producer.send_single(A0, b"2", b"")


async def test_close_fails_waiting_sends_after_its_timeout(cluster: Cluster, producer: QueueProducer):
    cluster.unreachable.add(A)
    sent = send(producer, b"1", b"2")
    await until(lambda: cluster.dialled.count(A))
    await producer.close(timeout=0.01)
    done = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in done] == [ConnectionLost] * 2


# --- ordered failure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Status.TOPIC_NOT_EXIST, Status.NO_PERMISSION, Status.SYSTEM_ERROR])
async def test_no_message_overtakes_a_failed_one(cluster: Cluster, client: ClusterClient, code: int) -> None:
    """Messages behind the failed one fail too, even those sent before the caller knows of it; later ones are stored."""
    limit = 0.0 if code == Status.SYSTEM_ERROR else None
    producer = client.producer("p", TOPIC, fail_behind=True, max_elapsed_s=limit)
    queue = (await producer.queues())[0]
    if code == Status.TOPIC_NOT_EXIST:
        cluster.topics.pop(TOPIC)
    cluster.on[Code.SEND_MESSAGE_V2] = in_turn(refuses(code), store)
    sent_late: list[asyncio.Future[SendResult]] = []
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caller = Caller(owner=None, stream=None, told_by=(told,))
    first, *behind = [producer.send_single(queue, b"%d" % n, b"", caller=caller) for n in (1, 2, 3)]
    first.add_done_callback(lambda _: sent_late.append(producer.send_single(queue, b"4", b"")))
    outcomes = await asyncio.gather(first, *behind, return_exceptions=True)
    assert all(isinstance(outcome, ClusterError) and outcome.failure is not Failure.REFUSED for outcome in outcomes)
    late = await asyncio.gather(*sent_late, return_exceptions=True)
    assert [type(outcome) for outcome in late] == [type(outcomes[0])]
    assert sum(map(len, cluster.stored.values())) == 0
    told.add_done_callback(lambda _: sent_late.append(producer.send_single(queue, b"5", b"")))
    told.set_result(None)
    await until(lambda: len(sent_late) == 2)
    await sent_late[1]
    assert [body for stored in cluster.stored.values() for body, _ in stored] == [b"5"]
    await producer.close()


@pytest.mark.parametrize("numbers", [("", "5"), ("0", ""), ("²", "5"), ("0", "1" * 40)])
async def test_a_send_result_with_invalid_numbers_is_not_accepted(
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


async def test_messages_behind_a_refused_one_are_stored(cluster: Cluster, client: ClusterClient) -> None:
    producer = client.producer("p", TOPIC, fail_behind=True)
    queue = (await producer.queues())[0]
    cluster.on[Code.SEND_MESSAGE_V2] = in_turn(refuses(Status.MESSAGE_ILLEGAL), store)
    first, second = producer.send_single(queue, b"1", b""), producer.send_single(queue, b"2", b"")
    with pytest.raises(ClusterError) as refused:
        await first
    assert refused.value.failure is Failure.REFUSED
    assert (await second).offset == 0
    await producer.close()


async def test_closing_fails_every_undecided_send(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.SEND_MESSAGE_V2] = silent
    producer = client.producer("p", TOPIC)
    queue = (await producer.queues())[0]
    sends = [producer.send_single(queue, b"1", b""), producer.send_single(queue, b"2", b"")]
    await until(lambda: cluster.requests[Code.SEND_MESSAGE_V2])
    await producer.close(timeout=0.01)
    assert [type(outcome) for outcome in await asyncio.gather(*sends, return_exceptions=True)] == [ConnectionLost] * 2
