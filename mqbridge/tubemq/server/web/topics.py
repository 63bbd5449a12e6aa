"""The Master's topics: lists, creation and growth.

A real Master wants its `confModAuthToken` for changes; here any value will do, or none. Who may create and add is configured:
`create` or `manage`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from mqbridge.errors import ClusterError, RefusalReason, RequestRefused
from mqbridge.listener.keyed_locks import KeyedLocks
from mqbridge.listener.topics import ListenedTopic
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.refusals import code_of, text_of
from mqbridge.tubemq.server.support import NOT_CREATED, NOT_MANAGED
from mqbridge.tubemq.server.web.answers import (
    DONE,
    EXISTS,
    FEWER_PARTITIONS,
    MISSING,
    NOT_CHANGED,
    NOT_KNOWN,
    Answer,
    WebRefusal,
    master_answer,
)
from mqbridge.tubemq.server.web.context import WebContext, asks_for_broker
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.requests import Parameters
from mqbridge.tubemq.wire import codes

NORMAL = 0
"""The state of a topic that was not deleted (topicStatusId)."""
MAX_CHANGED = 100
"""Maximum number of topics that one request creates or changes."""


class Outcome(NamedTuple):
    """What became of one topic of a request: the code, and the text."""

    code: int = DONE
    text: str = "Ok!"


class TopicPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._changing = KeyedLocks[str]()
        """Held while a topic is looked for and created, or grown, by its name."""

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Master."""
        return {
            "admin_query_topic_info": WebMethod(self._topics),
            "admin_query_topic_deploy_info": WebMethod(self._deployed),
            "admin_query_cluster_topic_view": WebMethod(self._view),
            "admin_query_topic_authorize_control": WebMethod(self._authorized),
            "admin_query_black_consumer_group_info": WebMethod(self._black_listed),
            "admin_add_new_topic_record": WebMethod(self._add, modifies=True),
            "admin_modify_topic_info": WebMethod(self._modify, modifies=True),
        }

    # --- lists ----------------------------------------------------------------------------------------------------------

    async def _find(self, parameters: Parameters) -> list[ListenedTopic]:
        names = parameters.names("topicName")
        return await self._context.topics(names) if asks_for_broker(parameters) else []

    async def _topics(self, parameters: Parameters) -> Answer:
        """Return topics with their partitions, in the older form."""
        topics = await self._find(parameters)
        return master_answer(
            [self._head(topic) | self._body(topic, "topicInfo", parameters) | {"authData": {}} for topic in topics]
        )

    async def _deployed(self, parameters: Parameters) -> Answer:
        """Return topics with their partitions, in the newer form."""
        no_control = {"topicNameId": NOT_KNOWN, "enableAuthControl": False}
        topics = await self._find(parameters)
        return master_answer([self._head(topic) | no_control | self._body(topic, "deployInfo", parameters) for topic in topics])

    def _head(self, topic: ListenedTopic) -> Answer:
        return {"topicName": topic.name, "maxMsgSizeInMB": max(1, self._context.broker.max_message_bytes >> 20)}

    def _body(self, topic: ListenedTopic, name: str, parameters: Parameters) -> Answer:
        return {
            name: [self._record(topic, parameters)],
            "infoCount": 1,
            "totalCfgNumPart": topic.count,
            "isSrvAcceptPublish": True,
            "isSrvAcceptSubscribe": True,
            "totalRunNumPartCount": topic.count,
        }

    def _record(self, topic: ListenedTopic, parameters: Parameters) -> Answer:
        """Return the topic's record at the Broker: one store, which has all partitions."""
        address = self._context.address(parameters.request)
        accepted = {"acceptPublish": True, "acceptSubscribe": True}
        stores = {"numTopicStores": 1, "numPartitions": topic.count}
        return {
            "topicName": topic.name,
            "brokerId": BROKER_ID,
            "topicNameId": NOT_KNOWN,
            "brokerIp": address.host,
            "brokerPort": address.port,
            "topicStatusId": NORMAL,
            **stores,
            **accepted,
            "runInfo": {**accepted, **stores, "brokerManageStatus": "online"},
        }

    async def _view(self, parameters: Parameters) -> Answer:
        topics = await self._find(parameters)
        stores = {"totalCfgBrokerCnt": 1, "totalCfgNumStore": 1, "totalRunNumStore": 1}
        served = {"isSrvAcceptPublish": True, "isSrvAcceptSubscribe": True, "enableAuthControl": False}
        counts = [{"totalCfgNumPart": topic.count, "totalRunNumPartCount": topic.count} for topic in topics]
        return master_answer(
            [{"topicName": topic.name} | stores | count | served for topic, count in zip(topics, counts, strict=True)]
        )

    async def _authorized(self, parameters: Parameters) -> Answer:
        """Return which groups may consume topics: all."""
        nobody = {"isEnable": False, "authConsumeGroup": [], "groupCount": 0, "authFilterCondSet": [], "filterCount": 0}
        topics = await self._context.topics(parameters.names("topicName"))
        return master_answer([{"topicName": topic.name} | nobody for topic in topics])

    async def _black_listed(self, _: Parameters) -> Answer:
        """Return which groups may not: none."""
        return master_answer([])

    # --- changes --------------------------------------------------------------------------------------------------------

    async def _add(self, parameters: Parameters) -> Answer:
        """Create topics. A Broker has one store here, with `numPartitions` times `numTopicStores` partitions."""
        parameters.required("createUser")
        default = self._context.broker.services.topics.created_partitions or 1
        count = parameters.number("numPartitions", default=default, lowest=1)
        count *= parameters.number("numTopicStores", default=1, lowest=1)

        async def add(name: str) -> Outcome:
            if await self._context.broker.services.topics.find(name, fresh=True) is not None:
                return Outcome(EXISTS, f"Existed record found for brokerId-topicName({BROKER_ID}:{name})!")
            return await self._create(name, count)

        async def change(broker: int, name: str) -> Outcome:
            if broker != BROKER_ID:
                text = f"Not found broker configure record by brokerId={broker}, please create the broker's configure first!"
                return Outcome(MISSING, text)
            async with self._changing.hold(name):
                return await add(name)

        return await self._change(parameters, change)

    async def _modify(self, parameters: Parameters) -> Answer:
        """Add partitions to topics; there is nothing else to be set."""
        parameters.required("modifyUser")
        count = parameters.number("numPartitions", default=0, lowest=1)

        async def grow(name: str) -> Outcome:
            topic = await self._context.broker.services.topics.find(name, fresh=True)
            if topic is None:
                return Outcome(MISSING, f"Not found topic deploy configure for brokerId-topicName({BROKER_ID}:{name})!")
            if not count or count == topic.count:
                return Outcome(NOT_CHANGED, "Topic deploy configure not changed!")
            if count < topic.count:
                text = f"Partition number less than before, new value is {count}, current value is {topic.count} in topic {name}"
                return Outcome(FEWER_PARTITIONS, text)
            return await self._create(name, count)

        async def change(broker: int, name: str) -> Outcome:
            if broker != BROKER_ID:
                return Outcome(MISSING, f"Not found topic deploy configure for brokerId-topicName({broker}:{name})!")
            async with self._changing.hold(name):
                return await grow(name)

        return await self._change(parameters, change)

    async def _change(self, parameters: Parameters, change: Callable[[int, str], Awaitable[Outcome]]) -> Answer:
        """Change topics one after the other; the answer has an entry for each."""
        names = parameters.names("topicName", required=True)
        brokers = parameters.numbers("brokerId", required=True)
        services = self._context.broker.services
        if not services.may_manage and not services.topics.can_create:
            action = "this listener does not permit its clients to create topics"
            raise WebRefusal(f"{action}: {NOT_CREATED}, or {NOT_MANAGED}")
        if len(names) * len(brokers) > MAX_CHANGED:
            raise WebRefusal(f"a request may change {MAX_CHANGED} topics")
        outcomes = [(broker, name, await change(broker, name)) for broker in brokers for name in names]
        return master_answer(
            [
                {"brokerId": broker, "topicName": name, "success": code == DONE, "errCode": code, "errInfo": text}
                for broker, name, (code, text) in outcomes
            ]
        )

    async def _create(self, name: str, count: int) -> Outcome:
        """Create a topic, or add partitions to it."""
        try:
            await self._context.broker.services.topics.create(name, count, is_partitioned=True)
        except (RequestRefused, ClusterError) as error:
            is_invalid = isinstance(error, RequestRefused) and error.reason is RefusalReason.INVALID_NAME
            return Outcome(codes.BAD_REQUEST if is_invalid else code_of(error) or codes.INTERNAL_ERROR, text_of(error))
        await self._context.broker.find_topic(name)
        return Outcome()
