"""Orderly members: only the member that holds the lock of a queue reads it."""

import asyncio

import pytest

from mqbridge.errors import LaneRevoked
from mqbridge.rocketmq.client.consumer import queue_release
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer
from mqbridge.rocketmq.client.consumer.queue_state import LOCK_VALID_S
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code
from tests.rocketmq.client.broker import hangs_up, refuses, until
from tests.rocketmq.client.groups import Scene, scene

__all__ = ["scene"]


def q(number: int, broker: str = "broker-a") -> Queue:
    return Queue("T", broker, number)


async def renew(consumer: PullConsumer) -> None:
    assert consumer.held.needs_locks
    await consumer.held.renew()


async def test_a_queue_is_locked_before_its_offset_is_read(scene: Scene) -> None:
    scene.groups.append(b"x")
    assigned = await scene.assigned(orderly=True)
    await assigned.receive()
    codes = [command.code for command in scene.cluster.requests_to["a:10911"]]
    indexes = [codes.index(c) for c in (Code.LOCK_BATCH_MQ, Code.QUERY_CONSUMER_OFFSET, Code.PULL_MESSAGE)]
    assert indexes == sorted(indexes)
    lock_request = LockRequest.decode(scene.cluster.requests[Code.LOCK_BATCH_MQ][0].body)
    assert (lock_request.group, lock_request.client_id, lock_request.queues) == ("G", scene.clients[0].client_id, (q(0),))


async def test_locks_are_requested_once_for_each_broker(scene: Scene) -> None:
    scene.cluster.topics["T"] = {"broker-a": 2, "broker-b": 1}
    consumer = await scene.join(orderly=True)
    assert set(consumer.held) == {q(0), q(1), q(0, "broker-b")}
    requested = [LockRequest.decode(command.body).queues for command in scene.cluster.requests[Code.LOCK_BATCH_MQ]]
    assert sorted(requested) == [(q(0), q(1)), (q(0, "broker-b"),)]


async def test_a_queue_locked_by_another_member_is_assigned_once_it_is_unlocked(scene: Scene) -> None:
    scene.cluster.topics["T"] = {"broker-a": 2}
    scene.groups.locks["G", q(1)] = "other"
    consumer = await scene.join(orderly=True)
    assert set(consumer.held) == {q(0)}
    del scene.groups.locks["G", q(1)]
    await until(lambda: set(consumer.held) == {q(0), q(1)})


async def test_released_and_revoked_queues_are_unlocked(scene: Scene) -> None:
    scene.cluster.topics["T"] = {"broker-a": 2}
    one = await scene.join("1", orderly=True)
    two = await scene.join("2", orderly=True)
    await until(lambda: (set(one.held), set(two.held)) == ({q(0)}, {q(1)}))
    await one.close()
    await until(lambda: set(two.held) == {q(0), q(1)})
    await two.close()
    assert scene.groups.locks == {}


async def test_a_revoked_queue_stays_locked_until_its_messages_are_acknowledged(scene: Scene) -> None:
    scene.cluster.topics["T"] = {"broker-a": 2}
    scene.groups.append(*[b"x"] * 3, number=1)
    one = await scene.join("1", orderly=True)
    assigned = one.held[q(1)]
    pulled = await assigned.receive()
    two = await scene.join("2", orderly=True)
    await until(lambda: assigned.revoked)
    await asyncio.sleep(0.05)
    assert scene.groups.locks["G", q(1)] == scene.clients[0].client_id
    assigned.commit(pulled.next)
    await until(lambda: q(1) in two.held)
    assert (two.held[q(1)].position, scene.groups.committed("G", number=1)) == (3, 3)


async def test_the_wait_for_acknowledgements_of_a_revoked_queue_is_limited(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_release, "SETTLE_S", 0.02)
    scene.cluster.topics["T"] = {"broker-a": 2}
    scene.groups.append(*[b"x"] * 3, number=1)
    one = await scene.join("1", orderly=True)
    await one.held[q(1)].receive()
    two = await scene.join("2", orderly=True)
    await until(lambda: q(1) in two.held)
    assert (await two.held[q(1)].receive()).first == 0


async def test_a_queue_whose_lock_is_lost_ends_without_a_commit(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 3)
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[q(0)]
    pulled = await assigned.receive()
    assigned.commit(pulled.next)
    before = scene.groups.committed("G")
    scene.groups.locks["G", q(0)] = "other"
    await renew(consumer)
    with pytest.raises(LaneRevoked, match="lock"):
        await assigned.receive()
    assert consumer.held == {}
    assert scene.groups.committed("G") == before
    assert scene.cluster.requests[Code.UPDATE_CONSUMER_OFFSET] == []
    scene.groups.locks.clear()
    await until(lambda: q(0) in consumer.held and consumer.held[q(0)] is not assigned)


@pytest.mark.parametrize("answer", [hangs_up, refuses(1)])
async def test_failed_renewals_revoke_a_queue_only_after_its_lock_expired(scene: Scene, answer: object) -> None:
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[q(0)]
    lock = scene.cluster.on[Code.LOCK_BATCH_MQ]
    scene.cluster.on[Code.LOCK_BATCH_MQ] = answer  # type: ignore[assignment]
    await renew(consumer)
    assert not assigned.revoked
    assert assigned.state.locked_at is not None
    assigned.state.locked_at -= LOCK_VALID_S
    await renew(consumer)
    assert assigned.revoked
    scene.cluster.on[Code.LOCK_BATCH_MQ] = lock
    await until(lambda: q(0) in consumer.held)


async def test_a_queue_with_an_expired_lock_delivers_and_commits_nothing(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 3)
    scene.groups.log().limit = 1
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[q(0)]
    assigned.commit((await assigned.receive()).next)
    await until(lambda: scene.groups.held)
    assert assigned.state.locked_at is not None
    assigned.state.locked_at -= LOCK_VALID_S
    assert assigned.take() is None
    assert assigned.unreported() is None
    await renew(consumer)
    assert assigned.take() is not None


async def test_unlocking_waits_for_the_response_to_a_cancelled_renewal(scene: Scene) -> None:
    """Brokers process the requests of a connection in parallel: a late lock would block the queue for a minute."""
    consumer = await scene.join(orderly=True)
    lock, late = scene.cluster.on[Code.LOCK_BATCH_MQ], []
    scene.cluster.on[Code.LOCK_BATCH_MQ] = lambda link, request: late.append((link, request))
    renewal = asyncio.ensure_future(renew(consumer))
    await until(lambda: late)
    renewal.cancel()
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0.05)
    for link, request in late:
        lock(link, request)
    await closing
    assert scene.groups.locks == {}
