"""The Broker's partitions: the offsets of the first message and of the next one.

What a Broker tells of its files is not known: offsets of data are NOT_KNOWN, and sizes are left out.
"""

from collections.abc import Mapping

from mqbridge.tubemq.server.web.answers import NOT_KNOWN, Answer, broker_answer
from mqbridge.tubemq.server.web.context import TopicBounds, WebContext
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.requests import Parameters


class StorePages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Broker."""
        return {
            "admin_query_broker_all_store_info": WebMethod(self._stores),
            "admin_query_pubinfo": WebMethod(self._published),
        }

    async def _find(self, parameters: Parameters) -> list[TopicBounds]:
        context = self._context
        return await context.with_bounds(await context.topics(parameters.names("topicName")))

    async def _stores(self, parameters: Parameters) -> Answer:
        found = await self._find(parameters)
        return broker_answer([{"index": number} | _store(each) for number, each in enumerate(found, 1)])

    async def _published(self, parameters: Parameters) -> Answer:
        return broker_answer([_published(each) for each in await self._find(parameters)], "dataCount")


def _store(found: TopicBounds) -> Answer:
    partitions = [
        {"partitionId": index, "minOffset": first, "maxOffset": end} for index, (first, end) in sorted(found.bounds.items())
    ]
    data = {"minDataOffset": NOT_KNOWN, "maxDataOffset": NOT_KNOWN}
    store = {"storeId": 0, "numPartition": len(partitions)} | data | {"partitionInfo": partitions}
    return {"topicName": found.topic.name, "storeInfo": [store]}


def _published(found: TopicBounds) -> Answer:
    partitions = [
        {"partitionId": index, "offsetMin": first, "offsetMax": end, "dataMin": NOT_KNOWN, "dataMax": NOT_KNOWN}
        for index, (first, end) in sorted(found.bounds.items())
    ]
    return {"topicName": found.topic.name, "offsetInfo": partitions, "itemCount": len(partitions)}
