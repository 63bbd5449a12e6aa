"""The release of queues is one task for all waiters; a renewed lock wakes a waiting receiver; pulls without progress pause."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from mqbridge.errors import GapError
from mqbridge.rocketmq.client import pull_loop
from mqbridge.rocketmq.client.connection import Connection
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.pull_consumer import join
from mqbridge.rocketmq.client.queue_state import LOCK_VALID_S
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import A, Link, in_turn, silent, until
from tests.rocketmq.client.groups import Scene, replies, scene

__all__ = ["scene"]

QUEUE = Queue("T", "broker-a", 0)


@pytest.mark.parametrize("begun_by", ["revoke", "release"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_close_waits_for_a_queue_that_is_being_given_back(scene: Scene, begun_by: str, orderly: bool) -> None:
    """In a rolling update, a queue on its way to a new member is committed and unlocked, even if this member leaves meanwhile."""
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join(orderly=orderly)
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update, late = scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET], list[tuple[Link, Command]]()
    scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = lambda link, request: late.append((link, request))
    giving = asyncio.ensure_future(getattr(assigned, begun_by)())
    await until(lambda: late)
    giving.cancel()  # as the task that divides the queues is, when its consumer closes
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    update(*late[0])
    await closing
    assert scene.groups.committed("G") == 10
    assert scene.groups.locks == {}
    assert len(late) == 1, "it is given back once"


async def test_a_cancelled_release_leaves_no_queue_unread(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update, late = scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET], list[tuple[Link, Command]]()
    scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = lambda link, request: late.append((link, request))
    releasing = asyncio.ensure_future(assigned.release())
    await until(lambda: late)
    releasing.cancel()
    update(*late[0])
    scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = update
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))
    assert consumer.held[QUEUE].position == 10


async def test_everybody_who_closes_waits_for_the_same(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    first = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    first.cancel()
    await consumer.close()
    assert scene.groups.committed("G") == 10
    assert scene.groups.members["G"] == {}


async def test_a_deadline_ends_what_no_broker_answers(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())  # waits for what is out
    await until(lambda: assigned.revoked)
    for code in (Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ, Code.UNREGISTER_CLIENT):
        scene.cluster.on[code] = silent
    async with asyncio.timeout(4):  # no request is waited for as long as its own timeout
        await consumer.close(asyncio.get_running_loop().time() + 0.05)
    assert consumer.held == {}
    await asyncio.gather(revoking, return_exceptions=True)


@pytest.mark.parametrize("turns", range(5))
async def test_a_deadline_in_the_moment_in_which_settling_ends_is_obeyed(scene: Scene, turns: int) -> None:
    """On a busy machine, the end of settling and the deadline are due in the same turn of the event loop."""
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())
    await until(lambda: assigned.revoked)
    for code in (Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ):
        scene.cluster.on[code] = silent
    release = assigned._release
    release.stop_settling()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert release._task is not None
    release._task.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait([release._task])
    await asyncio.gather(revoking, return_exceptions=True)


async def test_a_deadline_of_one_who_waits_is_no_cancellation_of_the_others(scene: Scene) -> None:
    """The rebalance task also waits for the release: it continues, and takes the queue again."""
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join()
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    update = scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET]
    scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = silent
    assignment = consumer._assignment
    own_queues = assignment.own_queues
    assignment.own_queues = AsyncMock(return_value=([], True))  # type: ignore[method-assign]
    consumer.request_rebalance()
    await until(lambda: assigned.revoked)
    assignment.own_queues = own_queues  # type: ignore[method-assign]
    await assigned.release(asyncio.get_running_loop().time() + 0.05)
    scene.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = update
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))


async def test_what_was_pulled_ahead_is_not_committed_when_a_locked_queue_goes(scene: Scene) -> None:
    """Two pull responses have arrived and one was delivered: acknowledging it must not commit the other."""
    scene.groups.append(*[b"x"] * 6)
    scene.groups.log().limit = 3
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.position == 6)
    pulled = await assigned.receive()
    revoking = asyncio.ensure_future(assigned.revoke())
    await until(lambda: assigned.revoked)
    assigned.commit(pulled.next)
    await revoking
    assert scene.groups.committed("G") == 3


@pytest.mark.parametrize("by", ["revoke", "release"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_that_is_told_while_a_queue_is_given_back_is_what_stays(scene: Scene, by: str, orderly: bool) -> None:
    """A broker reports a reset once: in the response to the last pull, which is awaited because the pull carries a commit."""
    scene.groups.append(*[b"x"] * 10)
    scene.groups.log().limit = 5
    pull, last = scene.cluster.on[Code.PULL_MESSAGE], list[tuple[Link, Command]]()
    scene.cluster.on[Code.PULL_MESSAGE] = in_turn(pull, lambda link, request: last.append((link, request)))
    consumer = await scene.join(orderly=orderly)
    assigned = consumer.held[QUEUE]
    await assigned.receive()
    await until(lambda: last)
    assigned.commit(4)
    giving = asyncio.ensure_future(getattr(assigned, by)())
    await until(lambda: assigned.revoked)
    scene.groups.offsets["G", QUEUE] = scene.groups.resets["G", QUEUE] = 2
    scene.cluster.on[Code.PULL_MESSAGE] = pull
    pull(*last[0])
    await giving
    assert scene.groups.committed("G") == 2
    await until(lambda: consumer.held.get(QUEUE) not in (None, assigned))
    assert (await consumer.held[QUEUE].receive()).first == 2


@pytest.mark.parametrize("code", [Code.UPDATE_CONSUMER_OFFSET, Code.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("by", ["revoke", "release"])
async def test_a_reset_that_is_told_behind_the_last_commit_is_committed_after_it(scene: Scene, by: str, code: int) -> None:
    """A 4.x broker does not store a reset offset itself: the member commits it, even after a commit of another offset."""
    scene.groups.append(*[b"x"] * 10)
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    answer, late = scene.cluster.on[code], list[tuple[Link, Command]]()
    scene.cluster.on[code] = lambda link, request: late.append((link, request))
    giving = asyncio.ensure_future(getattr(assigned, by)())
    await until(lambda: late)
    await assigned.reset(2, "as an administrator has told")
    scene.cluster.on[code] = answer
    answer(*late[0])
    await giving
    assert scene.groups.committed("G") == 2
    assert scene.groups.locks == {}


# --- waking up, and not waking up all the time ----------------------------------------------------------------------------


async def test_a_renewed_lock_wakes_who_waits(scene: Scene) -> None:
    scene.groups.append(b"x")
    consumer = await scene.join(orderly=True)
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


@pytest.mark.parametrize("what", ["something waits", "its lock is old", "it is gone"])
async def test_changed_always_lets_others_run(scene: Scene, what: str) -> None:
    scene.groups.append(b"x")
    consumer = await scene.join(orderly=True)
    assigned = consumer.held[QUEUE]
    await until(lambda: assigned.held_bytes)
    if what == "its lock is old":
        assert assigned.state.locked_at is not None
        assigned.state.locked_at -= LOCK_VALID_S
    elif what == "it is gone":
        await assigned.release()
    ran = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await assigned.wait_for_change(0.01)
    assert ran


async def test_changed_tells_what_ended_the_queue(scene: Scene) -> None:
    scene.groups.append(*[b"x"] * 10)
    scene.groups.offsets["G", QUEUE] = 3
    scene.groups.log().first = 7
    assigned = await scene.assigned()
    await until(lambda: assigned.state.gap_at == 3)
    assert assigned.take() is None
    with pytest.raises(GapError):
        await assigned.wait_for_change(1.0)


async def test_answers_that_move_nothing_are_not_asked_for_without_a_pause(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that lags behind responds at once with PULL_RETRY_IMMEDIATELY and the same offset."""
    scene.groups.append(*[b"x"] * 9)
    scene.groups.offsets["G", QUEUE] = 9
    scene.cluster.on[Code.PULL_MESSAGE] = replies(Status.PULL_RETRY_IMMEDIATELY, 9, 0, 5)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        if (task := asyncio.current_task()) is not None and task.get_name().startswith("rocketmq pulls of"):
            pauses.append(seconds)
        await sleep(0.001)

    assigned = await scene.assigned()
    monkeypatch.setattr(pull_loop.asyncio, "sleep", paused)
    asked = len(scene.groups.pulls())
    await until(lambda: len(scene.groups.pulls()) > asked + 8)
    monkeypatch.undo()
    assert len(pauses) >= 7, "a pause for each, after the first that told where the end is"
    assert max(pauses) > 10 * pull_loop.MIN_HOLD_S, "they grow"
    assert not assigned.revoked


