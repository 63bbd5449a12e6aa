"""A client does not join a group whose members have other subscriptions, and leaves it if such a member joins."""

import asyncio
import logging

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.consumer.subscription import tagged
from mqbridge.rocketmq.client.consumer.subscription_consistency import _filters as filters
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.client.broker import A, B, Link, refuses, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, first_stream

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)
OTHER_SUBSCRIPTIONS = [
    (SubscriptionData("OTHER"),),
    (SubscriptionData("T"), SubscriptionData("OTHER")),
    (SubscriptionData("T", "blue", 1 << 50),),
]
"""The last one has a newer version than ours: brokers keep the newest subscription of each topic."""


async def send_foreign_heartbeat(environment: ScriptedEnvironment, *subscriptions: SubscriptionData) -> None:
    """Send the heartbeat of a member in another process."""
    data = ConsumerData("G", subscriptions)
    await environment.clients[0].request(A, Code.HEART_BEAT, body=Heartbeat("java@1", (), (data,)).encode())


async def join_foreign_member(environment: ScriptedEnvironment, *subscriptions: SubscriptionData) -> None:
    """Let the member in the other process join before any of ours."""
    own = await environment.join(group="OWN")
    await send_foreign_heartbeat(environment, *subscriptions)
    await own.close()


@pytest.mark.parametrize("theirs", OTHER_SUBSCRIPTIONS)
async def test_a_group_with_other_subscriptions_is_not_joined(
    environment: ScriptedEnvironment, theirs: tuple[SubscriptionData, ...]
) -> None:
    await join_foreign_member(environment, *theirs)
    with pytest.raises(ClusterError, match=r"the members of group G have different subscriptions: T here.*java@1") as caught:
        await environment.join()
    assert caught.value.failure is Failure.RETRY, "the others may leave"
    assert environment.groups.subscriptions["G"] == theirs, "they were not disturbed"
    del environment.groups.members["G"]["java@1"]
    assert (await environment.join()).held.keys() == {QUEUE}


