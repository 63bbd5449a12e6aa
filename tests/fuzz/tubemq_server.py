"""The server for TubeMQ clients: requests of clients, as bytes of a connection and by their parts.

Every request is answered once, unless its client has not waited long enough or its connection ends; connections leave nothing
behind. The time is virtual, so that gets that wait, and consumers that give no sign, take none.

python -m tests.fuzz --only tubemq_server --seconds 600
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntFlag
from typing import Any, NamedTuple

from google.protobuf.message import Message as ProtobufMessage

from mqbridge.errors import ProtocolError
from mqbridge.listener.listener import Listener
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.connection import RESPONSES, ServedConnection
from mqbridge.tubemq.server.server import TubeMQServer
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.payload import join_payload
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2
from mqbridge.tubemq.wire.string_formats import Broker, PartitionKey, PartitionRef, format_condition, format_subscription
from mqbridge.tubemq.wire.string_formats import format_held_partitions as format_held
from mqbridge.tubemq.wire.string_formats import format_start_offsets as format_starts
from mqbridge.wire.cutter import FrameCutter
from tests.fuzz.servers import Bench, InlineExecutor, MemoryEndpoint
from tests.fuzz.target import Target, check_texts, halves, must_equal
from tests.kit.virtual_time import VirtualTimeLoop

TOPIC, GROUP, CLIENT = "t", "g", "c"
PARTITIONS = 2
TIMEOUT_MS = 10_000
"""How long a client waits: that of the Java SDK."""
ANSWERED_S = 120.0
"""Time within which every request is answered."""
PAUSE_S = 20.0
"""Time that a client is silent: longer than a consumer may be whose connection has ended."""
GONE_S = 120.0
"""Time after which nothing of a connection is left: consumers and groups of the cluster are kept for a while."""
POLL_S = 0.25
MAX_REQUESTS = 40
"""Maximum number of requests of an input."""

# --- the server -----------------------------------------------------------------------------------------------------------


async def prepare(listener: Listener) -> None:
    """Make the topic that the requests of the seeds name, and start what looks for consumers that are gone."""
    await listener.topics.create(TOPIC, PARTITIONS, is_partitioned=True)
    server = listener.server
    assert isinstance(server, TubeMQServer)
    must_equal(set(server._handlers), set(REQUESTS))
    await server.start()


benches: dict[bool, Bench] = {}
"""By whether the gateway keeps the groups itself."""


def bench_of(owns_groups: bool) -> Bench:
    """Return the listener of this kind; one event loop for all inputs, made when the first one comes."""
    if owns_groups not in benches:
        loop = VirtualTimeLoop()
        loop.set_default_executor(InlineExecutor())
        benches[owns_groups] = Bench(loop, prepare, system="tubemq", topics="{topic}", owns_groups=owns_groups)
    return benches[owns_groups]


class RequestingClient:
    """A connection that sends frames, and counts the requests and the answers by their serial numbers."""

    def __init__(self, server: TubeMQServer) -> None:
        self.endpoint: Any = MemoryEndpoint(FrameMeter().measure, self._on_frame)
        self.session: Any = server.make_session()
        self.session.on_connected(self.endpoint)
        self._requests: Counter[int] = Counter()
        self._optional: Counter[int] = Counter()
        """Requests whose client waits less than TIMEOUT_MS: these may have no answer."""
        self._answers: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def _on_frame(self, data: bytes) -> None:
        serial, payload = split_frame(data)
        try:
            method, body = rpc.decode_response(payload)
        except rpc.RemoteError:
            pass
        else:
            check_texts(rpc.parse(RESPONSES[method], body))
        self._answers[serial] += 1
        self._changed.set()

    def send(self, frames: list[bytes]) -> None:
        """Send whole frames."""
        for data in frames:
            serial, payload = split_frame(data)
            self._requests[serial] += 1
            try:
                if 0 < rpc.decode_request(payload).timeout_ms < TIMEOUT_MS:
                    self._optional[serial] += 1
            except ProtocolError:
                pass
        if frames:
            self.session.on_frames(frames)

    @property
    def missing(self) -> Counter[int]:
        """Requests that have to be answered and are not."""
        return self._requests - self._optional - self._answers

    async def answers(self) -> None:
        """Wait until every request is answered that has to be."""
        async with asyncio.timeout(ANSWERED_S):
            while self.missing and self.endpoint.alive:
                self._changed.clear()
                await self._changed.wait()

    def end(self, error: Exception) -> None:
        """End the connection."""
        if self.endpoint.alive:
            self.endpoint.alive = False
            self.session.on_lost(error)

    def check_answers(self) -> None:
        """Check that no request has two answers."""
        assert not self._answers - self._requests, f"answered too often: {self._answers - self._requests}"


class Step(NamedTuple):
    """Frames that are sent, and what happens before; `connection` is that of the two which sends them."""

    frames: list[bytes]
    connection: int = 0
    waits: bool = False
    pauses: bool = False
    connects: bool = False


async def converse(listener: Listener, steps: Iterator[Step]) -> None:
    """Send frames in steps at two connections, and end these."""
    server = listener.server
    assert isinstance(server, TubeMQServer)
    clients: dict[int, RequestingClient] = {}
    ended: list[RequestingClient] = []
    error: Exception = ConnectionError("the end of the input")
    try:
        for step in steps:
            if step.waits:
                await answers_of(clients)
            if step.pauses:
                await asyncio.sleep(PAUSE_S)
            if step.connects and step.connection in clients:
                ended.append(clients.pop(step.connection))
                ended[-1].end(ConnectionError("another connection"))
            if step.connection not in clients:
                clients[step.connection] = RequestingClient(server)
            clients[step.connection].send(step.frames)
            await asyncio.sleep(0)
        await answers_of(clients)
    except ProtocolError as violation:
        error = violation
    ended += clients.values()
    for client in ended:
        client.end(error)
    await check_gone(listener, server, [client.session for client in ended])
    for client in ended:
        client.check_answers()


async def answers_of(clients: Mapping[int, RequestingClient]) -> None:
    """Wait until all connections have their answers."""
    for client in clients.values():
        await client.answers()


async def check_gone(listener: Listener, server: TubeMQServer, sessions: list[ServedConnection]) -> None:
    """Check that nothing of connections is left after a while."""
    end = asyncio.get_running_loop().time() + GONE_S
    await asyncio.sleep(0)
    while (left := left_of(listener, server, sessions)) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(POLL_S)
    assert not left, f"{left} stay"


def left_of(listener: Listener, server: TubeMQServer, sessions: list[ServedConnection]) -> Mapping[str, object]:
    """Return what is left of connections."""
    found = {
        "tasks": [*(task for each in sessions for task in each._tasks), *tasks()],
        "requests": sum(each._requests for each in sessions),
        "connections": server._connections,
        "sends": server.sends._pending,
        "producers": server.producers.known,
        "groups": server.consumers.groups,
        "lanes": server.consumers._lanes,
        "bytes in flight": listener.in_flight.used,
        "unacknowledged bytes": listener.unacknowledged.used,
    }
    return {name: value for name, value in found.items() if value}


def tasks() -> list[str]:
    """Return the names of tasks that serve clients, or end what they had."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.endswith((f" of {MemoryEndpoint.peer}", f" of group {GROUP}"))]


