"""A partition of a group for clients that pull at a number and commit a number: every step of a feed, and what it holds."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked, LocalProtocolError
from mqbridge.listener import queue_feed as queue_feed_module
from mqbridge.listener.queue_feed import OutOfReach, QueueFeed, QueueFeedState
from mqbridge.message import Batch
from mqbridge.net.tasks import cancel, spawn
from tests.listener.faulty import until
from tests.listener.feeds import settle
from tests.listener.scripted_lane import MESSAGE_BYTES, QueueBench, ScriptedLane
from tests.patience import PATIENCE_S

UNHELD, HELD, FINISHING = QueueFeedState.UNHELD, QueueFeedState.HELD, QueueFeedState.FINISHING
MUCH = 1 << 20


def in_time(seconds: float = 1000 * PATIENCE_S) -> float:
    return asyncio.get_running_loop().time() + seconds


async def ended(task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await task


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[QueueBench]:
    """A queue of ten messages; lanes deliver three at a time."""
    made = QueueBench(*range(10))
    yield made
    await made.close()


def pull(bench: QueueBench, number: int, count: int = 100, *, may_skip: bool = False) -> "asyncio.Task[list[int]]":
    return spawn(bench.read(number, count, may_skip=may_skip), "pull", log_errors=False)


def lose_behind(bench: QueueBench, lane: ScriptedLane, end: int) -> None:
    """Lose the messages from the lane's next one on to before `end`, but nothing before them."""
    bench.queue.numbers = [each for each in bench.queue.numbers if not lane.next <= each < end]
    lane.fail(GapError("messages were lost", (end,)))


# --- states -------------------------------------------------------------------------------------------------------------------


async def test_a_feed_is_held_while_it_has_a_source(bench: QueueBench) -> None:
    states: list[QueueFeedState] = []
    bench.feed.on_change = lambda feed: states.append(feed.state)
    assert (bench.feed.state, bench.feed.is_held) == (UNHELD, False)
    bench.attach()
    assert (bench.feed.state, bench.feed.is_held) == (HELD, True)
    await bench.feed.finish(in_time())
    assert (bench.feed.state, bench.feed.is_held) == (FINISHING, True)
    await bench.feed.detach()
    assert (bench.feed.state, bench.feed.is_held) == (UNHELD, False)
    assert states == [HELD, FINISHING, UNHELD]


@pytest.mark.parametrize("is_finishing", [False, True])
async def test_a_lost_lane_is_held_no_longer(bench: QueueBench, is_finishing: bool) -> None:
    lane = bench.attach()
    await bench.read(0)
    if is_finishing:
        finishing = spawn(bench.feed.finish(in_time()), "finish")
        await settle()
    lane.lose()
    await settle()
    assert bench.feed.state is UNHELD
    assert lane.released_at == [None]
    assert (bench.feed.committed, bench.feed.next, bench.feed.problem) == (None, None, None)
    if is_finishing:
        await ended(finishing)


async def test_a_feed_has_one_source_at_a_time(bench: QueueBench) -> None:
    lane = bench.attach()
    with pytest.raises(LocalProtocolError, match="has a source already"):
        bench.attach()
    lane.lose()
    await settle()
    bench.attach()
    assert bench.feed.state is HELD


async def test_what_a_lane_delivers_after_another_one_was_lost_is_what_was_not_committed(bench: QueueBench) -> None:
    lane = bench.attach()
    assert await bench.read(0) == [0, 1, 2]
    assert bench.feed.commit(2)
    lane.lose()
    await settle()
    bench.attach()
    assert await bench.read(2) == [2, 3, 4]


async def test_detaching_releases_the_source_by_the_deadline(bench: QueueBench) -> None:
    lane = bench.attach()
    deadline = in_time()
    await bench.feed.detach(deadline)
    assert lane.released_at == [deadline]
    await bench.feed.detach()
    assert lane.released_at == [deadline], "it is released once"


async def test_detaching_one_source_leaves_another_one(bench: QueueBench) -> None:
    lost = bench.attach()
    lost.lose()
    await settle()
    lane = bench.attach()
    await bench.feed.detach(source=lost)
    assert bench.feed.state is HELD
    await bench.feed.detach(source=lane)
    assert bench.feed.state is UNHELD


async def test_detaching_waits_for_a_release_until_the_deadline(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_feed_module, "RELEASE_GRACE_S", 0.0)
    lane = bench.attach()
    lane.release_gate.clear()
    await bench.feed.detach(in_time(0.0))
    assert bench.feed.state is UNHELD
    waiting = spawn(bench.feed.detach(), "detach")
    await settle()
    assert not waiting.done()
    lane.release_gate.set()
    await waiting


async def test_a_source_is_released_when_nothing_uses_it_any_more(bench: QueueBench) -> None:
    lane = bench.attach()
    reading = pull(bench, 10)
    await until(lambda: lane.receiving == 1)
    release = lane.release

    async def check(deadline: float | None = None) -> None:
        assert lane.receiving == 0
        await release(deadline)

    lane.release = check  # type: ignore[method-assign]
    await bench.feed.detach()
    with pytest.raises(LaneRevoked):
        await reading


