"""Consumers that choose their partitions themselves."""

from typing import Any

import pytest

from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.support import NO_BOUND, NO_CHOICE
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import master_pb2 as pb
from tests.tubemq.server.serving import GROUP, TOPIC, ServedClient, TubeMQServing, bodies_of, serving


async def choose(client: ServedClient, *, count: int = -2, node: int = -2, topics: tuple[str, ...] = (TOPIC,)) -> Any:
    """Register a consumer that chooses its partitions."""
    info = pb.ClientSubRepInfo(brokerConfigId=-2, topicMetaInfoId=-2, reportSubInfo=False)
    request = pb.RegisterRequestC2MV2(
        clientId=client.client_id,
        groupName=GROUP,
        hostName="h",
        sourceCount=count,
        nodeId=node,
        topicList=topics,
        subRepInfo=info,
    )
    return await client.ask(rpc.BALANCED_REGISTER, request)


async def meta(client: ServedClient, brokers: int = -2, topics: int = -2) -> Any:
    """Ask for the partitions."""
    request = pb.GetPartMetaRequestC2M(clientId=client.client_id, groupName=GROUP, brokerConfigId=brokers, topicMetaInfoId=topics)
    return await client.ask(rpc.PARTITION_META, request)


async def served_consumer(served: TubeMQServing, client_id: str = "c") -> ServedClient:
    client = await served.connect(client_id)
    assert (await choose(client)).errCode == 200
    return client


async def test_a_consumer_asks_for_the_partitions_and_takes_one() -> None:
    async with serving() as served:
        await served.create(partitions=2)
        client = await served_consumer(served)
        found = await meta(client)
        assert list(found.topicMetaInfoList) == [f"{TOPIC}#{BROKER_ID}:1:2:1"]
        assert list(found.brokerConfigList) == [f"{BROKER_ID}:127.0.0.1:{served.listener.port.port}"]
        known = await meta(client, found.brokerConfigId, found.topicMetaInfoId)
        assert (list(known.topicMetaInfoList), list(known.brokerConfigList)) == ([], [])
        assert (known.brokerConfigId, known.topicMetaInfoId) == (found.brokerConfigId, found.topicMetaInfoId)
        await client.store(b"a", b"b", b"c", partition=1)
        assert (await client.own(partition=1, currOffset=28)).currOffset == 28
        assert bodies_of(await client.pack(partition=1)) == [b"b", b"c"]
        second = await served_consumer(served, "d")
        assert (await second.own(partition=1)).errCode == 410
        assert (await second.own(partition=0)).errCode == 200


async def test_a_topic_that_grows_is_told() -> None:
    async with serving() as served:
        await served.create()
        client = await served_consumer(served)
        before = await meta(client)
        await served.create(partitions=3)
        after = await meta(client, before.brokerConfigId, before.topicMetaInfoId)
        assert list(after.topicMetaInfoList) == [f"{TOPIC}#{BROKER_ID}:1:3:1"]


async def test_a_heartbeat_frees_what_is_not_reported_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from mqbridge.tubemq.server import consumer_group

    monkeypatch.setattr(consumer_group, "REPORT_GRACE_S", -1.0)
    async with serving() as served:
        await served.create(partitions=2)
        client = await served_consumer(served)
        await client.own(partition=0)
        await client.own(partition=1)
        info = pb.ClientSubRepInfo(brokerConfigId=-2, topicMetaInfoId=-2, reportSubInfo=True)
        info.partSubInfo.append(f"{TOPIC}#{BROKER_ID}:1")
        request = pb.HeartRequestC2MV2(clientId="c", groupName=GROUP, subRepInfo=info)
        beaten = await client.ask(rpc.BALANCED_HEARTBEAT, request)
        assert (beaten.errCode, list(beaten.topicMetaInfoList)) == (200, [f"{TOPIC}#{BROKER_ID}:1:2:1"])
        assert (await client.get(partition=0)).errCode == 411
        assert (await client.get(partition=1)).errCode == 404


@pytest.mark.parametrize(("count", "node", "code"), [(2, 0, 430), (3, 1, 429), (2, 1, 200), (2, 2, 400)])
async def test_node_ids_are_unique(count: int, node: int, code: int) -> None:
    async with serving() as served:
        await served.create()
        first, second = await served.connect("c"), await served.connect("d")
        assert (await choose(first, count=2, node=0)).errCode == 200
        assert (await choose(second, count=count, node=node)).errCode == code


async def test_a_group_has_one_way_to_get_partitions() -> None:
    async with serving() as served:
        await served.create()
        await served_consumer(served)
        other = await served.connect("d")
        assert (await other.join()).errCode == 424
        assert (await choose(other, topics=("missing", TOPIC))).errCode == 425


async def test_groups_of_the_cluster_do_not_permit_a_choice() -> None:
    async with serving(owns_groups=False) as served:
        await served.create()
        client = await served.connect()
        refused = await choose(client)
        assert (refused.errCode, refused.errMsg) == (424, NO_CHOICE)
        bound = await client.join(requireBound=True, sessionKey="s", totalCount=1)
        assert (bound.errCode, bound.errMsg) == (424, NO_BOUND)