@pytest.mark.parametrize("theirs", OTHER_SUBSCRIPTIONS)
async def test_a_member_with_other_subscriptions_ends_ours_and_is_logged_once_per_difference(
    environment: ScriptedEnvironment, theirs: tuple[SubscriptionData, ...], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await environment.join()
    await first_stream(consumer)

    def warnings() -> list[str]:
        return [
            one.message for one in caplog.records if "different subscriptions" in one.message and one.levelno == logging.WARNING
        ]

    await send_foreign_heartbeat(environment, *theirs)
    with pytest.raises(ClusterError, match=r"different subscriptions.*java@1"):
        await first_stream(consumer)
    for _ in range(3):
        consumer.request_rebalance()
        await asyncio.sleep(0.01)
    assert len(warnings()) == 1
    await send_foreign_heartbeat(environment, SubscriptionData("THIRD"))
    await until(lambda: len(warnings()) == 2)
    assert "THIRD" in warnings()[1]


async def test_members_may_differ_in_the_form_of_the_same_subscriptions(environment: ScriptedEnvironment) -> None:
    """Members may differ in the order of tags, in versions, and in the retry topic, which only some members read."""
    one = await environment.join("1#1", subscriptions=(tagged("T", ["a", "b"]),))
    await send_foreign_heartbeat(environment, SubscriptionData("T", "b||a", 7), SubscriptionData("%RETRY%G"))
    two = await environment.join("2#2", subscriptions=(tagged("T", ["b", "a"]),))
    for consumer in (one, two):
        await consumer._consistency.check()
        assert consumer._reported_difference == ""


async def test_subscriptions_of_a_member_that_left_are_no_difference(environment: ScriptedEnvironment) -> None:
    """Brokers keep the last subscriptions of a group until a member sends a heartbeat."""
    consumer = await environment.join()
    await send_foreign_heartbeat(environment, SubscriptionData("OTHER"))
    del environment.groups.members["G"]["java@1"]
    await consumer._consistency.check()


async def test_the_filter_of_a_member_that_left_is_replaced_by_the_only_member(environment: ScriptedEnvironment) -> None:
    """The old filter is newer than ours: the broker would withhold our messages forever, and other members could not join."""
    red = (tagged("T", ["red"]),)
    first = await environment.join("1#1", subscriptions=red)
    await send_foreign_heartbeat(environment, SubscriptionData("T", "blue", 1 << 50))
    del environment.groups.members["G"]["java@1"]
    await environment.clients[0].heartbeat()
    await first._consistency.check()
    assert environment.groups.subscriptions["G"][0].expression == "red"
    await environment.join("2#2", subscriptions=red)


async def test_the_old_filter_is_replaced_while_a_broker_still_lists_our_lost_connection(
    environment: ScriptedEnvironment,
) -> None:
    """A broker lists a lost connection for two minutes more, beside the new one of the same client."""
    consumer = await environment.join()
    client_id = environment.clients[0].client_id
    connections = (ClientConnection(client_id, "10.0.0.9:1"), ClientConnection(client_id, "10.0.0.9:2"))

    def twice(link: Link, request: Command) -> None:
        link.answer(request, body=ConsumerConnections(connections, environment.groups.subscriptions["G"]).encode())

    environment.cluster.on[Code.GET_CONSUMER_CONNECTION_LIST] = twice
    environment.groups.subscriptions["G"] = (SubscriptionData("T", "blue", 1 << 50),)
    await consumer._consistency.check()
    assert environment.groups.subscriptions["G"][0].expression == "*"


async def test_the_old_filter_is_kept_while_another_broker_lists_its_member(environment: ScriptedEnvironment) -> None:
    """A heartbeat goes to all brokers, so it would replace the filter of the member at the other broker."""
    environment.cluster.topics["T"] = {"broker-a": 1, "broker-b": 1}
    consumer = await environment.join()
    blue = (SubscriptionData("T", "blue", 1 << 50),)
    other = ConsumerConnections((ClientConnection("java@1", "10.0.0.9:1"),), blue)
    environment.cluster.at[B, Code.GET_CONSUMER_CONNECTION_LIST] = lambda link, request: link.answer(request, body=other.encode())
    environment.groups.subscriptions["G"] = blue
    with pytest.raises(ClusterError, match="different subscriptions"):
        await consumer._consistency.check()
    assert environment.groups.subscriptions["G"] == blue


async def test_a_new_subscription_version_is_used_after_its_heartbeat(environment: ScriptedEnvironment) -> None:
    """Brokers refuse pulls with a newer version than they have, so the new version is used only after the heartbeat."""
    consumer = await environment.join()
    before, beat = consumer.membership.version, environment.cluster.on[Code.HEART_BEAT]
    late = list[tuple[Link, Command]]()
    environment.cluster.on[Code.HEART_BEAT] = lambda link, request: late.append((link, request))
    renewing = asyncio.ensure_future(consumer.membership.announce_newer(1 << 50))
    await until(lambda: late)
    assert consumer.membership.version == before
    beat(*late[0])
    await renewing
    assert consumer.membership.version == (1 << 50) + 1
    assert environment.groups.subscriptions["G"][0].version == (1 << 50) + 1


@pytest.mark.parametrize("theirs", OTHER_SUBSCRIPTIONS)
async def test_subscriptions_of_a_connected_member_are_not_replaced(
    environment: ScriptedEnvironment, theirs: tuple[SubscriptionData, ...]
) -> None:
    consumer = await environment.join()
    await send_foreign_heartbeat(environment, *theirs)
    for _ in range(3):
        with pytest.raises(ClusterError, match="different subscriptions"):
            await consumer._consistency.check()
    assert filters(environment.groups.subscriptions["G"]) == filters(theirs)


@pytest.mark.parametrize("code", [Status.NO_PERMISSION, Status.REQUEST_CODE_NOT_SUPPORTED])
async def test_a_broker_that_refuses_to_list_members_is_skipped(environment: ScriptedEnvironment, code: int) -> None:
    environment.groups.append(b"x")
    environment.cluster.on[Code.GET_CONSUMER_CONNECTION_LIST] = refuses(code)
    assert (await (await environment.assigned()).receive()).count == 1
