"""Requests of administration tools about topics, groups and the broker."""

import asyncio
import logging
import time
from dataclasses import replace

from mqbridge import __version__
from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestRefused
from mqbridge.listener.topics import ListenedTopic
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import ANSWER_S, Handler, ServedConnection
from mqbridge.rocketmq.server.offsets import Offsets
from mqbridge.rocketmq.server.pulls import Pulls
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.support import NO_SETTINGS, NOT_MANAGED
from mqbridge.rocketmq.server.topic_names import CLUSTER_NAME, is_of_group, is_valid, retry_topic
from mqbridge.rocketmq.wire.bodies.configs import (
    DataVersion,
    GroupConfig,
    GroupConfigs,
    RuntimeInfo,
    TopicConfig,
    TopicConfigs,
)
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import GroupList
from mqbridge.rocketmq.wire.bodies.offsets import (
    ConsumeOffsets,
    ConsumerOffsets,
    ConsumeStats,
    QueueStats,
    ResetOffsets,
    TopicStats,
)
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import Perm, TopicList
from mqbridge.rocketmq.wire.broker_settings import encode_settings
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import CreateTopicHeader, TopicHeader
from mqbridge.rocketmq.wire.headers.groups import (
    ConsumeDirectlyHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupConfigHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
)

log = logging.getLogger(__name__)

FORWARD_S = 10.0
"""Maximum time of a request that is passed on to a client."""
MAX_LISTED = 1000
"""Maximum number of topics in which a group is searched for."""
AT_ONCE = 8
"""Number of topics that are asked for at the same time."""


