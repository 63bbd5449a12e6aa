"""Scripted name servers and brokers without sockets: a table of handlers, which tests may change, answers each request."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from mqbridge.errors import Unreachable
from mqbridge.net.endpoint import Endpoint
from mqbridge.rocketmq.client.cluster_client import ClusterClient, Timing
from mqbridge.rocketmq.client.connection import connection as connections
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command, decode, encode, measure
from mqbridge.rocketmq.wire.headers.send import SendHeader, SendResultHeader
from tests.kit.conversation import ServerLink, in_turn, silent, until  # noqa: F401 - tests take the last three from here

NS, NS2 = "ns:9876", "ns2:9876"
A, B = "a:10911", "b:10911"
"""Addresses of the brokers broker-a and broker-b."""
TOPIC = "T"

Answer = Callable[["Link", Command], None]


class Link(ServerLink):
    """One connection, seen from the server at `address`."""

    def __init__(self, cluster: "Cluster", address: str, endpoint: Endpoint) -> None:
        super().__init__(endpoint, measure, peername=(address, 0), sockname=("10.1.2.3", 40000))
        self.cluster, self.address = cluster, address

    def received(self, frame: bytes) -> None:
        self.loop.call_soon(self.cluster.receive, self, decode(frame))

    def send(self, command: Command) -> None:
        """Send a command to the client: a request of the server, or a response."""
        self.send_bytes(encode(command))

    def answer(
        self, request: Command, code: int = 0, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        if not request.is_oneway:
            self.send(request.answer(code, ext, body, remark))


class Cluster:
    """Answers requests like healthy servers, unless the test sets `on[code]` or `at[address, code]`, and records all requests.

    `brokers`: addresses by broker name and id. `topics`: queues by topic and broker name.
    """

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.requests: defaultdict[int, list[Command]] = defaultdict(list)
        self.requests_to: defaultdict[str, list[Command]] = defaultdict(list)
        self.unreachable: set[str] = set()
        self.dialled: list[str] = []
        self.brokers: dict[str, dict[int, str]] = {"broker-a": {0: A}, "broker-b": {0: B}}
        self.topics: dict[str, dict[str, int]] = {TOPIC: {"broker-a": 2, "broker-b": 2}}
        self.down: set[str] = set()
        """Names of brokers that do not run: no name server lists them, their queues, or topics that only they have."""
        self.closed: set[str] = set()
        """Names of brokers that may only be read, as the routes show."""
        self.stored: defaultdict[tuple[str, int], list[tuple[bytes, str]]] = defaultdict(list)
        """Body and properties by address and queue, in the order of storing."""
        self.at: dict[tuple[str, int], Answer] = {}
        self.on: dict[int, Answer] = {
            Code.GET_ROUTEINFO_BY_TOPIC: route,
            Code.GET_BROKER_CLUSTER_INFO: cluster_info,
            Code.HEART_BEAT: success,
            Code.UNREGISTER_CLIENT: success,
            Code.GET_TOPIC_CONFIG: topic_config,
            Code.SEND_MESSAGE_V2: store,
            Code.SEND_BATCH_MESSAGE: store,
        }

    def links_to(self, address: str) -> list[Link]:
        return [link for link in self.links if link.address == address and link.open]

    def link_to(self, address: str) -> Link:
        """Return the only open connection to an address."""
        (link,) = self.links_to(address)
        return link

    def headers(self, code: int) -> list[SendHeader]:
        """Return the headers of the sends with this request code, in the order of arrival."""
        return [SendHeader.decode(command.ext) for command in self.requests[code]]

    async def dial(self, host: str, port: int, make: Callable[[], Endpoint], **options: Any) -> Endpoint:
        address = f"{host}:{port}"
        self.dialled.append(address)
        await asyncio.sleep(0)
        if address in self.unreachable:
            error = Unreachable(f"{address} cannot be reached")
            options["link"].record_failure(error)
            raise error
        endpoint = make()
        endpoint.link = options["link"]
        link = Link(self, address, endpoint)
        self.links.append(link)
        endpoint.connection_made(link)
        return endpoint

    def receive(self, link: Link, command: Command) -> None:
        if not link.open:
            return
        self.requests[command.code].append(command)
        self.requests_to[link.address].append(command)
        answer = self.at.get((link.address, command.code)) or self.on.get(command.code)
        if answer is not None and not command.is_response:
            answer(link, command)


# --- answers --------------------------------------------------------------------------------------------------------------


def route_body(cluster: Cluster, topic: str, **options: Any) -> dict[str, Any]:
    """Return the JSON object of a topic's route, as a name server sends it."""
    queues = {name: count for name, count in cluster.topics[topic].items() if name not in cluster.down}
    return {
        "brokerDatas": [
            {
                "brokerAddrs": {str(number): address for number, address in cluster.brokers[name].items()},
                "brokerName": name,
                "cluster": "DefaultCluster",
            }
            for name in queues
            if name in cluster.brokers
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": name,
                "perm": 4 if name in cluster.closed else 6,
                "readQueueNums": count,
                "topicSysFlag": 0,
                "writeQueueNums": count,
            }
            for name, count in queues.items()
        ],
        **options,
    }


