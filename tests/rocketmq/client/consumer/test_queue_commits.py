"""The released queue: its last commit is kept although a pull with an older one is in flight; a gap is raised once."""

import asyncio

import pytest

from mqbridge.errors import GapError
from mqbridge.rocketmq.client.consumer import pull_consumer, queue_commits
from mqbridge.rocketmq.wire.bodies.offsets import ResetOffsets
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader
from tests.rocketmq.client.broker import Link, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment, first_stream

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)


@pytest.mark.parametrize("how", ["release", "revoke", "seek"])
async def test_a_pull_in_flight_does_not_undo_the_last_commit(environment: ScriptedEnvironment, how: str) -> None:
    """Brokers process the requests of a connection in parallel, so the commit of the pull may be stored last."""
    groups = environment.groups
    groups.append(*[b"x"] * 9)
    groups.log().limit = 3
    pull, slow = environment.cluster.on[Code.PULL_MESSAGE], list[tuple[Link, Command]]()

    def delay_third_pull(link: Link, request: Command) -> None:
        header = PullHeader.decode(request.ext)
        if header.queue_offset == 6 and header.sys_flag & PullFlag.COMMIT_OFFSET and not slow:
            slow.append((link, request))
        else:
            pull(link, request)

    environment.cluster.on[Code.PULL_MESSAGE] = delay_third_pull
    assigned = await environment.assigned()
    pulled = [await assigned.receive(), await assigned.receive()]
    await until(lambda: slow)
    assigned.commit(pulled[-1].next)
    ending = asyncio.ensure_future(assigned.seek(8) if how == "seek" else getattr(assigned, how)())
    await asyncio.sleep(0.01)
    groups.offsets["G", QUEUE] = int(slow[0][1].ext["commitOffset"])
    groups.answer_pull(*slow[0])
    await ending
    assert groups.committed("G") == (8 if how == "seek" else 6)


async def test_a_release_does_not_wait_for_an_unanswered_pull(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_commits, "MAX_WAIT_S", 0.01)
    environment.groups.append(*[b"x"] * 4)
    environment.groups.log().limit = 2
    pull = environment.cluster.on[Code.PULL_MESSAGE]
    environment.cluster.on[Code.PULL_MESSAGE] = lambda link, request: (
        None if request.ext["queueOffset"] == "2" else pull(link, request)
    )
    assigned = await environment.assigned()
    assigned.commit((await assigned.receive()).next)
    await assigned.release()
    assert environment.groups.committed("G") == 2


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "released"])
@pytest.mark.parametrize("by", ["a commit", "a request"])
async def test_a_gap_is_raised_once_until_the_group_gets_another_offset(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch, by: str, *, is_kept: bool
) -> None:
    monkeypatch.setattr(pull_consumer, "REBALANCE_INTERVAL_S", 0.02)
    groups = environment.groups
    groups.append(*[b"x"] * 9)
    groups.log().first, groups.offsets["G", QUEUE] = 7, 3
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    with pytest.raises(GapError):
        await assigned.receive()
    if not is_kept:
        await assigned.release()
    assert groups.committed("G") == 3
    count = len(groups.pulls())
    await asyncio.sleep(0.2)
    assert consumer.held == ({QUEUE: assigned} if is_kept else {})
    assert len(groups.pulls()) == count
    if by == "a commit":
        groups.offsets["G", QUEUE] = 7
    else:
        body = ResetOffsets({QUEUE: 7}).encode()
        command = Command(Code.RESET_CONSUMER_CLIENT_OFFSET, {"group": "G", "topic": "T", "timestamp": "0"}, body, flag=ONEWAY)
        groups.send_request(consumer._client, command)
    again = await first_stream(consumer)
    assert ((await again.receive()).first, groups.committed("G")) == (7, 7)
    assert assigned.ended.is_set()


async def test_a_pending_commit_is_not_taken_for_a_reset_of_a_queue_at_a_gap(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still has the old offset while our commit is in flight; this difference must not release the queue."""
    monkeypatch.setattr(pull_consumer, "REBALANCE_INTERVAL_S", 0.02)
    groups = environment.groups
    groups.append(*[b"x"] * 9)
    groups.log().limit, groups.offsets["G", QUEUE] = 3, 0
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = lambda *_: None
    consumer = await environment.join()
    assigned = await first_stream(consumer)
    pulled = await assigned.receive()
    groups.log().first = 9
    assigned.rewind(3)
    await until(lambda: assigned.state.gap_at is not None)
    assigned.commit(pulled.next)
    await asyncio.sleep(0.2)
    assert consumer.held == {QUEUE: assigned}
    assert not assigned.ended.is_set()


@pytest.mark.parametrize("again", ["rewind", "twice"])
async def test_a_reset_is_followed_although_a_message_is_rejected_meanwhile(environment: ScriptedEnvironment, again: str) -> None:
    """A broker reports a reset once, in the response to the next pull, even if that was sent before the rejection."""
    environment.groups.append(*[b"x"] * 10)
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    environment.groups.resets["G", QUEUE] = 2
    environment.groups.release_held()
    for _ in range(1 + (again == "twice")):
        assert assigned.rewind(pulled.first)
    assert (await assigned.receive()).first in (0, 2)
    await until(lambda: assigned.state.acknowledged == 2)
    assert environment.groups.committed("G") == 2