async def test_a_seek_to_what_is_gone_is_a_gap_also_before_anything_was_read(scene: Scene) -> None:
    """A route does this if it continues from its checkpoint with a new group."""
    scene.groups.append(*[b"x"] * 10)
    scene.groups.log().first = 7
    assigned = await scene.assigned()
    await assigned.seek(3)
    with pytest.raises(GapError):
        await assigned.receive()


async def test_a_group_that_is_left_while_a_connection_is_greeted_is_left_there_too(scene: Scene) -> None:
    """The first heartbeat named the group, and it could not be unregistered before the connection was open."""
    scene.groups.offsets["G", QUEUE] = 0
    consumer = await scene.join()
    link = scene.groups.members_link(scene.clients[0])
    beat, late = scene.cluster.on[Code.HEART_BEAT], list[tuple[Link, Command]]()
    scene.cluster.on[Code.HEART_BEAT] = lambda link, request: late.append((link, request))
    scene.groups.members["G"].clear()
    link.drop()
    await until(lambda: late)
    await consumer.close()
    for one in late:
        beat(*one)
    await until(lambda: scene.cluster.asked[Code.UNREGISTER_CLIENT])
    await until(lambda: not scene.groups.members["G"])


async def test_groups_that_are_left_one_after_another_while_a_connection_is_greeted(scene: Scene) -> None:
    """The second group is left before the broker has answered the UNREGISTER_CLIENT of the first."""
    scene.groups.offsets["G", QUEUE] = scene.groups.offsets["OTHER", QUEUE] = 0
    consumer = await scene.join()
    client = scene.clients[0]
    other = await join(client, ConsumerSettings("OTHER", (everything("T"),), retries=False))
    beat, farewell = scene.cluster.on[Code.HEART_BEAT], scene.cluster.on[Code.UNREGISTER_CLIENT]
    late, leaving = list[tuple[Link, Command]](), list[tuple[Link, Command]]()
    scene.cluster.on[Code.HEART_BEAT] = lambda link, request: late.append((link, request))
    scene.cluster.on[Code.UNREGISTER_CLIENT] = lambda link, request: leaving.append((link, request))
    scene.groups.members_link(client).drop()
    scene.groups.members.clear()
    await until(lambda: late)
    await consumer.close()
    for one in late:
        beat(*one)
    await until(lambda: leaving)
    await other.close()
    scene.cluster.on[Code.UNREGISTER_CLIENT] = farewell
    farewell(*leaving[0])
    await until(lambda: client.pool.ready(A))
    assert not any(scene.groups.members.values())


async def test_a_group_that_is_left_when_a_connection_has_just_been_greeted(scene: Scene) -> None:
    """The group is left in the iteration of the event loop in which the first heartbeat has just read the list of groups."""
    consumer = await scene.join()
    client, greeted = scene.clients[0], asyncio.Event()
    greet = client.pool._greet

    async def observed(connection: Connection) -> None:
        await greet(connection)
        greeted.set()

    async def leave() -> None:
        await greeted.wait()
        await consumer.membership.leave()

    client.pool._greet = observed
    leaving = asyncio.ensure_future(leave())
    link = scene.groups.members_link(client)
    scene.groups.members.clear()
    link.drop()
    await asyncio.wait_for(leaving, PATIENCE_S)
    assert not scene.groups.members["G"]