def route(link: Link, request: Command) -> None:
    topic = request.ext["topic"]
    if link.cluster.topics.get(topic, {}).keys() - link.cluster.down:
        responds_with(route_body(link.cluster, topic))(link, request)
    else:
        link.answer(request, Status.TOPIC_NOT_EXIST, remark=f"No topic route info in name server for the topic: {topic}")


def topic_config(link: Link, request: Command) -> None:
    """Answer with the configuration of a topic without attributes."""
    counts = link.cluster.topics.get(request.ext["topic"])
    if counts is None:
        link.answer(request, Status.TOPIC_NOT_EXIST)
    else:
        queues = max(counts.values(), default=0)
        link.answer(request, body=TopicConfig(request.ext["topic"], queues, queues).encode())


def cluster_info(link: Link, request: Command) -> None:
    """Answer with the cluster info: all brokers with their addresses."""
    brokers = {name: addresses for name, addresses in link.cluster.brokers.items() if name not in link.cluster.down}
    infos = {name: BrokerData(name, "DefaultCluster", addresses) for name, addresses in brokers.items()}
    link.answer(request, body=ClusterInfo(infos, {"DefaultCluster": tuple(brokers)}).encode())


def responds_with(body: Any) -> Answer:
    """Return a handler that answers with this JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return lambda link, request: link.answer(request, body=data)


def refuses(code: int, remark: str | None = "no") -> Answer:
    return lambda link, request: link.answer(request, code, remark=remark)


def success(link: Link, request: Command) -> None:
    link.answer(request)


def store(link: Link, request: Command, code: int = Status.SUCCESS) -> None:
    """Store a message or the messages of a batch, and answer with their queue and offset."""
    header = SendHeader.decode(request.ext)
    if request.code == Code.SEND_BATCH_MESSAGE:
        messages = [(body, properties.decode()) for _, body, properties in batch.decode_batch(request.body)]
    else:
        messages = [(request.body, header.properties)]
    stored = link.cluster.stored[link.address, header.queue_id]
    offset = len(stored)
    stored.extend(messages)
    ids = ",".join(f"7F00000100002A9F{(header.queue_id << 32) + offset + index:016X}" for index in range(len(messages)))
    link.answer(request, code, SendResultHeader(ids, header.queue_id, offset, transaction_id="TX").encode())


def stored_with(code: int) -> Answer:
    return lambda link, request: store(link, request, code)


def hangs_up(link: Link, request: Command) -> None:
    link.drop()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(connections, "dial", cluster.dial)
    return cluster


def scripted_client(*name_servers: str, **timing: float) -> ClusterClient:
    """Return a client of the scripted cluster that is not connected yet."""
    return ClusterClient(name_servers or [NS], timing=Timing(**{"request": 2.0, **timing}))
