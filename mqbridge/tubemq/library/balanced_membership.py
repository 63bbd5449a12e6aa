"""Membership, at the Master, of a group whose members choose their partitions: RPC methods 20 to 22.

The Master assigns no partitions. It sends a list of Brokers and a list of partitions; each list has an id that changes with its
content. The member reports the partitions that it has acquired. The responses have no field `success`: errCode 200 is success.
"""

from collections.abc import Mapping, Sequence

from mqbridge.tubemq.client.connection.credentials import Role
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.group_member import UNSET, GroupMember
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    ClientSubRepInfo,
    GetPartMetaRequestC2M,
    GetPartMetaResponseM2C,
    HeartRequestC2MV2,
    HeartResponseM2CV2,
    OpsTaskInfo,
    RegisterRequestC2MV2,
    RegisterResponseM2CV2,
)
from mqbridge.tubemq.wire.string_formats import (
    Broker,
    PartitionKey,
    PartitionRef,
    format_held_partitions,
    parse_broker,
    parse_topic_meta,
    partition_ids,
)
from mqbridge.wire.limits import MAX_LISTED_PARTITIONS, check_partitions

Response = RegisterResponseM2CV2 | HeartResponseM2CV2 | GetPartMetaResponseM2C


class BalancedMembership(GroupMember):
    """Registers, sends heartbeats, lists partitions and leaves.

    Methods that call the Master may raise ClusterError: ServerRefused, with the Master's error code, if it refuses the call.

    node      (number of this member from 0, number of members); None if the member has no number
    priority  see `PackConsumer`
    """

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
        """Number of the last order by an administrator to move every partition to its end; UNSET before the first order."""
        self._node_id, self._source_count = node or (UNSET, UNSET)
        self._brokers: dict[int, Broker] = {}
        self._brokers_id = UNSET
        """Id of the Master's list of Brokers that `_brokers` comes from."""
        self._readable_by_key: dict[PartitionKey, bool] = {}
        """The partitions of the Master's last list, each with True if it may be read."""
        self._topics_id = UNSET
        """Id of the Master's list of partitions that `_readable_by_key` comes from."""

    @property
    def partitions(self) -> dict[PartitionRef, bool]:
        """The listed partitions of known Brokers, each with True if it may be read; sorted by topic, Broker and number."""
        listed = sorted(self._readable_by_key.items(), key=lambda item: (item[0].topic, item[0].broker, item[0].partition))
        return {
            PartitionRef(self._brokers[key.broker], key.topic, key.partition): is_readable
            for key, is_readable in listed
            if key.broker in self._brokers
        }

    async def register(self, held: Sequence[PartitionRef]) -> None:
        """Join the group; `held` are the partitions that the member already holds if it joins again, else none."""
        request = RegisterRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            hostName=self.host,
            sourceCount=self._source_count,
            nodeId=self._node_id,
            topicList=self.topics,
            topicCondition=self.conditions(),
            subRepInfo=self._state_report(held or None),  # a new member has nothing to report
            opsTaskInfo=self._applied_settings(),
            authInfo=await self.masters.auth_info(),
        )
        response = await self.masters.call(rpc.BALANCED_REGISTER, request, RegisterResponseM2CV2)
        self._check(f"joining group {self.group} for {', '.join(self.topics)}", response)
        self._apply_response(response)

    async def heartbeat(self, held: Sequence[PartitionRef] | None) -> None:
        """Keep the membership alive; report the partitions held unless `held` is None."""
        request = HeartRequestC2MV2(
            clientId=self.client_id,
            groupName=self.group,
            subRepInfo=self._state_report(held),
            opsTaskInfo=self._applied_settings(),
            authInfo=await self.masters.auth_info(),
        )
        response = await self.masters.call(rpc.BALANCED_HEARTBEAT, request, HeartResponseM2CV2)
        self._check(f"a heartbeat of group {self.group}", response)
        self._apply_response(response)

    async def refresh_partitions(self) -> None:
        """Request the lists of partitions and Brokers from the Master, and store those that have changed."""
        request = GetPartMetaRequestC2M(
            clientId=self.client_id,
            groupName=self.group,
            brokerConfigId=self._brokers_id,
            topicMetaInfoId=self._topics_id,
            authInfo=await self.masters.auth_info(),
        )
        response = await self.masters.call(rpc.PARTITION_META, request, GetPartMetaResponseM2C)
        self._check(f"requesting the partitions of group {self.group}", response)
        self._store_lists(response)

    def _check(self, request: str, response: Response) -> None:
        """Raise ServerRefused unless the response is a success; `request` names the request in the error."""
        self.masters.raise_if_refused(request, response, Role.CONSUMER, is_success=response.errCode == codes.SUCCESS)

    def _state_report(self, held: Sequence[PartitionRef] | None) -> ClientSubRepInfo:
        """Return the ids of the lists that this member has, and the partitions held unless `held` is None."""
        topics: dict[str, list[PartitionRef]] = {}
        for ref in held or ():
            topics.setdefault(ref.topic, []).append(ref)
        return ClientSubRepInfo(
            brokerConfigId=self._brokers_id,
            topicMetaInfoId=self._topics_id,
            reportSubInfo=held is not None,
            partSubInfo=[format_held_partitions(topic, refs) for topic, refs in sorted(topics.items())],
        )

    def _applied_settings(self) -> OpsTaskInfo:
        """Return the ids of the administrators' settings that this member has applied; the Master sends newer settings."""
        return OpsTaskInfo(
            groupFlowCheckId=self.flow.group_id,
            defFlowCheckId=self.flow.default_id,
            qryPriorityId=self.priority,
            csmFrmMaxOffsetCtrlId=self.skip_id,
        )

    def _apply_response(self, response: RegisterResponseM2CV2 | HeartResponseM2CV2) -> None:
        """Store tokens and lists, and apply the administrators' settings: flow control, query priority, order to skip to the end.

        A field that the response does not have changes nothing.
        """
        if response.HasField("authorizedInfo"):
            self.masters.store_tokens(response.authorizedInfo)
        ops = response.opsTaskInfo
        default = (ops.defFlowCheckId if ops.HasField("defFlowCheckId") else UNSET, ops.defFlowControlInfo)
        group = (ops.groupFlowCheckId if ops.HasField("groupFlowCheckId") else UNSET, ops.groupFlowControlInfo)
        self.flow.apply_rules(default, group)
        if ops.HasField("qryPriorityId"):
            self.apply_priority(ops.qryPriorityId)
        if ops.HasField("csmFrmMaxOffsetCtrlId"):
            self.skip_id = max(self.skip_id, ops.csmFrmMaxOffsetCtrlId)
        self._store_lists(response)

    def _store_lists(self, response: Response) -> None:
        """Store the lists of Brokers and partitions with their ids. The Master omits a list that has not changed.

        A response to a registration has no list of partitions.
        """
        if response.brokerConfigList:
            brokers = [parse_broker(text, self.masters.broker_port) for text in response.brokerConfigList]
            self._brokers = {broker.id: broker for broker in brokers}
        if response.HasField("brokerConfigId"):
            self._brokers_id = response.brokerConfigId
        if isinstance(response, RegisterResponseM2CV2) or not response.topicMetaInfoList:
            return
        topics = list(map(parse_topic_meta, response.topicMetaInfoList))
        check_partitions(sum(meta.partition_count for meta in topics), "these topics together", MAX_LISTED_PARTITIONS)
        self._topics_id = response.topicMetaInfoId
        self._readable_by_key = {
            PartitionKey(broker, meta.topic, partition): is_readable
            for meta in topics
            for broker, stores, partitions, is_readable in meta.deployments
            for partition in partition_ids(partitions, stores)
        }
