"""The server for RocketMQ clients: requests of a client, as bytes of a connection and by their parts.

Every request is answered once, unless the client wants no answer or its connection ends; a connection leaves nothing behind. The
time is virtual, so that pulls that wait, and clients that do not answer, take none.

python -m tests.fuzz --only rocketmq_server --seconds 600
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mqbridge.errors import ProtocolError
from mqbridge.listener.listener import Listener
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.physical_offsets import QueueName, physical_offset
from mqbridge.rocketmq.server.server import RocketMQServer
from mqbridge.rocketmq.server.topic_names import CLUSTER_NAME
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_batch
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.groups import (
    ACTIVELY,
    BROADCASTING,
    FROM_FIRST,
    CheckClient,
    ConsumerData,
    Heartbeat,
    SubscriptionData,
)
from mqbridge.rocketmq.wire.bodies.pop import AssignmentQuery, MessageRequestMode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import ONEWAY, RESPONSE, Command, decode, encode, measure
from mqbridge.rocketmq.wire.headers.admin import ClusterHeader, CreateTopicHeader, RouteHeader, TopicHeader
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.groups import (
    ConsumeDirectlyHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupConfigHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    SendBackHeader,
    UnregisterHeader,
)
from mqbridge.rocketmq.wire.headers.offsets import QueryOffsetHeader, QueueHeader, SearchOffsetHeader, UpdateOffsetHeader
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader, ViewHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.headers.transactions import COMMIT, ROLLBACK, EndTransactionHeader
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import SysFlag
from mqbridge.wire.cutter import FrameCutter
from tests.fuzz.servers import Bench, InlineExecutor, MemoryEndpoint
from tests.fuzz.target import Target, halves, must_equal
from tests.kit.virtual_time import VirtualTimeLoop

TOPIC, GROUP, CLIENT, BROKER = "t", "g", "10.0.0.1@1", "mqbridge-app"
QUEUES = 2
ANSWERED_S = 120.0
"""Time within which every request is answered."""
GONE_S = 30.0
"""Time after which nothing of a connection is left: groups of the cluster are kept for a while."""
POLL_S = 0.05
MAX_REQUESTS = 40
"""Maximum number of requests of an input."""

# --- the server -----------------------------------------------------------------------------------------------------------


async def prepare(listener: Listener) -> None:
    """Make the topic that the requests of the seeds name."""
    await listener.topics.create(TOPIC, QUEUES, is_partitioned=True)
    await listener.parking.start()
    server = listener.server
    assert isinstance(server, RocketMQServer)
    must_equal(set(server._handlers), set(REQUESTS))


benches: dict[bool, Bench] = {}
"""By whether the gateway keeps the groups itself."""


def bench_of(owns_groups: bool) -> Bench:
    """Return the listener of this kind; one event loop for all inputs, made when the first one comes."""
    if owns_groups not in benches:
        loop = VirtualTimeLoop()
        loop.set_default_executor(InlineExecutor())
        benches[owns_groups] = Bench(loop, prepare, system="rocketmq", topics="{topic}", owns_groups=owns_groups)
    return benches[owns_groups]


class RequestingClient:
    """A client that sends frames, and counts the requests that have to be answered, and the answers."""

    def __init__(self, server: RocketMQServer) -> None:
        self.endpoint: Any = MemoryEndpoint(measure, self._on_frame)
        self.session: Any = server.make_session()
        self.session.on_connected(self.endpoint)
        self._requests: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def _on_frame(self, data: bytes) -> None:
        command = decode(data)
        if command.is_response:
            self._answers[command.opaque] += 1
            self._changed.set()

    def send(self, frames: list[bytes]) -> None:
        """Send whole frames. Raises ProtocolError for one that ends the connection."""
        for data in frames:
            try:
                command = decode(data)
            except ProtocolError:
                break
            if not command.is_response and not command.is_oneway:
                self._requests[command.opaque] += 1
        if frames:
            self.session.on_frames(frames)

    async def answers(self) -> None:
        """Wait until every request is answered."""
        async with asyncio.timeout(ANSWERED_S):
            while self._answers.total() < self._requests.total() and self.endpoint.alive:
                self._changed.clear()
                await self._changed.wait()

    def check_answers(self, *, is_complete: bool) -> None:
        """Check that no request has two answers, and with `is_complete` that each has one."""
        assert not self._answers - self._requests, f"answered too often: {self._answers - self._requests}"
        assert not is_complete or self._answers == self._requests, f"not answered: {self._requests - self._answers}"


async def converse(listener: Listener, steps: Iterator[list[bytes]]) -> None:
    """Send frames in steps, where no frames mean a pause until all is answered, and end the connection."""
    server = listener.server
    assert isinstance(server, RocketMQServer)
    client = RequestingClient(server)
    error: Exception = ConnectionError("the end of the input")
    try:
        for frames in steps:
            client.send(frames)
            await (asyncio.sleep(0) if frames else client.answers())
        await client.answers()
        client.check_answers(is_complete=client.endpoint.alive)
    except ProtocolError as violation:
        error = violation
    client.endpoint.alive = False
    client.session.on_lost(error)
    await check_gone(listener, server, client.session)
    client.check_answers(is_complete=False)


async def check_gone(listener: Listener, server: RocketMQServer, session: ServedConnection) -> None:
    """Check that nothing of a connection is left after a while."""
    end = asyncio.get_running_loop().time() + GONE_S
    await asyncio.sleep(0)
    while (left := left_of(listener, server, session)) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(POLL_S)
    assert not left, f"{left} stay"


def left_of(listener: Listener, server: RocketMQServer, session: ServedConnection) -> Mapping[str, object]:
    """Return what is left of a connection."""
    clients = server.broker.clients
    found = {
        "tasks": [*session._tasks, *tasks_of(session.peer)],
        "requests": session._requests,
        "requests to the client": session._forwarded,
        "connections": server._connections,
        "pulls": server.pulls._pulls,
        "sends": server.sends._pending,
        "producers": clients.producers,
        "consumers": clients.consumers,
        "groups": clients._groups_of,
        "bytes in flight": listener.in_flight.used,
        "unacknowledged bytes": listener.unacknowledged.used,
    }
    return {name: value for name, value in found.items() if value}


def tasks_of(peer: str) -> list[str]:
    """Return the names of tasks that serve a client, or end its pulls."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.endswith(f" of {peer}") or name.startswith("close of PullKey")]


