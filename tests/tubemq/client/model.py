"""In-memory Master and Broker that follow the protocol's rules, with connections that tests can cut.

Requests are carried out in order when they are sent; responses come in the next loop iteration. A `Faults` plan chooses requests
that are lost ("before"), whose response is lost ("after"), that get no response ("silent"), or that get another response.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from mqbridge.errors import ConnectionLost, RequestTimeout
from mqbridge.net.connectivity import Connectivity
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from mqbridge.tubemq.wire.pb import master_pb2 as m
from mqbridge.tubemq.wire.string_formats import Broker, PartitionRef, parse_subscription

BROKER, SECOND = Broker(1, "10.0.0.5", 8123), Broker(2, "10.0.0.6", 8123)
MASTER_ADDRESS = ("10.0.0.1", 8715)
STEP = 28
"""Index bytes of a message: offsets are multiples of this."""
MAX_PER_GET = 5
TOKEN = 4711
OK = {"success": True, "errCode": 200, "errMsg": "OK"}


class ModelBroker:
    """One index for each partition; the confirmed offset and the delta of the last get, as Brokers keep them.

    An entry of None in an index belongs to another partition of the store. A get that finds no message of its partition moves the
    confirmed offset past such entries, and says nothing of it.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[b.TransferedMessage | None]] = defaultdict(list)
        self.owners: dict[tuple[str, str, int], str] = {}
        self.confirmed: dict[tuple[str, str, int], int] = {}
        self.delta: dict[tuple[str, str, int], int] = {}
        self.tokens: list[int] = []
        self.deleted: dict[tuple[str, int], int] = {}
        """First available offset of a partition; earlier data is deleted."""
        self.lag_bytes = 0
        """Unread bytes that responses to gets report."""
        self.sent = 0

    def send(self, r: b.SendMessageRequestP2B) -> Message:
        self.tokens.append(r.authInfo.visitAuthorizedToken)
        stored = self.stored[r.topicName, r.partitionId]
        message = b.TransferedMessage(messageId=self.sent, checkSum=checksum(r.data), payLoadData=r.data, flag=r.flag)
        self.sent += 1
        stored.append(message)
        return b.SendMessageResponseB2P(**OK, messageId=message.messageId, appendTime=1, appendOffset=STEP * (len(stored) - 1))

    def store_foreign(self, topic: str, partition: int, count: int) -> None:
        """Store messages of other partitions, which take entries of the index."""
        self.stored[topic, partition] += [None] * count

    def end(self, topic: str, partition: int) -> int:
        return STEP * len(self.stored[topic, partition])

    def register(self, r: b.RegisterRequestC2B) -> Message:
        key = r.groupName, r.topicName, r.partitionId
        if r.opType == rpc.OP_UNREGISTER and self.owners.get(key) != r.clientId:
            code = 412 if key in self.owners else 411
            return b.RegisterResponseB2C(success=False, errCode=code, errMsg="not yours", currOffset=-1)
        if self.owners.get(key, r.clientId) != r.clientId:
            return b.RegisterResponseB2C(success=False, errCode=410, errMsg="occupied")
        delta = self.delta.pop(key, 0)
        if r.opType == rpc.OP_UNREGISTER:
            self.confirmed[key] = self.confirmed.get(key, 0) + (delta if r.readStatus == 0 else 0)
            self.owners.pop(key, None)
            return b.RegisterResponseB2C(**OK)
        self.owners[key] = r.clientId
        end = self.end(r.topicName, r.partitionId)
        self.confirmed.setdefault(key, self.deleted.get(key[1:], 0) if r.readStatus == 0 else end)
        if r.HasField("currOffset"):
            self.confirmed[key] = max(min(r.currOffset, end), self.deleted.get(key[1:], 0))
        return b.RegisterResponseB2C(**OK, currOffset=self.confirmed[key], maxOffset=end)

    def get(self, r: b.GetMessageRequestC2B) -> Message:
        key = r.groupName, r.topicName, r.partitionId
        if self.owners.get(key) != r.clientId:
            code = 412 if key in self.owners else 411
            return b.GetMessageResponseB2C(success=False, errCode=code, errMsg="not yours", currOffset=-1)
        if r.lastPackConsumed:
            self.confirmed[key] += self.delta.get(key, 0)
        self.delta[key] = 0
        end = self.end(r.topicName, r.partitionId)
        start = self.confirmed[key] = min(end, max(self.confirmed[key], self.deleted.get(key[1:], 0)))
        found, read = [], 0
        for entry in self.stored[r.topicName, r.partitionId][start // STEP :]:
            if len(found) == MAX_PER_GET:
                break
            read += STEP
            found += [] if entry is None else [entry]
        if not found:
            self.confirmed[key] += read
            return b.GetMessageResponseB2C(success=False, errCode=404, errMsg="nothing", currOffset=-1)
        self.delta[key] = read
        return b.GetMessageResponseB2C(**OK, messages=found, currOffset=start, maxOffset=end, currDataDlt=self.lag_bytes)

    def commit(self, r: b.CommitOffsetRequestC2B) -> Message:
        key = r.groupName, r.topicName, r.partitionId
        if self.owners.get(key) != r.clientId:
            return b.CommitOffsetResponseB2C(success=False, errCode=401, errMsg="not yours")
        delta = self.delta.pop(key, 0)
        self.confirmed[key] += delta if r.lastPackConsumed else 0
        return b.CommitOffsetResponseB2C(**OK, currOffset=self.confirmed[key], maxOffset=self.end(r.topicName, r.partitionId))

    def heartbeat(self, r: b.HeartBeatRequestC2B) -> Message:
        refs = [parse_subscription(f"x@y#{text}") for text in r.partitionInfo]
        lost = [f"411:{ref}" for ref in refs if self.owners.get((r.groupName, ref.topic, ref.partition)) != r.clientId]
        return b.HeartBeatResponseB2C(**OK, hasPartFailure=bool(lost), failureInfo=lost)

    def forget(self) -> None:
        """Restart after a kill, with everything on disk."""
        self.owners.clear()
        self.delta.clear()

    def lose(self, topic: str, partition: int, entries: int) -> None:
        """Lose the entries from this one on, as in a kill: new messages get their offsets."""
        del self.stored[topic, partition][entries:]

    def restart_cleanly(self) -> None:
        """Restart after a clean shutdown: the Broker counts its last delivered pack as consumed."""
        for key, delta in self.delta.items():
            self.confirmed[key] += delta
        self.forget()


class ModelMaster:
    """`topics` are partitions by topic; members of a group share them evenly, disconnects before connects.

    `published` are the partitions listed to producers, if fewer: the others are read-only. `at_second` are the partitions of a
    second Broker, which only producers see, and only while it is not down.
    """

    def __init__(self, topics: dict[str, int]) -> None:
        self.topics = topics
        self.published: dict[str, int] = {}
        self.at_second: dict[str, int] = {}
        self.second_is_down = False
        self.producers: set[str] = set()
        self.members: dict[str, dict[str, set[PartitionRef]]] = defaultdict(dict)
        self.outstanding: dict[str, m.EventProto] = {}
        self.rounds = 0
        self.token = m.MasterAuthorizedInfo(visitAuthorizedToken=TOKEN)
        self.balanced: dict[str, list[str]] = {}
        self.closed: set[str] = set()
        self.meta_id = 1
        self.ops = m.OpsTaskInfo(csmFrmMaxOffsetCtrlId=100)

    def producer_register(self, r: m.RegisterRequestP2M) -> Message:
        self.producers.add(r.clientId)
        return m.RegisterResponseM2P(**OK, brokerCheckSum=1, brokerInfos=[str(BROKER), str(SECOND)], authorizedInfo=self.token)

    def producer_heartbeat(self, r: m.HeartRequestP2M) -> Message:
        if r.clientId not in self.producers:
            return m.HeartResponseM2P(success=False, errCode=411, errMsg="who", brokerCheckSum=-1)
        counts = self.topics | self.published
        second = {} if self.second_is_down else {topic: f",2:{count}:1" for topic, count in self.at_second.items()}
        infos = [f"{topic}#1:{counts[topic]}:1{second.get(topic, '')}#1048576" for topic in r.topicList if topic in counts]
        return m.HeartResponseM2P(**OK, brokerCheckSum=1, topicInfos=infos, authorizedInfo=self.token)

    def producer_close(self, r: m.CloseRequestP2M) -> Message:
        self.producers.discard(r.clientId)
        return m.CloseResponseM2P(**OK)

    def consumer_register(self, r: m.RegisterRequestC2M) -> Message:
        if not self.topics.keys() >= set(r.topicList):
            return m.RegisterResponseM2C(success=False, errCode=431, errMsg="no such topic")
        self.members[r.groupName][r.clientId] = set(map(parse_subscription, r.subscribeInfo))
        return m.RegisterResponseM2C(**OK, notAllocated=True, authorizedInfo=self.token)

    def consumer_heartbeat(self, r: m.HeartRequestC2M) -> Message:
        members = self.members[r.groupName]
        if r.clientId not in members:
            return m.HeartResponseM2C(success=False, errCode=411, errMsg="who")
        if r.reportSubscribeInfo:
            members[r.clientId] = set(map(parse_subscription, r.subscribeInfo))
        if r.HasField("event"):
            self.outstanding.pop(r.clientId, None)
        event = None if r.clientId in self.outstanding else self.next_event(members, r.clientId)
        return m.HeartResponseM2C(**OK, event=event, notAllocated=False, authorizedInfo=self.token)

    def next_event(self, members: dict[str, set[PartitionRef]], client_id: str) -> m.EventProto | None:
        every = [PartitionRef(BROKER, topic, n) for topic, count in sorted(self.topics.items()) for n in range(count)]
        index = sorted(members).index(client_id)
        wanted = set(every[index :: len(members)])
        surplus, missing = members[client_id] - wanted, wanted - set().union(*members.values())
        if not surplus and not missing:
            return None
        self.rounds += 1
        kind, refs = (20, surplus) if surplus else (10, missing)
        event = self.outstanding[client_id] = m.EventProto(
            rebalanceId=self.rounds, opType=kind, subscribeInfo=[f"{client_id}@g#{ref}" for ref in sorted(refs)]
        )
        return event

    def consumer_close(self, r: m.CloseRequestC2M) -> Message:
        self.members[r.groupName].pop(r.clientId, None)
        self.outstanding.pop(r.clientId, None)
        return m.CloseResponseM2C(**OK)

    # Members that balance themselves.

    def balanced_register(self, r: m.RegisterRequestC2MV2) -> Message:
        self.balanced[r.clientId] = list(r.subRepInfo.partSubInfo)
        return m.RegisterResponseM2CV2(
            errCode=200,
            errMsg="OK",
            brokerConfigId=7,
            brokerConfigList=[str(BROKER)],
            opsTaskInfo=self.ops,
            authorizedInfo=self.token,
        )

    def balanced_heartbeat(self, r: m.HeartRequestC2MV2) -> Message:
        if r.clientId not in self.balanced:
            return m.HeartResponseM2CV2(errCode=411, errMsg="who")
        if r.subRepInfo.reportSubInfo:
            self.balanced[r.clientId] = list(r.subRepInfo.partSubInfo)
        return m.HeartResponseM2CV2(errCode=200, errMsg="OK", brokerConfigId=7, opsTaskInfo=self.ops, authorizedInfo=self.token)

    def partition_meta(self, r: m.GetPartMetaRequestC2M) -> Message:
        if r.clientId not in self.balanced:
            return m.GetPartMetaResponseM2C(errCode=411, errMsg="who")
        infos = [f"{topic}#1:1:{count}:{int(topic not in self.closed)}" for topic, count in self.topics.items()]
        changed = r.topicMetaInfoId != self.meta_id
        return m.GetPartMetaResponseM2C(
            errCode=200,
            errMsg="OK",
            brokerConfigId=7,
            brokerConfigList=[] if r.brokerConfigId == 7 else [str(BROKER)],
            topicMetaInfoId=self.meta_id,
            topicMetaInfoList=infos if changed else [],
        )

    def forget(self) -> None:
        """Restart: registrations of producers and consumers are lost."""
        self.balanced.clear()
        self.producers.clear()
        self.members.clear()
        self.outstanding.clear()


class Faults:
    """The planned faults: `plan` maps a method and the number of its request, from 1, to what happens to it."""

    def __init__(self) -> None:
        self.plan: dict[tuple[int, int], Any] = {}
        self.counts: dict[int, int] = defaultdict(int)
        self.happened: list[tuple[int, int]] = []

    def next(self, method: int) -> Any:
        self.counts[method] += 1
        key = method, self.counts[method]
        if key in self.plan:
            self.happened.append(key)
        return self.plan.get(key)


class Model:
    """The cluster, as `ConnectionPool` of a client."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.broker, self.master, self.faults = ModelBroker(), ModelMaster(topics), Faults()
        self.connections: dict[tuple[str, int], ModelConnection] = {}
        self.unreachable: set[tuple[str, int]] = set()
        self.connectivity, self.is_encrypted = Connectivity("model"), False
        broker, master = self.broker, self.master
        self.handlers: dict[int, tuple[type[Message], Callable[[Any], Message]]] = {
            rpc.PRODUCER_REGISTER: (m.RegisterRequestP2M, master.producer_register),
            rpc.PRODUCER_HEARTBEAT: (m.HeartRequestP2M, master.producer_heartbeat),
            rpc.PRODUCER_CLOSE: (m.CloseRequestP2M, master.producer_close),
            rpc.CONSUMER_REGISTER: (m.RegisterRequestC2M, master.consumer_register),
            rpc.CONSUMER_HEARTBEAT: (m.HeartRequestC2M, master.consumer_heartbeat),
            rpc.CONSUMER_CLOSE: (m.CloseRequestC2M, master.consumer_close),
            rpc.BALANCED_REGISTER: (m.RegisterRequestC2MV2, master.balanced_register),
            rpc.BALANCED_HEARTBEAT: (m.HeartRequestC2MV2, master.balanced_heartbeat),
            rpc.PARTITION_META: (m.GetPartMetaRequestC2M, master.partition_meta),
            rpc.SEND: (b.SendMessageRequestP2B, broker.send),
            rpc.PARTITION_REGISTER: (b.RegisterRequestC2B, broker.register),
            rpc.PARTITION_HEARTBEAT: (b.HeartBeatRequestC2B, broker.heartbeat),
            rpc.GET: (b.GetMessageRequestC2B, broker.get),
            rpc.COMMIT: (b.CommitOffsetRequestC2B, broker.commit),
        }

    async def close(self) -> None:
        """Do nothing, as no connection is open."""

    def masters(self) -> Masters:
        return Masters([MASTER_ADDRESS], self)  # type: ignore[arg-type]

    def connection_to(self, host: str, port: int, partition: str = "") -> "ModelConnection":
        return self.connections.setdefault((host, port), ModelConnection(self, host, port))

    def answer(self, method: int, body: bytes) -> Any:
        """Return the serialized response, or the exception that the client gets."""
        kind, handler = self.handlers[method]
        fault = self.faults.next(method)
        request = kind.FromString(body)
        if fault == "before":
            return ConnectionLost("cut before the request arrived")
        if isinstance(fault, int):
            return refusal(method, fault)
        if isinstance(fault, Exception):
            return fault
        try:
            data = handler(request).SerializeToString()
        except (ConnectionLost, RequestTimeout) as error:
            return error
        if fault == "after":
            return ConnectionLost("cut before the answer arrived")
        return RequestTimeout("silence") if fault == "silent" else data


ANSWERS: dict[int, type[Message]] = {
    rpc.PRODUCER_REGISTER: m.RegisterResponseM2P,
    rpc.PRODUCER_HEARTBEAT: m.HeartResponseM2P,
    rpc.PRODUCER_CLOSE: m.CloseResponseM2P,
    rpc.CONSUMER_REGISTER: m.RegisterResponseM2C,
    rpc.CONSUMER_HEARTBEAT: m.HeartResponseM2C,
    rpc.CONSUMER_CLOSE: m.CloseResponseM2C,
    rpc.BALANCED_REGISTER: m.RegisterResponseM2CV2,
    rpc.BALANCED_HEARTBEAT: m.HeartResponseM2CV2,
    rpc.PARTITION_META: m.GetPartMetaResponseM2C,
    rpc.SEND: b.SendMessageResponseB2P,
    rpc.PARTITION_REGISTER: b.RegisterResponseB2C,
    rpc.PARTITION_HEARTBEAT: b.HeartBeatResponseB2C,
    rpc.GET: b.GetMessageResponseB2C,
    rpc.COMMIT: b.CommitOffsetResponseB2C,
}


def refusal(method: int, code: int) -> bytes:
    """Return a serialized response with this error code."""
    answer: Any = ANSWERS[method](errCode=code, errMsg="scripted refusal")
    if method not in (rpc.BALANCED_REGISTER, rpc.BALANCED_HEARTBEAT, rpc.PARTITION_META):
        answer.success = False
    if method in (rpc.PRODUCER_REGISTER, rpc.PRODUCER_HEARTBEAT):
        answer.brokerCheckSum = -1
    if method == rpc.GET:
        answer.currOffset, answer.currDataDlt, answer.minLimitTime = -1, -1, 1
    return bytes(answer.SerializeToString())


class ModelConnection:
    """A client's connection to one server of the model."""

    local_host = "10.0.0.9"
    is_writable = True

    def __init__(self, model: Model, host: str, port: int) -> None:
        self.model, self.host, self.port, self.address = model, host, port, f"{host}:{port}"
        self.alive = self._broken = False
        self.number = 0
        self._waiting: list[Callable[[Any], None]] = []

    async def connect(self) -> None:
        await asyncio.sleep(0)
        if (self.host, self.port) in self.model.unreachable:
            raise ConnectionLost(f"{self.address} is unreachable")
        if not self.alive:
            self.alive = True
            self.number += 1

    def cut(self, error: Exception) -> None:
        """Close the connection: every pending request fails with this error."""
        self.alive = self._broken = False
        waiting, self._waiting = self._waiting, []
        for on_answer in waiting:
            on_answer(error)

    def post(self, service: int, method: int, body: bytes, on_answer: Callable[[Any], None]) -> None:
        if not self.alive:
            raise ConnectionLost(f"not connected to {self.address}")
        self._waiting.append(on_answer)
        if self._broken:  # requests sent after a lost one do not arrive
            return
        answer = self.model.answer(method, body)
        loop = asyncio.get_running_loop()
        if isinstance(answer, ConnectionLost):
            self._broken = True
            loop.call_soon(self.cut, answer)
        else:
            loop.call_soon(self._respond, on_answer, answer)

    def _respond(self, on_answer: Callable[[Any], None], answer: Any) -> None:
        if on_answer in self._waiting:
            self._waiting.remove(on_answer)
            on_answer(answer)

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        if not self.alive:
            await self.connect()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(answer: Any) -> None:
            if not future.done():
                future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)

        self.post(service, method, body, settle)
        return bytes(await future)

    async def call(self, service: int, method: int, body: Message, answer: type[Message]) -> Any:
        return rpc.parse(answer, await self.request(service, method, body.SerializeToString()))


EVERY_CODE = sorted(codes.CODES)
