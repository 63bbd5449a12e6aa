"""A consumer's membership in its group at the Master: register, heartbeat, leave.

The Master assigns partitions only by events in the responses to heartbeats. The consumer acknowledges an event by sending it
back, marked as done, with the list of all partitions it then holds; the Master relies on that list alone.
"""

import time
from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.bound_subscription import BoundSubscription
from mqbridge.tubemq.client.credentials import Role
from mqbridge.tubemq.client.group_member import UNSET, GroupMember
from mqbridge.tubemq.client.master import Masters, topics_text
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
from mqbridge.tubemq.wire.string_formats import PartitionRef, format_start_offsets, format_subscription

DONE = 2
"""EventProto.status of a completed event."""
CONNECT_OPS, DISCONNECT_OPS, STOP = (1, 10), (2, 20), 5
"""opType of events: acquire partitions, release them, nothing; other types only need an echo."""


class Membership(GroupMember):
    """The requests of one consumer to the Master. Errors are ClusterError; refusals carry the Master's code."""

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        priority: int | None = None,
        bound: BoundSubscription | None = None,
    ) -> None:
        super().__init__(masters, group, topics, filters, priority=priority)
        self.bound = bound
        self.unallocated = True
        """False once the Master has reported that a bound group's first round is over."""
        self.first_round: int | None = None
        """rebalanceId of the event that assigns the partitions that a bound group's members listed."""
        self._joined_ms = time.time_ns() // 1_000_000

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group; `held` are the partitions already held if this is not the first time."""
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
        response = await self.masters.call(rpc.CONSUMER_REGISTER, request, RegisterResponseM2C)
        action = f"joining group {self.group} for {topics_text(self.topics)}"
        self.masters.check(action, response, Role.CONSUMER, is_success=response.success)
        self._learn(response)

    async def heartbeat(self, held: Sequence[PartitionRef] | None, done: EventProto | None) -> EventProto | None:
        """Send a heartbeat, which reports `held` and acknowledges the event `done` if given. Return the next event."""
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
        response = await self.masters.call(rpc.CONSUMER_HEARTBEAT, request, HeartResponseM2C)
        self.masters.check(f"a heartbeat of group {self.group}", response, Role.CONSUMER, is_success=response.success)
        was_unallocated = self.unallocated
        self._learn(response)
        if not response.HasField("event") or response.event.rebalanceId <= 0:
            return None
        # The echo of any member ends the first round for all: our event may come with the response that reports its end.
        if was_unallocated and self.first_round is None and response.event.opType in CONNECT_OPS:
            self.first_round = response.event.rebalanceId
        return response.event

    async def leave(self) -> None:
        """Tell the Master that this consumer leaves."""
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=await self.masters.certificate())
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)

    def _bind(self, request: RegisterRequestC2M, bound: BoundSubscription) -> None:
        request.sessionKey = bound.session_key
        request.totalCount = bound.source_count
        request.selectBig = bound.select_big
        request.requiredPartition = format_start_offsets(bound.offsets)
        request.notAllocated = self.unallocated

    def _report(self, held: Sequence[PartitionRef]) -> list[str]:
        return [format_subscription(self.client_id, self.group, ref) for ref in held]

    def _learn(self, response: RegisterResponseM2C | HeartResponseM2C) -> None:
        if response.HasField("authorizedInfo"):
            self.learn_token(response.authorizedInfo)
        default = (response.defFlowCheckId if response.HasField("defFlowCheckId") else UNSET, response.defFlowControlInfo)
        group = (response.groupFlowCheckId if response.HasField("groupFlowCheckId") else UNSET, response.groupFlowControlInfo)
        self.flow.learn(default, group)
        if response.HasField("qryPriorityId"):
            self.learn_priority(response.qryPriorityId)
        if response.HasField("notAllocated") and not response.notAllocated:
            self.unallocated = False
