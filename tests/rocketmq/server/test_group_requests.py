"""Requests of clients about their groups."""

import asyncio

import pytest

from mqbridge.rocketmq.server import group_requests as module
from mqbridge.rocketmq.server.support import NO_POP, NO_SQL
from mqbridge.rocketmq.wire.bodies.groups import BROADCASTING, CheckClient, ConsumerList, SubscriptionData
from mqbridge.rocketmq.wire.bodies.pop import POP, PULL, Assignment, AssignmentQuery, Assignments, MessageRequestMode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader, UnregisterHeader
from mqbridge.rocketmq.wire.tags import SQL92
from tests.rocketmq.server.serving import GROUP, RawRemotingClient, RocketMQServing, gateway, log_cluster, serving, until

BROKER = "mqbridge-app"
Q0, Q1 = Queue("t", BROKER, 0), Queue("t", BROKER, 1)


async def lock(client: RawRemotingClient, *queues: Queue, client_id: str = "c", group: str = GROUP) -> set[Queue]:
    answer = await client.ask(Code.LOCK_BATCH_MQ, None, LockRequest(client_id, group, queues).encode())
    assert answer.code == 0
    return set(LockedQueues.decode(answer.body).queues)


async def unlock(client: RawRemotingClient, *queues: Queue, client_id: str = "c", group: str = GROUP) -> None:
    answer = await client.ask(Code.UNLOCK_BATCH_MQ, None, LockRequest(client_id, group, queues).encode())
    assert (answer.code, answer.body) == (0, b"")


async def test_members_of_a_group() -> None:
    async with serving() as served:
        first, second = await served.connect("1"), await served.connect("2")
        await first.join("t")
        await second.join("t")
        await second.join("t", group="h")
        answer = await first.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))
        assert set(ConsumerList.decode(answer.body).client_ids) == {"1", "2"}
        await first.leave()
        answer = await first.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))
        assert ConsumerList.decode(answer.body).client_ids == ("2",)
        answer = await first.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader("x"))
        assert (answer.code, answer.remark) == (Status.SYSTEM_ERROR, "group x has no consumers here")


async def test_a_client_leaves_its_producer_group_and_its_consumer_group() -> None:
    async with serving() as served:
        client = await served.connect("1")
        await client.join("t")
        await client.produce("p")
        assert (await client.ask(Code.UNREGISTER_CLIENT, UnregisterHeader("1", "p", GROUP))).code == 0
        assert (served.broker.clients.producers, served.broker.clients.consumers) == ({}, {})
        assert (await client.ask(Code.UNREGISTER_CLIENT, UnregisterHeader("1", "p", GROUP))).code == 0


async def test_clients_with_one_id_are_named_once_and_leave_by_themselves() -> None:
    async with serving() as served:
        first, second = await served.connect("1"), await served.connect("1")
        for client in (first, second):
            await client.join("t")
            await client.produce("p")
        answer = await first.ask(Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))
        assert ConsumerList.decode(answer.body).client_ids == ("1",)
        assert (await first.ask(Code.UNREGISTER_CLIENT, UnregisterHeader("1", "p", GROUP))).code == 0
        assert len(served.broker.clients.consumers[GROUP].connected) == len(served.broker.clients.producer_links("p")) == 1
        assert (await second.ask(Code.UNREGISTER_CLIENT, UnregisterHeader("1", "p", GROUP))).code == 0
        assert (served.broker.clients.producers, served.broker.clients.consumers) == ({}, {})


async def test_a_heartbeat_that_cannot_be_read_is_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await client.ask(Code.HEART_BEAT, None, b"{")).code == Status.SYSTEM_ERROR
        await client.settle()


async def test_only_filters_by_tag_are_supported() -> None:
    async with serving() as served:
        client = await served.connect()
        for kind, code, remark in (("TAG", 0, None), (SQL92, Status.SYSTEM_ERROR, NO_SQL)):
            check = CheckClient("c", GROUP, SubscriptionData("t", "a > 1", 1, kind))
            answer = await client.ask(Code.CHECK_CLIENT_CONFIG, None, check.encode())
            assert (answer.code, answer.remark) == (code, remark)


# --- locks ----------------------------------------------------------------------------------------------------------------


async def test_a_queue_is_locked_by_one_client_of_each_group() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=3)
        assert await lock(client, Queue("t", BROKER, 3), Queue("u", BROKER, 0)) == set(), "there are no such queues"
        assert await lock(client, Q0, Q1) == {Q0, Q1}
        assert await lock(client, Q0, Q1) == {Q0, Q1}, "it renews its locks"
        assert await lock(client, Q0, Queue("t", BROKER, 2), client_id="d") == {Queue("t", BROKER, 2)}
        assert await lock(client, Q0, client_id="d", group="h") == {Q0}
        await unlock(client, Q0, client_id="d")
        assert await lock(client, Q0, client_id="d") == set(), "only its owner unlocks a queue"
        await unlock(client, Q0)
        assert await lock(client, Q0, client_id="d") == {Q0}
        assert await lock(client, Q0, Q1) == {Q1}