# --- finish -------------------------------------------------------------------------------------------------------------------


async def test_finishing_waits_until_what_was_handed_out_is_committed(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0)
    await bench.read(3, 1)
    finishing = spawn(bench.feed.finish(in_time()), "finish")
    for number in (2, 3):
        assert bench.feed.commit(number)
        await settle()
        assert not finishing.done()
    assert bench.feed.commit(4)
    await ended(finishing)
    assert (bench.feed.state, bench.queue.committed) == (FINISHING, 4)


async def test_finishing_waits_for_nothing_that_an_earlier_lane_has_handed_out(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    lane.lose()
    await settle()
    bench.attach()
    await bench.read(0, 1)
    assert bench.feed.commit(1)
    await ended(spawn(bench.feed.finish(in_time()), "finish"))


async def test_finishing_ends_at_its_deadline(bench: QueueBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.attach()
    await bench.read(0)
    await bench.feed.finish(in_time(0.0))
    assert "has not committed all" in caplog.text
    assert bench.feed.state is FINISHING


async def test_finishing_what_is_not_held_does_nothing(bench: QueueBench) -> None:
    await bench.feed.finish(in_time())
    assert bench.feed.state is UNHELD


async def test_a_client_that_commits_the_last_message_has_committed_all(bench: QueueBench) -> None:
    """It knows the number of the last message, not where the batch ends."""
    bench.queue.numbers = [0, 1, 9]
    bench.attach(has_wide_batches=True)
    assert await bench.read(0, 2) == [0, 1]
    assert bench.feed.next == 9
    assert bench.feed.commit(2)
    await ended(spawn(bench.feed.finish(in_time()), "finish"))
    assert bench.queue.committed == 2


async def test_nothing_is_handed_out_while_it_finishes(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0, 1)
    assert bench.feed.is_ready(1)
    finishing = spawn(bench.feed.finish(in_time()), "finish")
    await settle()
    assert not bench.feed.is_ready(1)
    reading = pull(bench, 1)
    await settle()
    assert not reading.done()
    bench.feed.commit(1)
    await ended(finishing)
    await settle()
    assert not reading.done()
    await cancel(reading)


@pytest.mark.parametrize("has_handed_out", [False, True])
async def test_a_pull_that_waits_gets_nothing_when_it_finishes(bench: QueueBench, has_handed_out: bool) -> None:
    """The message is delivered again to whoever gets the partition next."""
    bench.attach()
    if has_handed_out:
        for first in range(0, 9, 3):
            await bench.read(first)
    number = 9 if has_handed_out else 0
    bench.queue.numbers = bench.queue.numbers[:number]
    reading = pull(bench, number)
    await settle()
    finishing = spawn(bench.feed.finish(in_time()), "finish")
    await settle()
    bench.queue.store(number)
    with pytest.raises(LaneRevoked):
        await reading
    bench.feed.commit(number)
    await ended(finishing)
    assert bench.feed.next == number
    await bench.feed.detach()
    bench.attach()
    assert await bench.read(number) == [number]


# --- pulls --------------------------------------------------------------------------------------------------------------------


async def test_pulls_get_everything_in_order(bench: QueueBench) -> None:
    bench.attach()
    found = await bench.feed.read(0, 100, MUCH, may_skip=False)
    assert (list(found.numbers), found.next) == ([0, 1, 2], 3)
    assert bench.feed.next == 3
    assert await bench.read(3) == [3, 4, 5]
    assert await bench.read(6) == [6, 7, 8]
    assert await bench.read(9) == [9]
    assert (bench.feed.committed, bench.queue.committed) == (0, 0)


async def test_only_what_pulls_ask_for_is_read(bench: QueueBench) -> None:
    lane = bench.attach()
    await settle()
    assert lane.next == 0
    await bench.read(0)
    await settle()
    assert lane.next == 3


async def test_what_was_received_is_taken_without_waiting(bench: QueueBench) -> None:
    bench.attach()
    assert not bench.feed.is_ready(0)
    assert await bench.read(0, 1) == [0]
    assert [bench.feed.is_ready(number) for number in range(4)] == [False, True, False, False]
    assert list(bench.feed.take(1, 1, MUCH).numbers) == [1]
    assert list(bench.feed.take(2, 9, MUCH).numbers) == [2]
    assert not bench.feed.is_ready(3)


async def test_a_pull_that_is_not_the_next_one_is_not_ready_while_another_reads(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0, 1)
    reading = pull(bench, 10)
    await until(bench.feed._reading.locked)
    assert not bench.feed.is_ready(1)
    await cancel(reading)


async def test_a_pull_waits_for_messages(bench: QueueBench) -> None:
    bench.attach()
    for first in range(0, 10, 3):
        await bench.read(first)
    reading = pull(bench, 10)
    await settle()
    assert not reading.done()
    bench.queue.store(10)
    assert await reading == [10]


async def test_a_pull_waits_until_the_partition_is_held(bench: QueueBench) -> None:
    reading = pull(bench, 0)
    await settle()
    assert not reading.done()
    bench.attach()
    assert await reading == [0, 1, 2]


async def test_pulls_of_several_clients_get_different_messages(bench: QueueBench) -> None:
    """They may meet while one client takes the queue over from another."""
    bench.attach()
    first, second = pull(bench, 0), pull(bench, 0)
    assert await first == [0, 1, 2]
    with pytest.raises(OutOfReach):
        await second
    third, fourth = pull(bench, 3), pull(bench, 6)
    assert (await third, await fourth) == ([3, 4, 5], [6, 7, 8])


@pytest.mark.parametrize("is_committed", [False, True])
async def test_what_was_handed_out_or_consumed_is_out_of_reach(bench: QueueBench, is_committed: bool) -> None:
    bench.attach()
    await bench.read(0)
    if is_committed:
        bench.feed.commit(3)
    with pytest.raises(OutOfReach):
        await bench.read(2)
    with pytest.raises(OutOfReach):
        await bench.read(1, may_skip=not is_committed)
    assert await bench.read(3) == [3, 4, 5]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_first_pull_may_begin_behind_what_is_consumed(bench: QueueBench, is_known: bool) -> None:
    bench.queue.committed = 4
    bench.attach(begin=4 if is_known else None)
    with pytest.raises(OutOfReach):
        await bench.read(0)
    assert await bench.read(0, 2, may_skip=True) == [4, 5]
    with pytest.raises(OutOfReach):
        await bench.read(0, may_skip=True)


async def test_a_pull_far_ahead_is_out_of_reach() -> None:
    bench = QueueBench(*range(100), span=20)
    bench.attach()
    await bench.read(0)
    for number in (20, 24, 90):
        with pytest.raises(OutOfReach):
            await bench.read(number)
    assert await bench.read(19) == [19, 20]
    assert bench.feed.commit(21)
    assert await bench.read(21) == [21, 22, 23]
    await bench.close()


@pytest.mark.parametrize("number", range(1, 10))
async def test_a_pull_ahead_skips_what_is_before(bench: QueueBench, number: int) -> None:
    bench.attach()
    found = await bench.read(number)
    assert found == list(range(number, min(10, number // 3 * 3 + 3)))
    with pytest.raises(OutOfReach):
        await bench.read(0)
    assert bench.feed.commit(found[-1] + 1)
    assert (bench.queue.committed, bench.memory.used) == (found[-1] + 1, 0)


async def test_a_pull_ahead_within_what_was_received_skips_the_rest(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0, 1)
    assert await bench.read(2) == [2]
    await bench.read(3, 1)
    assert await bench.read(6) == [6, 7, 8]
    assert bench.memory.used == 0


async def test_numbers_that_no_message_has_are_passed() -> None:
    bench = QueueBench(2, 3, 7, 20)
    bench.attach()
    found = await bench.feed.read(0, 2, MUCH, may_skip=False)
    assert (list(found.numbers), found.next) == ([2, 3], 7)
    assert await bench.read(7) == [7]
    assert await bench.read(8) == [20]
    assert bench.feed.commit(5)
    assert (bench.feed.committed, bench.queue.committed) == (5, 4)
    assert bench.feed.commit(21)
    assert bench.queue.committed == 21
    await bench.close()


async def test_limits_of_a_pull_are_kept(bench: QueueBench) -> None:
    bench.attach()
    assert await bench.read(0, 2) == [0, 1]
    assert await bench.read(2, 2) == [2]
    assert await bench.read(3, 9, 2 * MESSAGE_BYTES) == [3, 4]
    assert await bench.read(5, 9, 1) == [5]


async def test_a_pull_that_is_given_up_loses_nothing(bench: QueueBench) -> None:
    lane = bench.attach()
    for first in range(0, 10, 3):
        await bench.read(first)
    reading = pull(bench, 10)
    await settle()
    await cancel(reading)
    await settle()
    assert lane.receiving == 1, "it is received for the next pull"
    bench.queue.store(10, 11)
    await settle()
    assert (bench.feed.next, bench.memory.used) == (10, 0)
    assert await bench.read(10) == [10, 11]


async def test_a_pull_that_is_given_up_while_another_one_waits_leaves_it(bench: QueueBench) -> None:
    bench.attach()
    first, second = pull(bench, 10), pull(bench, 10)
    await settle()
    await cancel(first)
    bench.queue.store(10)
    assert await second == [10]


# --- where the group begins ---------------------------------------------------------------------------------------------------


async def test_the_begin_is_looked_for_once(bench: QueueBench) -> None:
    bench.queue.committed = 3
    bench.attach()
    assert (bench.feed.committed, bench.feed.next) == (None, None)
    await bench.read(3)
    assert (bench.feed.committed, bench.feed.next, bench.begins) == (3, 6, 1)
    await bench.read(6)
    assert bench.begins == 1


async def test_the_begin_that_is_known_is_not_looked_for(bench: QueueBench) -> None:
    bench.queue.committed = 3
    bench.attach(begin=3)
    assert (bench.feed.committed, bench.feed.next) == (3, 3)
    await bench.read(3)
    assert bench.begins == 0


async def test_a_group_without_a_position_begins_at_its_first_message(bench: QueueBench) -> None:
    bench.queue.committed = None
    bench.queue.numbers = [5, 6]
    bench.attach()
    assert await bench.read(0, 1) == [5]
    assert (bench.feed.committed, bench.feed.next) == (5, 6)


async def test_a_begin_that_cannot_be_found_is_looked_for_again(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = bench.attach()

    async def fail() -> int | None:
        raise ClusterError("away")

    with monkeypatch.context() as patch:
        patch.setattr(bench.feed, "_find_begin", fail)
        with pytest.raises(ClusterError, match="away"):
            await bench.read(0)
    assert (bench.feed.state, lane.next) == (HELD, 0)
    assert await bench.read(0) == [0, 1, 2]


async def test_a_begin_that_is_found_late_does_not_count_for_another_lane(
    bench: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, gate = bench.attach(), asyncio.Event()

    async def find_late() -> int | None:
        await gate.wait()
        return 0

    monkeypatch.setattr(bench.feed, "_find_begin", find_late)
    reading = pull(bench, 0)
    await settle()
    lane.lose()
    await settle()
    bench.attach(begin=6)
    gate.set()
    with pytest.raises(LaneRevoked):
        await reading
    assert bench.feed.next == 6


async def test_a_move_while_the_begin_is_looked_for_counts(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.attach()
    gate = asyncio.Event()

    async def find_late() -> int | None:
        await gate.wait()
        return 0

    monkeypatch.setattr(bench.feed, "_find_begin", find_late)
    reading = pull(bench, 0)
    await settle()
    await bench.feed.seek((6,))
    gate.set()
    with pytest.raises(LaneRevoked):
        await reading
    assert (bench.feed.committed, bench.feed.next) == (6, 6)
    assert await bench.read(6) == [6, 7, 8]


# --- commits ------------------------------------------------------------------------------------------------------------------


async def test_a_commit_inside_a_batch_acknowledges_a_part_of_it(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0)
    await bench.read(3)
    for number in (1, 3, 4):
        assert bench.feed.commit(number)
        assert (bench.feed.committed, bench.queue.committed) == (number, number)


async def test_a_commit_of_several_batches_acknowledges_them_in_order(bench: QueueBench) -> None:
    lane, acknowledged = bench.attach(), []
    acknowledge = lane.acknowledge

    def note(batch: Batch, count: int) -> None:
        acknowledged.append((batch.first[0], count))
        acknowledge(batch, count)

    lane.acknowledge = note  # type: ignore[method-assign]
    for first in range(0, 9, 3):
        await bench.read(first)
    bench.feed.commit(7)
    bench.feed.commit(9)
    assert acknowledged == [(0, 3), (3, 3), (6, 1), (6, 3)]


async def test_a_commit_goes_never_back(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0)
    assert bench.feed.commit(3)
    for number in (0, 2, 3):
        assert bench.feed.commit(number)
    assert (bench.feed.committed, bench.queue.committed) == (3, 3)


async def test_a_commit_of_what_was_not_handed_out_skips_it(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0, 1)
    assert bench.feed.commit(2)
    assert (bench.feed.committed, bench.feed.next) == (2, 2)
    assert list(bench.feed.take(2, 9, MUCH).numbers) == [2]
    await bench.read(3, 1)
    assert bench.feed.commit(6)
    assert not bench.feed.is_ready(4)
    assert (bench.feed.next, bench.memory.used) == (6, 0)
    assert await bench.read(6) == [6, 7, 8]


async def test_a_commit_of_what_was_not_received_needs_a_move(bench: QueueBench) -> None:
    lane = bench.attach()
    assert not bench.feed.commit(1), "the begin is not known yet"
    await bench.read(0)
    assert not bench.feed.commit(4)
    assert bench.feed.committed == 0
    assert bench.feed.commit(3)
    assert not bench.feed.commit(4)
    await bench.feed.advance((5,))
    assert lane.seeks == [5]
    assert await bench.read(5) == [5, 6, 7]


async def test_advancing_within_what_was_received_moves_nothing(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    await bench.feed.advance((2,))
    await bench.feed.advance((1,))
    assert (bench.queue.committed, lane.seeks) == (2, [])


async def test_the_largest_of_two_commits_that_race_wins(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    lane.seek_gate.clear()
    advancing = [spawn(bench.feed.advance((number,)), "advance") for number in (9, 7)]
    await settle()
    lane.seek_gate.set()
    for task in advancing:
        await ended(task)
    assert (bench.queue.committed, bench.feed.committed, lane.seeks) == (9, 9, [9])


async def test_a_commit_behind_the_end_has_no_effect(bench: QueueBench) -> None:
    """A group that was moved there would get nothing."""
    lane = bench.attach()
    await bench.read(0)
    await bench.feed.advance((11,))
    assert (bench.queue.committed, lane.seeks) == (0, [])
    await bench.feed.advance((10,))
    assert (bench.queue.committed, lane.seeks) == (10, [10])


@pytest.mark.parametrize("moves", [[1], [1, 0]])
async def test_a_commit_that_waits_for_a_move_does_not_undo_it(bench: QueueBench, moves: list[int]) -> None:
    """It comes while the first one is made: the client does not know of it yet."""
    lane = bench.attach()
    await bench.read(0)
    lane.seek_gate.clear()
    moving = [spawn(bench.feed.seek((moves[0],)), "seek")]
    await settle()
    moving.append(spawn(bench.feed.advance((9,)), "advance"))
    await settle()
    moving += [spawn(bench.feed.seek((number,)), "seek") for number in moves[1:]]
    await settle()
    lane.seek_gate.set()
    for task in moving:
        await ended(task)
    assert (bench.queue.committed, lane.seeks) == (moves[-1], moves)


async def test_a_pull_that_waits_for_a_source_ends_when_there_will_be_none(bench: QueueBench) -> None:
    reading = pull(bench, 0)
    await settle()
    bench.feed.retire()
    with pytest.raises(LaneRevoked, match="new feed"):
        await reading


async def test_commits_have_no_effect_while_the_partition_is_not_held(bench: QueueBench) -> None:
    assert bench.feed.commit(3)
    with pytest.raises(LaneRevoked):
        await bench.feed.advance((3,))
    bench.attach()
    await bench.read(0)
    await bench.feed.detach()
    assert bench.feed.commit(3)
    assert bench.queue.committed == 0


async def test_what_was_handed_out_may_be_committed_while_it_finishes(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0)
    await bench.feed.finish(in_time(0.0))
    assert bench.feed.commit(3)
    assert bench.queue.committed == 3


# --- moves --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, 7])
async def test_a_move_begins_anew_at_the_position(bench: QueueBench, number: int) -> None:
    lane, changes = bench.attach(), list[QueueFeed]()
    await bench.read(0)
    await bench.read(3, 1)
    bench.feed.on_change = changes.append
    await bench.feed.seek((number,))
    assert (bench.feed.committed, bench.feed.next, lane.seeks) == (number, number, [number])
    assert changes == [bench.feed]
    assert bench.memory.used == 0
    assert await bench.read(number) == list(range(number, min(10, number + 3)))


async def test_a_move_ends_pulls_that_wait(bench: QueueBench) -> None:
    bench.attach()
    reading = pull(bench, 10)
    await settle()
    await bench.feed.seek((3,))
    with pytest.raises(LaneRevoked):
        await reading
    assert bench.feed.next == 3
    assert await bench.read(3) == [3, 4, 5]


async def test_a_pull_that_skips_when_the_group_is_moved_skips_nothing_behind_it(bench: QueueBench) -> None:
    """It wants what was before the move."""
    lane = bench.attach()
    await bench.read(0)
    lane.seek_gate.clear()
    moving = spawn(bench.feed.seek((1,)), "move")
    await settle()
    reading = pull(bench, 9)
    await settle()
    lane.seek_gate.set()
    await moving
    with pytest.raises(LaneRevoked):
        await reading
    assert bench.feed.next == 1
    assert await bench.read(1) == [1, 2, 3]


async def test_a_move_ends_pulls_that_wait_for_room() -> None:
    bench = QueueBench(*range(10), span=3)
    bench.attach()
    await bench.read(0)
    reading = pull(bench, 3)
    await settle()
    await bench.feed.seek((5,))
    with pytest.raises(LaneRevoked):
        await reading
    assert await bench.read(5) == [5, 6, 7]
    await bench.close()


async def test_a_move_that_fails_changes_nothing(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    bench.feed.commit(1)
    lane.seek_errors.append(ClusterError("cannot"))
    with pytest.raises(ClusterError, match="cannot"):
        await bench.feed.seek((7,))
    assert (bench.feed.committed, bench.feed.next, bench.queue.committed) == (1, 3, 1)
    assert await bench.read(3) == [3, 4, 5]
    assert bench.feed.commit(2)
    assert bench.queue.committed == 2


async def test_a_move_that_fails_loses_nothing_that_was_received(bench: QueueBench) -> None:
    """A pull was given up before it came."""
    lane = bench.attach()
    for first in range(0, 10, 3):
        await bench.read(first)
    reading = pull(bench, 10)
    await settle()
    await cancel(reading)
    bench.queue.store(10)
    await settle()
    assert lane.next == 11
    lane.seek_errors.append(ClusterError("cannot"))
    with pytest.raises(ClusterError, match="cannot"):
        await bench.feed.seek((7,))
    bench.queue.store(11)
    assert await bench.read(10) == [10]
    assert await bench.read(11) == [11]


async def test_a_move_goes_on_when_its_caller_is_gone(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.seek_gate.clear()
    moving = spawn(bench.feed.seek((7,)), "move")
    await settle()
    await cancel(moving)
    lane.seek_gate.set()
    await until(lambda: bench.feed.next == 7)
    assert await bench.read(7) == [7, 8, 9]


async def test_moves_come_one_after_the_other(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.seek_gate.clear()
    first, second = spawn(bench.feed.seek((7,)), "first"), spawn(bench.feed.seek((2,)), "second")
    await settle()
    lane.seek_gate.set()
    await asyncio.gather(first, second)
    assert lane.seeks == [7, 2]
    assert await bench.read(2) == [2, 3, 4]


async def test_what_is_not_held_is_not_moved(bench: QueueBench) -> None:
    with pytest.raises(LaneRevoked, match="is not held by this gateway"):
        await bench.feed.seek((3,))


async def test_a_partition_that_is_released_while_it_is_moved_is_not_moved(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.seek_gate.clear()
    moving = spawn(bench.feed.seek((7,)), "move", log_errors=False)
    await settle()
    lane.release_gate.clear()
    detaching = spawn(bench.feed.detach(), "detach")
    await settle()
    other = bench.attach(begin=0)
    lane.seek_gate.set()
    with pytest.raises(LaneRevoked, match="was released"):
        await moving
    assert (bench.feed.next, other.seeks) == (0, [])
    lane.release_gate.set()
    await detaching
    bench.queue.committed = 0


async def test_a_move_when_everything_is_handed_out_lets_a_finish_end(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0)
    finishing = spawn(bench.feed.finish(in_time()), "finish")
    await settle()
    await bench.feed.seek((7,))
    await ended(finishing)
    assert bench.queue.committed == 7


# --- losses -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_room", [True, False])
@pytest.mark.parametrize("how", ["lose", "detach"])
async def test_a_pull_that_waits_ends_when_the_lane_is_lost(how: str, is_room: bool) -> None:
    bench = QueueBench(*range(6), span=6)
    lane = bench.attach()
    await bench.read(0)
    await bench.read(3)
    if is_room:
        bench.feed.commit(6)
    reading = pull(bench, 6)
    await settle()
    if how == "lose":
        lane.lose()
    else:
        await bench.feed.detach()
    with pytest.raises(LaneRevoked):
        await reading
    await bench.close()


async def test_a_lane_that_says_first_that_it_was_lost_is_held_no_longer(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.fail(LaneRevoked("was lost"))
    with pytest.raises(LaneRevoked, match="was lost"):
        await bench.read(0)
    assert (bench.feed.state, bench.feed.problem) == (UNHELD, None)


async def test_a_lane_that_fails_is_given_up_with_the_reason(bench: QueueBench) -> None:
    lane, failed = bench.attach(), []
    bench.feed.on_failed = lambda: failed.append(bench.feed.state)
    await bench.read(0)
    lane.fail(ClusterError("the disk is broken", Failure.FATAL))
    with pytest.raises(ClusterError, match="the disk is broken"):
        await bench.read(3)
    assert (failed, bench.feed.problem, bench.memory.used) == ([UNHELD], "the disk is broken", 0)
    await settle()
    assert lane.released_at == [None]
    bench.attach()
    assert bench.feed.problem is None
    assert await bench.read(0) == [0, 1, 2]


async def test_a_failure_for_which_no_pull_waits_is_told_to_the_next_one(bench: QueueBench) -> None:
    lane = bench.attach()
    reading = pull(bench, 10)
    await settle()
    await cancel(reading)
    lane.fail(ClusterError("broken"))
    await settle()
    with pytest.raises(ClusterError, match="broken"):
        await bench.read(10)
    assert (bench.feed.problem, bench.feed.state) == ("broken", UNHELD)


async def test_a_reason_without_text_has_a_name(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.fail(ClusterError(""))
    with pytest.raises(ClusterError):
        await bench.read(0)
    assert bench.feed.problem == repr(ClusterError(""))


async def test_a_bug_of_a_lane_does_not_end_the_reading(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.fail(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        await bench.read(0)
    assert await bench.read(0) == [0, 1, 2]


# --- what is delivered again --------------------------------------------------------------------------------------------------


async def test_pulls_go_on_when_the_lane_delivers_again(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    await bench.read(3)
    lane.deliver_again(0)
    assert await bench.read(6) == [6, 7, 8]
    assert bench.memory.used == 0
    assert bench.feed.commit(4)
    assert bench.queue.committed == 4
    assert bench.feed.commit(9)
    assert bench.queue.committed == 9


async def test_what_is_delivered_again_may_be_committed_already(bench: QueueBench) -> None:
    lane = bench.attach()
    await bench.read(0)
    bench.feed.commit(3)
    lane.deliver_again(1)
    assert await bench.read(3) == [3]
    assert (bench.feed.committed, bench.queue.committed) == (3, 3)
    assert bench.feed.commit(4)
    assert bench.queue.committed == 4


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_was_handed_out_before_it_came_again_is_waited_for(bench: QueueBench, is_lost: bool) -> None:
    lane = bench.attach()
    await bench.read(0)
    lane.deliver_again(0)
    bench.queue.numbers = [0, 1, 2]
    reading = pull(bench, 3)
    await until(lambda: lane.next == 3)
    await settle()
    if is_lost:
        lane.on_seek = lambda _: None if bench.queue.committed == 3 else pytest.fail("what was handed out would be lost")
        lose_behind(bench, lane, 20)
        bench.queue.store(20)
        await settle()
        assert lane.seeks == []
        bench.feed.commit(3)
        assert await reading == [20]
    else:
        await cancel(reading)
        finishing = spawn(bench.feed.finish(in_time()), "finish")
        await settle()
        assert not finishing.done()
        bench.feed.commit(3)
        await ended(finishing)


# --- gaps ---------------------------------------------------------------------------------------------------------------------


async def test_lost_messages_are_passed_and_counted(bench: QueueBench) -> None:
    lane = bench.attach()
    bench.queue.delete_before(5)
    assert await bench.read(0) == [5, 6, 7]
    assert (bench.feed.gaps, lane.seeks) == (1, [5])


async def test_lost_messages_are_passed_once_what_was_handed_out_is_committed(bench: QueueBench) -> None:
    """Passing them commits."""
    lane = bench.attach()
    await bench.read(0)
    lose_behind(bench, lane, 7)
    reading = pull(bench, 3)
    await settle()
    bench.feed.commit(2)
    await settle()
    assert (lane.seeks, bench.feed.gaps) == ([], 0)
    bench.feed.commit(3)
    assert await reading == [7, 8, 9]
    assert (lane.seeks, bench.feed.gaps) == ([7], 1)


async def test_lost_messages_are_passed_once_what_a_client_has_from_an_earlier_lane_is_committed(bench: QueueBench) -> None:
    lane = bench.attach()
    reading = pull(bench, 3, may_skip=True)
    await until(lambda: lane.next == 6)
    lose_behind(bench, lane, 7)
    assert await reading == [3, 4, 5]
    reading = pull(bench, 6)
    bench.feed.commit(2)
    await settle()
    assert (lane.seeks, bench.feed.gaps) == ([], 0)
    bench.feed.commit(6)
    assert await reading == [7, 8, 9]


async def test_a_client_that_has_only_skipped_messages_before_a_gap_loses_none(bench: QueueBench) -> None:
    lane = bench.attach()
    bench.queue.numbers = [0, 1, 2]
    reading = pull(bench, 3)
    await until(lambda: lane.next == 3)
    lose_behind(bench, lane, 7)
    bench.queue.store(7)
    await settle()
    assert (lane.seeks, bench.queue.committed) == ([], 0)
    await bench.feed.detach()
    with pytest.raises(LaneRevoked):
        await reading


@pytest.mark.parametrize("is_handed_out", [True, False])
async def test_lost_messages_are_passed_when_what_is_before_them_is_lost_too(
    bench: QueueBench, is_handed_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could get it again; a client that chooses itself from where it reads never commits it."""
    monkeypatch.setattr(queue_feed_module, "FIRST_LOOK_S", 0.01)
    lane = bench.attach()
    bench.queue.numbers = [0, 1, 2]
    if is_handed_out:
        await bench.read(0)
    reading = pull(bench, 3)
    await until(lambda: lane.next == 3)
    lose_behind(bench, lane, 7)
    await settle()
    assert lane.seeks == []
    bench.queue.delete_before(7)
    bench.queue.store(7)
    assert await reading == [7]


async def test_a_gap_before_what_is_committed_moves_no_group_back(bench: QueueBench) -> None:
    """What is delivered again, perhaps at another connection, may have been committed meanwhile."""
    lane = bench.attach()
    await bench.read(0)
    await bench.read(3)
    lane.deliver_again(0)
    lose_behind(bench, lane, 4)
    reading = pull(bench, 6)
    await settle()
    assert bench.feed.commit(6)
    assert await reading == [6, 7, 8]
    assert (bench.queue.committed, lane.seeks) == (6, [6])


async def test_a_first_message_that_is_not_known_is_asked_for_again(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_feed_module, "FIRST_LOOK_S", 0.01)
    answers = iter([ClusterError("away"), 3])

    async def find_bounds() -> tuple[int, int]:
        answer = next(answers)
        if isinstance(answer, ClusterError):
            raise answer
        return answer, 10

    monkeypatch.setattr(bench.feed, "_find_bounds", find_bounds)
    lane = bench.attach()
    await bench.read(0)
    lose_behind(bench, lane, 7)
    assert await pull(bench, 3) == [7, 8, 9]


async def test_a_lane_that_ends_before_lost_messages_are_passed_moves_nothing(bench: QueueBench) -> None:
    """What was handed out and is not committed would be lost."""
    lane = bench.attach()
    await bench.read(0)
    lose_behind(bench, lane, 7)
    reading = pull(bench, 3)
    await settle()
    await bench.feed.detach()
    with pytest.raises(LaneRevoked):
        await reading
    assert (lane.seeks, bench.queue.committed, bench.feed.gaps) == ([], 0, 0)


async def test_lost_messages_without_a_known_end_are_a_failure(bench: QueueBench) -> None:
    lane = bench.attach()
    lane.gap_resumes = False
    bench.queue.delete_before(5)
    with pytest.raises(ClusterError, match="messages were deleted"):
        await bench.read(0)
    assert (bench.feed.problem, bench.feed.state) == ("messages were deleted", UNHELD)


# --- memory -------------------------------------------------------------------------------------------------------------------


async def test_contents_are_held_until_all_of_a_batch_was_handed_out(bench: QueueBench) -> None:
    bench.attach()
    await bench.read(0, 1)
    assert bench.memory.used == bench.held == 3 * MESSAGE_BYTES
    await bench.read(1, 1)
    assert bench.memory.used == bench.held == 3 * MESSAGE_BYTES
    await bench.read(2, 1)
    assert bench.memory.used == bench.held == 0


async def test_contents_that_the_source_needs_are_held_until_they_are_committed(bench: QueueBench) -> None:
    bench.attach(needs_contents=True, replaces=False)
    await bench.read(0)
    await bench.read(3)
    assert bench.memory.used == bench.held == 6 * MESSAGE_BYTES
    bench.feed.commit(4)
    assert bench.memory.used == bench.held == 3 * MESSAGE_BYTES
    bench.feed.commit(6)
    assert bench.memory.used == bench.held == 0


async def test_contents_that_messages_replace_are_not_needed(bench: QueueBench) -> None:
    bench.attach(needs_contents=True)
    await bench.read(0)
    assert bench.memory.used == bench.held == 0
    bench.feed.commit(3)
    assert bench.queue.committed == 3


@pytest.mark.parametrize("how", ["lose", "detach", "fail", "seek", "again"])
async def test_contents_are_dropped_with_what_was_handed_out(bench: QueueBench, how: str) -> None:
    lane = bench.attach(needs_contents=True, replaces=False)
    await bench.read(0)
    await bench.read(3, 1)
    assert bench.memory.used == 6 * MESSAGE_BYTES
    if how == "lose":
        lane.lose()
        await settle()
    elif how == "detach":
        await bench.feed.detach()
    elif how == "seek":
        await bench.feed.seek((1,))
    elif how == "fail":
        lane.fail(ClusterError("broken"))
        with pytest.raises(ClusterError):
            await bench.read(6)
    else:
        lane.deliver_again(0)
        bench.queue.numbers = [0]
        reading = pull(bench, 6)
        await until(lambda: lane.next == 1)
        await settle()
        assert bench.memory.used == MESSAGE_BYTES
        await cancel(reading)
        return
    assert bench.memory.used == 0


async def test_no_more_messages_are_out_than_the_span() -> None:
    bench = QueueBench(*range(10), span=4)
    lane = bench.attach()
    await bench.read(0)
    await bench.read(3)
    reading = pull(bench, 6)
    await settle()
    assert lane.next == 6
    bench.feed.commit(2)
    await settle()
    assert lane.next == 6
    bench.feed.commit(3)
    assert await reading == [6, 7, 8]
    await bench.close()


async def test_a_pull_waits_for_the_memory_of_others() -> None:
    bench = QueueBench(*range(10), limit=8 * MESSAGE_BYTES)
    lane = bench.attach(needs_contents=True, replaces=False)
    bench.memory.add(8 * MESSAGE_BYTES)
    assert await bench.read(0) == [0, 1, 2], "a feed that holds nothing may read"
    reading = pull(bench, 3)
    await settle()
    assert lane.next == 3
    bench.memory.release(8 * MESSAGE_BYTES)
    assert await reading == [3, 4, 5]
    await bench.close()


async def test_a_pull_waits_for_the_commit_of_what_the_feed_holds() -> None:
    bench = QueueBench(*range(10), limit=3 * MESSAGE_BYTES)
    lane = bench.attach(needs_contents=True, replaces=False)
    await bench.read(0)
    reading = pull(bench, 3)
    await settle()
    assert lane.next == 3
    bench.feed.commit(3)
    assert await reading == [3, 4, 5]
    await bench.close()


async def test_a_pull_that_waits_for_memory_ends_when_the_group_is_moved() -> None:
    bench = QueueBench(*range(10), limit=8 * MESSAGE_BYTES)
    bench.attach(needs_contents=True, replaces=False)
    bench.memory.add(8 * MESSAGE_BYTES)
    await bench.read(0)
    reading = pull(bench, 3)
    await settle()
    await bench.feed.seek((5,))
    with pytest.raises(LaneRevoked):
        await reading
    bench.memory.release(8 * MESSAGE_BYTES)
    await bench.close()
