"""The release of queues is one task for all waiters; a renewed lock wakes a waiting receiver; pulls without progress pause."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from mqbridge.errors import GapError
from mqbridge.rocketmq.client.connection.connection import Connection
from mqbridge.rocketmq.client.consumer import pull_loop
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.queue_state import LOCK_VALID_S
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Link, in_turn, silent, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, pull_response

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)


@pytest.mark.parametrize("begun_by", ["revoke", "release"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_close_waits_for_a_release_in_progress(environment: ScriptedEnvironment, begun_by: str, orderly: bool) -> None:
    """In a rolling update, a queue on its way to a new member is committed and unlocked, even if this member leaves meanwhile."""
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join(orderly=orderly)
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update, late = environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET], list[tuple[Link, Command]]()
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = lambda link, request: late.append((link, request))
    giving = asyncio.ensure_future(getattr(assigned, begun_by)())
    await until(lambda: late)
    giving.cancel()  # as the rebalance task is cancelled when its consumer closes
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    update(*late[0])
    await closing
    assert environment.groups.committed("G") == 10
    assert environment.groups.locks == {}
    assert len(late) == 1, "the offset is committed once"


async def test_a_queue_is_assigned_again_after_its_release_was_cancelled(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update, late = environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET], list[tuple[Link, Command]]()
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = lambda link, request: late.append((link, request))
    releasing = asyncio.ensure_future(assigned.release())
    await until(lambda: late)
    releasing.cancel()
    update(*late[0])
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = update
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))
    assert consumer.held[QUEUE].position == 10


async def test_concurrent_calls_of_close_wait_for_the_same_task(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    first = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    first.cancel()
    await consumer.close()
    assert environment.groups.committed("G") == 10
    assert environment.groups.members["G"] == {}


async def test_close_ends_at_its_deadline_if_no_broker_responds(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())  # waits for acknowledgements
    await until(lambda: assigned.revoked)
    for code in (Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ, Code.UNREGISTER_CLIENT):
        environment.cluster.on[code] = silent
    async with asyncio.timeout(4):  # close ends before the timeout of any single request
        await consumer.close(asyncio.get_running_loop().time() + 0.05)
    assert consumer.held == {}
    await asyncio.gather(revoking, return_exceptions=True)


@pytest.mark.parametrize("iterations", range(5))
async def test_a_deadline_at_the_end_of_settling_is_obeyed(environment: ScriptedEnvironment, iterations: int) -> None:
    """On a busy machine, the end of settling and the deadline are due in the same iteration of the event loop."""
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())
    await until(lambda: assigned.revoked)
    for code in (Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ):
        environment.cluster.on[code] = silent
    release = assigned._release
    release.stop_settling()
    for _ in range(iterations):
        await asyncio.sleep(0)
    assert release._task is not None
    release._task.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait([release._task])
    await asyncio.gather(revoking, return_exceptions=True)


async def test_the_deadline_of_one_waiter_does_not_cancel_a_release_for_the_others(environment: ScriptedEnvironment) -> None:
    """The rebalance task also waits for the release: it continues, and takes the queue again."""
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update = environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET]
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = silent
    assignment = consumer._assignment
    own_queues = assignment.own_queues
    assignment.own_queues = AsyncMock(return_value=([], True))  # type: ignore[method-assign]
    consumer.request_rebalance()
    await until(lambda: assigned.revoked)
    assignment.own_queues = own_queues  # type: ignore[method-assign]
    await assigned.release(asyncio.get_running_loop().time() + 0.05)
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = update
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))


async def test_undelivered_pulls_are_not_committed_when_a_locked_queue_is_revoked(environment: ScriptedEnvironment) -> None:
    """Two pull responses have arrived and one was delivered: acknowledging it must not commit the other."""
    environment.groups.append(*[b"x"] * 6)
    environment.groups.log().limit = 3
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.position == 6)
    pulled = await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())
    await until(lambda: assigned.revoked)
    assigned.commit(pulled.next)
    await revoking
    assert environment.groups.committed("G") == 3


@pytest.mark.parametrize("by", ["revoke", "release"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_reported_during_a_release_is_committed_last(
    environment: ScriptedEnvironment, by: str, orderly: bool
) -> None:
    """A broker reports a reset once: in the response to the last pull, which is awaited because the pull carries a commit."""
    environment.groups.append(*[b"x"] * 10)
    environment.groups.log().limit = 5
    pull, last = environment.cluster.on[Code.PULL_MESSAGE], list[tuple[Link, Command]]()
    environment.cluster.on[Code.PULL_MESSAGE] = in_turn(pull, lambda link, request: last.append((link, request)))
    consumer = await environment.join(orderly=orderly)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    await until(lambda: last)
    assigned.commit(4)
    giving = asyncio.ensure_future(getattr(assigned, by)())
    await until(lambda: assigned.revoked)
    environment.groups.offsets["G", QUEUE] = environment.groups.resets["G", QUEUE] = 2
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    pull(*last[0])
    await giving
    assert environment.groups.committed("G") == 2
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))
    assert (await consumer.held[QUEUE].receive()).first == 2


@pytest.mark.parametrize("by", ["revoke", "release"])
async def test_a_reset_reported_to_the_check_of_a_queue_is_committed_by_its_release(
    environment: ScriptedEnvironment, by: str
) -> None:
    """After an outage a member checks that the queue was not made anew; the broker reports the reset to this request."""
    environment.groups.append(*[b"x"] * 10)
    assigned = await environment.assigned()
    assigned.commit((await assigned.receive()).next)
    await until(lambda: environment.groups.held)
    pull, check = environment.cluster.on[Code.PULL_MESSAGE], list[tuple[Link, Command]]()
    environment.cluster.on[Code.PULL_MESSAGE] = lambda link, request: check.append((link, request))
    assigned._pulls.identity.suspect()
    environment.groups.release_held()
    await until(lambda: check)
    giving = asyncio.ensure_future(getattr(assigned, by)())
    await until(lambda: assigned.revoked)
    environment.groups.offsets["G", QUEUE] = environment.groups.resets["G", QUEUE] = 2
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    pull(*check[0])
    await giving
    assert environment.groups.committed("G") == 2


@pytest.mark.parametrize("has_read", [True, False], ids=["check", "search"])
async def test_no_pull_task_outlives_a_release_that_has_waited_for_a_further_request(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    """It checks the anchor or searches one. Then the task neither pauses, which the release would wait for, nor pulls."""
    environment.groups.append(*[b"x"] * 10)
    pull, further = environment.cluster.on[Code.PULL_MESSAGE], list[tuple[Link, Command]]()
    if has_read:
        assigned = await environment.assigned()
        assigned.commit((await assigned.receive()).next)
        await until(lambda: environment.groups.held)
        environment.cluster.on[Code.PULL_MESSAGE] = lambda link, request: further.append((link, request))
        assigned._pulls.identity.suspect()
        environment.groups.release_held()
    else:
        environment.groups.offsets["G", QUEUE] = 10
        environment.cluster.on[Code.PULL_MESSAGE] = in_turn(pull, lambda link, request: further.append((link, request)))
        assigned = await environment.assigned()
    await until(lambda: further)
    task, requests = assigned._pulls._task, len(environment.cluster.requests[Code.PULL_MESSAGE])
    assert task is not None
    monkeypatch.setattr(assigned._pulls, "_idle_backoff", SimpleNamespace(delay=lambda: 2 * PATIENCE_S))
    giving = asyncio.ensure_future(assigned.release())
    await until(lambda: assigned.revoked)
    environment.cluster.on[Code.PULL_MESSAGE] = pull
    pull(*further[0])
    await giving
    assert task.done()
    assert len(environment.cluster.requests[Code.PULL_MESSAGE]) == requests
    assert environment.groups.committed("G") == 10


@pytest.mark.parametrize("code", [Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("by", ["revoke", "release"])
async def test_a_reset_reported_after_the_last_commit_is_committed_too(
    environment: ScriptedEnvironment, by: str, code: int
) -> None:
    """A 4.x broker does not store a reset offset itself: the member commits it, even after a commit of another offset."""
    environment.groups.append(*[b"x"] * 10)
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    answer, late = environment.cluster.on[code], list[tuple[Link, Command]]()
    environment.cluster.on[code] = lambda link, request: late.append((link, request))
    giving = asyncio.ensure_future(getattr(assigned, by)())
    await until(lambda: late)
    await assigned.reset(2, "an administrator has reset the group")
    environment.cluster.on[code] = answer
    answer(*late[0])
    await giving
    assert environment.groups.committed("G") == 2
    assert environment.groups.locks == {}


# --- waking up and pausing ------------------------------------------------------------------------------------------------


async def test_a_renewed_lock_wakes_a_waiting_receiver(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.held_bytes)
    assert assigned.state.locked_at is not None
    assigned.state.locked_at -= LOCK_VALID_S
    waiting = asyncio.ensure_future(assigned.receive())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert consumer.held.needs_locks
    await consumer.held.renew()
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).count == 1


@pytest.mark.parametrize("queue_state", ["a message waits", "its lock is expired", "it is released"])
async def test_wait_for_change_always_yields_to_other_tasks(environment: ScriptedEnvironment, queue_state: str) -> None:
    environment.groups.append(b"x")
    consumer = await environment.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.held_bytes)
    if queue_state == "its lock is expired":
        assert assigned.state.locked_at is not None
        assigned.state.locked_at -= LOCK_VALID_S
    elif queue_state == "it is released":
        await assigned.release()
    ran = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await assigned.wait_for_change(0.01)
    assert ran


async def test_wait_for_change_raises_the_gap_that_ended_the_queue(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[b"x"] * 10)
    environment.groups.offsets["G", QUEUE] = 3
    environment.groups.log().first = 7
    assigned = await environment.assigned()
    await until(lambda: assigned.state.gap_at == 3)
    assert assigned.take() is None
    with pytest.raises(GapError):
        await assigned.wait_for_change(1.0)


async def test_pauses_between_pulls_without_progress_grow(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that lags behind responds at once with PULL_RETRY_IMMEDIATELY and the same offset."""
    environment.groups.append(*[b"x"] * 9)
    environment.groups.offsets["G", QUEUE] = 9
    environment.cluster.on[Code.PULL_MESSAGE] = pull_response(Status.PULL_RETRY_IMMEDIATELY, 9, 0, 5)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        if (task := asyncio.current_task()) is not None and task.get_name().startswith("rocketmq pulls of"):
            pauses.append(seconds)
        await sleep(0.001)

    assigned = await environment.assigned()
    monkeypatch.setattr(pull_loop.asyncio, "sleep", paused)
    count = len(environment.groups.pulls())
    await until(lambda: len(environment.groups.pulls()) > count + 8)
    monkeypatch.undo()
    assert len(pauses) >= 7, "a pause after each response but the first, which told the end of the queue"
    assert max(pauses) > 10 * pull_loop.MIN_HOLD_S, "pauses grow"
    assert not assigned.revoked


