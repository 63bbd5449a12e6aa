"""A consumer's membership in its group, as the Master sees it: register, heartbeat, leave.

The Master hands partitions out only by events in the answers to heartbeats. An event is answered by repeating it, marked as done,
with all that the consumer then holds; the Master believes that list and nothing else.
"""

import time
from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.flow import FlowControl
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    CloseRequestC2M,
    CloseResponseM2C,
    EventProto,
    HeartRequestC2M,
    HeartResponseM2C,
    RegisterRequestC2M,
    RegisterResponseM2C,
)
from mqbridge.tubemq.wire.text import PartitionRef, format_condition, format_subscription

DONE = 2
"""EventProto.status of an event that was carried out."""
UNSET = -2


class Membership:
    """What one consumer tells the Master. Errors are ClusterError; refusals carry the Master's code."""

    def __init__(self, masters: Masters, group: str, topics: Sequence[str], filters: Mapping[str, frozenset[str]]) -> None:
        self.masters = masters
        self.group = group
        self.client_id = ""
        self.host = ""
        self.flow = FlowControl()
        self.priority = UNSET
        """qryPriorityId: which of a Broker's stores the group may read."""
        self._topics = list(topics)
        self._filters = filters
        self._joined_ms = time.time_ns() // 1_000_000

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join, holding `held` already when this is not the first time."""
        request = RegisterRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            topicList=self._topics,
            subscribeInfo=self._report(held),
            topicCondition=[format_condition(topic, types) for topic, types in sorted(self._filters.items()) if types],
            requireBound=False,
            sessionTime=self._joined_ms,
            defFlowCheckId=UNSET,
            groupFlowCheckId=UNSET,
            qryPriorityId=self.priority,
        )
        answer = await self.masters.call(rpc.CONSUMER_REGISTER, request, RegisterResponseM2C)
        if not answer.success:
            topics = ", ".join(self._topics)
            raise codes.refused(f"joining group {self.group} for {topics}", answer.errCode, answer.errMsg)
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
        )
        answer = await self.masters.call(rpc.CONSUMER_HEARTBEAT, request, HeartResponseM2C)
        if not answer.success:
            raise codes.refused(f"a heartbeat of group {self.group}", answer.errCode, answer.errMsg)
        self._learn(answer)
        return answer.event if answer.HasField("event") and answer.event.rebalanceId > 0 else None

    async def leave(self) -> None:
        """Tell the Master that this consumer goes."""
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group)
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)

    def _report(self, held: Sequence[PartitionRef]) -> list[str]:
        return [format_subscription(self.client_id, self.group, ref) for ref in held]

    def _learn(self, answer: RegisterResponseM2C | HeartResponseM2C) -> None:
        if answer.HasField("authorizedInfo"):
            self.masters.learn(answer.authorizedInfo)
        default = (answer.defFlowCheckId if answer.HasField("defFlowCheckId") else UNSET, answer.defFlowControlInfo)
        group = (answer.groupFlowCheckId if answer.HasField("groupFlowCheckId") else UNSET, answer.groupFlowControlInfo)
        self.flow.learn(default, group)
        if answer.HasField("qryPriorityId"):
            self.priority = answer.qryPriorityId
