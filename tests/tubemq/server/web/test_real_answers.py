"""The web methods answer as a real Master and Broker do: the same requests, with the same fields and types."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.wire.string_formats import PartitionRef, parse_subscription
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import TOKEN
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.server.serving import ServedClient, bodies_of
from tests.tubemq.server.web.web_bench import web_bench

pytestmark = pytest.mark.cluster

TYPE = {"attributes": b"k=v,$msgType$=t1,$msgTime$=202601010000", "msgType": "t1", "msgTime": "202601010000"}
M, B = "webapi.htm", "broker.htm"
GROUP_TOPIC = {"groupName": "GROUP", "topicName": "TOPIC"}
MANUAL = GROUP_TOPIC | {"partitionId": "0", "modifyUser": "tester"}
SET = {"groupName": "GROUP", "modifyUser": "tester", "manualSet": "true"}
ADD = {"createUser": "tester", "brokerId": "1"}
CHANGE = {"modifyUser": "tester", "brokerId": "1"}
CALLS: list[tuple[str, str, dict[str, str]]] = [
    (M, "", {}),
    (M, "nonsense", {}),
    (M, "admin_query_master_group_info", {}),
    (M, "admin_query_broker_run_status", {}),
    (M, "admin_query_broker_run_status", {"brokerId": "9"}),
    (M, "admin_query_broker_configure", {}),
    (M, "admin_query_broker_configure", {"brokerId": "x"}),
    (M, "admin_query_topic_info", {"topicName": "TOPIC"}),
    (M, "admin_query_topic_info", {"topicName": "missing"}),
    (M, "admin_query_topic_info", {"topicName": "TOPIC", "brokerId": "9"}),
    (M, "admin_query_topic_deploy_info", {"topicName": "TOPIC"}),
    (M, "admin_query_topic_deploy_info", {"topicName": "missing"}),
    (M, "admin_query_cluster_topic_view", {"topicName": "TOPIC"}),
    (M, "admin_query_topic_authorize_control", {"topicName": "TOPIC"}),
    (M, "admin_query_black_consumer_group_info", {"topicName": "TOPIC"}),
    (M, "admin_query_sub_info", {"topicName": "TOPIC"}),
    (M, "admin_query_sub_info", {"consumeGroup": "GROUP"}),
    (M, "admin_query_sub_info", {"groupName": "missing"}),
    (M, "admin_query_consume_group_detail", {"consumeGroup": "GROUP"}),
    (M, "admin_query_consume_group_detail", {"consumeGroup": "missing"}),
    (M, "admin_query_consume_group_detail", {}),
    (M, "admin_add_new_topic_record", {"topicName": "TOPIC"}),
    (M, "admin_add_new_topic_record", {"topicName": "TOPIC"} | ADD),
    (M, "admin_add_new_topic_record", {"topicName": "TOPIC,NEW"} | ADD),
    (M, "admin_add_new_topic_record", {"topicName": "NEW"} | ADD | {"brokerId": "9"}),
    (M, "admin_add_new_topic_record", {"topicName": "NEW", "createUser": "tester"}),
    (M, "admin_add_new_topic_record", ADD),
    (M, "admin_add_new_topic_record", {"topicName": "NEW", "numPartitions": "0"} | ADD),
    (M, "admin_modify_topic_info", {"topicName": "TOPIC"}),
    (M, "admin_modify_topic_info", {"topicName": "TOPIC"} | CHANGE),
    (M, "admin_modify_topic_info", {"topicName": "TOPIC", "numPartitions": "3"} | CHANGE),
    (M, "admin_modify_topic_info", {"topicName": "TOPIC", "numPartitions": "2"} | CHANGE),
    (M, "admin_modify_topic_info", {"topicName": "missing", "numPartitions": "3"} | CHANGE),
    (M, "admin_modify_topic_info", {"topicName": "NEW", "numPartitions": "4"} | CHANGE),
    (M, "admin_reload_broker_configure", {}),
    (M, "admin_reload_broker_configure", {"modifyUser": "tester"}),
    (M, "admin_reload_broker_configure", CHANGE | {"brokerId": "9"}),
    (M, "admin_reload_broker_configure", CHANGE),
    (B, "", {}),
    (B, "nonsense", {}),
    (B, "admin_query_pubinfo", {"topicName": "TOPIC"}),
    (B, "admin_query_pubinfo", {"topicName": "missing"}),
    (B, "admin_query_broker_all_store_info", {"topicName": "TOPIC"}),
    (B, "admin_query_broker_all_store_info", {"topicName": "missing"}),
    (B, "admin_query_offset", {"groupName": "GROUP"}),
    (B, "admin_query_offset", GROUP_TOPIC),
    (B, "admin_query_offset", {"groupName": "missing"}),
    (B, "admin_query_group_offset", {}),
    (B, "admin_query_group_offset", {"topicName": "TOPIC"}),
    (B, "admin_query_group_offset", GROUP_TOPIC),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "0"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "0", "requireRealOffset": "true"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "7"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "x"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "-1"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "0", "topicName": "missing"}),
    (B, "admin_snapshot_message", {}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "0", "msgCount": "50"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "0", "msgCount": "1"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "0", "msgCount": "51"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "1"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "7"}),
    (B, "admin_snapshot_message", {"topicName": "missing", "partitionId": "1"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "0", "filterConds": "t1"}),
    (B, "admin_snapshot_message", {"topicName": "TOPIC", "partitionId": "0", "filterConds": "zz"}),
    (B, "admin_manual_set_current_offset", {}),
    (B, "admin_manual_set_current_offset", GROUP_TOPIC),
    (B, "admin_manual_set_current_offset", MANUAL),
    (B, "admin_manual_set_current_offset", MANUAL | {"manualOffset": "30"}),
    (B, "admin_manual_set_current_offset", MANUAL | {"manualOffset": "-5"}),
    (B, "admin_manual_set_current_offset", MANUAL | {"manualOffset": "99999"}),
    (B, "admin_manual_set_current_offset", MANUAL | {"manualOffset": "0", "topicName": "missing"}),
    (B, "admin_manual_set_current_offset", MANUAL | {"manualOffset": "0", "partitionId": "9"}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "0", "requireRealOffset": "true"}),
    (B, "admin_set_offset", {"groupName": "GROUP"}),
    (B, "admin_set_offset", SET),
    (B, "admin_set_offset", SET | {"offsetJsonInfo": '{"1:TOPIC:0": 56, "1:missing:0": 0}'}),
    (B, "admin_query_group_offset", GROUP_TOPIC | {"partitionId": "0", "requireRealOffset": "true"}),
    (B, "admin_set_offset", SET | {"offsetJsonInfo": '{"TOPIC:0": 56}'}),
    (B, "admin_set_offset", SET | {"offsetJsonInfo": '{"9:TOPIC:0": 56}'}),
    (B, "admin_set_offset", SET | {"offsetJsonInfo": '{"1:TOPIC:9": 56}'}),
    (B, "admin_set_offset", SET | {"manualSet": "false"}),
    (B, "admin_set_offset", SET | {"manualSet": "false", "topicName": "TOPIC"}),
    (B, "admin_query_offset", GROUP_TOPIC),
]
LEFT_OUT = {
    *("unflushThreshold", "unflushInterval", "unflushDataHold", "memCacheMsgSizeInMB", "memCacheMsgCntInK", "memCacheFlushIntvl"),
    *("deletePolicy", "dataStoreType", "dataPath", "dataVersionId", "serialId", "sizeInBytes"),
    *("createUser", "createDate", "modifyUser", "modifyDate"),
    *("defBClientRate", "confBClientRate", "curBClientRate", "brokerTLSPort", "port"),
}
"""Fields that a listener does not have."""
VALUES = {
    *("result", "errCode", "success", "count", "totalCnt", "dataCount", "partCount", "topicCount", "itemCount", "infoCount"),
    *("zkOffset", "curOffset", "offsetMax", "offsetMin", "offsetLag", "minOffset", "maxOffset", "oldOffset", "tmpOffset"),
    *("flightOffset", "data", "attr", "numPartitions", "totalCfgNumPart", "totalRunNumPartCount", "parCount", "consumerId"),
    *(
        "isBandConsume",
        "topicSet",
        "filterConds",
        "nodeStatus",
        "manageStatus",
        "runStatus",
        "subStatus",
        "storeId",
        "partitionId",
    ),
}
"""Fields with the same values."""


class Side:
    """A real Master and Broker, or a listener."""

    def __init__(self, http: httpx.AsyncClient, master: str, broker: str, broker_id: int = 1) -> None:
        """`broker_id` is the id of its Broker: parameters have 1, and so have the answers that this returns."""
        self._http, self._urls, self._id = http, {M: master, B: broker}, str(broker_id)

    async def call(self, page: str, method: str, parameters: dict[str, str]) -> dict[str, Any]:
        """Call a method, with the parameters in a form."""
        parameters = {key: value.replace('"1:', f'"{self._id}:') for key, value in parameters.items()}
        if parameters.get("brokerId") == "1":
            parameters["brokerId"] = self._id
        form = parameters | ({"method": method} if method else {}) | {"confModAuthToken": TOKEN}
        response = await self._http.post(self._urls[page], data=form)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = json.loads(response.text.replace(self._id, "1"))
        return answer

    async def prepare(self, stack: AsyncExitStack, master: int, broker: int, topic: str, group: str) -> None:
        """Send messages, and have a consumer that owns all partitions and has confirmed them."""
        at_master, at_broker = ServedClient(master, "web_1"), ServedClient(broker, "web_1")
        for each in (at_master, at_broker):
            await each.connection.connect()
            stack.push_async_callback(each.connection.close)
        await at_master.register_producer()
        assert (await at_master.publish(topic)).errCode == 200
        await at_broker.store(b"a", b"b", b"c", topic=topic)
        assert (await at_broker.send(b"d", topic, **TYPE)).errCode == 200  # type: ignore[arg-type]
        assert (await at_master.join(topic, group=group)).errCode == 200
        refs = await assigned(at_master, group)
        assert len(refs) == 3
        for ref in refs:
            assert (await at_broker.own(topic, ref.partition, group)).errCode == 200
        assert bodies_of(await at_broker.pack(topic, 0, group)) == [b"a", b"b", b"c", b"d"]
        assert (await at_broker.confirm(topic, 0, group)).errCode == 200
        await at_broker.get(topic, 1, group)
        async with asyncio.timeout(SERVER_PATIENCE_S):  # a Broker writes the offsets of new groups every few seconds
            while not (await self.call(B, "admin_query_offset", {"groupName": group}))["dataSet"]:
                await at_master.beat(group=group, held=refs)
                await asyncio.sleep(0.2)
            while not await self._is_assigned(group):
                await at_master.beat(group=group, held=refs)
                await asyncio.sleep(0.2)

    async def _is_assigned(self, group: str) -> bool:
        """Return True if the Master shows the consumer with its partitions."""
        detail = await self.call(M, "admin_query_consume_group_detail", {"consumeGroup": group})
        return bool(detail["data"]) and detail["data"][0]["parCount"] == 3


async def assigned(consumer: ServedClient, group: str) -> list[PartitionRef]:
    """Send heartbeats until partitions are assigned; a real Master takes some seconds."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not (response := await consumer.beat(group=group)).HasField("event"):
            await asyncio.sleep(0.5)
    await consumer.beat(group=group, done=response.event)
    return [parse_subscription(text) for text in response.event.subscribeInfo]


