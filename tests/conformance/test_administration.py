"""Deleting topics and groups, names, and how members share."""

import pytest

from mqbridge.adapter.cluster import Capabilities, Cluster
from mqbridge.adapter.inbound import InboundSpec, Sharing
from mqbridge.adapter.operations import GroupRemover
from mqbridge.errors import ClusterError, Failure, MqbridgeError
from tests.conformance.arena import Arena, fresh_group, numbered, numbers


async def test_a_deleted_topic_is_gone_and_may_be_made_anew(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    if not (capabilities.delete_topics and capabilities.create_topics):
        pytest.skip("cannot delete topics")
    topic = arena.harness.unknown_topic()
    await arena.within(cluster.delete(topic))
    await arena.within(cluster.create(topic, 2))
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 5))
    await arena.within(outbound.close())
    await arena.within(cluster.delete(topic))

    async def is_gone() -> bool:
        return await cluster.describe(topic) is None

    await arena.until(is_gone)
    await arena.within(cluster.create(topic, 1))
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(5, 8))
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 3)
    assert numbers(received) == [5, 6, 7]


async def test_a_deleted_group_starts_anew(arena: Arena, cluster: Cluster) -> None:
    operations = arena.operations(cluster)
    if not isinstance(operations, GroupRemover):
        pytest.skip("cannot delete groups")
    topic, group = await arena.topic(cluster), fresh_group()
    await arena.within(operations.delete_group(topic, group))
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 5))
    inbound = await arena.inbound(cluster, topic, group)
    await arena.take(await arena.lane(inbound), 5)
    with pytest.raises(ClusterError) as raised:
        await arena.within(operations.delete_group(topic, group))
    assert raised.value.failure is Failure.FATAL
    await arena.within(inbound.close())

    async def is_deleted() -> bool:
        try:
            await operations.delete_group(topic, group)
        except ClusterError:  # the servers may not know yet that the member has left
            return False
        return True

    await arena.until(is_deleted)
    assert group not in await arena.within(operations.groups(topic))
    received, _ = await arena.take(await arena.lane(await arena.inbound(cluster, topic, group)), 5)
    assert numbers(received) == list(range(5))


async def test_an_escaped_name_is_that_of_a_topic(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    rule, unknown = capabilities.topic_name, arena.harness.unknown_topic()
    assert rule.problem(unknown) is None
    assert rule.escape(unknown) == unknown
    name = f"{unknown}-a.b%c"
    escaped = rule.escape(name)
    assert rule.unescape(escaped) == name
    assert rule.problem(escaped) is None
    if capabilities.create_topics:
        await arena.within(cluster.create(escaped, 1))
        assert await arena.within(cluster.describe(escaped)) is not None
    assert capabilities.group_name.problem(capabilities.group_name.escape("a-b.c%d")) is None


@pytest.mark.parametrize("sharing", list(Sharing))
async def test_a_way_to_share_is_supported_or_refused(
    arena: Arena, cluster: Cluster, capabilities: Capabilities, sharing: Sharing
) -> None:
    topic = await arena.topic(cluster)
    spec = InboundSpec((topic,), fresh_group(), sharing=sharing)
    if sharing not in capabilities.sharing:
        for refused in (cluster.check_inbound(spec), cluster.inbound(spec)):
            with pytest.raises(MqbridgeError, match=sharing.value):
                await arena.within(refused)
        return
    outbound = await arena.outbound(cluster, topic)
    await arena.within(cluster.check_inbound(spec))
    inbound = await arena.open(cluster.inbound(spec))
    await arena.send(outbound, 0, numbered(0, 5))
    received, _ = await arena.take(await arena.lane(inbound), 5)
    assert sorted(numbers(received)) == list(range(5))


async def test_operators_see_the_name_of_a_member(arena: Arena, cluster: Cluster) -> None:
    operations = arena.operations(cluster)
    topic, group = await arena.topic(cluster), fresh_group()
    for name in ("orders-1", "orders-1", "orders-2"):  # names need not be unique
        await arena.open(cluster.inbound(InboundSpec((topic,), group, member=name, options=arena.harness.inbound_options)))

    async def are_shown() -> bool:
        members = [member.id for member in await operations.members(topic, group)]
        return sum("orders-1" in member for member in members) == 2 and sum("orders-2" in member for member in members) == 1

    await arena.until(are_shown)


async def test_message_types_of_single_topics(arena: Arena, cluster: Cluster) -> None:
    spec = InboundSpec(("a", "b"), "g", msg_types=frozenset({"x"}), topic_msg_types={"b": frozenset({"y"})})
    assert (spec.msg_types_of("a"), spec.msg_types_of("b")) == (frozenset({"x"}), frozenset({"y"}))
    first, second = [await arena.topic(cluster) for _ in range(2)]
    for topic in (first, second):
        outbound = await arena.outbound(cluster, topic)
        messages = [message.replace(msg_type="xy"[index % 2]) for index, message in enumerate(numbered(0, 10))]
        await arena.send(outbound, 0, messages)
    types = {first: frozenset({"x"}), second: frozenset({"y"})}
    inbound = await arena.open(cluster.inbound(InboundSpec((first, second), fresh_group(), topic_msg_types=types)))
    for _ in range(2):
        lane = await arena.lane(inbound)
        wanted = set(range(0 if lane.partition.topic == first else 1, 10, 2))
        found: set[int] = set()
        while not wanted <= found:
            batch = await arena.receive(lane)
            found |= set(numbers(batch.messages))
            lane.acknowledge(batch)
