"""A consumer's membership in its group, as the Master sees it: register, heartbeat, leave.

The Master hands partitions out only by events in the answers to heartbeats. An event is answered by repeating it, marked as done,
with all that the consumer then holds; the Master believes that list and nothing else.
"""

import time
from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.bound import Bound
from mqbridge.tubemq.client.credentials import Role
from mqbridge.tubemq.client.master import Masters, shown
from mqbridge.tubemq.client.member import UNSET, Member
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    CloseRequestC2M,
    CloseResponseM2C,
    EventProto,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2M,
    RegisterResponseM2C,
)
from mqbridge.tubemq.wire.text import PartitionRef, format_required, format_subscription

DONE = 2
"""EventProto.status of an event that was carried out."""
CONNECTS, DISCONNECTS, STOP = (1, 10), (2, 20), 5
"""opType of events: take partitions, give them back, nothing; the others ask for nothing but an echo."""


class Membership(Member):
    """What one consumer tells the Master. Errors are ClusterError; refusals carry the Master's code."""

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        priority: int | None = None,
        bound: Bound | None = None,
    ) -> None:
        super().__init__(masters, group, topics, filters, priority=priority)
        self.bound = bound
        self.unallocated = True
        """The Master has not yet said that a bound group's first round is over."""
        self.first_round: int | None = None
        """rebalanceId of the event that hands out what a bound group's members listed."""
        self._joined_ms = time.time_ns() // 1_000_000

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join, holding `held` already when this is not the first time."""
        request = RegisterRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            topicList=self.topics,
            subscribeInfo=self._report(held),
            topicCondition=self.conditions(),
            requireBound=self.bound is not None,
            sessionTime=self._joined_ms,
            defFlowCheckId=UNSET,
            groupFlowCheckId=UNSET,
            qryPriorityId=self.priority,
            authInfo=await self.masters.certificate(),
        )
        if self.bound is not None:
            self._bind(request, self.bound)
        answer = await self.masters.call(rpc.CONSUMER_REGISTER, request, RegisterResponseM2C)
        what = f"joining group {self.group} for {shown(self.topics)}"
        self.masters.check(what, answer, Role.CONSUMER, is_good=answer.success)
        self._learn(answer)

    async def heartbeat(self, held: Sequence[PartitionRef] | None, done: EventProto | None) -> EventProto | None:
        """Say that we live; with `held`, report it, and with `done`, that this event was carried out. Returns the next event."""
        request = HeartRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            subscribeInfo=self._report(held or ()),
            reportSubscribeInfo=held is not None,
            event=done,
            defFlowCheckId=self.flow.default_id,
            groupFlowCheckId=self.flow.group_id,
            qryPriorityId=self.priority,
            authInfo=await self.masters.certificate(),
        )
        answer = await self.masters.call(rpc.CONSUMER_HEARTBEAT, request, HeartResponseM2C)
        self.masters.check(f"a heartbeat of group {self.group}", answer, Role.CONSUMER, is_good=answer.success)
        was_unallocated = self.unallocated
        self._learn(answer)
        if not answer.HasField("event") or answer.event.rebalanceId <= 0:
            return None
        # The echo of any member ends the first round for all: ours may come with the answer that says so.
        if was_unallocated and self.first_round is None and answer.event.opType in CONNECTS:
            self.first_round = answer.event.rebalanceId
        return answer.event

    async def leave(self) -> None:
        """Tell the Master that this consumer goes."""
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=await self.masters.certificate())
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)

    def _bind(self, request: RegisterRequestC2M, bound: Bound) -> None:
        request.sessionKey = bound.session_key
        request.totalCount = bound.source_count
        request.selectBig = bound.select_big
        request.requiredPartition = format_required(bound.offsets)
        request.notAllocated = self.unallocated

    def _report(self, held: Sequence[PartitionRef]) -> list[str]:
        return [format_subscription(self.client_id, self.group, ref) for ref in held]

    def _learn(self, answer: RegisterResponseM2C | HeartResponseM2C) -> None:
        if answer.HasField("authorizedInfo"):
            self.learn_token(answer.authorizedInfo)
        default = (answer.defFlowCheckId if answer.HasField("defFlowCheckId") else UNSET, answer.defFlowControlInfo)
        group = (answer.groupFlowCheckId if answer.HasField("groupFlowCheckId") else UNSET, answer.groupFlowControlInfo)
        self.flow.learn(default, group)
        if answer.HasField("qryPriorityId"):
            self.learn_priority(answer.qryPriorityId)
        if answer.HasField("notAllocated") and not answer.notAllocated:
            self.unallocated = False