# --- bytes of a connection ------------------------------------------------------------------------------------------------


def read_frames(data: bytes) -> None:
    """Serve a connection that sends these bytes; the first one tells who keeps the groups."""
    bench_of(bool(data[:1] and data[0] & 1))(lambda listener: converse(listener, pieces_of(data[1:])))


def pieces_of(data: bytes) -> Iterator[Step]:
    """Yield the frames in each piece of the bytes. Raises ProtocolError for what is no frame."""
    cutter, left = FrameCutter(FrameMeter().measure), MAX_REQUESTS
    for piece in halves(data):
        frames = cutter.feed(piece)[:left]
        left -= len(frames)
        if frames:
            yield Step(frames)


# --- requests by their parts ----------------------------------------------------------------------------------------------


class Flag(IntFlag):
    """What happens before a request, and where it is sent."""

    WAIT = 1
    """All earlier ones are answered."""
    PAUSE = 2
    """PAUSE_S pass."""
    OTHER = 4
    """It is sent at the second connection."""
    CONNECT = 8
    """Its connection ends, and there is a new one."""
    OLD = 16
    """The client has version 2 of the protocol."""


class Part(NamedTuple):
    """A request of an input: the index of its method, flags, the request itself.

    u8 index | u8 flags | u16 size, request
    """

    method_index: int
    flags: int
    body: bytes

    def encode(self) -> bytes:
        return bytes([self.method_index, self.flags]) + len(self.body).to_bytes(2) + self.body

    def frame(self, serial: int) -> bytes:
        method = METHODS[self.method_index % len(METHODS)]
        payload = rpc.encode_request(service_of(method), method, TIMEOUT_MS, self.body)
        if self.flags & Flag.OLD:
            payload = payload.replace(b"\x10\x03", b"\x10\x02", 1)
        return encode_frame(serial, payload)

    def step(self, serial: int) -> Step:
        flags = Flag(self.flags & 31)
        return Step(
            [self.frame(serial)],
            int(Flag.OTHER in flags),
            waits=Flag.WAIT in flags,
            pauses=Flag.PAUSE in flags,
            connects=Flag.CONNECT in flags,
        )