@asynccontextmanager
async def sides(tubemq: TubeMQ, topic: str, group: str, *, owns_groups: bool) -> AsyncIterator[tuple[Side, Side]]:
    """Yield the real servers and a listener, which have the same topic and group."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        status = (await http.get(tubemq.admin_url, params={"method": "admin_query_broker_run_status"})).json()["data"][0]
        real = Side(http, tubemq.admin_url, f"http://{status['brokerIp']}:{status['brokerWebPort']}/{B}")
        web = await stack.enter_async_context(web_bench(owns_groups=owns_groups))
        await web.served.create(topic, 3)
        ours = Side(web.http, f"/{M}", f"/{B}", BROKER_ID)
        port = web.served.listener.port.port
        await ours.prepare(stack, port, port, topic, group)
        await real.prepare(stack, int(tubemq.masters.rpartition(":")[2]), status["brokerPort"], topic, group)
        yield real, ours


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_answers_have_the_fields_of_real_servers(tubemq: TubeMQ, owns_groups: bool) -> None:
    topic, group, new = tubemq.take_topic(3), f"g{uuid4().hex[:8]}", f"t{uuid4().hex[:8]}"
    names = {"TOPIC": topic, "GROUP": group, "NEW": new}
    differences = []
    async with sides(tubemq, topic, group, owns_groups=owns_groups) as (real, ours):
        for page, method, pattern in CALLS:
            parameters = dict(pattern)
            for word, name in names.items():
                parameters = {key: value.replace(word, name) for key, value in parameters.items()}
            expected = await real.call(page, method, parameters)
            found = await ours.call(page, method, parameters)
            differences += [f"{method} {pattern}: {each}" for each in compare(expected, found)]
            if not expected["result"] and expected["errMsg"] != found["errMsg"]:
                differences.append(f"{method} {pattern}: {found['errMsg']!r} instead of {expected['errMsg']!r}")
    assert not differences, "\n".join(differences)


def compare(real: Any, ours: Any, path: str = "") -> list[str]:
    """Return where our answer has other fields, or values of other types.

    The partitions of a real store have their offsets in common. Those of a listener do not; here only the first one has messages.
    """
    name = path.rpartition(".")[2].split("[")[0]
    if type(real) is not type(ours):
        return [f"{path}: {type(ours).__name__} instead of {type(real).__name__}"]
    if isinstance(ours, dict):
        found = [f"{path}: the field {each} is not known" for each in sorted(ours.keys() - real.keys())]
        found += [f"{path}: the field {each} is missing" for each in sorted(real.keys() - ours.keys() - LEFT_OUT)]
        return found + [each for key in ours.keys() & real.keys() for each in compare(real[key], ours[key], f"{path}.{key}")]
    if isinstance(ours, list):
        if len(real) != len(ours):
            return [f"{path}: {len(ours)} entries instead of {len(real)}"]
        return [each for index, pair in enumerate(zip(real, ours, strict=True)) for each in compare(*pair, f"{path}[{index}]")]
    is_other_partition = "offset" in name.lower() and re.search(r"(offsets|offsetInfo|partitionInfo)\[[12]\]", path)
    if name not in VALUES or is_other_partition or real == ours:
        return []
    return [f"{path}: {ours!r} instead of {real!r}"]
