"""The first and the next offset of each partition."""

import pytest

from mqbridge.tubemq.server.web import context
from tests.tubemq.server.serving import TOPIC
from tests.tubemq.server.web.web_bench import web_bench


async def test_partitions_are_shown_with_their_offsets() -> None:
    async with web_bench() as web:
        await web.served.create(TOPIC, 2)
        await web.served.create("other")
        producer = await web.served.connect("p")
        await producer.store(b"a", b"b", partition=1)
        answer = await web.broker("admin_query_broker_all_store_info")
        parts = [{"partitionId": index, "minOffset": 0, "maxOffset": end} for index, end in ((0, 0), (1, 56))]
        store = {"storeId": 0, "numPartition": 2, "minDataOffset": -2, "maxDataOffset": -2, "partitionInfo": parts}
        assert answer["dataSet"][0] == {"index": 1, "topicName": TOPIC, "storeInfo": [store]}
        assert (answer["totalCnt"], answer["dataSet"][1]["index"]) == (2, 2)
        answer = await web.broker("admin_query_pubinfo", topicName=f"{TOPIC},none")
        offsets = [
            {"partitionId": index, "offsetMin": 0, "offsetMax": end, "dataMin": -2, "dataMax": -2}
            for index, end in ((0, 0), (1, 56))
        ]
        assert answer["dataSet"] == [{"topicName": TOPIC, "offsetInfo": offsets, "itemCount": 2}]
        assert answer["dataCount"] == 1


async def test_too_many_partitions_or_topics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_bench() as web:
        await web.served.create(TOPIC, 2)
        await web.served.create("other")
        monkeypatch.setattr(context, "MAX_PARTITIONS", 2)
        answer = await web.broker("admin_query_broker_all_store_info")
        assert answer["errMsg"] == "these topics have more than 2 partitions: name fewer topics"
        assert (await web.broker("admin_query_broker_all_store_info", topicName=TOPIC))["result"]
        monkeypatch.setattr(context, "MAX_LISTED", 1)
        answer = await web.broker("admin_query_pubinfo")
        assert answer["errMsg"] == "there are more than 1 topics: name those that you want"
