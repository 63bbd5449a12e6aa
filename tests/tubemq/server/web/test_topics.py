"""Topics of the Master's web side: lists, creation, growth, and what a listener does not permit."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.tubemq.server.broker import BROKER_ID
from tests.tubemq.server.serving import TOPIC
from tests.tubemq.server.web.web_bench import HOST, TubeMQWeb, web_bench

NEW = {"brokerId": BROKER_ID, "createUser": "tester"}
MORE = {"brokerId": BROKER_ID, "modifyUser": "tester"}


@pytest_asyncio.fixture(params=[True, False], ids=["own", "backing"])
async def web(request: pytest.FixtureRequest) -> AsyncIterator[TubeMQWeb]:
    async with web_bench(owns_groups=request.param, create_partitions=2) as bench:
        await bench.served.create(TOPIC, 3)
        yield bench


def entry(name: str, code: int = 200, text: str = "Ok!", broker: int = BROKER_ID) -> dict[str, object]:
    """Return the entry of an answer to a change."""
    return {"brokerId": broker, "topicName": name, "success": code == 200, "errCode": code, "errInfo": text}


async def test_topics_are_listed_with_their_partitions(web: TubeMQWeb) -> None:
    await web.served.create("other", 1)
    answer = await web.master("admin_query_topic_info")
    assert {key: answer[key] for key in ("result", "errCode", "errMsg", "count")} == {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        "count": 2,
    }
    assert [each["topicName"] for each in answer["data"]] == [TOPIC, "other"]
    assert await web.master("admin_query_topic_info", topicName=f"none,{TOPIC}", brokerId=f"{BROKER_ID},7") == {
        **answer,
        "data": answer["data"][:1],
        "count": 1,
    }
    stores = {"numTopicStores": 1, "numPartitions": 3}
    accepted = {"acceptPublish": True, "acceptSubscribe": True}
    record = {"topicName": TOPIC, "brokerId": BROKER_ID, "topicNameId": -2, "topicStatusId": 0, **stores, **accepted}
    record |= {"brokerIp": HOST, "brokerPort": web.served.listener.port.port}
    record |= {"runInfo": {**stores, **accepted, "brokerManageStatus": "online"}}
    totals = {"infoCount": 1, "totalCfgNumPart": 3, "totalRunNumPartCount": 3}
    totals |= {"isSrvAcceptPublish": True, "isSrvAcceptSubscribe": True}
    head = {"topicName": TOPIC, "maxMsgSizeInMB": 8}
    assert answer["data"][0] == head | {"topicInfo": [record], "authData": {}} | totals
    deployed = await web.master("admin_query_topic_deploy_info", topicName=TOPIC)
    control = {"topicNameId": -2, "enableAuthControl": False}
    assert deployed["data"] == [head | control | {"deployInfo": [record]} | totals]
    view = await web.master("admin_query_cluster_topic_view")
    assert [(each["topicName"], each["totalRunNumPartCount"]) for each in view["data"]] == [(TOPIC, 3), ("other", 1)]


@pytest.mark.parametrize("method", ["admin_query_topic_info", "admin_query_topic_deploy_info", "admin_query_cluster_topic_view"])
async def test_what_is_not_there_is_not_listed(web: TubeMQWeb, method: str) -> None:
    nothing = {"result": True, "errCode": 0, "errMsg": "OK", "data": [], "count": 0}
    assert await web.master(method, topicName="none") == nothing
    assert await web.master(method, brokerId=7) == nothing
    answer = await web.master(method, brokerId="x")
    assert answer == {"result": False, "errCode": 400, "errMsg": "illegal value for brokerId, value must only contain numbers"}


async def test_topics_are_created_unless_they_exist(web: TubeMQWeb) -> None:
    answer = await web.master("admin_add_new_topic_record", topicName=f"{TOPIC},new", numPartitions=3, **NEW)
    exists = entry(TOPIC, 402, f"Existed record found for brokerId-topicName({BROKER_ID}:{TOPIC})!")
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": [exists, entry("new")], "count": 2}
    await web.master("admin_add_new_topic_record", topicName="default", **NEW)
    await web.master("admin_add_new_topic_record", topicName="stores", numPartitions=2, numTopicStores=3, **NEW)
    view = await web.master("admin_query_cluster_topic_view")
    counts = {each["topicName"]: each["totalCfgNumPart"] for each in view["data"]}
    assert counts == {TOPIC: 3, "new": 3, "default": 2, "stores": 6}


async def test_a_topic_grows(web: TubeMQWeb) -> None:
    for count, expected in (
        (3, entry(TOPIC, 403, "Topic deploy configure not changed!")),
        (5, entry(TOPIC)),
        (4, entry(TOPIC, 407, f"Partition number less than before, new value is 4, current value is 5 in topic {TOPIC}")),
    ):
        answer = await web.master("admin_modify_topic_info", topicName=TOPIC, numPartitions=count, **MORE)
        assert answer["data"] == [expected]
    answer = await web.master("admin_modify_topic_info", topicName=TOPIC, acceptPublish="false", **MORE)
    assert answer["data"] == [entry(TOPIC, 403, "Topic deploy configure not changed!")]
    answer = await web.master("admin_modify_topic_info", topicName="none", numPartitions=9, **MORE)
    assert answer["data"] == [entry("none", 401, f"Not found topic deploy configure for brokerId-topicName({BROKER_ID}:none)!")]
    answer = await web.master("admin_modify_topic_info", topicName=TOPIC, numPartitions=9, **(MORE | {"brokerId": 7}))
    assert answer["data"][0]["errCode"] == 401
    assert (await web.served.broker.find_topic(TOPIC)).count == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"createUser": ""}, "Parameter createUser is missing or value is blank!"),
        ({"topicName": " , "}, "Parameter topicName is missing or value is blank!"),
        ({"brokerId": ""}, "Parameter brokerId is missing or value is blank!"),
        ({"numPartitions": 0}, "Parameter numPartitions value must >= 1"),
        ({"topicName": ",".join(f"t{number}" for number in range(101))}, "a request may change 100 topics"),
        ({"topicName": ",".join(f"t{number}" for number in range(1001))}, None),
        ({"topicName": "t" * 1025}, None),
    ],
)
async def test_a_creation_that_cannot_be_is_refused(web: TubeMQWeb, changes: dict[str, object], text: str | None) -> None:
    answer = await web.master("admin_add_new_topic_record", **({"topicName": "new"} | NEW | changes))
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert text is None or answer["errMsg"] == text
    assert (await web.master("admin_query_topic_info"))["count"] == 1


async def test_a_topic_that_cannot_be_created_says_why(web: TubeMQWeb) -> None:
    answer = await web.master("admin_add_new_topic_record", topicName="new,mqbridge-dead-app", numPartitions=100_000, **NEW)
    assert [each["success"] for each in answer["data"]] == [False, False]
    assert "1000" in answer["data"][0]["errInfo"]
    answer = await web.master("admin_add_new_topic_record", topicName="new", **(NEW | {"brokerId": 7}))
    assert answer["data"][0]["errCode"] == 401
    assert (await web.master("admin_query_topic_info"))["count"] == 1


@pytest.mark.parametrize(
    ("create_partitions", "manage", "is_permitted"), [(None, False, False), (None, True, True), (2, False, True)]
)
async def test_topics_are_created_with_create_or_manage(create_partitions: int | None, manage: bool, is_permitted: bool) -> None:
    async with web_bench(create_partitions=create_partitions, manage=manage) as web:
        answer = await web.master("admin_add_new_topic_record", topicName="new", **NEW)
        assert answer["result"] is is_permitted
        if not is_permitted:
            assert "`create`" in answer["errMsg"]
        assert (await web.master("admin_query_topic_info"))["count"] == int(is_permitted)


async def test_all_groups_may_consume(web: TubeMQWeb) -> None:
    answer = await web.master("admin_query_topic_authorize_control", topicName=TOPIC)
    assert [(each["topicName"], each["isEnable"], each["authConsumeGroup"]) for each in answer["data"]] == [(TOPIC, False, [])]
    assert (await web.master("admin_query_black_consumer_group_info", topicName=TOPIC))["data"] == []
