"""A partition for clients that pull at a number, where numbers do not count messages: entries of several, as in Pulsar."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import LaneRevoked
from mqbridge.listener.queue_feed import OutOfReach
from mqbridge.message import Position
from mqbridge.net.tasks import cancel, spawn
from tests.example_counts import examples
from tests.listener.faulty import until
from tests.listener.feeds import settle
from tests.listener.packed_lane import BEGIN, NUMBERING, PackedBench, PackedLane, number
from tests.patience import PATIENCE_S

ENTRIES: list[Position] = [(7, 0, 5), (7, 1, 1), (7, 2, 3), (9, 0, 2)]
FIRST = number(7, 0, 0)


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[PackedBench]:
    """Four entries in two ledgers; a lane delivers two at a time."""
    made = PackedBench(*ENTRIES)
    yield made
    await made.close()


async def test_pulls_get_everything_in_order_across_entries_and_ledgers(bench: PackedBench) -> None:
    bench.attach()
    found = await bench.read(FIRST, 3)
    assert found == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]
    assert bench.feed.next == number(7, 0, 3)
    assert await bench.read(number(7, 0, 3)) == [(7, 0, 3), (7, 0, 4), (7, 1, 0)]
    assert bench.feed.next == number(7, 2, 0)
    assert await bench.read(number(7, 2, 0)) == [(7, 2, 0), (7, 2, 1), (7, 2, 2), (9, 0, 0), (9, 0, 1)]
    assert bench.feed.next == number(9, 1, 0)


@pytest.mark.parametrize(
    ("commit", "entries", "is_settled"),
    [
        (number(7, 0, 0), 0, False),
        (number(7, 0, 1), 0, False),
        (number(7, 0, 4), 0, False),
        (number(7, 0, 5), 1, False),
        (number(7, 0, 77), 1, False),
        (number(7, 1, 0), 1, False),
        (number(7, 1, 1), 2, False),
        (number(7, 2, 0), 2, False),
        (number(7, 2, 2), 2, False),
        (number(7, 2, 3), 3, False),
        (number(7, 3, 0), 3, False),
        (number(8, 5, 5), 3, False),
        (number(9, 0, 0), 3, False),
        (number(9, 0, 1), 3, False),
        (number(9, 0, 2), 4, True),
        (number(9, 1, 0), 4, True),
    ],
)
async def test_a_commit_acknowledges_the_entries_before_it(
    bench: PackedBench, commit: int, entries: int, is_settled: bool
) -> None:
    bench.attach()
    await bench.read(FIRST)
    await bench.read(number(7, 2, 0))
    assert bench.feed.commit(commit)
    assert (bench.queue.acknowledged, bench.feed.is_settled) == (entries, is_settled)


async def test_a_pull_between_two_messages_is_at_the_next_one(bench: PackedBench) -> None:
    """Clients know the number of the last message, not where the next entry begins."""
    lane = bench.attach()
    await bench.read(FIRST)
    assert await bench.read(number(7, 1, 1), 2) == [(7, 2, 0), (7, 2, 1)]
    assert bench.feed.is_ready(number(7, 2, 2))
    assert await bench.read(number(7, 2, 2), 1) == [(7, 2, 2)]
    assert bench.feed.is_ready(number(7, 2, 3))
    assert bench.feed.is_ready(number(8, 0, 0))
    assert not bench.feed.is_ready(number(7, 2, 2))
    assert await bench.read(number(7, 5, 0), 1) == [(9, 0, 0)]
    assert await bench.read(number(9, 0, 1)) == [(9, 0, 1)]
    reading = spawn(bench.read(number(9, 0, 2)), "pull")
    await settle()
    bench.queue.store((9, 1, 1))
    assert await reading == [(9, 1, 0)]
    with pytest.raises(OutOfReach):
        await bench.read(number(9, 0, 1))
    assert lane.next == 5


async def test_a_pull_behind_the_last_message_of_a_batch_waits_for_the_next_one(bench: PackedBench) -> None:
    """It was received, but the client has it from an earlier lane."""
    bench.queue.entries = ENTRIES[:1]
    bench.attach()
    reading = spawn(bench.read(number(7, 0, 5)), "pull")
    await settle()
    assert not reading.done()
    bench.queue.store((7, 1, 2))
    assert await reading == [(7, 1, 0), (7, 1, 1)]


async def test_a_client_that_has_all_of_a_batch_from_an_earlier_lane_settles_it_with_its_last_message(bench: PackedBench) -> None:
    bench.attach()
    await bench.read(number(7, 2, 0), 1)
    assert not bench.feed.is_settled
    assert bench.feed.commit(number(7, 1, 1))
    assert not bench.feed.is_settled, "there is the message that was handed out"
    assert bench.feed.commit(number(7, 2, 1))
    assert bench.feed.is_settled


async def test_a_commit_inside_an_entry_holds_while_the_lane_is_kept(bench: PackedBench) -> None:
    lane = bench.attach()
    await bench.read(FIRST, 3)
    assert bench.feed.commit(number(7, 0, 3))
    lane.deliver_again()
    await bench.read(number(7, 0, 3), 100)
    assert bench.feed.committed == number(7, 0, 3)
    assert bench.feed.commit(number(7, 2, 0))
    assert bench.queue.acknowledged == 0, "the lane has delivered it again, which is not received yet"
    assert (await bench.read(number(7, 2, 0)))[0] == (7, 2, 0)
    assert bench.queue.acknowledged == 2


async def test_after_a_restart_a_committed_part_of_an_entry_comes_again_and_nothing_is_lost(bench: PackedBench) -> None:
    lane = bench.attach()
    await bench.read(FIRST)
    assert bench.feed.commit(number(7, 0, 3))
    lane.lose()
    await until(lambda: not bench.feed.is_held)
    bench.attach()
    begin = await bench.find_begin()
    assert begin == FIRST, "the cluster knows whole entries"
    assert begin is not None
    assert (await bench.read(begin))[0] == (7, 0, 0), "a client without a number of its own gets the whole entry"


async def test_after_a_restart_a_client_that_knows_its_number_gets_nothing_again(bench: PackedBench) -> None:
    lane = bench.attach()
    await bench.read(FIRST, 3)
    assert bench.feed.commit(number(7, 0, 3))
    lane.lose()
    await until(lambda: not bench.feed.is_held)
    bench.attach()
    assert await bench.read(number(7, 0, 3)) == [(7, 0, 3), (7, 0, 4), (7, 1, 0)]
    assert bench.feed.commit(number(7, 1, 0))
    assert bench.queue.acknowledged == 1


async def test_a_pull_may_skip_to_what_comes_after_the_committed_number(bench: PackedBench) -> None:
    bench.attach()
    await bench.read(FIRST)
    assert bench.feed.commit(number(7, 1, 1)), "the number after the message, not where the next entry begins"
    assert await bench.read(FIRST, may_skip=True) == [(7, 2, 0), (7, 2, 1), (7, 2, 2), (9, 0, 0), (9, 0, 1)]
    with pytest.raises(OutOfReach):
        await bench.read(FIRST, may_skip=True)


async def test_the_limit_counts_messages(bench: PackedBench) -> None:
    bench.feed._limits = type(bench.feed._limits)(bench.memory, 6)
    bench.attach()
    await bench.read(FIRST)
    reading = spawn(bench.read(number(7, 2, 0)), "pull")
    await settle()
    assert not reading.done(), "six messages are not committed"
    assert bench.feed.commit(number(7, 0, 1))
    assert len(await reading) == 5
    assert bench.feed._span == 10


async def test_no_more_is_skipped_than_may_be_uncommitted(bench: PackedBench) -> None:
    bench.feed._limits = type(bench.feed._limits)(bench.memory, 6)
    bench.attach()
    with pytest.raises(OutOfReach, match="is far behind"):
        await bench.read(number(9, 0, 0))
    assert bench.feed.commit(number(7, 1, 1))
    assert await bench.read(number(9, 0, 0)) == [(9, 0, 0), (9, 0, 1)]


async def test_what_is_committed_and_delivered_again_counts_for_no_limit(bench: PackedBench) -> None:
    bench.feed._limits = type(bench.feed._limits)(bench.memory, 6)
    lane = bench.attach()
    await bench.read(FIRST)
    assert bench.feed.commit(number(7, 1, 1))
    bench.queue.acknowledged = 0  # the acknowledgement was lost
    lane.deliver_again()
    assert await bench.read(number(7, 2, 0)) == [(7, 2, 0), (7, 2, 1), (7, 2, 2), (9, 0, 0), (9, 0, 1)]
    assert bench.queue.acknowledged == 2


@pytest.mark.parametrize(
    ("position", "found", "acknowledged"),
    [
        (BEGIN, (7, 0, 0), 0),
        ((0, 0, 0), (7, 0, 0), 0),
        ((7, 0, 0), (7, 0, 0), 0),
        ((7, 0, 3), (7, 0, 3), 0),
        ((7, 0, 5), (7, 1, 0), 1),
        ((7, 2, 1), (7, 2, 1), 2),
        ((9, 0, 0), (9, 0, 0), 3),
        ((8, 9, 9), (9, 0, 0), 3),
    ],
)
async def test_a_group_is_moved_to_any_number(bench: PackedBench, position: Position, found: Position, acknowledged: int) -> None:
    bench.attach()
    await bench.read(FIRST)
    await bench.feed.seek(position)
    assert bench.feed.committed == NUMBERING.number(position)
    assert (await bench.read(NUMBERING.number(position)))[0] == found
    assert bench.queue.acknowledged == acknowledged


async def test_a_group_is_moved_to_the_end(bench: PackedBench) -> None:
    bench.attach()
    await bench.feed.seek(bench.queue.next)
    reading = spawn(bench.read(NUMBERING.number(bench.queue.next)), "pull")
    await settle()
    bench.queue.store((11, 0, 1))
    assert await reading == [(11, 0, 0)]


async def test_a_commit_ahead_of_what_was_received_moves_the_group(bench: PackedBench) -> None:
    bench.attach()
    await bench.read(FIRST)
    assert not bench.feed.commit(number(9, 0, 1))
    await bench.feed.advance((9, 0, 1))
    assert bench.queue.acknowledged == 3
    assert await bench.read(number(9, 0, 1)) == [(9, 0, 1)]


async def test_an_empty_partition_has_a_number() -> None:
    bench = PackedBench()
    bench.attach()
    assert await bench.find_bounds() == (0, 0)
    reading = spawn(bench.read(0), "pull")
    await settle()
    bench.queue.store((3, 0, 2))
    assert await reading == [(3, 0, 0), (3, 0, 1)]
    await bench.close()


async def test_nothing_waits_for_messages_of_a_partition_that_is_empty() -> None:
    """Its messages were handed out, and deleted before they were committed."""
    bench = PackedBench(*ENTRIES)
    bench.attach()
    await bench.read(FIRST)
    assert not bench.feed.is_settled
    bench.queue.entries.clear()
    async with asyncio.timeout(PATIENCE_S):
        await bench.feed._wait_passable()
    await bench.close()


async def test_a_message_that_comes_behind_later_ones_is_not_handed_out_and_is_acknowledged(
    bench: PackedBench, caplog: pytest.LogCaptureFixture
) -> None:
    """A message of chunks that was given up: its last chunk is missing."""
    lane = bench.attach()
    await bench.read(FIRST)
    lane.late = [(7, 0, 4)]
    assert (await bench.read(number(7, 2, 0)))[0] == (7, 2, 0)
    assert "came too late" in caplog.text
    assert bench.feed.commit(number(9, 1, 0))
    assert bench.queue.acknowledged == 4
    assert not bench.feed._window


# --- the end ------------------------------------------------------------------------------------------------------------------


async def test_a_feed_is_caught_up_when_the_source_says_so_and_all_is_handed_out(bench: PackedBench) -> None:
    assert not bench.feed.caught_up
    assert not await bench.feed.confirm_caught_up(), "it is not held"
    lane = bench.attach()
    lane.is_told = True
    assert not bench.feed.caught_up
    await bench.read(FIRST)
    await bench.read(number(7, 2, 0), 4)
    assert (lane.caught_up, bench.feed.caught_up) == (True, False)
    await bench.read(number(9, 0, 1))
    assert bench.feed.caught_up
    reading = spawn(bench.read(number(9, 1, 0)), "pull")
    await settle()
    assert bench.feed.caught_up
    await cancel(reading)
    bench.queue.store((9, 1, 1))
    await settle()
    assert not bench.feed.caught_up, "it is received"
    assert await bench.read(number(9, 1, 0)) == [(9, 1, 0)]


async def test_a_source_is_asked_whether_it_is_at_its_end(bench: PackedBench) -> None:
    lane = bench.attach()
    assert not await bench.feed.confirm_caught_up()
    await bench.read(FIRST, 1)
    asked = lane.asked
    assert not await bench.feed.confirm_caught_up()
    assert lane.asked == asked, "there are messages to hand out"
    await bench.read(number(7, 0, 1))
    await bench.read(number(7, 2, 0))
    lane.is_told = False
    assert not bench.feed.caught_up
    assert await bench.feed.confirm_caught_up()
    assert bench.feed.caught_up


# --- anything -----------------------------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("store"), st.integers(1, 6), st.booleans()),
    *[st.tuples(st.just("pull"), st.sampled_from([1, 2, 3, 8]), st.integers(0, 2))] * 3,
    *[st.tuples(st.just("commit"), st.integers(0, 5), st.integers(0, 2))] * 2,
    st.tuples(st.just("lose"), st.booleans(), st.just(0)),
    st.tuples(st.just("again"), st.just(0), st.just(0)),
    st.tuples(st.just("move"), st.integers(0, 30), st.just(0)),
)


class PackedClients:
    """One client after another, which pull and commit at numbers between messages; they check what they get."""

    def __init__(self) -> None:
        self.bench = PackedBench((3, 0, 4), (3, 1, 1), span=12)
        self.queue, self.feed = self.bench.queue, self.bench.feed
        self.lane: PackedLane = self.bench.attach()
        self.consumed = self.committed = 0
        """Number of messages that the client has got, and of those that it has committed."""

    def gap(self, count: int, how: int) -> int:
        """Return one of the numbers that mean: after so many messages."""
        numbers = self.queue.numbers
        after = numbers[count - 1] + 1 if count else 0
        before = numbers[count] if count < len(numbers) else NUMBERING.number(self.queue.next)
        return [before, max(after, min(numbers)), (max(after, min(numbers)) + before) // 2][how]

    async def apply(self, name: str, argument: int, how: int) -> None:
        total = len(self.queue.positions)
        if name == "store":
            ledger, entry, _ = self.queue.entries[-1]
            self.queue.store((ledger + 2, 0, argument) if how else (ledger, entry + 1, argument))
        elif name == "pull" and self.consumed < total:
            try:
                found = await self.bench.read(self.gap(self.consumed, how), argument)
            except (OutOfReach, LaneRevoked):
                return
            except TimeoutError:
                assert self.feed._span >= 12, "it waits for a commit"
                return
            assert found == self.queue.positions[self.consumed : self.consumed + len(found)]
            assert found
            self.consumed += len(found)
        elif name == "commit":
            count = max(self.committed, self.consumed - argument)
            assert self.feed.commit(self.gap(count, how)) or self.feed.next is None
            if self.feed.committed is not None:
                self.committed = count
        elif name == "lose":
            self.lane.lose()
            await until(lambda: not self.feed.is_held)
            self.lane = self.bench.attach()
            self.committed = self._whole()
            if argument:
                self.consumed = self.committed
        elif name == "again":
            self.lane.deliver_again()
        elif name == "move":
            count = min(argument, total)
            await self.feed.seek(NUMBERING.position(self.gap(count, 0)))
            self.consumed = self.committed = count

    def _whole(self) -> int:
        """Return the number of messages of the acknowledged entries."""
        return sum(count for _, _, count in self.queue.entries[: self.queue.acknowledged])

    def check(self) -> None:
        assert self._whole() <= max(self.committed, 0), "entries are acknowledged that were not committed"

    async def drain(self) -> None:
        total = len(self.queue.positions)
        while self.consumed < total:
            await self.apply("commit", 0, 1)
            await self.apply("pull", 8, 0)
        await self.apply("commit", 0, 1)
        assert self.queue.acknowledged == len(self.queue.entries)
        assert self.feed.is_settled
        await self.bench.close()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_clients_get_every_message_and_acknowledge_whole_entries(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        clients = PackedClients()
        for step in steps:
            if step[0] == "pull" and clients.feed._span >= 12:
                await clients.apply("commit", 0, 0)
            await clients.apply(*step)
            clients.check()
        await clients.drain()

    asyncio.run(run())