async def test_a_first_seek_to_deleted_messages_is_a_gap(environment: ScriptedEnvironment) -> None:
    """A route does this if it continues from its checkpoint with a new group."""
    environment.groups.append(*[b"x"] * 10)
    environment.groups.log().first = 7
    assigned = await environment.assigned()
    await assigned.seek(3)
    with pytest.raises(GapError):
        await assigned.receive()


async def test_a_group_left_during_the_first_heartbeat_of_a_connection_is_unregistered(environment: ScriptedEnvironment) -> None:
    """The first heartbeat named the group, and it could not be unregistered before the connection was open."""
    environment.groups.offsets["G", QUEUE] = 0
    consumer = await environment.join()
    link = environment.groups.members_link(environment.clients[0])
    beat, late = environment.cluster.on[Code.HEART_BEAT], list[tuple[Link, Command]]()
    environment.cluster.on[Code.HEART_BEAT] = lambda link, request: late.append((link, request))
    environment.groups.members["G"].clear()
    link.drop()
    await until(lambda: late)
    await consumer.close()
    for one in late:
        beat(*one)
    await until(lambda: environment.cluster.requests[Code.UNREGISTER_CLIENT])
    await until(lambda: not environment.groups.members["G"])


async def test_two_groups_left_during_the_first_heartbeat_of_a_connection_are_unregistered(
    environment: ScriptedEnvironment,
) -> None:
    """The second group is left before the broker has answered the UNREGISTER_CLIENT of the first."""
    environment.groups.offsets["G", QUEUE] = environment.groups.offsets["OTHER", QUEUE] = 0
    consumer = await environment.join()
    client = environment.clients[0]
    other = await join(client, ConsumerSettings("OTHER", (everything("T"),), retries=False))
    beat, farewell = environment.cluster.on[Code.HEART_BEAT], environment.cluster.on[Code.UNREGISTER_CLIENT]
    late, leaving = list[tuple[Link, Command]](), list[tuple[Link, Command]]()
    environment.cluster.on[Code.HEART_BEAT] = lambda link, request: late.append((link, request))
    environment.cluster.on[Code.UNREGISTER_CLIENT] = lambda link, request: leaving.append((link, request))
    environment.groups.members_link(client).drop()
    environment.groups.members.clear()
    await until(lambda: late)
    await consumer.close()
    for one in late:
        beat(*one)
    await until(lambda: leaving)
    await other.close()
    environment.cluster.on[Code.UNREGISTER_CLIENT] = farewell
    farewell(*leaving[0])
    await until(lambda: client.pool.ready(A))
    assert not any(environment.groups.members.values())


async def test_a_group_left_right_after_the_first_heartbeat_of_a_connection_is_unregistered(
    environment: ScriptedEnvironment,
) -> None:
    """The group is left in the iteration of the event loop in which the first heartbeat has just read the list of groups."""
    consumer = await environment.join()
    client, greeted = environment.clients[0], asyncio.Event()
    greet = client.pool._greet

    async def observed(connection: Connection) -> None:
        await greet(connection)
        greeted.set()

    async def leave() -> None:
        await greeted.wait()
        await consumer.membership.leave()

    client.pool._greet = observed
    leaving = asyncio.ensure_future(leave())
    link = environment.groups.members_link(client)
    environment.groups.members.clear()
    link.drop()
    await asyncio.wait_for(leaving, PATIENCE_S)
    assert not environment.groups.members["G"]
