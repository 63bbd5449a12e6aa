"""Offsets of groups: where they are, and moving them, for both kinds of groups."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.tubemq.server.broker import BROKER_ID
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import GROUP, TOPIC, bodies_of
from tests.tubemq.server.web.web_bench import TubeMQWeb, web_bench

BODIES = [b"a", b"b", b"c", b"d"]
NO_NUMBER = "illegal value for partitionId, value must only contain numbers"
INVALID_KEY = "Parameter offsetJsonInfo's key invalid:demo:0 must be brokerId:topicName:partitionId !"
NO_OFFSETS = "Parameter offsetJsonInfo value parse failure, error is that it has no numbers by keys!"
MANUAL = {"topicName": TOPIC, "groupName": GROUP, "partitionId": 0, "modifyUser": "tester"}


@pytest_asyncio.fixture(params=[True, False], ids=["own", "backing"])
async def web(request: pytest.FixtureRequest) -> AsyncIterator[TubeMQWeb]:
    async with web_bench(owns_groups=request.param, create_partitions=2) as bench:
        await bench.served.create(TOPIC, 2)
        producer = await bench.served.connect("p")
        assert await producer.store(*BODIES) == [0, 28, 56, 84]
        yield bench


async def until_at(web: TubeMQWeb, offset: int) -> None:
    """Wait until the group is there in the first partition."""
    async with asyncio.timeout(PATIENCE_S):
        while (await web.offsets()).get(0) != offset:
            await asyncio.sleep(0.01)


async def test_the_offset_of_a_group_in_a_partition_is_told_with_its_bounds(web: TubeMQWeb) -> None:
    consumer = await web.consume()
    asked = {"topicName": TOPIC, "groupName": GROUP, "partitionId": 0}
    await consumer.get()
    answer = await web.broker("admin_query_group_offset", **asked, requireRealOffset="true")
    bounds = {"minOffset": 0, "maxOffset": 112, "minDataOffset": -2, "maxDataOffset": -2}
    told = {"result": True, "errCode": 0, "errMsg": "OK!", "tmpOffset": 112} | bounds
    assert answer == told | {"zkOffset": 0, "curReadDataOffset": -1, "curRdDltDataOffset": -1}
    await consumer.confirm()
    answer = await web.broker("admin_query_group_offset", **asked, requireRealOffset="true")
    assert (answer["tmpOffset"], answer["zkOffset"]) == (0, 112)
    assert await web.broker("admin_query_group_offset", **asked) == told | {"tmpOffset": 0}


async def test_a_group_without_a_position_gets_none_by_a_query(web: TubeMQWeb) -> None:
    answer = await web.broker(
        "admin_query_group_offset", topicName=TOPIC, groupName="new", partitionId=0, requireRealOffset="true"
    )
    assert (answer["result"], answer["zkOffset"]) == (True, -2)
    assert (await web.broker("admin_query_offset", groupName="new"))["dataSet"] == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "Parameter topicName is missing or value is blank!"),
        ({"topicName": TOPIC}, "Parameter groupName is missing or value is blank!"),
        ({"topicName": TOPIC, "groupName": "g"}, "Parameter partitionId is missing or value is blank!"),
        ({"topicName": TOPIC, "groupName": "g", "partitionId": "x"}, NO_NUMBER),
        ({"topicName": TOPIC, "groupName": "g", "partitionId": "-1"}, "Parameter partitionId value must >= 0"),
        ({"topicName": TOPIC, "groupName": "g", "partitionId": "9" * 30}, NO_NUMBER),
        ({"topicName": TOPIC, "groupName": "g", "partitionId": 2}, "Invalid parameter: not found the store by topicName!"),
        ({"topicName": "none", "groupName": "g", "partitionId": 0}, "Invalid parameter: not found the topicName configure!"),
    ],
)  # fmt: skip
async def test_a_query_that_names_no_partition_is_refused(web: TubeMQWeb, asked: dict[str, object], text: str) -> None:
    answer = await web.broker("admin_query_group_offset", **asked)
    assert answer == {"result": False, "errCode": 400, "errMsg": text}


async def test_the_offsets_of_groups_are_listed(web: TubeMQWeb) -> None:
    consumer = await web.consume()
    assert await consumer.read(4) == BODIES
    await consumer.confirm()
    answer = await web.broker("admin_query_offset")
    data = {"curDataOffset": -2, "dataLag": -2, "dataMax": -2, "flightOffset": 0, "offsetLag": 0}
    offsets = [{"partitionId": index, "curOffset": end, "offsetMax": end} | data for index, end in ((0, 112), (1, 0))]
    sub = {"topicName": TOPIC, "offsets": offsets, "partCount": 2}
    assert answer["dataSet"] == [{"groupName": GROUP, "subInfo": [sub], "topicCount": 1}]
    assert answer["totalCnt"] == 1
    assert await web.broker("admin_query_offset", groupName=f"{GROUP},none", topicName=f"none,{TOPIC}") == answer
    assert (await web.broker("admin_query_offset", groupName="none"))["totalCnt"] == 0


async def test_what_a_consumer_has_is_moved_and_no_longer_counts(web: TubeMQWeb) -> None:
    consumer = await web.consume()
    assert bodies_of(await consumer.pack()) == BODIES
    await consumer.confirm()
    answer = await web.broker("admin_manual_set_current_offset", **MANUAL, manualOffset=30)
    told = {"result": True, "errCode": 0, "errMsg": "Manual update current Offset success!"}
    assert answer == told | {"oldOffset": 112}
    assert (await web.offsets())[0] == 28
    got = await consumer.pack()
    assert (bodies_of(got), got.currOffset) == (BODIES[1:], 28)
    assert (await web.broker("admin_manual_set_current_offset", **MANUAL, manualOffset=84))["oldOffset"] == 28
    confirmed = await consumer.confirm()
    assert confirmed.currOffset == 84, "the pack from before the move is not confirmed"
    assert bodies_of(await consumer.pack(consumed=True)) == BODIES[3:]
    await consumer.confirm()
    await until_at(web, 112)


async def test_a_move_is_kept_when_the_consumer_has_gone(web: TubeMQWeb) -> None:
    consumer = await web.consume()
    assert await consumer.read(4) == BODIES
    await consumer.confirm()
    await web.broker("admin_manual_set_current_offset", **MANUAL, manualOffset=56)
    await consumer.leave()
    await until_at(web, 56)
    again = await web.consume(client_id="d")
    assert bodies_of(await again.pack()) == BODIES[2:]


async def test_a_group_without_members_is_moved(web: TubeMQWeb) -> None:
    answer = await web.broker("admin_manual_set_current_offset", **MANUAL, manualOffset=56)
    assert (answer["result"], answer["oldOffset"]) == (True, -2)
    assert (await web.offsets())[0] == 56
    assert (await web.broker("admin_manual_set_current_offset", **MANUAL, manualOffset=28))["oldOffset"] == 56
    consumer = await web.consume()
    assert bodies_of(await consumer.pack()) == BODIES[1:]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"modifyUser": ""}, "Parameter modifyUser is missing or value is blank!"),
        ({}, "Parameter manualOffset is missing or value is blank!"),
        ({"manualOffset": 113}, "Invalid parameter: manualOffset bigger than Current MaxOffset:(113>112)"),
        ({"manualOffset": -5}, "Invalid parameter: manualOffset lower than Current MinOffset:(-5<0)"),
        ({"manualOffset": 1, "topicName": "none"}, "Invalid parameter: not found the topicName configure!"),
        ({"manualOffset": 1, "partitionId": 9}, "Invalid parameter: not found the store by topicName!"),
    ],
)
async def test_a_move_elsewhere_is_refused(web: TubeMQWeb, changes: dict[str, object], text: str) -> None:
    answer = await web.broker("admin_manual_set_current_offset", **(MANUAL | changes))
    assert answer == {"result": False, "errCode": 400, "errMsg": text}


async def test_groups_are_moved_to_named_offsets_and_to_the_end(web: TubeMQWeb) -> None:
    consumer = await web.consume()
    moves = {
        f"{BROKER_ID}:{TOPIC}:0": 56,
        f"{BROKER_ID}:{TOPIC}:1": 99,
        f"7:{TOPIC}:0": 0,
        f"{BROKER_ID}:none:0": 0,
        f"{BROKER_ID}:{TOPIC}:9": 0,
    }
    asked = {"groupName": f"{GROUP},other", "manualSet": "true", "modifyUser": "tester"}
    assert await web.broker("admin_set_offset", **asked, offsetJsonInfo=json.dumps(moves)) == {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
    }
    assert await web.offsets() == await web.offsets("other") == {0: 56, 1: 0}
    assert bodies_of(await consumer.pack()) == BODIES[2:]
    assert (await web.broker("admin_set_offset", **(asked | {"manualSet": "false"}), topicName=TOPIC))["result"]
    assert await web.offsets() == await web.offsets("other") == {0: 112, 1: 0}
    assert (await consumer.get()).errCode == 404


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"offsetJsonInfo": ""}, "Parameter offsetJsonInfo is missing or value is blank!"),
        ({"offsetJsonInfo": '{"demo:0": 1}'}, INVALID_KEY),
        ({"offsetJsonInfo": f'{{"{BROKER_ID}:demo:9": 1}}'}, "Parameter offsetJsonInfo's value is invalid!"),
        ({"offsetJsonInfo": f'{{"{BROKER_ID}:demo:0": true}}'}, NO_OFFSETS),
        ({"offsetJsonInfo": "[" * 9000}, None),
        ({"manualSet": "false"}, "Parameter topicName is missing or value is blank!"),
        ({"manualSet": ""}, "Parameter manualSet is missing or value is blank!"),
    ],
)  # fmt: skip
async def test_a_set_without_offsets_is_refused(web: TubeMQWeb, asked: dict[str, object], text: str | None) -> None:
    answer = await web.broker("admin_set_offset", **({"groupName": "g", "manualSet": "true", "modifyUser": "tester"} | asked))
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert text is None or answer["errMsg"] == text


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_nothing_is_moved_unless_that_is_permitted(owns_groups: bool) -> None:
    async with web_bench(owns_groups=owns_groups, manage=False) as web:
        await web.served.create()
        for method in ("admin_manual_set_current_offset", "admin_set_offset"):
            answer = await web.broker(method, **MANUAL, manualOffset=0, manualSet="false")
            assert (answer["result"], answer["errCode"]) == (False, 400)
            assert "set `manage: true` in its configuration" in answer["errMsg"]
        assert await web.offsets() == {}
