"""The four calls about one partition: take it, read it, commit what was read, give it back.

Nothing is remembered here; what the answers mean is the business of `mqbridge.tubemq.client.partition`.
"""

from collections.abc import Sequence

from mqbridge.tubemq.client.membership import Membership
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from mqbridge.tubemq.wire.text import PartitionRef


class PartitionCalls:
    """The calls of one member of a group about one partition. Each raises ClusterError when no answer comes."""

    def __init__(self, membership: Membership, ref: PartitionRef, types: Sequence[str], session: Session) -> None:
        self._membership, self._ref, self._types, self._session = membership, ref, types, session
        # One object for all gets: two fields change, and it is built once per partition instead of once per pack.
        self._get = GetMessageRequestC2B(
            clientId=membership.client_id,
            groupName=membership.group,
            topicName=ref.topic,
            partitionId=ref.partition,
            manualCommitOffset=False,
        )

    async def take(self, read_status: int, offset: int) -> RegisterResponseB2C:
        """Register; from `offset` when it is not negative."""
        request = self._registration(rpc.TAKE, read_status)
        if offset >= 0:
            request.currOffset = offset
        return await self._session.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)

    async def give_back(self, *, consumed: bool) -> RegisterResponseB2C:
        """Unregister, saying whether the last pack was consumed."""
        request = self._registration(rpc.GIVE_BACK, 0 if consumed else 1)
        return await self._session.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)

    async def get(self, *, consumed: bool) -> tuple[GetMessageResponseB2C, int]:
        """Read; `consumed` confirms the pack before. The answer and its bytes."""
        request = self._get
        request.lastPackConsumed = consumed
        request.escFlowCtrl = self._membership.flow.group_in_force
        data = await self._session.request(rpc.READ, rpc.GET, request.SerializeToString())
        return rpc.parse(GetMessageResponseB2C, data), len(data)

    async def commit(self, *, consumed: bool) -> CommitOffsetResponseB2C:
        """Confirm the last pack, or give it back to be read again."""
        request = CommitOffsetRequestC2B(
            clientId=self._get.clientId,
            groupName=self._get.groupName,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            lastPackConsumed=consumed,
        )
        return await self._session.call(rpc.READ, rpc.COMMIT, request, CommitOffsetResponseB2C)

    def _registration(self, operation: int, read_status: int) -> RegisterRequestC2B:
        membership = self._membership
        return RegisterRequestC2B(
            opType=operation,
            clientId=membership.client_id,
            groupName=membership.group,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            readStatus=read_status,
            filterCondStr=self._types,
            qryPriorityId=membership.priority,
            authInfo=membership.masters.authorized(),
        )