async def test_a_lock_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await lock(client, Q0)
        requests = served.server.group_requests
        owner, until_s = requests._locks[GROUP][Q0]
        assert owner == "c"
        assert 59 < until_s - asyncio.get_running_loop().time() <= module.LOCK_S == 60
        requests._forget_expired()
        assert GROUP in requests._locks
        requests._locks[GROUP][Q0] = "c", asyncio.get_running_loop().time() - 0.001
        assert await lock(client, Q0, client_id="d") == {Q0}
        monkeypatch.setattr(module, "LOCK_S", -1.0)
        await lock(client, Q1)
        requests._forget_expired()
        assert list(requests._locks[GROUP]) == [Q0]


async def test_locks_that_have_expired_are_forgotten() -> None:
    async with serving() as served:
        client = await served.connect()
        await lock(client, Q0)
        await unlock(client, Q0)
        await unlock(client, Q0, group="never locked")
        assert served.server.group_requests._locks == {}


async def test_a_queue_is_locked_where_its_lane_is_held(tmp_path) -> None:
    async with log_cluster(tmp_path) as cluster, gateway(cluster, tmp_path, "1", owns_groups=False) as one:
        client = await one.connect()
        topic = await one.create(queues=2)
        assert await lock(client, Q0, Q1) == set()
        await client.join("t")
        await until(lambda: held(one, topic) == {0, 1})
        assert await lock(client, Q0, Q1, Queue("x", BROKER, 0), Queue("t", BROKER, 5)) == {Q0, Q1}
        async with gateway(cluster, tmp_path, "2", owns_groups=False) as two:
            other = await two.connect("d")
            await two.broker.find_topic("t")
            await other.join("t")
            await until(lambda: len(held(one, topic)) == len(held(two, topic)) == 1)
            assert await lock(client, Q0, Q1) == {(Q0, Q1)[index] for index in held(one, topic)}
            assert await lock(other, Q0, Q1, client_id="d") == {(Q0, Q1)[index] for index in held(two, topic)}


def held(served: RocketMQServing, topic) -> set[int]:
    feeds = {queue: served.broker.feed_of(GROUP, topic, queue) for queue in topic.partitions}
    return {queue for queue, feed in feeds.items() if feed is not None and feed.is_held}


# --- assignments ----------------------------------------------------------------------------------------------------------


async def assigned(client: RawRemotingClient, topic: str = "t", group: str = GROUP, strategy: str = "AVG") -> list[int] | None:
    query = AssignmentQuery(topic, group, client.client_id, strategy)
    answer = await client.ask(Code.QUERY_ASSIGNMENT, None, query.encode())
    assert answer.code == 0
    found = Assignments.decode(answer.body).assignments
    if found is None:
        return None
    assert all(each == Assignment(Queue(topic, BROKER, each.queue.id), PULL) for each in found)
    return [each.queue.id for each in found]


@pytest.mark.parametrize(
    ("strategy", "first", "second"), [("AVG", [0, 1], [2, 3]), ("AVG_BY_CIRCLE", [0, 2], [1, 3]), ("?", [0, 1], [2, 3])]
)
async def test_the_queues_are_divided_among_the_members(strategy: str, first: list[int], second: list[int]) -> None:
    async with serving() as served:
        await served.create(queues=4)
        one, two = await served.connect("1"), await served.connect("2")
        await one.join("t")
        await two.join("t")
        assert await assigned(one, strategy=strategy) == first
        assert await assigned(two, strategy=strategy) == second


async def test_a_ring_of_hashes_divides_all_queues() -> None:
    async with serving() as served:
        await served.create(queues=8)
        one, two = await served.connect("1"), await served.connect("2")
        await one.join("t")
        await two.join("t")
        shares = [await assigned(each, strategy="CONSISTENT_HASH") or [] for each in (one, two)]
        assert sorted(shares[0] + shares[1]) == list(range(8))


async def test_a_member_of_a_broadcast_gets_all_queues() -> None:
    async with serving() as served:
        await served.create(queues=3)
        one, two = await served.connect("1"), await served.connect("2")
        await one.join("t", message_model=BROADCASTING)
        await two.join("t", message_model=BROADCASTING)
        assert await assigned(one) == await assigned(two) == [0, 1, 2]


async def test_who_is_no_member_gets_no_queues() -> None:
    async with serving() as served:
        client = await served.connect()
        assert await assigned(client) is None
        await served.create()
        assert await assigned(client) is None
        await client.join("t")
        assert await assigned(client) == [0]
        assert await assigned(client, topic="x") is None
        assert await assigned(client, group="x") is None
        client.client_id = "other"
        assert await assigned(client) is None


async def test_groups_pull() -> None:
    async with serving() as served:
        client = await served.connect()
        for mode, code, remark in ((PULL, 0, None), (POP, Status.NO_PERMISSION, NO_POP)):
            answer = await client.ask(Code.SET_MESSAGE_REQUEST_MODE, None, MessageRequestMode("t", GROUP, mode).encode())
            assert (answer.code, answer.remark) == (code, remark)
        for code in (Code.POP_MESSAGE, Code.ACK_MESSAGE):
            assert (await client.ask(code)).code == Status.REQUEST_CODE_NOT_SUPPORTED
