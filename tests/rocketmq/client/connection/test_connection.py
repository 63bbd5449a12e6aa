"""Connections: responses are matched by opaque, both sides send requests, and lost connections fail pending requests."""

import asyncio

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import ONEWAY, RESPONSE, Command
from tests.rocketmq.client.broker import A, Cluster, hangs_up, in_turn, refuses, scripted_client, silent, success, until

MAX = Code.GET_MAX_OFFSET


def offset(value: int):
    """Return a handler that responds with this offset."""
    return lambda link, request: link.answer(request, ext={"offset": str(value)})


async def test_responses_are_matched_to_their_requests_in_any_order(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = silent
    waiting = [asyncio.ensure_future(client.request(A, MAX, {"topic": "T", "queueId": str(n)})) for n in range(3)]
    await until(lambda: len(cluster.requests[MAX]) == 3)
    for n in (2, 0, 1):
        cluster.link_to(A).answer(cluster.requests[MAX][n], ext={"offset": str(n)})
    assert [answer.ext["offset"] for answer in await asyncio.gather(*waiting)] == ["0", "1", "2"]
    assert len({request.opaque for request in cluster.requests[MAX]}) == 3
    assert cluster.requests[MAX][0].version == 479
    assert cluster.requests[MAX][0].language == "PYTHON"


async def test_concurrent_requests_share_one_connection(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = offset(1)
    await asyncio.gather(*(client.request(A, MAX) for _ in range(5)))
    assert cluster.dialled.count(A) == 1


async def test_a_response_code_determines_the_failure_of_the_error(cluster: Cluster, client: ClusterClient):
    failures = {2: Failure.RETRY, 14: Failure.REFRESH, 13: Failure.REFUSED, 16: Failure.FATAL, 999: Failure.RETRY}
    for code, failure in failures.items():
        cluster.on[MAX] = refuses(code, "because")
        with pytest.raises(ServerRefused, match="because") as caught:
            await client.request(A, MAX)
        assert (caught.value.code, caught.value.failure) == (code, failure)
    cluster.on[MAX] = refuses(22)
    assert (await client.request(A, MAX, accept=frozenset({0, 22}))).code == 22


async def test_a_brokers_request_may_have_the_opaque_of_a_pending_request(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = silent
    waiting = asyncio.ensure_future(client.request(A, MAX))
    await until(lambda: cluster.requests[MAX])
    pending = cluster.requests[MAX][0]
    seen = []
    client.on(Code.NOTIFY_CONSUMER_IDS_CHANGED, lambda address, request: seen.append((address, request.ext)))
    ext = {"consumerGroup": "G"}
    cluster.link_to(A).send(Command(Code.NOTIFY_CONSUMER_IDS_CHANGED, ext, opaque=pending.opaque, flag=ONEWAY))
    assert seen == [(A, ext)]
    cluster.link_to(A).answer(pending)
    assert (await waiting).code == 0


async def test_requests_of_brokers_are_answered(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = success
    await client.request(A, MAX)
    link = cluster.link_to(A)
    answers = cluster.requests_to[A]

    client.on(Code.GET_CONSUMER_RUNNING_INFO, lambda _, request: request.answer(body=b"{}"))
    link.send(Command(Code.GET_CONSUMER_RUNNING_INFO, opaque=70))
    link.send(Command(Code.GET_CONSUMER_STATUS_FROM_CLIENT, opaque=71))
    link.send(Command(Code.GET_CONSUMER_STATUS_FROM_CLIENT, opaque=72, flag=ONEWAY))
    await until(lambda: len(answers) == 3)
    assert [(one.opaque, one.code, one.flag, one.body) for one in answers[1:]] == [
        (70, 0, RESPONSE, b"{}"),
        (71, Status.REQUEST_CODE_NOT_SUPPORTED, RESPONSE, b""),
    ]
    await asyncio.sleep(0.01)
    assert len(answers) == 3, "a one-way request must not be answered"


async def test_a_request_handler_may_respond_later_or_raise(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = success
    await client.request(A, MAX)
    link, answers = cluster.link_to(A), cluster.requests_to[A]
    client.on(Code.CONSUME_MESSAGE_DIRECTLY, lambda _address, _request: None)
    request = Command(Code.CONSUME_MESSAGE_DIRECTLY, opaque=9)
    link.send(request)
    client.answer(A, request, request.answer(body=b"done"))
    await until(lambda: len(answers) == 2)
    assert (answers[1].opaque, answers[1].body) == (9, b"done")

    def fail(_address: str, _request: Command) -> Command:
        raise ClusterError("cannot be done")

    client.on(Code.CONSUME_MESSAGE_DIRECTLY, fail)
    link.send(Command(Code.CONSUME_MESSAGE_DIRECTLY, opaque=10))
    await until(lambda: len(answers) == 3)
    assert (answers[2].code, answers[2].remark) == (Status.SYSTEM_ERROR, "cannot be done")
    assert link.open


async def test_a_lost_connection_fails_pending_requests_and_the_next_request_reconnects(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = in_turn(hangs_up, success)
    with pytest.raises(ConnectionLost):
        await client.request(A, MAX)
    assert (await client.request(A, MAX)).code == 0
    assert cluster.dialled.count(A) == 2


async def test_a_connection_without_any_response_is_replaced_after_a_timeout(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = in_turn(silent, success)
    with pytest.raises(RequestTimeout):
        await client.request(A, MAX, timeout=0.01)
    assert (await client.request(A, MAX)).code == 0
    assert cluster.dialled.count(A) == 2


async def test_one_slow_response_does_not_end_a_connection_with_other_responses(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = silent
    cluster.on[Code.GET_MIN_OFFSET] = success
    slow = asyncio.ensure_future(client.request(A, MAX, timeout=0.05))
    while not slow.done():
        await client.request(A, Code.GET_MIN_OFFSET)
        await asyncio.sleep(0.005)
    with pytest.raises(RequestTimeout):
        await slow
    cluster.link_to(A).answer(cluster.requests[MAX][0])  # too late: no request waits for it
    await client.request(A, Code.GET_MIN_OFFSET)
    assert cluster.dialled.count(A) == 1


async def test_bytes_that_are_not_a_frame_end_the_connection(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = in_turn(lambda link, _: link.send_bytes(b"HTTP/1.1 400 Bad Request\r\n"), success)
    with pytest.raises(ConnectionLost, match="a RocketMQ port"):
        await client.request(A, MAX)
    assert (await client.request(A, MAX)).code == 0


async def test_a_request_refused_with_go_away_is_repeated_on_a_new_connection(cluster: Cluster, client: ClusterClient):
    cluster.on[MAX] = in_turn(refuses(Status.GO_AWAY), success)
    assert (await client.request(A, MAX)).code == 0
    assert len(cluster.links_to(A)) == 2, "the old connection stays open for responses that are still to come"
    cluster.on[MAX] = refuses(Status.GO_AWAY)
    with pytest.raises(ServerRefused) as caught:
        await client.request(A, MAX)
    assert caught.value.failure is Failure.REFRESH


async def test_an_unreachable_address_fails_all_waiting_requests(cluster: Cluster, client: ClusterClient):
    cluster.unreachable.add(A)
    done = await asyncio.gather(*(client.request(A, MAX) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in done] == [Unreachable] * 3
    assert cluster.dialled.count(A) == 1
    with pytest.raises(Unreachable, match="is not host:port"):
        await client.request("nonsense", MAX)


async def test_closing_a_client_fails_pending_and_later_requests(cluster: Cluster):
    client = scripted_client()
    await client.connect()
    cluster.on[MAX] = silent
    waiting = asyncio.ensure_future(client.request(A, MAX))
    await until(lambda: cluster.requests[MAX])
    await client.close()
    with pytest.raises(ConnectionLost):
        await waiting
    with pytest.raises(ClusterError, match="closed"):
        await client.request(A, MAX)
    assert cluster.links_to(A) == []
