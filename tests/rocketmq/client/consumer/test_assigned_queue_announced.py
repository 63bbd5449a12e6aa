"""A queue that the group wants for another member is kept with its lock until its user releases it, or a time has passed."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from mqbridge.errors import LaneRevoked
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer
from mqbridge.rocketmq.client.consumer.queue_transitions import State
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)


async def wanted(environment: ScriptedEnvironment, wait_s: float, messages: int = 10) -> tuple[PullConsumer, AssignedQueue]:
    """Read the first messages of a queue, and let a rebalance find that it belongs to another member."""
    environment.groups.append(*[b"x"] * messages)
    environment.groups.log().limit = 5
    consumer = await environment.join(orderly=True, release_wait_s=wait_s)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    consumer._assignment.own_queues = AsyncMock(return_value=([], True))  # type: ignore[method-assign]
    consumer.request_rebalance()
    await until(assigned.releasing.is_set)
    return consumer, assigned


async def test_messages_in_flight_are_acknowledged_before_the_release(environment: ScriptedEnvironment) -> None:
    consumer, assigned = await wanted(environment, PATIENCE_S)
    assert not assigned.revoked
    assert not assigned.ended.is_set()
    assert assigned.take() is None, "nothing more is delivered"
    pulls = len(environment.groups.pulls())
    await consumer._rebalance()  # a further rebalance changes nothing
    await consumer.held.renew()
    assert environment.groups.locks, "the lock is kept"
    assigned.commit(3)
    await consumer.held.commit()
    await until(lambda: environment.groups.committed("G") == 3)
    assigned.commit(5)
    await assigned.release()
    assert assigned.ended.is_set()
    assert environment.groups.committed("G") == 5
    assert environment.groups.locks == {}
    assert consumer.held == {}
    assert len(environment.groups.pulls()) == pulls


async def test_a_waiting_receive_ends_with_the_queue(environment: ScriptedEnvironment) -> None:
    _, assigned = await wanted(environment, 0.05)
    with pytest.raises(LaneRevoked):
        await asyncio.wait_for(assigned.receive(), PATIENCE_S)


async def test_the_queue_is_released_when_the_time_has_passed(environment: ScriptedEnvironment) -> None:
    consumer, assigned = await wanted(environment, 0.05)
    assigned.commit(2)
    await asyncio.wait_for(assigned.ended.wait(), PATIENCE_S)
    await until(lambda: not consumer.held)
    assert environment.groups.committed("G") == 2
    assert environment.groups.locks == {}
    assigned.commit(5)
    assert assigned.acknowledged == 2


async def test_a_lost_lock_ends_the_queue_at_once(environment: ScriptedEnvironment) -> None:
    consumer, assigned = await wanted(environment, PATIENCE_S)
    environment.groups.locks["G", QUEUE] = "another member"
    await consumer.held.renew()
    assert assigned.state.state is State.LOST
    assert assigned.ended.is_set()
    assigned.commit(5)
    await consumer.held.commit()
    assert environment.groups.committed("G") == 0, "the start, which the first pull has committed"


async def test_closing_does_not_wait(environment: ScriptedEnvironment) -> None:
    consumer, assigned = await wanted(environment, PATIENCE_S)
    assigned.commit(5)
    async with asyncio.timeout(PATIENCE_S / 2):
        await consumer.close()
    assert environment.groups.committed("G") == 5


async def test_a_reset_becomes_the_last_commit(environment: ScriptedEnvironment) -> None:
    _, assigned = await wanted(environment, PATIENCE_S)
    await assigned.reset(1, "by a test")
    assigned.commit(5)
    await assigned.release()
    assert environment.groups.committed("G") == 1


async def test_a_seek_is_where_the_next_member_continues(environment: ScriptedEnvironment) -> None:
    _, assigned = await wanted(environment, PATIENCE_S)
    await assigned.seek(3)  # messages in flight may still be acknowledged
    assert assigned.acknowledged == 0
    await assigned.seek(8)
    assert environment.groups.committed("G") == 8
    await assigned.release()
    assert environment.groups.committed("G") == 8


async def test_messages_before_a_gap_are_not_skipped(environment: ScriptedEnvironment) -> None:
    """They wait in the buffer and are dropped, so the error behind them must not make the user seek past them."""
    environment.groups.append(*[b"x"] * 10)
    environment.groups.log().limit = 5
    consumer = await environment.join(orderly=True, release_wait_s=PATIENCE_S)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.position == 10)
    await until(lambda: environment.groups.held)
    environment.groups.log().first = 15
    environment.groups.append(*[b"x"] * 10)
    await until(lambda: assigned.state.state is State.AT_GAP)
    assert assigned.state.buffered
    assigned.announce_release(PATIENCE_S)
    receiving = asyncio.ensure_future(assigned.receive())
    await asyncio.sleep(0.02)
    assert not receiving.done()
    await assigned.release()
    with pytest.raises(LaneRevoked):
        await receiving
    assert environment.groups.committed("G") == 0


@pytest.mark.parametrize("holds_budget", [False, True])
async def test_dropped_pulls_no_longer_count_on_the_budget(environment: ScriptedEnvironment, holds_budget: bool) -> None:
    """Other queues may use their room; what was taken counts until its user releases it."""
    environment.groups.append(*[bytes(1000)] * 20)
    environment.groups.log().limit = 5
    consumer = await environment.join(orderly=True, release_wait_s=PATIENCE_S)
    assigned = consumer.held[QUEUE]
    assigned.holds_budget = holds_budget
    await until(lambda: environment.groups.held)
    taken = await assigned.receive()
    assert assigned.state.buffered
    assigned.announce_release(PATIENCE_S)
    kept = taken.size if holds_budget else 0
    assert consumer.budget.requested == 0, "the response to the pull in flight will be ignored"
    assert consumer.budget.held == assigned.held_bytes == kept
    assigned.release_budget(kept)
    assert consumer.budget.held == 0
    await assigned.release()
    assert consumer.budget.held == consumer.budget.requested == consumer.budget.queues == 0