def service_of(method: int) -> int:
    """Return the service of a method."""
    return rpc.WRITE if method == rpc.SEND else rpc.READ if rpc.PARTITION_REGISTER <= method <= rpc.COMMIT else rpc.MASTER


def parts_of(data: bytes) -> Iterator[Part]:
    """Yield the requests of an input."""
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at + 2 : at + 4])
        yield Part(data[at], data[at + 1], data[at + 4 : end])
        at = end


def read_requests(data: bytes) -> None:
    """Serve connections that send these requests; the first byte tells who keeps the groups."""
    bench_of(bool(data[:1] and data[0] & 1))(lambda listener: converse(listener, steps_of(data[1:])))


def steps_of(data: bytes) -> Iterator[Step]:
    """Yield the requests one by one."""
    for serial, part in enumerate(parts_of(data), 1):
        if serial > MAX_REQUESTS:
            return
        yield part.step(serial)


# --- seeds ----------------------------------------------------------------------------------------------------------------

REFS = [PartitionRef(Broker(BROKER_ID, "127.0.0.1", 6650), TOPIC, index) for index in range(PARTITIONS)]
CONSUMER: dict[str, Any] = {"clientId": CLIENT, "groupName": GROUP}
PARTITION: dict[str, Any] = CONSUMER | {"topicName": TOPIC, "partitionId": 0}
MASTER: dict[str, Any] = CONSUMER | {"hostName": "127.0.0.1", "topicList": [TOPIC]}
HELD = [format_subscription(CLIENT, GROUP, ref) for ref in REFS]
CHOSEN = master_pb2.ClientSubRepInfo(
    brokerConfigId=-2, topicMetaInfoId=-2, reportSubInfo=True, partSubInfo=[format_held(TOPIC, REFS)]
)


def producer(**fields: Any) -> dict[str, Any]:
    """Return the fields of a producer's request to the Master."""
    return {"clientId": "p", "brokerCheckSum": -1, "hostName": "127.0.0.1", "topicList": [TOPIC]} | fields


def sent(body: bytes = b"body", attributes: bytes | None = b"a=1,$msgType$=x,$msgTime$=202311142213", **fields: Any) -> Any:
    """Return a send."""
    data, flag = join_payload(attributes, body)
    values: dict[str, Any] = {
        "clientId": "p",
        "topicName": TOPIC,
        "partitionId": 0,
        "data": data,
        "flag": flag,
        "checkSum": -1,
        "sentAddr": 0,
    }
    return broker_pb2.SendMessageRequestP2B(**(values | fields))


