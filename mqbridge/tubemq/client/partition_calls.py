"""The four calls about one partition: take it, read it, commit what was read, give it back.

What the answers mean is the business of `partition_reader`, `partition_commits` and `partition_registration`.
"""

import logging
from collections.abc import Sequence

from mqbridge.errors import ClusterError, ProtocolError, ServerRefused, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.answers import parse_answer
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pack import Transfered
from mqbridge.tubemq.wire.pb.broker_pb2 import (
    CommitOffsetRequestC2B,
    CommitOffsetResponseB2C,
    GetMessageRequestC2B,
    GetMessageResponseB2C,
    RegisterRequestC2B,
    RegisterResponseB2C,
)
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)


class PartitionCalls:
    """The calls of one member of a group about one partition. Each raises ClusterError when no answer comes."""

    def __init__(self, member: Member, ref: PartitionRef, session: Session) -> None:
        self._member, self._ref, self._session = member, ref, session
        # One object for all gets: two fields change, and it is built once per partition instead of once per pack.
        self._get = GetMessageRequestC2B(
            clientId=member.client_id,
            groupName=member.group,
            topicName=ref.topic,
            partitionId=ref.partition,
            manualCommitOffset=False,
        )

    @property
    def client_id(self) -> str:
        """Under which the Broker knows us here: the member's, or another that no earlier request of ours carries."""
        return self._get.clientId

    @client_id.setter
    def client_id(self, value: str) -> None:
        self._get.clientId = value

    def __str__(self) -> str:
        return f"{self._ref.topic} {self._ref.name} of group {self._member.group}"

    async def take(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Register, from `offset` when there is one. Raises ServerRefused (410: another consumer has it)."""
        request = self._registration(rpc.TAKE, read_status)
        if offset is not None:
            request.currOffset = offset
        answer = await self._session.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)
        if not answer.success:
            raise codes.refused(f"taking {self}", answer.errCode, answer.errMsg)
        return answer

    async def give_back(self, *, consumed: bool) -> RegisterResponseB2C:
        """Unregister, saying whether the last pack was consumed."""
        request = self._registration(rpc.GIVE_BACK, 0 if consumed else 1)
        return await self._session.call(rpc.READ, rpc.PARTITION_REGISTER, request, RegisterResponseB2C)

    async def try_give_back(self, *, consumed: bool) -> bool:
        """`give_back`, and a failure is logged: the lease of a partition that nobody keeps ends by itself.

        False when it was given up, so that it may still arrive.
        """
        try:
            await self.give_back(consumed=consumed)
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "%s could not be given back, its Broker will notice: %s", self, error)
            return isinstance(error, (ServerRefused, Unreachable))
        return True

    async def get(self, *, consumed: bool) -> tuple[GetMessageResponseB2C, Sequence[Transfered], int]:
        """Read; `consumed` confirms the pack before. The answer, its messages and its bytes."""
        request = self._get
        request.lastPackConsumed = consumed
        request.escFlowCtrl = self._member.flow.group_in_force
        data = await self._session.request(rpc.READ, rpc.GET, request.SerializeToString())
        return *parse_answer(data), len(data)

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack, or give it back to be read again. Returns where reading goes on. Raises ServerRefused."""
        request = CommitOffsetRequestC2B(
            clientId=self._get.clientId,
            groupName=self._get.groupName,
            topicName=self._ref.topic,
            partitionId=self._ref.partition,
            lastPackConsumed=consumed,
        )
        answer = await self._session.call(rpc.READ, rpc.COMMIT, request, CommitOffsetResponseB2C)
        if not answer.success:
            raise codes.refused(f"a commit for {self}", answer.errCode, answer.errMsg)
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
            filterCondStr=member.types_of(self._ref.topic),
            qryPriorityId=member.priority,
            authInfo=member.masters.authorized,
        )
