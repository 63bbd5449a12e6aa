"""Groups with members, as the Master shows them."""

from typing import Any

import pytest

from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.wire.string_formats import PartitionKey, format_start_offsets
from tests.tubemq.server.serving import GROUP, TOPIC
from tests.tubemq.server.web.web_bench import HOST, web_bench


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_groups_are_shown_with_their_members_and_partitions(owns_groups: bool) -> None:
    async with web_bench(owns_groups=owns_groups) as web:
        await web.served.create(TOPIC, 2)
        consumer = await web.served.connect("c")
        await consumer.join(conditions={TOPIC: ["y", "x"]})
        for ref in await consumer.assigned():
            await consumer.own(ref.topic, ref.partition)
        shown = {"consumeGroup": GROUP, "topicSet": [TOPIC], "consumerNum": 1}
        for asked in ({}, {"groupName": f"{GROUP},x"}, {"consumeGroup": GROUP}, {"topicName": TOPIC}):
            answer = await web.master("admin_query_sub_info", **asked)
            assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": [shown], "count": 1}
        for other in ({"groupName": "x"}, {"topicName": "x"}):
            assert (await web.master("admin_query_sub_info", **other))["data"] == []
        detail = await web.master("admin_query_consume_group_detail", consumeGroup=GROUP)
        broker = f"{BROKER_ID}:{HOST}:{web.served.listener.port.port}"
        parts = [{"partId": index, "brokerAddr": broker, "topicName": TOPIC} for index in (0, 1)]
        member = {"consumerId": "c", "receivedFrom": "127.0.0.1", "isOverTLS": False, "parCount": 2, "parInfo": parts}
        assert detail == {
            "result": True,
            "errCode": 0,
            "errMsg": "OK",
            "count": 1,
            "topicSet": [TOPIC],
            "consumeGroup": GROUP,
            "re-rebalance": {},
            "isBandConsume": "unbound",
            "rebInfo": {"isRebalanced": True, "checkPasted": True},
            "filterConds": {TOPIC: ["x", "y"]},
            "data": [member],
        }


async def test_a_bound_group_is_shown_with_its_offsets() -> None:
    async with web_bench() as web:
        await web.served.create()
        consumer = await web.served.connect("c")
        required = format_start_offsets({PartitionKey(BROKER_ID, TOPIC, 0): 28})
        bound: dict[str, Any] = {"requireBound": True, "sessionKey": "k", "totalCount": 2, "requiredPartition": required}
        assert (await consumer.join(**bound)).errCode == 200
        detail = await web.master("admin_query_consume_group_detail", groupName=GROUP)
        assert (detail["isBandConsume"], detail["sessionKey"], detail["isNotAllocate"]) == ("bound", "k", True)
        assert (detail["reqSourceCount"], detail["curSourceCount"]) == (2, 1)
        assert detail["data"][0]["initReSetPartInfo"] == [{"partitionKey": f"{BROKER_ID}:{TOPIC}:0", "Offset": 28}]


async def test_a_group_without_members_is_empty() -> None:
    async with web_bench() as web:
        detail = await web.master("admin_query_consume_group_detail", consumeGroup="none")
        assert (detail["result"], detail["count"], detail["data"]) == (True, 0, [])
        assert detail["rebInfo"] == {"isRebalanced": False}
        refused = await web.master("admin_query_consume_group_detail")
        assert refused["errMsg"] == "Parameter consumeGroup is missing or value is blank!"
