"""Consumers: what a Master and a Broker answer, with groups of both kinds."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mqbridge.message import Message
from mqbridge.tubemq.server import consumer_group, consumers
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.wire.string_formats import Broker, PartitionKey, PartitionRef, format_start_offsets
from tests.tubemq.server.serving import (
    FIRST,
    GROUP,
    MAX,
    MAX_ALWAYS,
    TOPIC,
    ServedClient,
    TubeMQServing,
    bodies_of,
    serving,
    until,
)

OTHER_BROKER = Broker(7, "10.0.0.7", 8123)


@pytest.fixture(params=[True, False], ids=["own", "backing"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[TubeMQServing]:
    async with serving(owns_groups=request.param) as opened:
        await opened.create()
        yield opened


async def owner(served: TubeMQServing, client_id: str = "c", **fields: Any) -> ServedClient:
    """Return a consumer that owns the partition."""
    client = await served.connect(client_id)
    assert (await client.join()).errCode == 200
    await client.assigned()
    assert (await client.own(**fields)).errCode == 200
    return client


def ref(served: TubeMQServing, number: int = 0, topic: str = TOPIC) -> PartitionRef:
    return PartitionRef(Broker(BROKER_ID, "127.0.0.1", served.listener.port.port), topic, number)


# --- packs ----------------------------------------------------------------------------------------------------------------


async def test_a_pack_that_is_not_confirmed_comes_again(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(b"a", b"b")
    assert bodies_of(await client.pack()) == [b"a", b"b"]
    assert bodies_of(await client.pack(consumed=False)) == [b"a", b"b"]
    rolled = await client.confirm(consumed=False)
    assert (rolled.errCode, rolled.currOffset) == (200, 0)
    await client.store(b"c")
    again = await client.pack(consumed=True)  # the flag after a rollback confirms nothing
    assert again.currOffset == 0
    assert bodies_of(again)[:2] == [b"a", b"b"]
    assert served.broker.totals["redelivered_messages"] >= 4


async def test_the_next_get_confirms_the_pack_before_once(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(b"a")
    assert bodies_of(await client.pack()) == [b"a"]
    assert (await client.confirm()).currOffset == 28
    await client.store(b"b")
    second = await client.pack(consumed=True)
    assert (second.currOffset, bodies_of(second)) == (28, [b"b"])
    assert (await client.get(consumed=True)).errCode == 404
    assert (await client.confirm()).currOffset == 56


async def test_packs_accumulate_with_manual_commits(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(b"a")
    assert bodies_of(await client.pack(manualCommitOffset=True)) == [b"a"]
    await client.store(b"b")
    assert bodies_of(await client.pack(manualCommitOffset=True)) == [b"b"]
    assert (await client.get(manualCommitOffset=True)).errCode == 404
    assert (await client.confirm()).currOffset == 56


async def test_what_is_rolled_back_comes_again_before_what_follows(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(*(b"%d" % number for number in range(5)))
    assert len(bodies_of(await client.pack())) == 5
    await client.confirm(consumed=False)
    await client.store(b"5", b"6")
    assert await client.read(7) == [b"%d" % number for number in range(7)]


async def test_a_failed_get_has_the_fields_of_a_broker(served: TubeMQServing) -> None:
    client = await owner(served)
    got = await client.get()
    assert (got.success, got.errCode, got.currOffset, got.currDataDlt) == (False, 404, -1, -1)


async def test_a_filter_passes_the_types_that_were_asked_for(served: TubeMQServing) -> None:
    client = await served.connect()
    await client.join(conditions={TOPIC: ["x"]})
    await client.assigned()
    await client.own(types=["x"])
    for attributes, body in ((b"$msgType$=x", b"1"), (b"$msgType$=y", b"2"), (None, b"3"), (b"k=v,$msgType$=x", b"4")):
        assert (await client.send(body, attributes=attributes)).errCode == 200
    assert await client.read(2) == [b"1", b"4"]


async def test_a_pack_of_other_types_is_empty_and_confirmed(served: TubeMQServing) -> None:
    client = await owner(served, types=["x"])
    await client.store(b"a", b"b")
    got = await client.pack()
    assert (got.errCode, bodies_of(got), got.currOffset) == (200, [], 0)
    assert (await client.get()).errCode == 404
    assert (await client.confirm(consumed=False)).currOffset == 56


async def test_messages_of_other_systems_are_served(served: TubeMQServing) -> None:
    client = await owner(served)
    await served.append(Message(b"native", (("k", "v"),), msg_type="t"))
    got = await client.pack()
    assert bodies_of(got) == [b"native"]
    assert b"$msgType$=t" in got.messages[0].payLoadData
    assert b"mqbridge." not in got.messages[0].payLoadData


async def test_a_get_that_nobody_waits_for_hands_out_nothing(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(b"a")
    await client.pack()
    await client.connection.close()
    client = await served.connect("c")
    assert bodies_of(await client.pack()) == [b"a"]


# --- where a group begins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "offset"), [(FIRST, 0), (MAX, 56), (MAX_ALWAYS, 56)])
async def test_where_a_new_group_begins(served: TubeMQServing, status: int, offset: int) -> None:
    client = await served.connect()
    await client.store(b"a", b"b")
    await client.join()
    await client.assigned()
    owned = await client.own(status=status)
    assert (owned.currOffset, owned.maxOffset) == (offset, 56)
    await client.store(b"c")
    assert (await client.read(1))[0] == (b"c" if offset else b"a")


@pytest.mark.parametrize(("status", "offset"), [(FIRST, 28), (MAX, 28), (MAX_ALWAYS, 56)])
async def test_where_a_known_group_goes_on(served: TubeMQServing, status: int, offset: int) -> None:
    client = await owner(served)
    await client.store(b"a")
    assert await client.read(1) == [b"a"]
    assert (await client.confirm()).currOffset == 28
    await client.disown()
    await client.store(b"b")
    assert (await client.own(status=status)).currOffset == offset


@pytest.mark.parametrize(("asked", "offset"), [(28, 28), (29, 28), (0, 0), (1 << 40, 84)])
async def test_a_consumer_begins_at_its_own_offset(served: TubeMQServing, asked: int, offset: int) -> None:
    client = await owner(served)
    await client.store(b"a", b"b", b"c")
    assert await client.read(3) == [b"a", b"b", b"c"]
    await client.confirm()
    assert (await client.own(currOffset=asked)).currOffset == offset
    await client.store(b"d")
    assert (await client.read(1))[0] == [b"a", b"b", b"c", b"d"][offset // 28]


# --- owners ---------------------------------------------------------------------------------------------------------------


async def test_one_consumer_owns_a_partition(served: TubeMQServing) -> None:
    first, second = await owner(served), await served.connect("d")
    await second.join()
    assert (await second.own()).errCode == 410
    assert (await second.get()).errCode == 412
    assert (await second.confirm()).errCode == 412
    await first.disown()
    assert (await first.get()).errCode == 411
    assert (await first.confirm()).errCode == 401
    assert (await second.own()).errCode == 200


async def test_a_heartbeat_names_partitions_that_were_lost(served: TubeMQServing) -> None:
    client = await owner(served)
    fine = await client.beat_partitions(ref(served))
    assert (fine.errCode, fine.hasPartFailure) == (200, False)
    other = await served.connect("d")
    beaten = await other.beat_partitions(ref(served), ref(served, topic="no"))
    assert beaten.hasPartFailure
    assert list(beaten.failureInfo) == [f"412:{ref(served)}", f"411:{ref(served, topic='no')}"]


@pytest.mark.parametrize("is_consumed", [True, False])
async def test_unregistering_confirms_or_rolls_back(served: TubeMQServing, is_consumed: bool) -> None:
    client = await owner(served)
    await client.store(b"a")
    await client.pack()
    assert (await client.disown(consumed=is_consumed)).errCode == 200
    assert (await client.own()).currOffset == (28 if is_consumed else 0)


async def test_the_partitions_of_a_consumer_that_is_gone_are_free(served: TubeMQServing, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await owner(served)
    await client.store(b"a")
    await client.pack()
    monkeypatch.setattr(consumer_group, "LOST_S", 0.0)
    monkeypatch.setattr(consumers, "SWEEP_S", 0.01)
    served.server.consumers.stop()
    served.server.consumers.start()
    await client.connection.close()
    await until(lambda: GROUP not in served.server.consumers.groups)
    second = await owner(served, "d")
    assert bodies_of(await second.pack()) == [b"a"]


async def test_a_partition_without_a_sign_of_its_owner_is_free(served: TubeMQServing, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await owner(served)
    monkeypatch.setattr(consumer_group, "PARTITION_LEASE_S", -1.0)
    served.server.consumers.groups[GROUP].sweep()
    assert (await client.get()).errCode == 411


# --- the group ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "topics", "fields"),
    [
        (425, ("other",), {}),
        (426, (TOPIC,), {"conditions": {TOPIC: ["x"]}}),
        (424, (TOPIC,), {"requireBound": True, "sessionKey": "s", "totalCount": 1}),
    ],
)
async def test_members_have_the_same_terms(served: TubeMQServing, code: int, topics: tuple[str, ...], fields: Any) -> None:
    await served.create("other")
    await owner(served)
    second = await served.connect("d")
    assert (await second.join(*topics, **fields)).errCode == code
    assert list(served.server.consumers.groups[GROUP].members) == ["c"]


async def test_a_group_without_members_may_have_other_terms(served: TubeMQServing) -> None:
    await served.create("other")
    client = await owner(served)
    assert (await client.join("other")).errCode == 200
    assert [each.topic for each in await client.assigned()] == ["other"]


async def test_a_reader_that_is_not_registered_at_the_master_gives_way_to_members() -> None:
    async with serving() as served:
        await served.create()
        await served.create("other")
        reader, member = await served.connect("r"), await served.connect("m")
        assert (await reader.own()).errCode == 200
        (partition,) = served.server.consumers.groups[GROUP].partitions.values()
        assert (await member.join("other", TOPIC)).errCode == 200
        await until(lambda: partition.feed is None)
        assert (await reader.get()).errCode == 411
        assert sorted(each.topic for each in await member.assigned()) == [TOPIC, "other"]


async def test_topics_that_do_not_exist() -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        assert (await client.join("missing")).errCode == 431
        assert (await client.publish("missing")).topicInfos == []
        assert (await client.beat()).errCode == 411


async def test_two_members_share_the_partitions_and_hand_them_over(served: TubeMQServing) -> None:
    await served.create(partitions=4)
    first, second = await served.connect("c"), await served.connect("d")
    await first.join()
    refs = await first.assigned()
    assert len(refs) == 4
    for each in refs:
        await first.own(partition=each.partition)
    await second.join()
    assert not (await second.beat()).HasField("event"), "nothing is free yet"
    event = (await first.beat(done=first.event, held=refs)).event
    assert (event.opType, len(event.subscribeInfo)) == (20, 2)
    given = [int(text.rpartition(":")[2]) for text in event.subscribeInfo]
    for number in given:
        await first.disown(partition=number)
    kept = [each for each in refs if each.partition not in given]
    assert not (await first.beat(done=event, held=kept)).HasField("event")
    assert sorted(each.partition for each in await second.assigned()) == sorted(given)
    for number in given:
        assert (await second.own(partition=number)).errCode == 200
    await first.leave()
    held = [ref(served, number) for number in given]
    assert not (await second.beat()).HasField("event"), "it has not said that its first event is done"
    assert (await second.beat(done=second.event, held=held)).event.opType == 10


async def test_a_member_that_registers_again_is_told_again(served: TubeMQServing) -> None:
    client = await served.connect()
    await client.join()
    assert await client.assigned()
    await client.join()
    assert [each.partition for each in await client.assigned()] == [0]


async def test_a_member_is_told_again_at_another_connection(served: TubeMQServing) -> None:
    client = await served.connect()
    await client.join()
    assert (await client.beat()).event.opType == 10
    assert not (await client.beat()).HasField("event")
    await client.connection.close()
    member = served.server.consumers.groups[GROUP].members["c"]
    await until(lambda: not member.link.alive)
    again = await served.connect("c")
    assert (await again.beat()).event.opType == 10


async def test_partitions_that_are_not_reported_any_more_are_told_again(
    served: TubeMQServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await owner(served)
    monkeypatch.setattr(consumer_group, "REPORT_GRACE_S", -1.0)
    group = served.server.consumers.groups[GROUP]
    group.on_event_done(group.members["c"])
    old = PartitionRef(OTHER_BROKER, TOPIC, 0)
    assert (await client.beat(held=[old])).event.opType == 10


async def test_a_partition_that_is_reported_stays(served: TubeMQServing, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await owner(served)
    monkeypatch.setattr(consumer_group, "REPORT_GRACE_S", -1.0)
    group = served.server.consumers.groups[GROUP]
    group.on_event_done(group.members["c"])
    assert not (await client.beat(held=[ref(served)])).HasField("event")
    assert (await client.get()).errCode == 404


# --- bound groups ---------------------------------------------------------------------------------------------------------


async def test_a_bound_group_begins_at_the_offsets_of_its_members() -> None:
    async with serving() as served:
        await served.create(partitions=2)
        first, second = await served.connect("c"), await served.connect("d")
        await first.store(b"a", b"b", b"c")
        bound: dict[str, Any] = {"requireBound": True, "sessionKey": "s", "totalCount": 2, "selectBig": True}
        for client, offset in ((first, 28), (second, 56)):
            required = format_start_offsets({PartitionKey(BROKER_ID, TOPIC, 0): offset})
            joined = await client.join(requiredPartition=required, **bound)
            assert (joined.errCode, joined.notAllocated) == (200, True)
        beaten = await first.beat()
        refs = [text.rpartition(":")[2] for text in beaten.event.subscribeInfo]
        assert (beaten.notAllocated, refs) == (True, ["1"]), "the larger offset has won partition 0"
        assert [each.partition for each in await second.assigned()] == [0]
        assert (await second.own(currOffset=56)).currOffset == 56
        assert await second.read(1) == [b"c"]
        assert not (await first.beat(done=beaten.event)).notAllocated
        third = await served.connect("e")
        for code, changed in ((427, {"sessionKey": "t"}), (428, {"selectBig": False}), (429, {"totalCount": 3})):
            assert (await third.join(**(bound | changed))).errCode == code


async def test_a_bound_group_waits_for_its_members() -> None:
    async with serving() as served:
        await served.create()
        client = await served.connect()
        await client.join(requireBound=True, sessionKey="s", totalCount=2)
        assert not (await client.beat()).HasField("event")
        assert (await client.join(requireBound=True, sessionKey=" ", totalCount=2)).errCode == 400


# --- the end --------------------------------------------------------------------------------------------------------------


async def test_a_stop_waits_until_what_consumers_have_is_confirmed(served: TubeMQServing) -> None:
    client = await owner(served)
    await client.store(b"a")
    await client.pack()
    closing = asyncio.get_running_loop().create_task(served.listener.close(asyncio.get_running_loop().time() + 30))
    await until(lambda: served.broker.is_draining)
    assert not closing.done()
    assert (await client.confirm()).errCode == 200
    await closing


async def test_a_group_that_was_lost_is_told_at_the_next_get() -> None:
    async with serving(owns_groups=False) as served:
        await served.create()
        client = await owner(served)
        await client.store(b"a")
        await client.pack()
        for feed in served.server.consumers._lanes[GROUP]._membership.feeds:
            await feed.detach()
        assert (await client.get(consumed=True)).errCode == 411
