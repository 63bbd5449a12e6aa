"""What consumers of a feed get, what they acknowledge, and what comes again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupStore
from mqbridge.listener import progress
from mqbridge.listener.delivered import State
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.message import Batch, Message, Position, Unit
from tests.listener.feeds import KEY, feeding, make_feed, numbers, settle, take
from tests.listener.scripted_source import FORMAT, PARTITION, ScriptedSource
from tests.patience import PATIENCE_S


async def test_units_are_taken_whole_and_messages_one_by_one() -> None:
    source = ScriptedSource()
    source.store(3, 0, 0, 2)
    async with feeding(source) as feed:
        taken = await take(feed, 7)
        assert [numbers(each) for each in taken] == [[0, 1, 2], [3], [4], [5, 6]]
        assert [each.unit is None for each in taken] == [False, True, True, False]
        assert [each.message is None for each in taken] == [True, False, False, True]
        for each in taken:
            feed.acknowledge(each)
        await settle()
        assert source.committed == 7


async def test_only_what_is_wanted_is_read() -> None:
    source = ScriptedSource(batch_units=2)
    source.store(*[1] * 10)
    async with feeding(source) as feed:
        await settle()
        assert source.next == 0, "nobody wants anything"
        assert feed.take(1, 100) == []
        await settle()
        assert source.next == 2
        assert len(feed.take(1, 100)) == 1
        await settle()
        assert source.next == 2, "there is one left"


async def test_limits_of_a_take_do_not_apply_to_its_first_unit() -> None:
    source = ScriptedSource(batch_units=10)
    source.store(5, 1, 1, 1)
    async with feeding(source) as feed:
        assert [numbers(each) for each in await take(feed, 1, max_bytes=1)] == [[0, 1, 2, 3, 4]]
        assert [each.number for each in feed.take(2, 100)] == [5, 6]
        assert [each.number for each in feed.take(2, 100)] == [7]
        assert feed.take(2, 100) == []


async def test_the_prefix_is_committed_inside_a_unit_only_when_it_is_done() -> None:
    source = ScriptedSource()
    source.store(4, 4)
    async with feeding(source) as feed:
        first, second = await take(feed, 8)
        feed.acknowledge(second)
        await settle()
        assert source.committed == 0
        feed.acknowledge(first, 0b0111)
        await settle()
        assert (source.committed, numbers(first)) == (0, [3])
        feed.acknowledge(first, 0b1111)
        await settle()
        assert source.committed == 8


async def test_acknowledging_to_a_number_includes_a_part_of_a_unit() -> None:
    source = ScriptedSource()
    source.store(4, 4)
    async with feeding(source) as feed:
        first, second = await take(feed, 8)
        feed.acknowledge_to(6)
        assert (first.state, numbers(second)) == (State.DONE, [6, 7])
        feed.acknowledge_to(0)
        feed.acknowledge_to(8)
        await settle()
        assert source.committed == 8


async def test_units_that_are_given_back_come_first_and_in_order() -> None:
    source = ScriptedSource(batch_units=10)
    source.store(*[2] * 6)
    async with feeding(source) as feed:
        taken = await take(feed, 8)
        for index in (2, 0):
            feed.give_back(taken[index], counted=True)
        feed.give_back(taken[1], counted=False)
        again = await take(feed, 10)
        assert [each.number for each in again] == [0, 2, 4, 8, 10]
        assert [each.deliveries for each in again] == [1, 0, 1, 0, 0]
        feed.give_back(taken[3], counted=True)
        feed.acknowledge(taken[3])  # by the consumer that had it: it does not come again
        await settle()
        assert feed.take(10, 100) == []


async def test_a_delayed_unit_holds_nothing_but_the_prefix() -> None:
    source = ScriptedSource()
    source.store(1, 1)
    async with feeding(source) as feed:
        first, second = await take(feed, 2)
        feed.give_back(first, counted=True, delay_s=0.05)
        feed.acknowledge(second)
        assert feed.take(10, 100) == []
        assert first.state is State.DELAYED
        assert [each.number for each in await take(feed, 1)] == [0]
        feed.acknowledge(first)
        await settle()
        assert source.committed == 2


async def test_the_time_of_a_delayed_unit_does_not_come_after_a_seek() -> None:
    source = ScriptedSource()
    source.store(1, 1)
    async with feeding(source) as feed:
        (first,) = await take(feed, 1)
        feed.give_back(first, counted=True, delay_s=0.02)
        await feed.seek((0,))
        assert [each.number for each in await take(feed, 2)] == [0, 1]
        await asyncio.sleep(0.05)
        assert feed.take(1, 100) == []


async def test_a_restart_delivers_what_is_not_acknowledged(tmp_path: Path) -> None:
    """900 of 1,000 messages are acknowledged, one by one and in any order: 100 come again."""
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource(batch_units=7)
    source.store(*[4, 0, 1] * 166, 0, 0, 0, 0)
    assert source.end == 1000
    left = {number for number in range(1000) if number % 10 == 3}
    async with feeding(source, store) as feed:
        taken = await take(feed, 1000)
        for each in reversed(taken):
            feed.acknowledge(each, sum(1 << bit for bit in range(each.count) if each.number + bit not in left))
    await store.close()
    store, resumed = GroupStore(tmp_path / "state.db"), source.resume()
    assert resumed.next == 0, "the first unit is acknowledged in part only"
    async with feeding(resumed, store) as feed:
        again = await take(feed, 100)
        assert [number for each in again for number in numbers(each)] == sorted(left)
        for each in again:
            feed.acknowledge(each)
        assert feed.take(1, 100) == [], "what is left was acknowledged before"
        await settle()
        assert resumed.committed == 1000
    await store.close()


@pytest.mark.parametrize("moved_to", [0, 5, 30])
async def test_what_was_recorded_before_the_group_was_moved_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved_to: int
) -> None:
    monkeypatch.setattr(progress, "CONFIRM_S", 0.0)
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource()
    source.store(*[1] * 40)
    async with feeding(source, store) as feed:
        for each in await take(feed, 20):
            if each.number < 10 or each.number % 2:
                feed.acknowledge(each)
        async with asyncio.timeout(PATIENCE_S):
            while (state := feed.state()) is None or state.confirmed != (9,):  # the end of a batch
                await asyncio.sleep(0.01)
    assert store.load(KEY) == Acknowledged((10,), (9,), tuple((number, number) for number in range(11, 20, 2)))
    moved = source.resume()
    await moved.seek((moved_to,))
    async with feeding(moved, store) as feed:
        assert [each.number for each in await take(feed, 40 - moved_to)] == list(range(moved_to, 40))
    await store.close()


async def test_a_seek_forgets_what_is_out(tmp_path: Path) -> None:
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource()
    source.store(*[2] * 10)
    async with feeding(source, store) as feed:
        taken = await take(feed, 12)
        feed.acknowledge(taken[0])
        feed.acknowledge(taken[3])
        await feed.seek((3,))
        for each in taken:
            feed.acknowledge(each)
            feed.give_back(each, counted=True)
        assert store.load(KEY) == Acknowledged((3,), (3,))
        again = await take(feed, 17)
        assert [number for each in again for number in numbers(each)] == list(range(3, 20))
        assert [each.deliveries for each in again] == [0] * 9
    await store.close()


class StuckSource(ScriptedSource):
    """A source that cannot be moved."""

    async def seek(self, position: Position) -> None:
        raise ClusterError("the partition cannot be moved now")


async def test_a_seek_that_fails_changes_nothing() -> None:
    source = StuckSource()
    source.store(*[1] * 10)
    async with feeding(source) as feed:
        taken = await take(feed, 5)
        with pytest.raises(ClusterError, match="cannot be moved"):
            await feed.seek((0,))
        for each in taken:
            feed.acknowledge(each)
        await settle()
        assert source.committed == 5
        assert [each.number for each in await take(feed, 5)] == list(range(5, 10))


async def test_a_lost_partition_is_noticed_while_nobody_reads_it() -> None:
    source, calls = ScriptedSource(), 0
    source.store(*[1] * 5)

    def wake() -> None:
        nonlocal calls
        calls += 1

    async with feeding(source) as feed:
        (taken, *_) = await take(feed, 2)
        feed.watch(wake)
        assert feed.is_held
        source.lost.set()
        await settle()
        assert not feed.is_held
        assert calls > 0
        feed.acknowledge(taken)
        await settle()
        assert source.committed == 0
        assert feed.take(10, 100) == []
        with pytest.raises(LaneRevoked):
            await feed.seek((0,))
        feed.attach(source.resume())
        assert [each.number for each in await take(feed, 5)] == list(range(5))


async def test_a_gap_is_skipped_once_everything_before_it_is_acknowledged() -> None:
    """A seek commits: behind a crash, what is out would be lost."""
    source = ScriptedSource()
    source.store(*[1] * 10)
    async with feeding(source) as feed:
        taken = await take(feed, 3)
        source.deleted_before = 7
        assert feed.take(1, 100) == []
        await settle()
        assert (source.next, source.committed) == (3, 0)
        for each in taken:
            feed.acknowledge(each)
        assert [each.number for each in await take(feed, 3)] == [7, 8, 9]
        assert feed.counters.gaps == 1


async def test_the_span_is_limited() -> None:
    source = ScriptedSource(batch_units=1)
    source.store(*[1] * 50)
    async with feeding(source, span=10) as feed:
        taken = await take(feed, 10)
        assert feed.take(1, 100) == []
        await settle()
        assert source.next == 10
        for each in taken[1:]:
            feed.acknowledge(each)
        await settle()
        assert source.next == 10, "the oldest message is not acknowledged"
        feed.acknowledge(taken[0])
        assert [each.number for each in await take(feed, 10)] == list(range(10, 20))


async def test_stuck_consumers_of_some_groups_do_not_stop_the_others() -> None:
    shared = UnacknowledgedBytes(400)
    feeds, sources = [], []
    for _ in range(8):
        source = ScriptedSource(batch_units=1)
        source.store(*[10] * 100)
        feed = Feed(KEY, FORMAT, OffsetNumbering(), None, FeedLimits(shared, 10_000))
        feed.attach(source)
        feeds.append(feed)
        sources.append(source)
    for feed in feeds[:7]:  # their consumers never acknowledge
        for _ in range(100):
            feed.take(10, 1000)
            await settle()
    assert shared.used <= 400 + 8 * 50
    for _ in range(100):
        (unit,) = await take(feeds[7], 10)
        feeds[7].acknowledge(unit)
    await settle()
    assert sources[7].committed == 1000
    for feed in feeds:
        await feed.detach()
    assert shared.used == 0


@pytest.mark.parametrize("needs_contents", [False, True])
async def test_what_waits_for_the_prefix_is_held_in_memory_only_if_it_counts(needs_contents: bool) -> None:
    """One unit is not acknowledged, and everything behind it is: its contents are dropped, or their bytes still count."""
    source = ScriptedSource(batch_units=1)
    source.needs_contents = needs_contents
    source.store(*[2] * 200)
    unacknowledged = UnacknowledgedBytes(1 << 10)
    feed = Feed(KEY, FORMAT, OffsetNumbering(), None, FeedLimits(unacknowledged, 10_000))
    feed.attach(source)
    first, *others = await take(feed, 2)
    while others or source.next < source.end:
        for each in others:
            feed.acknowledge(each)
        await settle()
        if not (others := feed.take(2, 100)):
            break
    is_full = source.next < source.end
    assert is_full == needs_contents, "what is held counts"
    in_memory = [each for each in feed._units if each.held.batch.has_units]
    assert (len(in_memory) > 1) == needs_contents
    assert unacknowledged.used == sum(each.held.size for each in in_memory)
    feed.acknowledge(first)
    while source.committed < source.end:
        await settle()
        for each in feed.take(100, 1000):
            feed.acknowledge(each)
    assert unacknowledged.used == 0
    await feed.detach()


@pytest.mark.parametrize("needs_contents", [False, True])
async def test_a_batch_that_was_acknowledged_before_does_not_count_as_held(tmp_path: Path, needs_contents: bool) -> None:
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource(batch_units=1)
    source.store(*[2] * 10)
    async with feeding(source, store) as feed:
        for each in (await take(feed, 20))[1:]:
            feed.acknowledge(each)
    resumed, unacknowledged = source.resume(), UnacknowledgedBytes(1 << 20)
    resumed.needs_contents = needs_contents
    feed = Feed(KEY, FORMAT, OffsetNumbering(), store, FeedLimits(unacknowledged, 10_000))
    feed.attach(resumed)
    (first,) = await take(feed, 2)
    assert feed.take(1, 100) == []
    while resumed.next < resumed.end:
        await settle()
        assert feed.take(1, 100) == []
    feed.acknowledge(first)
    while resumed.committed < resumed.end:
        await settle()
    assert unacknowledged.used == 0
    await feed.detach()
    await store.close()


async def test_detaching_commits_and_releases_the_source() -> None:
    source, feed = ScriptedSource(), make_feed()
    source.store(1, 1, 1)
    feed.attach(source)
    for each in await take(feed, 2):
        feed.acknowledge(each)
    await feed.detach()
    await feed.detach()
    assert (source.committed, source.released, feed.is_held) == (2, True, False)
    assert [task for task in asyncio.all_tasks() if "feed of" in task.get_name()] == []


async def test_a_crash_before_the_source_has_stored_its_position_repeats_only_what_is_not_acknowledged(tmp_path: Path) -> None:
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource(batch_units=50)
    source.store(*[1] * 100)
    async with feeding(source, store) as feed:
        for each in await take(feed, 90):
            if each.number != 70:
                feed.acknowledge(each)
        await settle()
        assert source.committed == 70
        source.lost.set()  # so it was not released in order, which stores the position
        await settle()
    crashed = source.resume()
    crashed.committed = crashed.next = 3
    async with feeding(crashed, store) as feed:
        assert [each.number for each in await take(feed, 11)] == [70, *range(90, 100)]
    await store.close()


async def test_what_is_recorded_stays_until_its_units_are_read_again(tmp_path: Path) -> None:
    """A restart that reads little, or nothing, does not make the next one repeat what was acknowledged."""
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource(batch_units=1)
    source.store(*[2] * 20)
    async with feeding(source, store) as feed:
        for each in await take(feed, 30):
            if each.number >= 8:
                feed.acknowledge(each, 0b01 if each.number == 20 else None)
    recorded = store.load(KEY)
    assert recorded == Acknowledged((0,), (0,), ((8, 18), (22, 28)), {20: 1})
    for count in (0, 2, 10):
        source = source.resume()
        async with feeding(source, store) as feed:
            await take(feed, count)
            await settle()
        assert store.load(KEY) == recorded
    source = source.resume()
    async with feeding(source, store) as feed:
        again = [number for each in await take(feed, 19) for number in numbers(each)]
        assert again == [*range(8), 21, *range(30, 40)]
    await store.close()


async def test_a_source_that_delivers_again_is_read_as_one_that_begins_anew(tmp_path: Path) -> None:
    store, source = GroupStore(tmp_path / "state.db"), ScriptedSource(batch_units=10)
    source.store(*[1] * 10)
    async with feeding(source, store) as feed:
        taken = await take(feed, 6)
        for each in taken[1:4]:
            feed.acknowledge(each)
        source.next = 0  # as after a lost connection
        source.store(1)
        for each in feed.take(4, 100):
            feed.acknowledge(each)
        again = await take(feed, 4)
        assert [each.number for each in again] == [0, 4, 5, 10]
        for each in [*taken, *again]:
            feed.acknowledge(each)
        await settle()
        assert source.committed == 11
    await store.close()


async def test_two_seeks_and_a_cancelled_one_leave_one_reader() -> None:
    source = ScriptedSource()
    source.store(*[1] * 20)
    async with feeding(source) as feed:
        await take(feed, 3)
        seeks = [asyncio.ensure_future(feed.seek((offset,))) for offset in (5, 9)]
        cancelled = asyncio.ensure_future(feed.seek((12,)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*seeks)
        await settle()
        assert [each.number for each in await take(feed, 8)] == list(range(12, 20)), "it goes on without its caller"
        assert len([task for task in asyncio.all_tasks() if "feed of" in task.get_name()]) == 1


async def test_a_source_may_be_attached_while_the_one_before_is_released() -> None:
    may_end = asyncio.Event()

    class SlowRelease(ScriptedSource):
        async def release(self, deadline: float | None = None) -> None:
            await super().release(deadline)
            await may_end.wait()

    first, second = SlowRelease(), ScriptedSource()
    for each in (first, second):
        each.store(*[1] * 5)
    feed = make_feed()
    feed.attach(first)
    await take(feed, 2)
    detaching = asyncio.ensure_future(feed.detach())
    await settle()
    feed.attach(second)
    assert [each.number for each in await take(feed, 5)] == list(range(5))
    assert not detaching.done()
    may_end.set()
    await detaching
    assert feed.is_held
    second.lost.set()
    await settle()
    assert not feed.is_held
    await feed.detach()


class BrokenSource(ScriptedSource):
    """A source with a bug."""

    async def receive(self) -> Batch:
        if self.next:
            raise ZeroDivisionError("a bug")
        return await super().receive()


async def test_a_bug_of_a_source_ends_it_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    source, feed = BrokenSource(), make_feed()
    source.store(1)
    feed.attach(source)
    await take(feed, 1)
    feed.take(1, 100)
    await settle()
    assert (feed.is_held, feed.problem, source.released) == (False, "a bug", True)
    assert "ZeroDivisionError" in caplog.text
    await feed.detach()


async def test_an_error_in_a_watcher_keeps_no_other_from_being_called() -> None:
    source, called = ScriptedSource(), []
    loop = asyncio.get_running_loop()
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    async with feeding(source) as feed:
        feed.watch(lambda: 1 // 0)
        feed.watch(lambda: called.append(1))
        await settle()
    loop.set_exception_handler(None)
    assert called
    assert errors


class LazySource(ScriptedSource):
    """A lane whose messages are decoded on demand, and need no received form to be acknowledged."""

    needs_contents = True

    def __init__(self, *, messages_replace_data: bool) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self._messages_replace_data = messages_replace_data

    def _batch(self) -> Batch | None:
        if (made := super()._batch()) is None:
            return None
        messages = made.messages
        batch = Batch(
            made.partition, lambda: messages, count=made.count, size=made.size, first=made.first, next=made.next, data="received",
            held_bytes=1000, messages_replace_data=self._messages_replace_data,
        )  # fmt: skip
        self.batches.append(batch)
        return batch


@pytest.mark.parametrize(("replace_data", "held"), [(True, 1000), (False, 1003)])
async def test_messages_that_take_the_place_of_what_was_received_count_once(replace_data: bool, held: int) -> None:
    source, unacknowledged = LazySource(messages_replace_data=replace_data), UnacknowledgedBytes(1 << 20)
    source.store(*[0] * 3)
    feed = Feed(KEY, FORMAT, OffsetNumbering(), None, FeedLimits(unacknowledged, 100))
    feed.attach(source)
    first, *others = await take(feed, 3)
    assert unacknowledged.used == held
    for each in (*others, first):
        assert (source.batches[0].data is None) == replace_data
        assert unacknowledged.used == held
        feed.acknowledge(each)
    assert unacknowledged.used == 0
    assert bool(source.batches[0].messages) != replace_data, "nothing is held that does not count"
    await settle()
    assert source.committed == 3
    await feed.detach()


class IndividualSource(ScriptedSource):
    """A source whose messages are acknowledged one by one, and come again in any order."""

    is_individual = True

    def __init__(self) -> None:
        super().__init__(batch_units=3)
        self.calls: list[tuple[int, list[int], bool]] = []

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        self.calls.append((batch.first[0], list(indexes), is_last))


async def test_messages_that_come_again_are_acknowledged_by_their_newest_delivery() -> None:
    source = IndividualSource()
    source.store(*[0] * 3)
    async with feeding(source) as feed:
        first, second, third = await take(feed, 3)
        feed.acknowledge(third)
        source.next = 1  # after a lost connection
        source.store(0)
        assert feed.take(1, 100) == []
        (fourth,) = await take(feed, 1)
        assert [each.number for each in (first, second, third, fourth)] == [0, 1, 2, 3]
        for each in (fourth, second, first):
            feed.acknowledge(each)
        await settle()
    assert source.calls == [(0, [2], False), (1, [1], False), (1, [2], False), (1, [0], False), (0, [0], False)]


def unit_batch(contents: dict[int, Unit]) -> Batch:
    """Return a batch of these units, by the number of their first message."""
    units = [unit._replace(position=(number,)) for number, unit in contents.items()]
    counts = [unit.message_count - unit.left_out.bit_count() for unit in units]
    messages = [Message(b"", position=(0,))] * sum(counts)
    end = units[-1].position[0] + units[-1].message_count
    return Batch(
        PARTITION, messages, count=sum(counts), size=1, first=units[0].position, next=(end,), format=FORMAT, units=lambda: units
    )


async def test_a_unit_that_comes_again_without_what_is_acknowledged_is_acknowledged_as_it_came() -> None:
    """Its indexes in the batch are those of the newest delivery, also if it lacks messages in the middle."""
    source, stored = IndividualSource(), asyncio.Queue[Batch]()
    source.receive = stored.get  # type: ignore[method-assign]
    async with feeding(source) as feed:
        stored.put_nowait(unit_batch({0: Unit(b"a", 1, 1), 1: Unit(b"b", 3, 1)}))
        first, second = await take(feed, 4)
        feed.acknowledge(second, 0b010)
        stored.put_nowait(unit_batch({0: Unit(b"a", 1, 1), 1: Unit(b"b", 3, 1, left_out=0b010)}))
        feed.take(1, 100)
        await settle()
        feed.acknowledge(second, 0b001)
        assert source.calls == [(0, [2], False), (0, [1], False)], "not 0, which is the first unit"
        feed.acknowledge(first)
        stored.put_nowait(unit_batch({1: Unit(b"b", 3, 1, left_out=0b010)}))
        await settle()
        assert source.calls[3:] == [(1, [0], False)], "what came again is told to be acknowledged"
        feed.acknowledge(second)
    assert source.calls[4:] == [(1, [1], False)]


async def test_a_unit_that_comes_again_without_what_is_not_acknowledged_here_has_only_the_rest() -> None:
    """The source knows of an acknowledgement that this feed does not; its message has no index in the newest batch."""
    source, stored = IndividualSource(), asyncio.Queue[Batch]()
    source.receive = stored.get  # type: ignore[method-assign]
    async with feeding(source) as feed:
        stored.put_nowait(unit_batch({0: Unit(b"a", 3, 1)}))
        (unit,) = await take(feed, 3)
        stored.put_nowait(unit_batch({0: Unit(b"a", 3, 1, left_out=0b010), 3: Unit(b"b", 1, 1)}))
        (last,) = await take(feed, 1)
        feed.acknowledge(unit)
        assert source.calls == [(0, [0, 1], False)], "not 2, which is the next unit"
        feed.acknowledge(last)


async def test_a_delayed_unit_that_is_acknowledged_may_be_delayed_anew() -> None:
    source = IndividualSource()
    source.store(0)
    async with feeding(source) as feed:
        (unit,) = await take(feed, 1)
        feed.give_back(unit, counted=False, delay_s=1000.0)
        feed.acknowledge(unit)
        assert not feed._timers


async def test_a_batch_that_comes_as_the_source_is_given_up_is_not_held() -> None:
    source, stored = ScriptedSource(), asyncio.Queue[Batch]()
    source.receive = stored.get  # type: ignore[method-assign]
    async with feeding(source) as feed:
        feed.take(1, 100)
        await settle()
        stored.put_nowait(unit_batch({0: Unit(b"a", 1, 1)}))  # the task that reads goes on in the next iteration