def registered(kind: int = rpc.OP_REGISTER, **fields: Any) -> broker_pb2.RegisterRequestC2B:
    """Return the registration of a partition."""
    return broker_pb2.RegisterRequestC2B(**({"opType": kind, "readStatus": 0} | PARTITION | fields))


def bound(**fields: Any) -> master_pb2.RegisterRequestC2M:
    """Return the registration of a consumer that begins at an offset of its own."""
    starts = format_starts({PartitionKey(BROKER_ID, TOPIC, 0): 28})
    values = {"requireBound": True, "sessionKey": "s", "totalCount": 1, "requiredPartition": starts}
    return master_pb2.RegisterRequestC2M(**(MASTER | values | fields))


REQUESTS: dict[int, ProtobufMessage] = {
    rpc.PRODUCER_REGISTER: master_pb2.RegisterRequestP2M(**producer(appdConfig={"configId": -2})),
    rpc.PRODUCER_HEARTBEAT: master_pb2.HeartRequestP2M(**producer(topicList=[TOPIC, "made"])),
    rpc.PRODUCER_CLOSE: master_pb2.CloseRequestP2M(clientId="p"),
    rpc.CONSUMER_REGISTER: master_pb2.RegisterRequestC2M(**MASTER),
    rpc.CONSUMER_HEARTBEAT: master_pb2.HeartRequestC2M(**CONSUMER, reportSubscribeInfo=False),
    rpc.CONSUMER_CLOSE: master_pb2.CloseRequestC2M(**CONSUMER),
    rpc.SEND: sent(),
    rpc.PARTITION_REGISTER: registered(),
    rpc.PARTITION_HEARTBEAT: broker_pb2.HeartBeatRequestC2B(**CONSUMER, readStatus=0, partitionInfo=[str(ref) for ref in REFS]),
    rpc.GET: broker_pb2.GetMessageRequestC2B(**PARTITION, lastPackConsumed=True),
    rpc.COMMIT: broker_pb2.CommitOffsetRequestC2B(**PARTITION, lastPackConsumed=True),
    rpc.BALANCED_REGISTER: master_pb2.RegisterRequestC2MV2(**MASTER, sourceCount=1, nodeId=0, subRepInfo=CHOSEN),
    rpc.BALANCED_HEARTBEAT: master_pb2.HeartRequestC2MV2(**CONSUMER, subRepInfo=CHOSEN),
    rpc.PARTITION_META: master_pb2.GetPartMetaRequestC2M(**CONSUMER, brokerConfigId=-2, topicMetaInfoId=-2),
}
"""A request of each method that the server serves."""
METHODS = tuple(REQUESTS)


def part(method: int, flags: int = 0, request: ProtobufMessage | None = None) -> Part:
    """Return a request of this method: that of REQUESTS, or another one."""
    return Part(METHODS.index(method), flags, (REQUESTS[method] if request is None else request).SerializeToString())


