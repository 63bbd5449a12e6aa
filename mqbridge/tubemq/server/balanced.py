"""Consumers that choose their partitions themselves, as the Master sees them: they ask which there are, and register some.

Only a gateway that keeps the groups itself can serve them: another gateway may have the partition that a client chooses.
"""

from zlib import crc32

from mqbridge.listener.topics import ListenedTopic
from mqbridge.tubemq.server.broker import BROKER_ID, ServedBroker
from mqbridge.tubemq.server.connection import Served, ServedConnection, success
from mqbridge.tubemq.server.consumer_group import ConsumerGroup, GroupTerms, Mode
from mqbridge.tubemq.server.consumers import Consumers, conditions_of, partition_ids_of
from mqbridge.tubemq.server.producers import check_client, check_group
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.server.support import NO_CHOICE
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb import master_pb2 as pb
from mqbridge.tubemq.wire.rpc import Request, parse
from mqbridge.tubemq.wire.string_formats import TopicMeta, format_topic_meta

_OPS = pb.OpsTaskInfo(requireAuth=False)


class Balanced:
    """See the module."""

    def __init__(self, broker: ServedBroker, consumers: Consumers) -> None:
        self._broker, self._consumers = broker, consumers

    def register(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve BALANCED_REGISTER."""
        asked = parse(pb.RegisterRequestC2MV2, request.body)
        check_client(asked.clientId, asked.topicList)
        check_group(asked.groupName)
        if not self._consumers.keeps_groups:
            raise CodedRefusal(NO_CHOICE, codes.INCONSISTENT_CONSUME_TYPE)
        return self._register(link, asked)

    async def _register(self, link: ServedConnection, asked: pb.RegisterRequestC2MV2) -> bytes:
        count = max(asked.sourceCount, 0)
        if asked.nodeId >= 0 and not asked.nodeId < asked.sourceCount:
            raise CodedRefusal(f"the node id {asked.nodeId} is not below {asked.sourceCount}", codes.BAD_REQUEST)
        await self._consumers.topics_of(asked.topicList)
        conditions = conditions_of(asked.topicCondition)
        terms = GroupTerms(Mode.CHOSEN, frozenset(asked.topicList), conditions, source_count=count)

        def check(group: ConsumerGroup) -> None:
            if asked.nodeId >= 0 and any(
                member.node_id == asked.nodeId and member.client_id != asked.clientId for member in group.members.values()
            ):
                raise CodedRefusal(f"another member has the node id {asked.nodeId}", codes.DUPLICATE_INDEX)

        group = self._consumers.join(link, asked.groupName, asked.clientId, terms, check)
        group.members[asked.clientId].node_id = asked.nodeId
        return success(rpc.BALANCED_REGISTER, **self._brokers(link, asked.subRepInfo.brokerConfigId), opsTaskInfo=_OPS)

    def _brokers(self, link: ServedConnection, known: int) -> dict[str, object]:
        """Return the list of Brokers for a client that has the one with this id: the id is always told."""
        checksum = self._broker.checksum(link.address)
        brokers = [] if known == checksum else [str(self._broker.address(link.address))]
        return {"brokerConfigId": checksum, "brokerConfigList": brokers}

    def heartbeat(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve BALANCED_HEARTBEAT."""
        asked = parse(pb.HeartRequestC2MV2, request.body)
        return self._heartbeat(link, asked)

    async def _heartbeat(self, link: ServedConnection, asked: pb.HeartRequestC2MV2) -> bytes:
        group, member = self._consumers.group_of(link, asked.groupName, asked.clientId)
        if asked.subRepInfo.reportSubInfo:
            group.on_report(member, partition_ids_of(asked.subRepInfo.partSubInfo))
        metas = await self._metas(group)
        return success(
            rpc.BALANCED_HEARTBEAT,
            **self._brokers(link, asked.subRepInfo.brokerConfigId),
            **_changed(metas, asked.subRepInfo.topicMetaInfoId),
            opsTaskInfo=_OPS,
        )

    def meta(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve PARTITION_META."""
        return self._meta(link, parse(pb.GetPartMetaRequestC2M, request.body))

    async def _meta(self, link: ServedConnection, asked: pb.GetPartMetaRequestC2M) -> bytes:
        group, _ = self._consumers.group_of(link, asked.groupName, asked.clientId)
        metas = await self._metas(group)
        return success(rpc.PARTITION_META, **self._brokers(link, asked.brokerConfigId), **_changed(metas, asked.topicMetaInfoId))

    async def _metas(self, group: ConsumerGroup) -> list[str]:
        found = {name: await self._broker.find_topic(name) for name in sorted(group.terms.topics)}
        return [_meta_of(name, topic) for name, topic in found.items() if topic is not None and topic.count]


def _meta_of(name: str, topic: ListenedTopic) -> str:
    return format_topic_meta(TopicMeta(name, ((BROKER_ID, 1, topic.count, True),)))


def _changed(metas: list[str], known: int) -> dict[str, object]:
    """Return the topics for a client that has the list with this id."""
    number = crc32("\n".join(metas).encode())
    return {"topicMetaInfoId": number, "topicMetaInfoList": [] if known == number else metas}
