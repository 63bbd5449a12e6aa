"""Scripted servers: conversations run without sockets, and every response can be lost."""

import asyncio
from collections import deque
from typing import Any

from mqbridge.tubemq.client.connection.credentials import Credentials, Role
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as broker
from mqbridge.tubemq.wire.pb import master_pb2 as master
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, RegisterResponseB2C, TransferedMessage
from mqbridge.tubemq.wire.string_formats import DEFAULT_BROKER_PORT, Broker, PartitionRef

REQUESTS = {
    rpc.PRODUCER_REGISTER: master.RegisterRequestP2M,
    rpc.PRODUCER_HEARTBEAT: master.HeartRequestP2M,
    rpc.PRODUCER_CLOSE: master.CloseRequestP2M,
    rpc.SEND: broker.SendMessageRequestP2B,
    rpc.PARTITION_REGISTER: broker.RegisterRequestC2B,
    rpc.PARTITION_HEARTBEAT: broker.HeartBeatRequestC2B,
    rpc.GET: broker.GetMessageRequestC2B,
    rpc.COMMIT: broker.CommitOffsetRequestC2B,
    rpc.CONSUMER_REGISTER: master.RegisterRequestC2M,
    rpc.CONSUMER_HEARTBEAT: master.HeartRequestC2M,
    rpc.CONSUMER_CLOSE: master.CloseRequestC2M,
    rpc.BALANCED_REGISTER: master.RegisterRequestC2MV2,
    rpc.BALANCED_HEARTBEAT: master.HeartRequestC2MV2,
    rpc.PARTITION_META: master.GetPartMetaRequestC2M,
}
REF = PartitionRef(Broker(1, "10.0.0.5", 8123), "demo", 0)


class Script:
    """One server that gives its responses in order, to any request; when none is left, it stays silent and sets `silent`."""

    number = 1

    def __init__(self, *responses: Any) -> None:
        self.requests: list[Any] = []
        self.responses = deque(responses)
        self.silent = asyncio.Event()
        self.visit_token = 77
        self.connections = self

    def connection_to(self, host: str, port: int, partition: str = "") -> "Script":
        return self

    async def connect(self) -> None:
        """Do nothing: the script is a connection itself."""

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        self.requests.append(REQUESTS[method].FromString(body))
        if not self.responses:
            self.silent.set()
            await asyncio.Event().wait()
        response = self.responses.popleft()
        if callable(response):
            response = await response()
        if isinstance(response, Exception):
            raise response
        return bytes(response.SerializeToString())

    async def call(self, service: int, method: int, body: Any, answer: Any) -> Any:
        return answer.FromString(await self.request(service, method, body.SerializeToString()))

    def respond_with(self, *responses: Any) -> None:
        """Append responses; an exception is raised, a function is awaited for the response."""
        self.responses.extend(responses)


class WithoutCredentials:
    """The part of `Masters` that handles credentials, for a client without any."""

    broker_port = DEFAULT_BROKER_PORT

    async def auth_info(self) -> None:
        return None

    def raise_if_refused(self, request: str, response: Any, role: Role, *, is_success: bool) -> None:
        if not is_success:
            raise Credentials().refusal_error(request, response.errCode, response.errMsg, role)


class MasterScript(WithoutCredentials, Script):
    """A scripted Master, with the interface of `Masters`."""

    async def call(self, method: int, request: Any, answer: Any) -> Any:  # type: ignore[override]
        return answer.FromString(await self.request(rpc.MASTER, method, request.SerializeToString()))

    async def local_host(self) -> str:
        return "10.0.0.9"

    def store_tokens(self, info: Any) -> None:
        self.visit_token = info.visitAuthorizedToken

    @property
    def broker_auth(self) -> broker.AuthorizedInfo:
        return broker.AuthorizedInfo(visitAuthorizedToken=self.visit_token)


class Context:
    """The PartitionContext of a scripted Broker."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.membership = MemberIdentity(MasterScript(), "g1", ["demo"], {})  # type: ignore[arg-type]
        self.membership.client_id = "c1"
        self.budget = ReadBudget(4 * GET_BYTES)
        self.master_seen_at = asyncio.get_running_loop().time()
        self.ended: list[HeldPartition] = []

    def connection_for(self, ref: PartitionRef) -> Any:
        return self.script

    def partition_ended(self, partition: HeldPartition) -> None:
        self.ended.append(partition)


def registered(offset: int = 0) -> RegisterResponseB2C:
    return RegisterResponseB2C(success=True, errCode=200, errMsg="OK", currOffset=offset, maxOffset=10_000)


def unregistered() -> RegisterResponseB2C:
    return RegisterResponseB2C(success=True, errCode=200, errMsg="OK")


def pack(offset: int, count: int = 2, lag: int = 0) -> GetMessageResponseB2C:
    messages = [TransferedMessage(messageId=n, checkSum=0, payLoadData=b"m%d" % n, flag=0) for n in range(count)]
    return GetMessageResponseB2C(
        success=True, errCode=200, errMsg="OK", messages=messages, currOffset=offset, maxOffset=10_000, currDataDlt=lag
    )


def refused(code: int, limit_ms: int = 0) -> GetMessageResponseB2C:
    return GetMessageResponseB2C(success=False, errCode=code, errMsg="no", currOffset=-1, currDataDlt=-1, minLimitTime=limit_ms)


def committed(offset: int) -> broker.CommitOffsetResponseB2C:
    return broker.CommitOffsetResponseB2C(success=True, errCode=200, errMsg="OK", currOffset=offset, maxOffset=10_000)


def refused_commit(code: int) -> broker.CommitOffsetResponseB2C:
    return broker.CommitOffsetResponseB2C(success=False, errCode=code, errMsg="no")
