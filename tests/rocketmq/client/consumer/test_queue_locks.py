"""Orderly members: only the member that holds the lock of a queue reads it."""

import asyncio

import pytest

from mqbridge.errors import LaneRevoked
from mqbridge.rocketmq.client.consumer import queue_release
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer
from mqbridge.rocketmq.client.consumer.queue_state import LOCK_VALID_S
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.client.broker import Link, hangs_up, refuses, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["environment"]


def q(number: int, broker: str = "broker-a") -> Queue:
    return Queue("T", broker, number)


async def renew(consumer: PullConsumer) -> None:
    assert consumer.held.needs_locks
    await consumer.held.renew()


async def test_a_queue_is_locked_before_its_offset_is_read(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    assigned = await environment.assigned(orderly=True)
    await assigned.receive()
    codes = [command.code for command in environment.cluster.requests_to["a:10911"]]
    indexes = [codes.index(c) for c in (Code.LOCK_BATCH_MQ, Code.QUERY_CONSUMER_OFFSET, Code.PULL_MESSAGE)]
    assert indexes == sorted(indexes)
    lock_request = LockRequest.decode(environment.cluster.requests[Code.LOCK_BATCH_MQ][0].body)
    assert (lock_request.group, lock_request.client_id, lock_request.queues) == ("G", environment.clients[0].client_id, (q(0),))


async def test_locks_are_requested_once_for_each_broker(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2, "broker-b": 1}
    consumer = await environment.join(orderly=True)
    assert set(consumer.held) == {q(0), q(1), q(0, "broker-b")}
    requested = [LockRequest.decode(command.body).queues for command in environment.cluster.requests[Code.LOCK_BATCH_MQ]]
    assert sorted(requested) == [(q(0), q(1)), (q(0, "broker-b"),)]


async def test_a_queue_locked_by_another_member_is_assigned_once_it_is_unlocked(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    environment.groups.locks["G", q(1)] = "other"
    consumer = await environment.join(orderly=True)
    assert set(consumer.held) == {q(0)}
    del environment.groups.locks["G", q(1)]
    await until(lambda: set(consumer.held) == {q(0), q(1)})


async def test_locks_of_a_member_that_was_killed_are_released_and_those_of_living_ones_are_not(
    environment: ScriptedEnvironment,
) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    environment.groups.locks |= {("G", q(0)): "killed", ("G", q(1)): "another"}
    consumer = await environment.join(orderly=True, abandoned=("killed",))
    assert set(consumer.held) == {q(0)}, "with its first request"
    living = environment.clients[0].client_id
    await environment.join("2", orderly=True, abandoned=(living,))
    released = [LockRequest.decode(command.body) for command in environment.cluster.requests[Code.UNLOCK_BATCH_MQ]]
    assert [(each.client_id, set(each.queues)) for each in released] == [("killed", {q(0), q(1)})]
    environment.groups.locks.clear()


async def test_a_killed_member_is_left_alone_if_nobody_says_who_lives(environment: ScriptedEnvironment) -> None:
    environment.groups.locks["G", q(0)] = "killed"
    answers = [environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP]]  # to the query of the join

    def answer(link: Link, request: Command) -> None:
        (answers.pop() if answers else refuses(Status.NO_PERMISSION))(link, request)

    environment.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = answer
    consumer = await environment.join(orderly=True, abandoned=("killed",))
    assert (consumer.held, environment.cluster.requests[Code.UNLOCK_BATCH_MQ]) == ({}, [])


async def test_released_and_revoked_queues_are_unlocked(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    one = await environment.join("1", orderly=True)
    two = await environment.join("2", orderly=True)
    await until(lambda: (set(one.held), set(two.held)) == ({q(0)}, {q(1)}))
    await one.close()
    await until(lambda: set(two.held) == {q(0), q(1)})
    await two.close()
    assert environment.groups.locks == {}


async def test_a_revoked_queue_stays_locked_until_its_messages_are_acknowledged(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    environment.groups.append(*[b"x"] * 3, number=1)
    one = await environment.join("1", orderly=True)
    assigned = one.held[q(1)]
    pulled = await assigned.receive()
    two = await environment.join("2", orderly=True)
    await until(lambda: assigned.revoked)
    await asyncio.sleep(0.05)
    assert environment.groups.locks["G", q(1)] == environment.clients[0].client_id
    assigned.commit(pulled.next)
    await until(lambda: q(1) in two.held)
    assert (two.held[q(1)].position, environment.groups.committed("G", number=1)) == (3, 3)


async def test_the_wait_for_acknowledgements_of_a_revoked_queue_is_limited(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_release, "SETTLE_S", 0.02)
    environment.cluster.topics["T"] = {"broker-a": 2}
    environment.groups.append(*[b"x"] * 3, number=1)
    one = await environment.join("1", orderly=True)
    await one.held[q(1)].receive()
    two = await environment.join("2", orderly=True)
    await until(lambda: q(1) in two.held)
    assert (await two.held[q(1)].receive()).first == 0


async def test_a_queue_whose_lock_is_lost_ends_without_a_commit(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 3)
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[q(0)]
    pulled = await assigned.receive()
    assigned.commit(pulled.next)
    before = environment.groups.committed("G")
    environment.groups.locks["G", q(0)] = "other"
    await renew(consumer)
    with pytest.raises(LaneRevoked, match="lock"):
        await assigned.receive()
    assert consumer.held == {}
    assert environment.groups.committed("G") == before
    assert environment.cluster.requests[Code.UPDATE_CONSUMER_OFFSET] == []
    environment.groups.locks.clear()
    await until(lambda: q(0) in consumer.held and consumer.held[q(0)] is not assigned)


@pytest.mark.parametrize("answer", [hangs_up, refuses(1)])
async def test_failed_renewals_revoke_a_queue_only_after_its_lock_expired(
    environment: ScriptedEnvironment, answer: object
) -> None:
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[q(0)]
    lock = environment.cluster.on[Code.LOCK_BATCH_MQ]
    environment.cluster.on[Code.LOCK_BATCH_MQ] = answer  # type: ignore[assignment]
    await renew(consumer)
    assert not assigned.revoked
    assert assigned.state.locked_at is not None
    assigned.state.locked_at -= LOCK_VALID_S
    await renew(consumer)
    assert assigned.revoked
    environment.cluster.on[Code.LOCK_BATCH_MQ] = lock
    await until(lambda: q(0) in consumer.held)


async def test_a_queue_with_an_expired_lock_delivers_and_commits_nothing(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 3)
    environment.groups.log().limit = 1
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[q(0)]
    assigned.commit((await assigned.receive()).next)
    await until(lambda: environment.groups.held)
    assert assigned.state.locked_at is not None
    assigned.state.locked_at -= LOCK_VALID_S
    assert assigned.take() is None
    assert assigned.unreported() is None
    await renew(consumer)
    assert assigned.take() is not None


async def test_unlocking_waits_for_the_response_to_a_cancelled_renewal(environment: ScriptedEnvironment) -> None:
    """Brokers process the requests of a connection in parallel: a late lock would block the queue for a minute."""
    consumer = await environment.join(orderly=True)
    lock, late = environment.cluster.on[Code.LOCK_BATCH_MQ], []
    environment.cluster.on[Code.LOCK_BATCH_MQ] = lambda link, request: late.append((link, request))
    renewal = asyncio.ensure_future(renew(consumer))
    await until(lambda: late)
    renewal.cancel()
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0.05)
    for link, request in late:
        lock(link, request)
    await closing
    assert environment.groups.locks == {}