# --- bytes of a connection ------------------------------------------------------------------------------------------------


def read_frames(data: bytes) -> None:
    """Serve a connection that sends these bytes; the first one tells who keeps the groups."""
    bench_of(bool(data[:1] and data[0] & 1))(lambda listener: converse(listener, pieces_of(data[1:])))


def pieces_of(data: bytes) -> Iterator[list[bytes]]:
    """Yield the frames in each piece of the bytes. Raises ProtocolError for what is no frame."""
    cutter, left = FrameCutter(measure), MAX_REQUESTS
    for piece in halves(data):
        frames = cutter.feed(piece)[:left]
        left -= len(frames)
        if frames:
            yield frames


# --- requests by their parts ----------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A request of an input: the index of its code, flags, fields of its header (separated by 3, names from values by 4), body.

        u8 index | u8 flags | u16 size, fields | u16 size, body

    Flags: 1 binary header, 2 oneway, 4 the client is in C++, 8 after all earlier ones were answered, 16 a response.
    """

    code_index: int
    flags: int
    fields: bytes
    body: bytes

    def encode(self) -> bytes:
        return bytes([self.code_index, self.flags]) + _sized(self.fields) + _sized(self.body)

    def frame(self, opaque: int) -> bytes:
        """Return the frame. Raises ProtocolError if there is none of this kind."""
        code = CODES[self.code_index % len(CODES)]
        flag = (ONEWAY if self.flags & 2 else 0) | (RESPONSE if self.flags & 16 else 0)
        pairs = (entry.partition("\4") for entry in self.fields.decode(errors="replace").split("\3") if entry)
        ext = {name: value for name, _, value in pairs}
        language = "CPP" if self.flags & 4 else "JAVA"
        return encode(Command(code, ext, self.body, opaque=opaque, flag=flag, language=language), binary=bool(self.flags & 1))


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def parts_of(data: bytes) -> Iterator[Part]:
    """Yield the requests of an input."""
    at = 0
    while at + 2 < len(data):
        index, flags = data[at], data[at + 1]
        end = at + 4 + int.from_bytes(data[at + 2 : at + 4])
        after = end + 2 + int.from_bytes(data[end : end + 2])
        yield Part(index, flags, data[at + 4 : end], data[end + 2 : after])
        at = after


def read_requests(data: bytes) -> None:
    """Serve a connection that sends these requests; the first byte tells who keeps the groups."""
    bench_of(bool(data[:1] and data[0] & 1))(lambda listener: converse(listener, steps_of(data[1:])))


def steps_of(data: bytes) -> Iterator[list[bytes]]:
    """Yield the frames of requests, with an empty list for a pause until all are answered."""
    for opaque, part in enumerate(parts_of(data), 1):
        if opaque > MAX_REQUESTS:
            return
        if part.flags & 8:
            yield []
        yield [part.frame(opaque)]


# --- seeds ----------------------------------------------------------------------------------------------------------------


def send_header(**fields: Any) -> SendHeader:
    """Return the header of a send to the first queue."""
    values: dict[str, Any] = {"properties": properties.join([(Name.UNIQ_KEY, "7F0001"), (Name.TAGS, "a"), (Name.KEYS, "k")])}
    return SendHeader(GROUP, TOPIC, 0, 1_700_000_000_000, **(values | fields))


def pull_header(offset: int = 0, flags: int = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET) -> PullHeader:
    """Return the header of a pull from the first queue."""
    return PullHeader(GROUP, TOPIC, 0, offset, 32, flags, offset, 1000, 0, "*", "TAG", 1 << 20)


def heartbeat(**fields: Any) -> bytes:
    """Return the heartbeat of a client that is a producer and a consumer."""
    subscriptions = tuple(map(SubscriptionData, (TOPIC, f"%RETRY%{GROUP}")))
    consumer = ConsumerData(GROUP, subscriptions, **({"consume_from": FROM_FIRST} | fields))
    return Heartbeat(CLIENT, (GROUP,), (consumer,)).encode()


LOCK = LockRequest(CLIENT, GROUP, tuple(Queue(TOPIC, BROKER, index) for index in range(QUEUES))).encode()
BATCH = encode_batch([(0, b"1", b"UNIQ_KEY\1A\2"), (0, b"2", b"TAGS\1a\2"), (1, b"3", b"")])
STORED = physical_offset(QueueName(TOPIC, "0"), 0)
CREATE = CreateTopicHeader("made", 2, 2)
Sample = tuple[Mapping[str, str], bytes]
"""The fields of a header, and a body."""


def sample(header: Header | None = None, body: bytes = b"") -> Sample:
    """Return a request with this header and body."""
    return {} if header is None else header.encode(), body


REQUESTS: dict[int, Sample] = {
    Code.SEND_MESSAGE: (send_header().encode_v1(), b"body"),
    Code.SEND_MESSAGE_V2: sample(send_header(), b"body"),
    Code.SEND_BATCH_MESSAGE: sample(send_header(batch=True), BATCH),
    Code.SEND_REPLY_MESSAGE: (send_header(properties=f"{Name.REPLY_TO_CLIENT}\1{CLIENT}\2").encode_v1(), b"reply"),
    Code.SEND_REPLY_MESSAGE_V2: sample(send_header(properties=f"{Name.REPLY_TO_CLIENT}\1{CLIENT}\2"), b"reply"),
    Code.CONSUMER_SEND_MSG_BACK: sample(SendBackHeader(STORED, GROUP, 0, "7F0001", TOPIC, max_reconsume_times=16)),
    Code.END_TRANSACTION: sample(EndTransactionHeader(GROUP, 0, 0, COMMIT, "7F0001", "7F0001")),
    Code.PULL_MESSAGE: sample(pull_header()),
    Code.LITE_PULL_MESSAGE: sample(pull_header(1, PullFlag.LITE | PullFlag.SUBSCRIPTION)),
    Code.QUERY_CONSUMER_OFFSET: sample(QueryOffsetHeader(GROUP, TOPIC, 0, True)),
    Code.UPDATE_CONSUMER_OFFSET: sample(UpdateOffsetHeader(GROUP, TOPIC, 0, 1)),
    Code.GET_MAX_OFFSET: sample(QueueHeader(TOPIC, 0)),
    Code.GET_MIN_OFFSET: sample(QueueHeader(TOPIC, 0)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: sample(SearchOffsetHeader(TOPIC, 0, 1_700_000_000_000, "UPPER")),
    Code.GET_EARLIEST_MSG_STORETIME: sample(QueueHeader(TOPIC, 0)),
    Code.HEART_BEAT: sample(body=heartbeat()),
    Code.UNREGISTER_CLIENT: sample(UnregisterHeader(CLIENT, GROUP, GROUP)),
    Code.GET_CONSUMER_LIST_BY_GROUP: sample(GroupHeader(GROUP)),
    Code.CHECK_CLIENT_CONFIG: sample(body=CheckClient(CLIENT, GROUP, SubscriptionData(TOPIC)).encode()),
    Code.LOCK_BATCH_MQ: sample(body=LOCK),
    Code.UNLOCK_BATCH_MQ: sample(body=LOCK),
    Code.QUERY_ASSIGNMENT: sample(body=AssignmentQuery(TOPIC, GROUP, CLIENT).encode()),
    Code.SET_MESSAGE_REQUEST_MODE: sample(body=MessageRequestMode(TOPIC, GROUP, "PULL").encode()),
    Code.VIEW_MESSAGE_BY_ID: sample(ViewHeader(STORED, TOPIC)),
    Code.QUERY_MESSAGE: sample(QueryHeader(TOPIC, "k", 32, 0, 1 << 50)),
    Code.GET_ROUTEINFO_BY_TOPIC: sample(RouteHeader(TOPIC, True)),
    Code.GET_BROKER_CLUSTER_INFO: sample(),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: sample(),
    Code.GET_TOPICS_BY_CLUSTER: sample(ClusterHeader(CLUSTER_NAME)),
    Code.GET_KV_CONFIG: ({"namespace": "n", "key": "k"}, b""),
    Code.GET_KVLIST_BY_NAMESPACE: ({"namespace": "n"}, b""),
    Code.PUT_KV_CONFIG: ({"namespace": "n", "key": "k", "value": "v"}, b""),
    Code.DELETE_KV_CONFIG: ({"namespace": "n", "key": "k"}, b""),
    Code.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": BROKER}, b""),
    Code.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": BROKER}, b""),
    Code.UPDATE_AND_CREATE_TOPIC: sample(CREATE),
    Code.DELETE_TOPIC_IN_BROKER: sample(TopicHeader("made")),
    Code.DELETE_TOPIC_IN_NAMESRV: sample(TopicHeader("made")),
    Code.GET_ALL_TOPIC_CONFIG: sample(),
    Code.GET_TOPIC_CONFIG: sample(TopicHeader(TOPIC)),
    Code.GET_TOPIC_STATS_INFO: sample(TopicHeader(TOPIC)),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: sample(TopicHeader(TOPIC)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: sample(body=GroupConfig(GROUP).encode()),
    Code.DELETE_SUBSCRIPTIONGROUP: sample(DeleteGroupHeader(GROUP, True)),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: sample(),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: sample(GroupConfigHeader(GROUP)),
    Code.GET_CONSUMER_CONNECTION_LIST: sample(GroupHeader(GROUP)),
    Code.GET_PRODUCER_CONNECTION_LIST: sample(ProducerGroupHeader(GROUP)),
    Code.GET_CONSUME_STATS: sample(ConsumeStatsHeader(GROUP, TOPIC)),
    Code.GET_ALL_CONSUMER_OFFSET: sample(),
    Code.QUERY_TOPICS_BY_CONSUMER: sample(GroupConfigHeader(GROUP)),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: sample(ResetOffsetHeader(GROUP, TOPIC, 0)),
    Code.GET_CONSUMER_RUNNING_INFO: sample(RunningInfoHeader(GROUP, CLIENT)),
    Code.CONSUME_MESSAGE_DIRECTLY: sample(ConsumeDirectlyHeader(GROUP, CLIENT, "7F0001", BROKER, TOPIC), b"record"),
    Code.GET_BROKER_RUNTIME_INFO: sample(),
    Code.GET_BROKER_CONFIG: sample(),
    Code.UPDATE_BROKER_CONFIG: sample(body=b"a=b\n"),
}
"""A request of each code that the server serves."""
CODES = tuple(REQUESTS)


def fields_of(ext: Mapping[str, str]) -> bytes:
    """Return the fields of a header as `Part` has them."""
    return "\3".join(f"{name}\4{value}" for name, value in ext.items()).encode()


def part(code: int, flags: int = 0, header: Header | None = None, body: bytes | None = None) -> Part:
    """Return a request of this code: that of REQUESTS, or with another header or body."""
    ext, known_body = REQUESTS[code]
    ext = ext if header is None else header.encode()
    return Part(CODES.index(code), flags, fields_of(ext), known_body if body is None else body)


PREPARED = send_header(sys_flag=SysFlag.PREPARED, properties="UNIQ_KEY\x017F0001\2TRAN_MSG\1true\2")
SEND, BATCHED, JOIN = part(Code.SEND_MESSAGE_V2), part(Code.SEND_BATCH_MESSAGE, 1), part(Code.HEART_BEAT)
AGAIN = SendHeader(GROUP, f"%RETRY%{GROUP}", 0, 0, reconsume_times=3)
DELAYED = part(Code.SEND_MESSAGE_V2, 0, send_header(properties=f"{Name.DELAY}\x013\2"))
RESET = ResetOffsetHeader(GROUP, TOPIC, 0, True, 0, 0)
CONVERSATIONS = [
    [SEND, BATCHED, part(Code.PULL_MESSAGE, 8), part(Code.PULL_MESSAGE, 1, pull_header(1)), part(Code.UPDATE_CONSUMER_OFFSET, 2)],
    [JOIN, SEND, part(Code.PULL_MESSAGE, 8), part(Code.PULL_MESSAGE, 8, pull_header(2)), part(Code.UNREGISTER_CLIENT, 8)],
    [JOIN, part(Code.LOCK_BATCH_MQ, 8), part(Code.INVOKE_BROKER_TO_RESET_OFFSET, 0, RESET), part(Code.UNLOCK_BATCH_MQ, 2)],
    [JOIN, part(Code.PULL_MESSAGE, 4), part(Code.INVOKE_BROKER_TO_RESET_OFFSET, 4, RESET), part(Code.PULL_MESSAGE, 12)],
    [part(Code.HEART_BEAT, body=heartbeat(message_model=BROADCASTING, consume_type=ACTIVELY)), part(Code.PULL_MESSAGE, 8)],
    [JOIN, part(Code.SEND_REPLY_MESSAGE_V2), part(Code.GET_CONSUMER_RUNNING_INFO), part(Code.CONSUME_MESSAGE_DIRECTLY)],
    [JOIN, part(Code.SEND_REPLY_MESSAGE), Part(0, 16, b"", b"")],
    [part(Code.SEND_MESSAGE_V2, 0, PREPARED), part(Code.END_TRANSACTION, 8)],
    [
        part(Code.SEND_MESSAGE_V2, 0, PREPARED),
        part(Code.END_TRANSACTION, 8, EndTransactionHeader(GROUP, 0, 0, ROLLBACK, "7F0001")),
    ],
    [SEND, DELAYED, part(Code.VIEW_MESSAGE_BY_ID, 8), part(Code.CONSUMER_SEND_MSG_BACK)],
    [
        part(Code.SEND_MESSAGE_V2, 0, SendHeader(GROUP, f"%RETRY%{GROUP}", 0, 0, reconsume_times=3)),
        part(Code.GET_CONSUME_STATS, 8),
    ],
    [part(Code.UPDATE_AND_CREATE_TOPIC), part(Code.GET_ROUTEINFO_BY_TOPIC, 8), part(Code.DELETE_TOPIC_IN_BROKER)],
]


def frames_of(parts: list[Part]) -> bytes:
    """Return the frames of requests, back to back."""
    return b"".join(part.frame(opaque) for opaque, part in enumerate(parts, 1))


ALONE = [(bytes([flags]), [part(code, flags)]) for code in CODES for flags in (0, 1)]
TOGETHER = [(kept, parts) for parts in CONVERSATIONS for kept in (b"\0", b"\1")]
SEEDS_OF_PARTS = [kept + b"".join(part.encode() for part in parts) for kept, parts in (*ALONE, *TOGETHER)]
SEEDS_OF_FRAMES = [kept + frames_of(parts) for kept, parts in (*ALONE, *TOGETHER)]

TARGETS = {
    "rocketmq_server-frames": Target(read_frames, SEEDS_OF_FRAMES),
    "rocketmq_server-requests": Target(read_requests, SEEDS_OF_PARTS),
}
