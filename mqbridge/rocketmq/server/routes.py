"""Requests to the name server: routes of topics, the cluster, lists of topics."""

from mqbridge.rocketmq.server.broker import Broker, topic_missing
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.support import NO_SETTINGS
from mqbridge.rocketmq.server.topic_names import CLUSTER_NAME, DEAD_PREFIX, REPLY_TOPIC, TEMPLATE_TOPIC, is_made_by_listener
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo, Perm, QueueData, RouteData, TopicList
from mqbridge.rocketmq.wire.codes import STANDARD_JSON_VERSION, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import ClusterHeader, RouteHeader

DEFAULT_QUEUES = 4
"""Number of queues of the topic template, where new topics have no number."""


class Routes:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _broker_data(self, link: ServedConnection) -> BrokerData:
        return BrokerData(self._broker.name, CLUSTER_NAME, {0: link.address})

    async def route(self, link: ServedConnection, request: Command) -> Command:
        """Serve GET_ROUTEINFO_BY_TOPIC."""
        header = RouteHeader.decode(request.ext)
        queues, perm = await self._queues(header.topic), Perm.READ_WRITE
        if header.topic == TEMPLATE_TOPIC:
            perm |= Perm.INHERIT
        data = RouteData((QueueData(self._broker.name, queues, queues, perm),), (self._broker_data(link),))
        is_standard = bool(header.accept_standard_json_only) or request.version >= STANDARD_JSON_VERSION
        return request.answer(body=data.encode(standard=is_standard))

    async def _queues(self, name: str) -> int:
        """Return the number of queues of a topic. Raises CodedRefusal if it does not exist."""
        if name == REPLY_TOPIC:
            return 1
        if name == TEMPLATE_TOPIC:
            if not self._broker.services.topics.can_create:
                raise topic_missing(name)
            return self._broker.services.topics.created_partitions or DEFAULT_QUEUES
        topic = await self._broker.find_topic(name)
        if topic is not None:
            return topic.count
        if is_made_by_listener(name) and not name.startswith(DEAD_PREFIX):  # created when needed: clients seldom look again
            return 1
        raise topic_missing(name)

    def cluster(self, link: ServedConnection, request: Command) -> Command:
        """Serve GET_BROKER_CLUSTER_INFO."""
        info = ClusterInfo({self._broker.name: self._broker_data(link)}, {CLUSTER_NAME: (self._broker.name,)})
        return request.answer(body=info.encode())

    async def topics(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        return request.answer(body=TopicList(tuple(await self._broker.services.topics.names())).encode())

    async def topics_of_cluster(self, _: ServedConnection, request: Command) -> Command:
        """Serve GET_TOPICS_BY_CLUSTER."""
        if ClusterHeader.decode(request.ext).cluster != CLUSTER_NAME:
            return request.answer(body=TopicList(()).encode())
        return request.answer(body=TopicList(tuple(await self._broker.services.topics.names())).encode())

    def setting(self, _: ServedConnection, request: Command) -> Command:  # noqa: ARG002 - as handlers are called
        """Serve GET_KV_CONFIG and GET_KVLIST_BY_NAMESPACE: there are none."""
        raise CodedRefusal("the name server keeps no settings", Status.QUERY_NOT_FOUND)

    def delete_setting(self, _: ServedConnection, request: Command) -> Command:
        """Serve DELETE_KV_CONFIG: there are none. Tools send this for each topic that they delete, and expect success."""
        return request.answer()

    def change_setting(self, _: ServedConnection, request: Command) -> Command:  # noqa: ARG002 - likewise
        """Refuse to change settings and permissions."""
        raise CodedRefusal(NO_SETTINGS, Status.NO_PERMISSION)