JOIN, BEAT, OWN = part(rpc.CONSUMER_REGISTER), part(rpc.CONSUMER_HEARTBEAT, Flag.WAIT), part(rpc.PARTITION_REGISTER, Flag.WAIT)
SEND, GET, COMMIT = part(rpc.SEND), part(rpc.GET, Flag.WAIT), part(rpc.COMMIT, Flag.WAIT)
OTHER_JOIN = part(rpc.CONSUMER_REGISTER, Flag.OTHER, master_pb2.RegisterRequestC2M(**(MASTER | {"clientId": "d"})))
OTHER_BEAT = part(
    rpc.CONSUMER_HEARTBEAT,
    Flag.OTHER | Flag.WAIT,
    master_pb2.HeartRequestC2M(**(CONSUMER | {"clientId": "d"}), reportSubscribeInfo=False),
)
DONE = master_pb2.HeartRequestC2M(
    **CONSUMER, reportSubscribeInfo=True, subscribeInfo=HELD, event={"rebalanceId": 1, "opType": 10, "status": 2}
)
FILTERED = master_pb2.RegisterRequestC2M(**MASTER, topicCondition=[format_condition(TOPIC, ["x", "y"])])
NO_COMMIT = broker_pb2.GetMessageRequestC2B(**PARTITION, manualCommitOffset=True)
ROLLBACK = broker_pb2.CommitOffsetRequestC2B(**PARTITION, lastPackConsumed=False)
OWN_TYPES = part(rpc.PARTITION_REGISTER, Flag.WAIT, registered(filterCondStr=["x"]))
OWN_AT = part(rpc.PARTITION_REGISTER, Flag.WAIT, registered(currOffset=28))
OWN_END = part(rpc.PARTITION_REGISTER, Flag.WAIT, registered(readStatus=1))
DISOWN = part(rpc.PARTITION_REGISTER, Flag.WAIT, registered(rpc.OP_UNREGISTER))
SEND_PLAIN, SEND_NOWHERE = (part(rpc.SEND, 0, sent(attributes=None, partitionId=index)) for index in (1, 7))
CONVERSATIONS = [
    [part(rpc.PRODUCER_REGISTER), part(rpc.PRODUCER_HEARTBEAT), SEND, SEND, part(rpc.PRODUCER_CLOSE, Flag.WAIT)],
    [SEND, SEND_PLAIN, SEND_NOWHERE, part(rpc.SEND, Flag.OLD)],
    [SEND, JOIN, BEAT, OWN, GET, COMMIT, GET, part(rpc.PARTITION_HEARTBEAT), part(rpc.CONSUMER_CLOSE, Flag.WAIT)],
    [SEND, SEND, JOIN, OWN, GET, part(rpc.COMMIT, Flag.WAIT, ROLLBACK), GET, part(rpc.GET, Flag.WAIT, NO_COMMIT), COMMIT],
    [SEND, JOIN, OWN, GET, part(rpc.GET, Flag.PAUSE), part(rpc.GET, Flag.PAUSE), part(rpc.PARTITION_REGISTER, Flag.CONNECT)],
    [JOIN, OTHER_JOIN, BEAT, OTHER_BEAT, OWN, part(rpc.CONSUMER_HEARTBEAT, Flag.WAIT, DONE), OTHER_BEAT, BEAT],
    [JOIN, OWN, DISOWN, part(rpc.PARTITION_REGISTER, Flag.OTHER)],
    [SEND, part(rpc.CONSUMER_REGISTER, 0, FILTERED), OWN_TYPES, GET],
    [SEND, part(rpc.CONSUMER_REGISTER, 0, bound()), BEAT, OWN_AT, GET],
    [SEND, JOIN, OWN_END, SEND, GET, part(rpc.GET, Flag.CONNECT)],
    [part(rpc.BALANCED_REGISTER), part(rpc.PARTITION_META, Flag.WAIT), part(rpc.BALANCED_HEARTBEAT, Flag.WAIT), OWN, GET],
]  # fmt: skip


def frames_of(parts: list[Part]) -> bytes:
    """Return the frames of requests, back to back."""
    return b"".join(part.frame(serial) for serial, part in enumerate(parts, 1))


ALONE = [(kept, [part(method)]) for method in METHODS for kept in (b"\0", b"\1")]
TOGETHER = [(kept, parts) for parts in CONVERSATIONS for kept in (b"\0", b"\1")]
SEEDS_OF_PARTS = [kept + b"".join(part.encode() for part in parts) for kept, parts in (*ALONE, *TOGETHER)]
SEEDS_OF_FRAMES = [kept + frames_of(parts) for kept, parts in (*ALONE, *TOGETHER)]

TARGETS = {
    "tubemq_server-frames": Target(read_frames, SEEDS_OF_FRAMES),
    "tubemq_server-requests": Target(read_requests, SEEDS_OF_PARTS),
}
