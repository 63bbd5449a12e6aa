"""Responses of web services are bounded, and their members are checked by the clients that use them."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from mqbridge.errors import ClusterError, MqbridgeError, RemoteProtocolError, WrongEventLoop
from mqbridge.net import http_client
from mqbridge.net.http_client import HttpConnections
from mqbridge.pulsar.client.admin.admin import Admin as PulsarAdmin
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.tubemq.adapter.operations import GroupAdmin
from mqbridge.wire.limits import MAX_PARTITIONS

URL = httpx.URL("http://web.test/x")
TOPIC = parse_topic("orders")


class Service(httpx.AsyncBaseTransport):
    """A web service that sends the same response to every request, and counts the bytes of the body that were read."""

    def __init__(self, chunks: list[bytes], **headers: str) -> None:
        self._chunks, self._headers = chunks, headers
        self.read_bytes = 0
        self.asked_encodings: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked_encodings.add(request.headers["accept-encoding"])
        headers = {name.replace("_", "-"): value for name, value in self._headers.items()}
        return httpx.Response(200, headers=headers, stream=_Body(self))


class _Body(httpx.AsyncByteStream):
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._service._chunks:
            self._service.read_bytes += len(chunk)
            yield chunk


def connections(service: Service) -> HttpConnections:
    return HttpConnections(httpx.Timeout(5), transport=service)


async def test_a_response_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 1000)
    fitting, endless = Service([b"x" * 100] * 10), Service([b"x" * 100] * 1_000_000)
    assert (await connections(fitting).request("GET", URL)).content == b"x" * 1000
    with pytest.raises(httpx.DecodingError, match="larger than 1000 bytes"):
        await connections(endless).request("GET", URL)
    assert endless.read_bytes == 1100


async def test_a_compressed_response_is_not_unpacked() -> None:
    bomb = Service([gzip.compress(bytes(1 << 20))], content_encoding="gzip")
    with pytest.raises(httpx.DecodingError, match="compressed"):
        await connections(bomb).request("GET", URL)
    assert bomb.asked_encodings == {"identity"}
    assert bomb.read_bytes == 0


ANSWERS: list[Any] = [
    None,
    5,
    "x",
    [1, None],
    {"a": 5},
    [["x"]],
    {"subscriptions": 5, "cursors": 5, "ledgerId": "x", "ledgers": 3},
    {"subscriptions": {"a": 5}, "cursors": {"a": {"markDeletePosition": 5}}, "ledgerId": None, "entryId": 1},
    {"ledgerId": 1e300, "entryId": 1, "msgInCounter": "9" * 5000, "subscriptions": {}},
    {"result": True, "errCode": 0, "data": [{"x": 1}], "dataSet": [{"x": 1}]},
    {"result": True, "data": [5], "dataSet": [5]},
    {"result": True, "data": {}, "dataSet": {}},
    {"result": True, "data": None, "dataSet": None},
    {"result": True, "data": [{"topicName": "t", "topicInfo": [{"brokerId": 1, "numPartitions": "9", "numTopicStores": 2**62}]}]},
    {
        "result": True,
        "data": [{"manageStatus": "online", "brokerId": 1, "brokerIp": "a b\0/@", "brokerWebPort": "x"}],
        "dataSet": [{"storeInfo": 5}],
    },
]
BODIES = [*(json.dumps(answer).encode() for answer in ANSWERS), b"[" * 100_000, b"9" * 5000, b"\xff", b"", b'{"a":' * 50_000]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_an_answer_of_another_form_is_an_error_of_ours(body: bytes) -> None:
    """Every other exception would end a task or a command with a traceback."""
    transport = Service([body], content_type="application/json")
    pulsar, tubemq = PulsarAdmin("http://web.test", 5.0), GroupAdmin("http://web.test", timeout_s=5.0)
    pulsar._http._http = tubemq._http = connections(transport)
    calls: list[Callable[[], Awaitable[object]]] = [
        pulsar.clusters,
        pulsar.tenants,
        pulsar.namespaces,
        lambda: pulsar.policies("public/default"),
        lambda: pulsar.topics("public/default"),
        lambda: pulsar.partitioned_topics("public/default"),
        lambda: pulsar.stats(TOPIC),
        lambda: pulsar.stats_by_partition(TOPIC, 2),
        lambda: pulsar.internal_stats(TOPIC),
        lambda: pulsar.last_id(TOPIC),
        lambda: pulsar.id_at(TOPIC, 1),
        lambda: pulsar.subscriptions(TOPIC),
        lambda: pulsar.mark_delete_positions(TOPIC),
        tubemq.topics,
        lambda: tubemq.partitions("t"),
        tubemq.brokers,
        lambda: tubemq.stored("t"),
        lambda: tubemq.groups("t"),
        lambda: tubemq.committed("t", "g"),
        lambda: tubemq.is_forbidden("t", "g"),
        lambda: tubemq.members("t", "g"),
        lambda: tubemq.policies("t"),
        lambda: tubemq.settings("t"),
        lambda: tubemq.move("t", "g", {"1:0": (0,)}),
    ]
    for call in calls:
        with contextlib.suppress(MqbridgeError):  # some calls accept some of these bodies
            await call()


@pytest.mark.parametrize(("stores", "partitions"), [(10**9, 10**9), (1, MAX_PARTITIONS + 1), (-1, 5), (2, "x" * 10)])
async def test_an_impossible_number_of_partitions_is_refused(stores: object, partitions: object) -> None:
    entry = {"brokerId": 1, "numPartitions": partitions, "numTopicStores": stores}
    answer = {"result": True, "data": [{"topicName": "t", "topicInfo": [entry]}]}
    admin = GroupAdmin("http://web.test", timeout_s=5.0)
    admin._http = connections(Service([json.dumps(answer).encode()]))
    for call in (admin.partitions("t"), admin._partition_names("t")):
        with pytest.raises((RemoteProtocolError, ClusterError), match=r"at most|expected form"):
            await call


def test_a_client_that_is_used_in_a_second_event_loop_says_so() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    connections = HttpConnections(httpx.Timeout(5), transport=transport)

    async def request() -> None:
        await connections.request("GET", httpx.URL("http://here/"))

    asyncio.run(request())
    with pytest.raises(WrongEventLoop, match="the client of the administration interface was made or used first in"):
        asyncio.run(request())
