"""What a member that balances itself tells the Master: methods 20 to 22, beside those of `membership`.

The Master hands out nothing here. It says which Brokers and partitions there are, each under a number that changes with the list,
and is told what the member took. These answers have no `success`: 200 is good.
"""

from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.credentials import Role
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.member import UNSET, Member
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    ClientSubRepInfo,
    CloseRequestC2M,
    CloseResponseM2C,
    GetPartMetaRequestC2M,
    GetPartMetaResponseM2C,
    HeartRequestC2MV2,
    HeartResponseM2CV2,
    OpsTaskInfo,
    RegisterRequestC2MV2,
    RegisterResponseM2CV2,
)
from mqbridge.tubemq.wire.text import (
    Broker,
    Key,
    PartitionRef,
    format_holding,
    parse_broker,
    parse_topic_meta,
    partition_ids,
)

Answer = RegisterResponseM2CV2 | HeartResponseM2CV2 | GetPartMetaResponseM2C


class BalancedMembership(Member):
    """Errors are ClusterError; refusals carry the Master's code."""

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Mapping[str, frozenset[str]],
        *,
        node: tuple[int, int] | None = None,
        priority: int | None = None,
    ) -> None:
        super().__init__(masters, group, topics, filters, priority=priority)
        self.skip_id = UNSET
        """An administrator's order to go on at the end of everything: a number that grows with each order."""
        self._node_id, self._source_count = node or (UNSET, UNSET)
        self._brokers: dict[int, Broker] = {}
        self._brokers_id = UNSET
        self._open: dict[Key, bool] = {}
        self._topics_id = UNSET

    @property
    def partitions(self) -> dict[PartitionRef, bool]:
        """Every partition of the topics, as the Master last said, and whether it may be read; sorted by topic and place."""
        known = sorted(self._open.items(), key=lambda item: (item[0].topic, item[0].broker, item[0].partition))
        return {
            PartitionRef(self._brokers[key.broker], key.topic, key.partition): is_open
            for key, is_open in known
            if key.broker in self._brokers
        }

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join, holding `held` already when this is not the first time."""
        request = RegisterRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            sourceCount=self._source_count,
            nodeId=self._node_id,
            topicList=self.topics,
            topicCondition=self.conditions(),
            subRepInfo=self._report(held or None),
            opsTaskInfo=self._ops(),
            authInfo=await self.masters.certificate(),
        )
        answer = await self.masters.call(rpc.BALANCED_REGISTER, request, RegisterResponseM2CV2)
        self._checked(f"joining group {self.group} for {', '.join(self.topics)}", answer)
        self._learn(answer)

    async def heartbeat(self, held: Sequence[PartitionRef] | None) -> None:
        """Say that we live, and with `held` what we hold."""
        request = HeartRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            subRepInfo=self._report(held),
            opsTaskInfo=self._ops(),
            authInfo=await self.masters.certificate(),
        )
        answer = await self.masters.call(rpc.BALANCED_HEARTBEAT, request, HeartResponseM2CV2)
        self._checked(f"a heartbeat of group {self.group}", answer)
        self._learn(answer)

    async def look(self) -> None:
        """Ask which partitions there are."""
        request = GetPartMetaRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            brokerConfigId=self._brokers_id,
            topicMetaInfoId=self._topics_id,
            authInfo=await self.masters.certificate(),
        )
        answer = await self.masters.call(rpc.PARTITION_META, request, GetPartMetaResponseM2C)
        self._checked(f"asking for the partitions of group {self.group}", answer)
        self._learn_places(answer)

    async def leave(self) -> None:
        """Tell the Master that this consumer goes."""
        request = CloseRequestC2M(clientId=self.client_id, groupName=self.group, authInfo=await self.masters.certificate())
        await self.masters.call(rpc.CONSUMER_CLOSE, request, CloseResponseM2C)

    def _checked(self, what: str, answer: Answer) -> None:
        self.masters.check(what, answer, Role.CONSUMER, is_good=answer.errCode == codes.SUCCESS)

    def _report(self, held: Sequence[PartitionRef] | None) -> ClientSubRepInfo:
        topics: dict[str, list[PartitionRef]] = {}
        for ref in held or ():
            topics.setdefault(ref.topic, []).append(ref)
        return ClientSubRepInfo(
            brokerConfigId=self._brokers_id,
            topicMetaInfoId=self._topics_id,
            reportSubInfo=held is not None,
            partSubInfo=[format_holding(topic, refs) for topic, refs in sorted(topics.items())],
        )

    def _ops(self) -> OpsTaskInfo:
        return OpsTaskInfo(
            groupFlowCheckId=self.flow.group_id,
            defFlowCheckId=self.flow.default_id,
            qryPriorityId=self.priority,
            csmFrmMaxOffsetCtrlId=self.skip_id,
        )

    def _learn(self, answer: RegisterResponseM2CV2 | HeartResponseM2CV2) -> None:
        if answer.HasField("authorizedInfo"):
            self.learn_token(answer.authorizedInfo)
        ops = answer.opsTaskInfo
        default = (ops.defFlowCheckId if ops.HasField("defFlowCheckId") else UNSET, ops.defFlowControlInfo)
        group = (ops.groupFlowCheckId if ops.HasField("groupFlowCheckId") else UNSET, ops.groupFlowControlInfo)
        self.flow.learn(default, group)
        if ops.HasField("qryPriorityId"):
            self.learn_priority(ops.qryPriorityId)
        if ops.HasField("csmFrmMaxOffsetCtrlId"):
            self.skip_id = max(self.skip_id, ops.csmFrmMaxOffsetCtrlId)
        self._learn_places(answer)

    def _learn_places(self, answer: Answer) -> None:
        """Brokers first: partitions are read with them. A list that did not change is not sent again."""
        if answer.brokerConfigList:
            brokers = [parse_broker(text, self.masters.broker_port) for text in answer.brokerConfigList]
            self._brokers = {broker.id: broker for broker in brokers}
        if answer.HasField("brokerConfigId"):
            self._brokers_id = answer.brokerConfigId
        if isinstance(answer, RegisterResponseM2CV2) or not answer.topicMetaInfoList:
            return
        self._topics_id = answer.topicMetaInfoId
        self._open = {
            Key(broker, meta.topic, partition): is_open
            for meta in map(parse_topic_meta, answer.topicMetaInfoList)
            for broker, stores, partitions, is_open in meta.deployments
            for partition in partition_ids(partitions, stores)
        }
