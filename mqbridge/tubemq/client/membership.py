"""A consumer's membership in its group, with the Master's requests for it: register, heartbeat, leave.

The Master assigns partitions only by events in heartbeat responses. The consumer acknowledges an event by sending it back with
the status "done" and the list of all partitions that it now holds. The Master relies on that list only.
"""

import time
from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.bound_subscription import BoundSubscription
from mqbridge.tubemq.client.credentials import Role
from mqbridge.tubemq.client.group_member import UNSET, GroupMember
from mqbridge.tubemq.client.master import Masters, format_topics
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
"""opType of events: acquire partitions; release partitions; do nothing. Events of other types only have to be sent back."""


class Membership(GroupMember):
    """The requests of one consumer to the Master. All raise ClusterError; a refusal has the Master's error code."""

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
        """False once the Master has reported that the first assignment round of a bound group is complete."""
        self.first_round: int | None = None
        """rebalanceId of the event that assigns the partitions listed by the members of a bound group."""
        self._joined_ms = time.time_ns() // 1_000_000

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group, or rejoin it with the partitions that are already `held`."""
        request = RegisterRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            topicList=self.topics,
            subscribeInfo=self._format_held(held),
            topicCondition=self.conditions(),
            requireBound=self.bound is not None,
            sessionTime=self._joined_ms,
            defFlowCheckId=UNSET,
            groupFlowCheckId=UNSET,
            qryPriorityId=self.priority,
            authInfo=await self.masters.auth_info(),
        )
        if self.bound is not None:
            self._bind(request, self.bound)
        response = await self.masters.call(rpc.CONSUMER_REGISTER, request, RegisterResponseM2C)
        action = f"joining group {self.group} for {format_topics(self.topics)}"
        self.masters.raise_if_refused(action, response, Role.CONSUMER, is_success=response.success)
        self._apply_response(response)

    async def heartbeat(self, held: Sequence[PartitionRef] | None, done: EventProto | None) -> EventProto | None:
        """Send a heartbeat and return the Master's next event, if any.

        The heartbeat reports the `held` partitions and acknowledges the event `done`, unless they are None.
        """
        request = HeartRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            subscribeInfo=self._format_held(held or ()),
            reportSubscribeInfo=held is not None,
            event=done,
            defFlowCheckId=self.flow.default_id,
            groupFlowCheckId=self.flow.group_id,
            qryPriorityId=self.priority,
            authInfo=await self.masters.auth_info(),
        )
        response = await self.masters.call(rpc.CONSUMER_HEARTBEAT, request, HeartResponseM2C)
        self.masters.raise_if_refused(f"a heartbeat of group {self.group}", response, Role.CONSUMER, is_success=response.success)
        was_unallocated = self.unallocated
        self._apply_response(response)
        if not response.HasField("event") or response.event.rebalanceId <= 0:
            return None
        # The first acknowledgement by any member ends the first round for all members. So the event that assigns our partitions
        # may arrive in the same response that reports the end of the round.
        if was_unallocated and self.first_round is None and response.event.opType in CONNECT_OPS:
            self.first_round = response.event.rebalanceId
        return response.event

    async def leave(self) -> None:
        """Leave the group: unregister at the Master."""
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=await self.masters.auth_info())
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)

    def _bind(self, request: RegisterRequestC2M, bound: BoundSubscription) -> None:
        request.sessionKey = bound.session_key
        request.totalCount = bound.source_count
        request.selectBig = bound.select_big
        request.requiredPartition = format_start_offsets(bound.offsets)
        request.notAllocated = self.unallocated

    def _format_held(self, held: Sequence[PartitionRef]) -> list[str]:
        return [format_subscription(self.client_id, self.group, ref) for ref in held]

    def _apply_response(self, response: RegisterResponseM2C | HeartResponseM2C) -> None:
        if response.HasField("authorizedInfo"):
            self.store_tokens(response.authorizedInfo)
        default = (response.defFlowCheckId if response.HasField("defFlowCheckId") else UNSET, response.defFlowControlInfo)
        group = (response.groupFlowCheckId if response.HasField("groupFlowCheckId") else UNSET, response.groupFlowControlInfo)
        self.flow.apply_rules(default, group)
        if response.HasField("qryPriorityId"):
            self.apply_priority(response.qryPriorityId)
        if response.HasField("notAllocated") and not response.notAllocated:
            self.unallocated = False
