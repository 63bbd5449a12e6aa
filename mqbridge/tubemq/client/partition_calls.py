"""The four RPC calls for one partition: register, get, commit, unregister.

`partition_reader`, `partition_commits` and `partition_registration` interpret the responses.
"""

import logging
from collections.abc import Sequence

from mqbridge.errors import ClusterError, ProtocolError, ServerRefused, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.get_response import parse_get_response
from mqbridge.tubemq.client.group_member import MemberIdentity
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from mqbridge.tubemq.wire.stored_message import StoredMessage
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)


class PartitionCalls:
    """The calls of one group member for one partition. All raise ClusterError if there is no response."""

    def __init__(self, member: MemberIdentity, ref: PartitionRef, connection: ServerConnection) -> None:
        self._member, self._ref, self._connection = member, ref, connection
        # One object for all get requests, built once per partition and not once per pack: only two fields change.
        self._get = GetMessageRequestC2B(
            clientId=member.client_id,
            groupName=member.group,
            topicName=ref.topic,
            partitionId=ref.partition,
            manualCommitOffset=False,
        )

    @property
    def client_id(self) -> str:
        """The client id at this partition's Broker: the member's, or a fresh one that no earlier request carries."""
        return self._get.clientId

    @client_id.setter
    def client_id(self, value: str) -> None:
        self._get.clientId = value

    def __str__(self) -> str:
        return f"{self._ref.topic} {self._ref.name} of group {self._member.group}"

    async def register(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Register, at `offset` unless it is None. Raises ServerRefused (410: another consumer holds the partition)."""
        request = self._registration(rpc.OP_REGISTER, read_status)
        if offset is not None:
            request.currOffset = offset
        answer = await self._connection.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)
        if not answer.success:
            raise codes.refusal_error(f"registering {self}", answer.errCode, answer.errMsg)
        return answer

    async def unregister(self, *, consumed: bool) -> RegisterResponseB2C:
        """Unregister; `consumed` tells the Broker whether the last pack was consumed."""
        request = self._registration(rpc.OP_UNREGISTER, 0 if consumed else 1)
        return await self._connection.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)

    async def try_unregister(self, *, consumed: bool) -> bool:
        """Like `unregister`, but log failures: a lease that is not renewed expires.

        Returns False if the request was abandoned and may still arrive at the Broker.
        """
        try:
            await self.unregister(consumed=consumed)
        except (ClusterError, ProtocolError) as error:
            message = "%s could not be unregistered; its Broker will let the lease expire: %s"
            log.log(level_of(error, logging.INFO), message, self, error)
            return isinstance(error, (ServerRefused, Unreachable))
        return True

    async def get(self, *, consumed: bool) -> tuple[GetMessageResponseB2C, Sequence[StoredMessage], int]:
        """Get a pack; `consumed` confirms the previous one. Return the response, its messages and its size in bytes."""
        request = self._get
        request.lastPackConsumed = consumed
        request.escFlowCtrl = self._member.flow.has_group_rules
        data = await self._connection.request(rpc.READ, rpc.GET, request.SerializeToString())
        return *parse_get_response(data), len(data)

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack, or have it delivered again. Return the next offset to read. Raises ServerRefused."""
        request = CommitOffsetRequestC2B(
            clientId=self._get.clientId,
            groupName=self._get.groupName,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            lastPackConsumed=consumed,
        )
        answer = await self._connection.call(rpc.READ, rpc.COMMIT, request, CommitOffsetResponseB2C)
        if not answer.success:
            raise codes.refusal_error(f"a commit for {self}", answer.errCode, answer.errMsg)
        return answer.currOffset

    def _registration(self, operation: int, read_status: int) -> RegisterRequestC2B:
        member = self._member
        return RegisterRequestC2B(
            opType=operation,
            clientId=self._get.clientId,
            groupName=member.group,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            readStatus=read_status,
            filterCondStr=member.filter_types(self._ref.topic),
            qryPriorityId=member.priority,
            authInfo=member.masters.broker_auth,
        )
