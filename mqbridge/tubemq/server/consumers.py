"""Requests of consumers: to the Master about their group, and to the Broker about partitions of it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from mqbridge.adapter.inbound import Start
from mqbridge.errors import ClusterError, RemoteProtocolError
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.queue_feed import QueueFeed, QueueFeedState
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.tubemq.mapping.sdk_units import unit_of_message
from mqbridge.tubemq.mapping.served_pack import encode_pack
from mqbridge.tubemq.server.broker import BROKER_ID, ServedBroker
from mqbridge.tubemq.server.connection import Served, ServedConnection, failure, success
from mqbridge.tubemq.server.consumer_group import ConsumerGroup, Event, GroupTerms, Mode, ServedMember
from mqbridge.tubemq.server.lanes import BackingLanes, GroupLanes, LaneStart, OwnLanes, PartitionId
from mqbridge.tubemq.server.partition import ServedPack, ServedPartition
from mqbridge.tubemq.server.producers import check_client, check_group
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.server.support import NO_BOUND
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2
from mqbridge.tubemq.wire.rpc import Request, parse
from mqbridge.tubemq.wire.string_formats import (
    format_failure,
    format_subscription,
    parse_condition,
    parse_held_partitions,
    parse_partition,
    parse_start_offsets,
    parse_subscription,
)

log = logging.getLogger(__name__)

SWEEP_S = 1.0
"""Time between two looks for consumers that are gone."""
MAX_GROUPS, MAX_MEMBERS = 5000, 1000
"""Maximum number of groups, and of members of one."""
MAX_TYPES = 500
"""Maximum number of message types in a filter of a topic."""
FROM_MAX, FROM_MAX_ALWAYS = 1, 2
"""Values of readStatus: a new group begins at the end; so does a known one."""
SETTLE_CHECK_S = 0.02
"""Pause between two checks whether packs are confirmed, while the listener is stopped."""


class Consumers:
    """See the module."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.groups: dict[str, ConsumerGroup] = {}
        """The groups that have members, by name."""
        self._lanes: dict[str, BackingLanes] = {}
        """The lanes of groups of the cluster; they stay for a while when a group has no members any more."""
        self._sweep: asyncio.TimerHandle | None = None

    # --- groups -----------------------------------------------------------------------------------------------------------

    @property
    def keeps_groups(self) -> bool:
        """True if this gateway keeps the groups itself."""
        return isinstance(self._broker.services.groups, OwnGroups)

    def start(self) -> None:
        """Begin to look for consumers that are gone."""
        self._sweep = self._loop.call_later(SWEEP_S, self._forget_gone)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()

    def _forget_gone(self) -> None:
        for group in list(self.groups.values()):
            group.sweep()
            self._forget_empty(group)
        self.start()

    def _forget_empty(self, group: ConsumerGroup) -> None:
        """Forget a group that nobody uses."""
        if not group.members and not group.owned and self.groups.get(group.name) is group:
            del self.groups[group.name]
            group.lanes.want(())
            self._forget_lanes(group.name)

    def _forget_lanes(self, name: str) -> None:
        lanes = self._lanes.get(name)
        if lanes is not None and lanes.is_over and name not in self.groups:
            del self._lanes[name]

    def drop(self, link: ServedConnection) -> None:
        """Take note that a connection has ended."""
        for group in self.groups.values():
            group.drop(link)

    def _make_lanes(self, name: str) -> GroupLanes:
        groups = self._broker.services.groups
        if isinstance(groups, OwnGroups):
            return OwnLanes(self._broker, name, groups, partial(self._on_feed_lost, name))
        assert isinstance(groups, BackingGroups)  # noqa: S101 - there are two kinds
        if name not in self._lanes:
            changed = partial(self._forget_lanes, name)
            self._lanes[name] = BackingLanes(self._broker, name, groups, partial(self._on_feed, name), changed)
        return self._lanes[name]

    def _on_feed(self, name: str, feed: QueueFeed) -> None:
        if feed.state is QueueFeedState.UNHELD:
            self._on_feed_lost(name, feed)

    def _on_feed_lost(self, name: str, feed: QueueFeed) -> None:
        """Free the partition of a feed: its owner learns that at its next request."""
        group = self.groups.get(name)
        for served in () if group is None else list(group.partitions.values()):
            if served.feed is feed:
                served.release()

    def join(
        self, link: ServedConnection, name: str, client_id: str, terms: GroupTerms, check: Callable[[ConsumerGroup], None]
    ) -> ConsumerGroup:
        """Make a client a member of a group, unless its terms are not those of the others. Raises CodedRefusal.

        `check` is called with the group before.
        """
        group = self.groups.get(name)
        if group is not None and set(group.members) <= {client_id} and group.terms != terms:
            group.leave(client_id)
            group.release_all()  # readers that have not registered at the Master
            self._forget_empty(group)
            group = None
        if group is None:
            self._check_room()
            group = ConsumerGroup(self._broker, name, terms, self._make_lanes(name))
        check_terms(group.terms, terms)
        check(group)
        if client_id not in group.members and len(group.members) >= MAX_MEMBERS:
            raise CodedRefusal(f"group {name} has {MAX_MEMBERS} members already", codes.INTERNAL_ERROR)
        self.groups[name] = group
        group.lanes.want(terms.topics)
        group.join(link, client_id)
        return group

    async def topics_of(self, names: Iterable[str]) -> Mapping[str, ListenedTopic]:
        """Return the topics that a consumer subscribes to. Raises CodedRefusal if one does not exist, ClusterError."""
        names = set(names)
        if not names:
            raise CodedRefusal("the consumer has no topics", codes.BAD_REQUEST)
        topics = await self._broker.used_topics(names)
        if missing := sorted(names - topics.keys()):
            raise CodedRefusal(f"there are no topics {', '.join(missing)}", codes.TOPIC_NOT_DEPLOYED)
        return topics

    def group_of(self, link: ServedConnection, name: str, client_id: str) -> tuple[ConsumerGroup, ServedMember]:
        """Return a group, and a member of it from which a request came. Raises CodedRefusal if it is not known."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is None or member is None:
            raise CodedRefusal(f"consumer {client_id} is not registered in group {name}", codes.NO_NODE)
        group.touch(member, link)
        return group, member

    # --- the Master -------------------------------------------------------------------------------------------------------

    def register(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve CONSUMER_REGISTER."""
        asked = parse(master_pb2.RegisterRequestC2M, request.body)
        check_client(asked.clientId, asked.topicList)
        check_group(asked.groupName)
        return self._register(link, asked)

    async def _register(self, link: ServedConnection, asked: master_pb2.RegisterRequestC2M) -> bytes:
        terms, required = terms_of(asked), {}
        if terms.mode is Mode.BOUND:
            if not self.keeps_groups:
                raise CodedRefusal(NO_BOUND, codes.INCONSISTENT_CONSUME_TYPE)
            if not terms.session_key.strip() or terms.source_count <= 0:
                raise CodedRefusal("a bound consumer has a session key and a number of consumers", codes.BAD_REQUEST)
            required = {
                PartitionId(key.topic, key.partition): offset
                for key, offset in parse_start_offsets(asked.requiredPartition).items()
                if key.broker == BROKER_ID
            }
        await self.topics_of(asked.topicList)
        self._check_draining()
        group = self.join(link, asked.groupName, asked.clientId, terms, lambda _: None)
        member = group.members[asked.clientId]
        group.forget_event(member)
        member.required, member.is_settled = required, False
        try:
            await group.lanes.wait_ready()
        except CodedRefusal:
            group.leave(asked.clientId)
            self._forget_empty(group)
            raise
        is_waiting = terms.mode is Mode.BOUND
        return success(rpc.CONSUMER_REGISTER, notAllocated=is_waiting, **_NO_RULES)

    def heartbeat(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve CONSUMER_HEARTBEAT."""
        asked = parse(master_pb2.HeartRequestC2M, request.body)
        self._check_draining()
        group, member = self.group_of(link, asked.groupName, asked.clientId)
        return self._heartbeat(link, group, member, asked)

    async def _heartbeat(
        self, link: ServedConnection, group: ConsumerGroup, member: ServedMember, asked: master_pb2.HeartRequestC2M
    ) -> bytes:
        try:
            for name in group.terms.topics:  # its partitions may be more by now
                await self._broker.find_topic(name)
        except ClusterError as error:
            log.info("the topics of group %s cannot be looked up now: %s", group.name, error)
        if asked.HasField("event") and asked.event.rebalanceId > 0:
            group.on_event_done(member)
        if asked.reportSubscribeInfo:
            refs = map(parse_subscription, asked.subscribeInfo)
            group.on_report(member, [PartitionId(ref.topic, ref.partition) for ref in refs if ref.broker.id == BROKER_ID])
        event = group.next_event(member) if group.members.get(member.client_id) is member else None
        is_waiting = group.terms.mode is Mode.BOUND and not member.is_settled
        told = None if event is None else self._event(link, group, member, event)
        return success(rpc.CONSUMER_HEARTBEAT, event=told, notAllocated=is_waiting, requireAuth=False, **_NO_RULES)

    def _event(self, link: ServedConnection, group: ConsumerGroup, member: ServedMember, event: Event) -> master_pb2.EventProto:
        refs = [self._broker.ref(link.address, each.topic, each.partition) for each in event.partitions]
        texts = [format_subscription(member.client_id, group.name, ref) for ref in refs]
        log.debug("group %s: %s is told %d: %s", group.name, member.client_id, event.kind, texts)
        return master_pb2.EventProto(rebalanceId=event.number, opType=event.kind, subscribeInfo=texts)

    def close(self, _: ServedConnection, __: int, request: Request) -> Served:
        """Serve CONSUMER_CLOSE."""
        asked = parse(master_pb2.CloseRequestC2M, request.body)
        if (group := self.groups.get(asked.groupName)) is not None:
            group.leave(asked.clientId)
            self._forget_empty(group)
        return success(rpc.CONSUMER_CLOSE)

    def _check_draining(self) -> None:
        if self._broker.is_draining:
            raise ClusterError("the listener is being stopped")

    # --- the Broker -------------------------------------------------------------------------------------------------------

    def _served(self, name: str, topic: str, index: int, code: int) -> ServedPartition:
        """Return a partition that a consumer may own. Raises CodedRefusal with this code if nobody does."""
        group = self.groups.get(name)
        served = None if group is None else group.partitions.get(PartitionId(topic, index))
        if served is None:
            raise CodedRefusal(f"partition {topic}:{index} is not registered in group {name}", code)
        return served

    def _touch(self, link: ServedConnection, name: str, client_id: str) -> None:
        group = self.groups.get(name)
        member = None if group is None else group.members.get(client_id)
        if group is not None and member is not None:
            group.touch(member, link)

    def register_partition(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve PARTITION_REGISTER: register or unregister."""
        asked = parse(broker_pb2.RegisterRequestC2B, request.body)
        self._touch(link, asked.groupName, asked.clientId)
        if asked.opType == rpc.OP_REGISTER:
            return self._register_partition(asked)
        if asked.opType != rpc.OP_UNREGISTER:
            raise CodedRefusal(f"opType {asked.opType} is not known", codes.BAD_REQUEST)
        served = self._served(asked.groupName, asked.topicName, asked.partitionId, codes.NO_NODE)
        served.unregister(asked.clientId, is_consumed=asked.readStatus == 0)
        return success(rpc.PARTITION_REGISTER, currOffset=self._broker.offset(served.confirmed))

    async def _register_partition(self, asked: broker_pb2.RegisterRequestC2B) -> bytes:
        self._check_draining()
        check_client(asked.clientId)
        check_group(asked.groupName)
        topic = await self._broker.partition_topic(asked.topicName, asked.partitionId)
        group = self._group_at_broker(asked.groupName, topic)
        served = group.partition(PartitionId(topic.name, asked.partitionId))
        number = None
        if asked.HasField("currOffset") and asked.currOffset >= 0 and asked.readStatus != FROM_MAX_ALWAYS:
            number = self._broker.number(asked.currOffset)
        is_at_end = asked.readStatus in {FROM_MAX, FROM_MAX_ALWAYS}
        start = LaneStart(Start.LATEST if is_at_end else Start.EARLIEST, asked.readStatus == FROM_MAX_ALWAYS, number)
        await served.register(asked.clientId, topic, start, types_of(asked.filterCondStr))
        offset = self._broker.offset
        return success(rpc.PARTITION_REGISTER, currOffset=offset(served.confirmed), maxOffset=offset(served.end))

    def _group_at_broker(self, name: str, topic: ListenedTopic) -> ConsumerGroup:
        """Return the group of a consumer that registers a partition.

        Some readers have not registered at the Master: a Broker does not ask for that. They are served where the gateway keeps
        the groups: otherwise it would have to join a group of the cluster for each.
        """
        group = self.groups.get(name)
        if group is None and self.keeps_groups:
            self._check_room()
            group = ConsumerGroup(
                self._broker, name, GroupTerms(Mode.CHOSEN, frozenset({topic.name}), {}), self._make_lanes(name)
            )
            self.groups[name] = group
        if group is None:
            raise CodedRefusal(f"group {name} has no members at this Master", codes.NO_NODE)
        if group.members and topic.name not in group.terms.topics:
            raise CodedRefusal(f"group {name} has no topic {topic.name}", codes.BAD_REQUEST)
        return group

    def _check_room(self) -> None:
        if len(self.groups) >= MAX_GROUPS:
            raise CodedRefusal(f"{MAX_GROUPS} groups have members already", codes.INTERNAL_ERROR)

    def heartbeat_partitions(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve PARTITION_HEARTBEAT."""
        asked = parse(broker_pb2.HeartBeatRequestC2B, request.body)
        self._touch(link, asked.groupName, asked.clientId)
        failures = []
        for text in asked.partitionInfo:
            ref = parse_partition(text)
            try:
                self._served(asked.groupName, ref.topic, ref.partition, codes.NO_NODE).check_owner(asked.clientId)
            except CodedRefusal as refusal:
                failures.append(format_failure(refusal.code, ref))
        return success(rpc.PARTITION_HEARTBEAT, hasPartFailure=bool(failures), failureInfo=failures, requireAuth=False)

    def get(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve GET."""
        asked = parse(broker_pb2.GetMessageRequestC2B, request.body)
        self._touch(link, asked.groupName, asked.clientId)
        served = self._served(asked.groupName, asked.topicName, asked.partitionId, codes.NO_NODE)
        served.check_owner(asked.clientId)
        if not asked.manualCommitOffset:
            if asked.lastPackConsumed:
                served.confirm()
            else:
                served.roll_back()
        return self._get(link, served, asked)

    async def _get(self, link: ServedConnection, served: ServedPartition, asked: broker_pb2.GetMessageRequestC2B) -> bytes | None:
        await link.wait_for_room()
        pack = await served.get(asked.clientId, keeps_pack=asked.manualCommitOffset)
        if pack is not None and not link.alive:  # nobody gets it
            served.drop_pack()
            return None
        if pack is None:
            return failure(rpc.GET, codes.NOT_FOUND, "there are no messages now", maxOffset=self._broker.offset(served.end))
        body, count = self._encode(served, pack)
        served.hand_out(pack if count else pack._replace(messages=pack.messages._replace(numbers=())))
        self._broker.count_delivered(count, len(body), again=pack.is_again)
        left = max(0, served.end - served.read_end)
        size = len(body) // max(1, count)
        return body + success(
            rpc.GET,
            currOffset=self._broker.offset(pack.start),
            maxOffset=self._broker.offset(served.end),
            currDataDlt=left * size if self._broker.services.numbering.dense else 0,
            escFlowCtrl=False,
            requireSlow=False,
        )

    def _encode(self, served: ServedPartition, pack: ServedPack) -> tuple[bytes, int]:
        """Return the messages of a pack as fields of the response, without those of other types."""
        found, topic, index = pack.messages, served.topic, served.id.partition
        units = found.units if found.units is not None else [unit_of_message(each) for each in found.messages or ()]
        ids = self._broker.message_ids(topic, index, found.numbers)
        try:
            return encode_pack(units, ids, served.types)
        except RemoteProtocolError:
            return self._encode_each(served, units, found.numbers)

    def _encode_each(self, served: ServedPartition, units: Sequence[Unit], numbers: Sequence[int]) -> tuple[bytes, int]:
        """Encode units one by one, without those that are damaged: they are dead letters."""
        pieces, total = [], 0
        for unit, number in zip(units, numbers, strict=True):
            ids = self._broker.message_ids(served.topic, served.id.partition, (number,))
            try:
                body, count = encode_pack([unit], ids, served.types)
            except RemoteProtocolError as error:
                self._broker.quarantine(served.topic, served.id.partition, number, unit, str(error))
            else:
                pieces.append(body)
                total += count
        return b"".join(pieces), total

    def commit(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve COMMIT."""
        asked = parse(broker_pb2.CommitOffsetRequestC2B, request.body)
        self._touch(link, asked.groupName, asked.clientId)
        served = self._served(asked.groupName, asked.topicName, asked.partitionId, codes.UNAUTHORIZED)
        served.check_owner(asked.clientId, codes.UNAUTHORIZED)
        if asked.lastPackConsumed or not asked.HasField("lastPackConsumed"):
            served.confirm()
        else:
            served.roll_back()
        offset = self._broker.offset
        return success(rpc.COMMIT, currOffset=offset(served.confirmed), maxOffset=offset(served.end))

    # --- the end ----------------------------------------------------------------------------------------------------------

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait until what consumers have is confirmed, or until the deadline (loop time)."""
        groups = list(self.groups.values())
        await asyncio.gather(*(group.lanes.finish(deadline) for group in groups))
        while not all(group.is_settled for group in groups) and self._loop.time() < deadline:  # noqa: ASYNC110 - of many
            await asyncio.sleep(SETTLE_CHECK_S)

    async def end(self) -> None:
        """End the lanes; the owner of the groups leaves them."""
        lanes = {*(group.lanes for group in self.groups.values()), *self._lanes.values()}
        await asyncio.gather(*(each.end() for each in lanes))


_NO_RULES = {
    "defFlowCheckId": -2,
    "defFlowControlInfo": " ",
    "groupFlowCheckId": -2,
    "groupFlowControlInfo": " ",
    "qryPriorityId": -2,
}
"""Fields of responses of a Master without rules for flow control."""


def terms_of(asked: master_pb2.RegisterRequestC2M) -> GroupTerms:
    """Return what a consumer's registration says of its group. Raises RemoteProtocolError."""
    conditions = conditions_of(asked.topicCondition)
    topics = frozenset(asked.topicList)
    if not asked.requireBound:
        return GroupTerms(Mode.ASSIGNED, topics, conditions)
    return GroupTerms(Mode.BOUND, topics, conditions, asked.sessionKey, asked.selectBig, asked.totalCount)


def conditions_of(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the types that a consumer wants, by topic. Raises RemoteProtocolError, CodedRefusal for too many."""
    conditions = {}
    for text in texts:
        topic, types = parse_condition(text)
        if len(types) > MAX_TYPES:
            raise CodedRefusal(f"a filter may have {MAX_TYPES} types", codes.BAD_REQUEST)
        if types:
            conditions[topic] = frozenset(types)
    return conditions


def types_of(texts: Sequence[str]) -> frozenset[str]:
    """Return the types of a filter. Raises CodedRefusal for too many."""
    if len(texts) > MAX_TYPES:
        raise CodedRefusal(f"a filter may have {MAX_TYPES} types", codes.BAD_REQUEST)
    return frozenset(text.strip() for text in texts if text.strip())


def check_terms(known: GroupTerms, asked: GroupTerms) -> None:
    """Raise CodedRefusal if a member's terms are not those of its group, with the code of the first difference."""
    differences = (
        (424, "another way to get partitions", known.mode is not asked.mode),
        (425, "other topics", known.topics != asked.topics),
        (426, "other filters", known.conditions != asked.conditions),
        (427, "another session key", known.session_key != asked.session_key),
        (428, "another selectBig", known.select_big != asked.select_big),
        (429, "another number of members", known.source_count != asked.source_count),
    )
    for code, what, differs in differences:
        if differs:
            raise CodedRefusal(f"the other members of the group have {what}", code)


def partition_ids_of(texts: Iterable[str]) -> list[PartitionId]:
    """Return the partitions that a consumer reports which chooses its own. Raises RemoteProtocolError."""
    keys = [key for text in texts for key in parse_held_partitions(text)]
    return [PartitionId(key.topic, key.partition) for key in keys if key.broker == BROKER_ID]