class Tools:
    """See the module."""

    def __init__(self, broker: Broker, pulls: Pulls, offsets: Offsets) -> None:
        self._broker, self._pulls, self._offsets = broker, pulls, offsets
        self._started_ms = round(time.time() * 1000)

    def handlers(self) -> dict[int, Handler]:
        """Return what serves each request, by its code."""
        return {
            Code.UPDATE_AND_CREATE_TOPIC: self._create_topic,
            Code.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            Code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            Code.GET_ALL_TOPIC_CONFIG: self._topic_configs,
            Code.GET_TOPIC_CONFIG: self._topic_config,
            Code.GET_TOPIC_STATS_INFO: self._topic_stats,
            Code.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._create_group,
            Code.DELETE_SUBSCRIPTIONGROUP: self._delete_group,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._group_configs,
            Code.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
            Code.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            Code.GET_PRODUCER_CONNECTION_LIST: self._producers,
            Code.GET_CONSUME_STATS: self._progress,
            Code.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            Code.QUERY_TOPICS_BY_CONSUMER: self._topics_of_group,
            Code.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            Code.GET_CONSUMER_RUNNING_INFO: self._running_info,
            Code.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            Code.GET_BROKER_RUNTIME_INFO: self._runtime_info,
            Code.GET_BROKER_CONFIG: self._settings,
            Code.UPDATE_BROKER_CONFIG: self._change_settings,
        }

    def _check_manages(self, action: str) -> None:
        if not self._broker.services.may_manage:
            raise CodedRefusal(f"{action} is not permitted: {NOT_MANAGED}", Status.NO_PERMISSION)

    # --- topics -----------------------------------------------------------------------------------------------------------

    async def _create_topic(self, _: ServedConnection, request: Command) -> Command:
        header = CreateTopicHeader.decode(request.ext)
        topics, name = self._broker.services.topics, header.topic
        if not is_valid(name) or is_of_group(name):
            raise CodedRefusal(f"{name!r} cannot be created", Status.SYSTEM_ERROR)
        if not topics.can_create:
            self._check_manages("creating topics (`create`)")
        if header.read_queue_nums != header.write_queue_nums:
            raise _unsupported("a topic has as many queues to read as to write")
        if header.perm & ~Perm.INHERIT != Perm.READ_WRITE or header.order:
            raise _unsupported("topics have no permissions (perm) and no fixed order (order) here")
        if header.attributes and header.attributes.strip() not in {"+message.type=NORMAL", "+message.type=MIXED"}:
            raise _unsupported(f"the attributes {header.attributes[:100]!r} are not supported")
        existing = await topics.find(name, fresh=True)
        if existing is not None and existing.count > header.write_queue_nums:
            raise _unsupported(f"the topic has {existing.count} queues, and cannot get fewer")
        if existing is None or existing.count < header.write_queue_nums:
            await topics.create(name, header.write_queue_nums, is_partitioned=True)
        return request.answer()

    async def _delete_topic(self, _: ServedConnection, request: Command) -> Command:
        self._check_manages("deleting topics")
        name, services = TopicHeader.decode(request.ext).topic, self._broker.services
        topic = await services.topics.find(name, fresh=True)
        if topic is not None:
            async with services.parking.deleting(topic):
                services.publishers.forget(topic)
                await services.topics.delete(name)
            self._broker.forget_topic(name)
        return request.answer()

    async def _topic_configs(self, _: ServedConnection, request: Command) -> Command:
        configs = {topic.name: _config_of(topic) for topic in await self._topics()}
        return request.answer(body=TopicConfigs(configs, DataVersion(1, self._started_ms)).encode())

    async def _topics(self) -> list[ListenedTopic]:
        """Return the topics that clients see, at most MAX_LISTED of them. Raises RequestRefused, ClusterError."""
        names = (await self._broker.services.topics.names())[:MAX_LISTED]
        limit = asyncio.Semaphore(AT_ONCE)

        async def find(name: str) -> ListenedTopic | None:
            async with limit:
                return await self._broker.find_topic(name)

        return [topic for topic in await asyncio.gather(*map(find, names)) if topic is not None]

    async def _topic_config(self, _: ServedConnection, request: Command) -> Command:
        topic = await self._broker.readable_topic(TopicHeader.decode(request.ext).topic)
        return request.answer(body=_config_of(topic).encode())

    async def _topic_stats(self, _: ServedConnection, request: Command) -> Command:
        topic = await self._broker.readable_topic(TopicHeader.decode(request.ext).topic)
        stats = {}
        for queue in sorted(topic.partitions):
            first, end = await self._broker.bounds_of(topic, queue)
            updated = 0 if first == end else await self._stored_ms(topic, queue, end - 1)
            stats[Queue(topic.name, self._broker.name, queue)] = QueueStats(first, end, updated)
        return request.answer(body=TopicStats(stats).encode())

    async def _stored_ms(self, topic: ListenedTopic, queue: int, number: int) -> int:
        """Return when a message was stored; 0 if that is not known soon."""
        try:
            async with asyncio.timeout(ANSWER_S / 5):
                return await self._offsets.stored_ms(topic, queue, number) or 0
        except (TimeoutError, ClusterError):
            return 0

    async def _groups_of_topic(self, _: ServedConnection, request: Command) -> Command:
        topic = await self._broker.readable_topic(TopicHeader.decode(request.ext).topic)
        names = {*await self._broker.services.groups.names(topic), *self._broker.clients.groups_of(topic.name)}
        return request.answer(body=GroupList(tuple(sorted(names))).encode())

    # --- groups -----------------------------------------------------------------------------------------------------------

    async def _create_group(self, _: ServedConnection, request: Command) -> Command:
        config = GroupConfig.decode(request.body)
        # The official tool sends these with other values than the defaults of brokers, unless it is told otherwise.
        plain = replace(config, broadcast_enable=True, consume_from_min=True, slow_broker_id=1)
        if plain != GroupConfig(config.name):
            raise _unsupported("groups have no settings of their own here: consumers bring theirs")
        return request.answer()  # it is made by the first of its members

    async def _delete_group(self, _: ServedConnection, request: Command) -> Command:
        self._check_manages("deleting groups")
        name = DeleteGroupHeader.decode(request.ext).group_name
        if name in self._broker.clients.consumers:
            raise CodedRefusal(f"group {name} has consumers", Status.SYSTEM_ERROR)
        for topic in await self._topics_with(name):
            await self._broker.services.groups.delete(topic, name)
        return request.answer()

    async def _topics_with(self, group: str) -> list[ListenedTopic]:
        """Return the topics in which a group has offsets. Raises RequestRefused, ClusterError."""
        found = []
        for topic in await self._topics():
            try:
                if await self._broker.services.groups.exists(topic, group):
                    found.append(topic)
            except ClusterError as error:
                if error.failure is not Failure.FATAL:
                    raise
        retry = await self._broker.find_topic(retry_topic(group))
        if retry is not None and retry not in found:
            found.append(retry)
        return found

    async def _group_configs(self, _: ServedConnection, request: Command) -> Command:
        names = set(self._broker.clients.consumers)
        for topic in await self._topics():
            names.update(await self._broker.services.groups.names(topic))
        return request.answer(body=GroupConfigs({name: GroupConfig(name) for name in sorted(names)}).encode())

    def _group_config(self, _: ServedConnection, request: Command) -> Command:
        return request.answer(body=GroupConfig(GroupConfigHeader.decode(request.ext).group).encode())

    def _consumers(self, _: ServedConnection, request: Command) -> Command:
        name = GroupHeader.decode(request.ext).consumer_group
        group = self._broker.clients.consumers.get(name)
        if group is None or group.newest is None:
            raise CodedRefusal(f"group {name} has no consumers here", Status.CONSUMER_NOT_ONLINE)
        newest = group.newest.data
        connections = tuple(_connection(member.client_id, member.link) for member in group.members.values())
        answer = ConsumerConnections(
            connections,
            tuple(group.subscriptions.values()),
            newest.consume_type,
            newest.message_model,
            newest.consume_from,
        )
        return request.answer(body=answer.encode())

    def _producers(self, _: ServedConnection, request: Command) -> Command:
        name = ProducerGroupHeader.decode(request.ext).producer_group
        members = self._broker.clients.producers.get(name)
        if not members:
            raise CodedRefusal(f"group {name} has no producers here", Status.SYSTEM_ERROR)
        connections = tuple(_connection(client_id, link) for client_id, (link, _) in members.items())
        return request.answer(body=ProducerConnections(connections).encode())

    async def _progress(self, _: ServedConnection, request: Command) -> Command:
        header = ConsumeStatsHeader.decode(request.ext)
        group = header.consumer_group
        if header.topic:
            topics = [await self._broker.readable_topic(header.topic)]
        else:
            topics = await self._topics_with(group)
        offsets: dict[Queue, ConsumeOffsets] = {}
        for topic in topics:
            committed = await self._offsets.committed(group, topic)
            for queue in sorted(topic.partitions):
                end = (await self._broker.bounds_of(topic, queue))[1]
                number = committed.get(queue, 0)
                consumed_at = await self._stored_ms(topic, queue, number - 1) if number else 0
                key = Queue(topic.name, self._broker.name, queue)
                offsets[key] = ConsumeOffsets(end, number, number, consumed_at)
        return request.answer(body=ConsumeStats(offsets).encode())

    async def _all_offsets(self, _: ServedConnection, request: Command) -> Command:
        found = {}
        for topic in await self._topics():
            for group in await self._broker.services.groups.names(topic):
                found[topic.name, group] = await self._offsets.committed(group, topic)
        return request.answer(body=ConsumerOffsets(found).encode())

    async def _topics_of_group(self, _: ServedConnection, request: Command) -> Command:
        topics = await self._topics_with(GroupConfigHeader.decode(request.ext).group)
        return request.answer(body=TopicList(tuple(topic.name for topic in topics)).encode())

    async def _reset(self, _: ServedConnection, request: Command) -> Command:
        """Move a group to a time, or one queue of it to an offset; consumers are told to drop what they have."""
        self._check_manages("resetting offsets")
        header = ResetOffsetHeader.decode(request.ext)
        topic = await self._broker.readable_topic(header.topic)
        queues = sorted(topic.partitions) if header.queue_id < 0 else [header.queue_id]
        committed = await self._offsets.committed(header.group, topic)
        targets = {}
        for queue in queues:
            self._broker.check_queue(topic, queue)
            first, end = await self._broker.bounds_of(topic, queue)
            if header.queue_id >= 0 and header.offset is not None and header.offset >= 0:
                target = min(max(first, header.offset), end)
            elif header.timestamp < 0:
                target = end
            else:
                target = await self._offsets.search_at(topic, queue, header.timestamp)
            if header.is_force or target <= committed.get(queue, target):
                targets[queue] = target
        await asyncio.shield(spawn(self._move(header.group, topic, targets), f"reset of {header.group}", log_errors=False))
        answered = {Queue(topic.name, self._broker.name, queue): target for queue, target in targets.items()}
        return request.answer(body=ResetOffsets(answered).encode())

    async def _move(self, group: str, topic: ListenedTopic, targets: dict[int, int]) -> None:
        """Move a group, and tell its clients. Raises RequestRefused, ClusterError."""
        positions = {queue: self._broker.position(target) for queue, target in targets.items()}
        pulls = [pull for pull in self._pulls.all_of(group, topic.name) if pull.key.queue in targets]
        for pull in pulls:
            self._broker.begin_reset(pull.link, group, topic, pull.key.queue, targets[pull.key.queue])
        try:
            async with self._offsets.moving(group, topic):
                await self._broker.services.groups.move(topic, group, positions)
        except RequestRefused:
            for pull in pulls:
                self._broker.end_reset(pull.link, group, topic, pull.key.queue)
            raise
        finally:  # it may have been moved in some queues
            for pull in pulls:
                pull.on_moved()

    # --- requests that are passed on to clients ---------------------------------------------------------------------------

    async def _running_info(self, _: ServedConnection, request: Command) -> Command:
        header = RunningInfoHeader.decode(request.ext)
        return await self._pass_on(request, header.consumer_group, header.client_id, header)

    async def _consume_directly(self, _: ServedConnection, request: Command) -> Command:
        header = ConsumeDirectlyHeader.decode(request.ext)
        return await self._pass_on(request, header.consumer_group, header.client_id, header)

    async def _pass_on(
        self, request: Command, group: str, client_id: str | None, header: RunningInfoHeader | ConsumeDirectlyHeader
    ) -> Command:
        known = self._broker.clients.consumers.get(group)
        member = None if known is None or client_id is None else known.members.get(client_id)
        if member is None:
            raise CodedRefusal(f"the consumer {client_id} of group {group} is not connected here", Status.SYSTEM_ERROR)
        try:
            answer = await member.link.ask(request.code, header, request.body, FORWARD_S)
        except (ConnectionLost, TimeoutError) as error:
            raise CodedRefusal(f"the consumer {client_id} does not answer: {error}", Status.CONSUME_MSG_TIMEOUT) from error
        return request.answer(answer.code, answer.ext, answer.body, answer.remark)

    # --- the broker -------------------------------------------------------------------------------------------------------

    def _runtime_info(self, _: ServedConnection, request: Command) -> Command:
        counts = self._broker.counts
        values = {
            "brokerVersionDesc": f"mqbridge {__version__}",
            "brokerVersion": str(request.version),
            "bootTimestamp": str(self._started_ms),
            "runtime": f"{(time.time() * 1000 - self._started_ms) / 1000:.0f} s",
            "msgPutTotalTodayNow": str(counts.received_messages),
            "msgGetTotalTodayNow": str(counts.delivered_messages),
            "sendThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._started_ms),
            "putTps": "0 0 0",
            "getTransferedTps": "0 0 0",
            "getTransferredTps": "0 0 0",
        }
        return request.answer(body=RuntimeInfo(values).encode())

    def _settings(self, _: ServedConnection, request: Command) -> Command:
        settings = {
            "brokerName": self._broker.name,
            "brokerClusterName": CLUSTER_NAME,
            "brokerId": 0,
            "maxMessageSize": self._broker.max_message_bytes,
            "autoCreateTopicEnable": str(self._broker.services.topics.can_create).lower(),
            "enablePropertyFilter": "false",
        }
        return request.answer(Status.SUCCESS, {"version": '{"counter":1}'}, encode_settings(settings))

    def _change_settings(self, _: ServedConnection, request: Command) -> Command:  # noqa: ARG002 - as handlers are called
        raise CodedRefusal(NO_SETTINGS, Status.NO_PERMISSION)


def _unsupported(problem: str) -> CodedRefusal:
    return CodedRefusal(problem, Status.SYSTEM_ERROR)


def _config_of(topic: ListenedTopic) -> TopicConfig:
    return TopicConfig(topic.name, topic.count, topic.count)


def _connection(client_id: str, link: ServedConnection) -> ClientConnection:
    return ClientConnection(client_id, link.peer, link.language, link.version)
