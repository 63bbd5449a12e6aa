"""A consumer's membership in its group, with the requests to the Master for it: register, heartbeat, leave.

The Master assigns and revokes partitions only by events in its responses to heartbeats. The consumer acknowledges an event: it
sends the event back with the status EVENT_DONE and a list of all partitions that it now holds. The Master believes this list,
whatever the event said.

The members of a bound group start together, at offsets that they choose; a session key identifies the start. All members send the
same session key, `source_count` and `select_big`, and each sends a list of partitions with start offsets. The Master assigns no
partition before `source_count` members have joined. It assigns a listed partition to a member that listed it, and the partition
starts at the listed offset. Partitions that no member listed are spread over the members and start at the group's position.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mqbridge.tubemq.client.connection.credentials import Role
from mqbridge.tubemq.client.connection.master import Masters, format_topics
from mqbridge.tubemq.client.consumer.group_member import UNSET, GroupMember
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    EventProto,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2M,
    RegisterResponseM2C,
)
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef, format_start_offsets, format_subscription

EVENT_DONE = 2
"""EventProto.status of a completed event."""
CONNECT_OPS = (1, 10)
"""EventProto.opType of events that assign partitions: CONNECT and ONLY_CONNECT, which are handled alike."""
DISCONNECT_OPS = (2, 20)
"""EventProto.opType of events that revoke partitions: DISCONNECT and ONLY_DISCONNECT, which are handled alike."""
STOP_REBALANCE_OP = 5
"""EventProto.opType of an event that asks for nothing but its acknowledgement. Events of unlisted types are treated like it."""


class BoundSubscription(NamedTuple):
    """The parameters of one member of a bound group.

    `source_count` is the number of members; `offsets` are the start offsets of the partitions that this member lists. If several
    members list a partition, the largest of their offsets counts with `select_big=True`, the smallest with False.
    """

    session_key: str
    source_count: int
    offsets: Mapping[PartitionKey, int]
    select_big: bool = True


class Membership(GroupMember):
    """Sends the requests of one consumer to the Master. All raise ClusterError; ServerRefused has the Master's error code.

    `bound` makes the group a bound group; None for an ordinary one. `name` is that of `MemberIdentity`.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        priority: int | None = None,
        bound: BoundSubscription | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(masters, group, topics, filters, priority=priority, name=name)
        self.bound = bound
        self.is_first_round_open = True
        """True until the Master reports that the first assignment round of a bound group is complete (notAllocated). Without
        `bound` it has no meaning."""
        self.first_round_id: int | None = None
        """rebalanceId of the event that assigns partitions in the first round; None until it arrives.

        In a bound group, the partitions of this event are read from their offsets in `bound.offsets`.
        """
        self._created_ms = time.time_ns() // 1_000_000
        """Time of creation, in ms since the epoch; registrations contain it as sessionTime."""

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group, or rejoin it and report the partitions that are already `held`."""
        request = RegisterRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            topicList=self.topics,
            subscribeInfo=self._format_held(held),
            topicCondition=self.conditions(),
            requireBound=self.bound is not None,
            sessionTime=self._created_ms,
            defFlowCheckId=UNSET,  # the Master then sends the current flow control rules
            groupFlowCheckId=UNSET,
            qryPriorityId=self.priority,
            authInfo=await self.masters.auth_info(),
        )
        if self.bound is not None:
            self._add_bound_fields(request, self.bound)
        response = await self.masters.call(rpc.CONSUMER_REGISTER, request, RegisterResponseM2C)
        action = f"joining group {self.group} for {format_topics(self.topics)}"
        self.masters.raise_if_refused(action, response, Role.CONSUMER, is_success=response.success)
        self._apply_response(response)

    async def heartbeat(self, held: Sequence[PartitionRef] | None, completed: EventProto | None) -> EventProto | None:
        """Send a heartbeat and return the Master's next event, if any.

        The heartbeat reports the partitions `held`, unless `held` is None, and acknowledges the event `completed`, unless that is
        None.
        """
        request = HeartRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            subscribeInfo=self._format_held(held or ()),
            reportSubscribeInfo=held is not None,
            event=completed,
            defFlowCheckId=self.flow.default_id,
            groupFlowCheckId=self.flow.group_id,
            qryPriorityId=self.priority,
            authInfo=await self.masters.auth_info(),
        )
        response = await self.masters.call(rpc.CONSUMER_HEARTBEAT, request, HeartResponseM2C)
        self.masters.raise_if_refused(f"a heartbeat of group {self.group}", response, Role.CONSUMER, is_success=response.success)
        was_first_round_open = self.is_first_round_open
        self._apply_response(response)
        if not response.HasField("event") or response.event.rebalanceId <= 0:  # ids of events are positive
            return None
        # The first acknowledgement by any member ends the first round for all members. So the response that reports the end of
        # the round may also contain the event that assigns our partitions.
        if was_first_round_open and self.first_round_id is None and response.event.opType in CONNECT_OPS:
            self.first_round_id = response.event.rebalanceId
        return response.event

    def _add_bound_fields(self, request: RegisterRequestC2M, bound: BoundSubscription) -> None:
        request.sessionKey = bound.session_key
        request.totalCount = bound.source_count
        request.selectBig = bound.select_big
        request.requiredPartition = format_start_offsets(bound.offsets)
        request.notAllocated = self.is_first_round_open

    def _format_held(self, held: Sequence[PartitionRef]) -> list[str]:
        return [format_subscription(self.client_id, self.group, ref) for ref in held]

    def _apply_response(self, response: RegisterResponseM2C | HeartResponseM2C) -> None:
        """Apply the tokens, flow control rules, query priority and end of the first round that a response contains."""
        if response.HasField("authorizedInfo"):
            self.masters.store_tokens(response.authorizedInfo)
        default = (response.defFlowCheckId if response.HasField("defFlowCheckId") else UNSET, response.defFlowControlInfo)
        group = (response.groupFlowCheckId if response.HasField("groupFlowCheckId") else UNSET, response.groupFlowControlInfo)
        self.flow.apply_rules(default, group)
        if response.HasField("qryPriorityId"):
            self.apply_priority(response.qryPriorityId)
        if response.HasField("notAllocated") and not response.notAllocated:
            self.is_first_round_open = False
