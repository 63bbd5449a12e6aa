"""A feed of pulls against a model of its clients: what they have not consumed comes, whatever happens to the lane."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.listener.numbered import Slice
from mqbridge.listener.queue_feed import OutOfReach, QueueFeedState
from mqbridge.net.tasks import cancel, spawn
from tests.example_counts import examples
from tests.listener.feeds import settle
from tests.listener.scripted_lane import MESSAGE_BYTES, QueueBench, ScriptedLane, SparseNumbering, payload_of
from tests.patience import PATIENCE_S

SPAN = 20
LIMIT_BYTES = 25 * MESSAGE_BYTES
COUNT = st.sampled_from([1, 2, 3, 3, 3, 8])
MAX_BYTES = st.sampled_from([1, 2 * MESSAGE_BYTES, 1000, 1000])
PULL = st.tuples(st.just("pull"), st.just(0), COUNT, MAX_BYTES, st.booleans())
OPERATIONS = st.one_of(
    st.tuples(st.just("store"), st.lists(st.sampled_from([0, 0, 0, 1, 5]), min_size=1, max_size=8)),
    *[PULL] * 4,
    st.tuples(st.just("pull"), st.integers(-8, 30), COUNT, MAX_BYTES, st.booleans()),
    st.tuples(st.just("give up")),
    st.tuples(st.just("commit"), st.integers(0, 8)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("commit"), st.integers(-10, 0), st.just("ahead")),
    st.tuples(st.just("lose"), st.booleans()),
    st.tuples(st.just("detach"), st.booleans()),
    st.tuples(st.just("finish"), st.booleans()),
    st.tuples(st.just("fail")),
    st.tuples(st.just("again"), st.integers(0, 12)),
    st.tuples(st.just("delete"), st.integers(0, 6)),
    st.tuples(st.just("move"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("pause"), st.integers(1, 6)),
)


class Checked:
    """A feed, its lane, and the clients of the group, which share one position."""

    def __init__(self, *, is_wide: bool, needs_contents: bool, knows_begin: bool, is_dense: bool) -> None:
        numbering = OffsetNumbering() if is_dense else SparseNumbering()
        self.bench = QueueBench(limit=LIMIT_BYTES, span=SPAN, numbering=numbering)
        self.queue, self.feed = self.bench.queue, self.bench.feed
        self.is_wide, self.needs_contents, self.knows_begin = is_wide, needs_contents, knows_begin
        self.next = 0
        """Number at which the clients pull next."""
        self.committed = 0
        self.received: set[int] = set()
        self.out: set[int] = set()
        """Numbers that the lane has handed out, until they are committed or the lane is lost."""
        self.skipped: list[tuple[int, int]] = []
        """Ranges that the clients have skipped."""
        self.ahead = 0
        """The largest number of a pull at the lane: what is before it may have been skipped there, and is waited for."""
        self.pulls: dict[asyncio.Task[Slice], tuple[int, bool]] = {}
        """Pulls that wait, with their number and whether they may skip."""
        self.is_moving = self.is_quiet = False
        """`is_quiet`: nothing may be handed out."""
        self.lane = self._attach()

    def _attach(self) -> ScriptedLane:
        self.committed = self.queue.committed or 0
        lane = self.bench.attach(
            begin=self.committed if self.knows_begin else None,
            has_wide_batches=self.is_wide,
            needs_contents=self.needs_contents,
            replaces=False,
        )
        lane.on_seek = self._check_seek
        self.out.clear()
        self.ahead = 0
        self.is_quiet = False
        return lane

    def _check_seek(self, _: int) -> None:
        uncommitted = {number for number in self.out if number >= self.committed}
        assert self.is_moving or not uncommitted, f"what was handed out would be lost at a gap: {uncommitted}"

    async def apply(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        if name == "pause":
            for _ in range(arguments[0]):
                await asyncio.sleep(0)
        else:
            await getattr(self, f"_{name.replace(' ', '_')}")(*arguments)
        await self._note_pulls()

    async def _store(self, holes: list[int]) -> None:
        for hole in holes:
            self.queue.store(self.queue.end + hole)

    # --- pulls ------------------------------------------------------------------------------------------------------------

    async def _pull(self, distance: int, count: int, max_bytes: int, may_skip: bool) -> None:
        """Pull at the next number, or at another one."""
        number = max(0, self.next + distance)
        self.ahead = max(self.ahead, number)
        if self.feed.is_ready(number):
            self._note_slice(number, may_skip, self.feed.take(number, count, max_bytes))
        else:
            reading = self.feed.read(number, count, max_bytes, may_skip=may_skip)
            self.pulls[spawn(reading, "pull", log_errors=False)] = number, may_skip
            await asyncio.sleep(0)

    async def _reading(self) -> "list[asyncio.Task[Slice]]":
        """Return the pull that waits at the lane, if there is one; others wait until it has ended."""
        for _ in range(3):
            await settle()
            await self._note_pulls()
        return [task for task in self.pulls if not task.done()][:1]

    async def _give_up(self) -> None:
        await cancel(*self.pulls)

    async def _note_pulls(self) -> None:
        """Take note of what the pulls that have ended have got."""
        for task in [task for task in self.pulls if task.done()]:
            number, may_skip = self.pulls.pop(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self._note_slice(number, may_skip, task.result())
            elif isinstance(error, OutOfReach):
                self._read_by_position(number)
            else:
                assert isinstance(error, LaneRevoked | ClusterError)
        if not self.feed.is_held:
            self.lane = self._attach()

    def _note_slice(self, number: int, may_skip: bool, found: Slice) -> None:
        assert not self.is_quiet, "it was handed out while it was finished"
        first = max(number, self.committed) if may_skip else number
        numbers = list(found.numbers)
        assert numbers == sorted(set(numbers))
        assert all(number <= each < found.next for each in numbers)
        missing = set(self.queue.between(first, found.next)) - set(numbers)
        assert not missing, f"a pull at {number} has skipped {missing}"
        assert found.messages is not None
        assert [message.payload for message in found.messages] == [payload_of(each) for each in numbers]
        if self.next < number:
            self.skipped.append((self.next, number))
        self.received |= set(numbers)
        self.out |= set(numbers)
        self.next = max(self.next, found.next)

    def _read_by_position(self, number: int) -> None:
        """Read what the lane does not have: it was handed out or consumed, or is far ahead."""
        if number <= self.next:
            found = self.queue.between(number, self.queue.end)[:3]
            self.received |= set(found)
            self.next = max([self.next, *(each + 1 for each in found)])

    # --- commits ----------------------------------------------------------------------------------------------------------

    async def _commit(self, distance: int, _: str = "") -> None:
        """Commit what was received, or (if the distance is negative) more."""
        number = min(max(0, self.next - distance), self.queue.end)
        if not self.feed.commit(number):
            waiting = await self._reading()
            if not self.feed.commit(number):
                await self._moved(number, self.feed.advance((number,)), waiting)
                return
        self._note_commit(number)

    def _note_commit(self, number: int) -> None:
        if self.feed.is_held and number > self.committed:
            if number > self.next:
                self.skipped.append((self.next, number))
                self.next = number
            self.committed = number

    async def _move(self, number: int, can: bool) -> None:
        if not can:
            self.lane.seek_errors.append(ClusterError("cannot"))
        number = min(number, self.queue.end)
        waiting = await self._reading()
        await self._moved(number, self.feed.seek((number,)), waiting)

    async def _moved(self, number: int, move: Coroutine[Any, Any, None], waiting: "list[asyncio.Task[Slice]]") -> None:
        self.is_moving = True
        try:
            await move
        except ClusterError:
            return
        finally:
            self.is_moving = False
            self.lane.seek_errors.clear()
        await settle()
        assert all(task.done() for task in waiting), "a pull waits although the group was moved"
        await self._note_pulls()
        self.skipped.append((0, number))
        self.received = {each for each in self.received if each < number}
        self.next = self.committed = number
        self.ahead = 0
        self.out.clear()

    # --- the lane ---------------------------------------------------------------------------------------------------------

    async def _lose(self, forgets: bool) -> None:
        waiting = await self._reading()
        self.lane.lose()
        await self._until_unheld(waiting, forgets)

    async def _detach(self, forgets: bool) -> None:
        waiting = await self._reading()
        await self.feed.detach()
        await self._until_unheld(waiting, forgets)

    async def _until_unheld(self, waiting: "list[asyncio.Task[Slice]]", forgets: bool) -> None:
        """The lane is gone; the clients go on, or (with `forgets`) others begin at what was committed."""
        await settle()
        assert self.feed.state is QueueFeedState.UNHELD
        assert all(task.done() for task in waiting), "a pull waits although the lane is lost"
        await self._note_pulls()
        if forgets:
            self.next = self.committed
            self.received = {each for each in self.received if each < self.committed}

    async def _finish(self, forgets: bool) -> None:
        finishing = spawn(self.feed.finish(asyncio.get_running_loop().time() + 1000.0), "finish")
        await asyncio.sleep(0)
        await self._note_pulls()
        self.is_quiet = True
        await settle()
        await self._note_pulls()
        assert finishing.done() or any(number >= self.committed for number in self.out) or self.ahead > self.committed
        if not forgets and self.ahead <= self.next and self.feed.commit(self.next):
            self._note_commit(self.next)
            await settle()
            assert finishing.done()
        await self._give_up()
        await self._detach(forgets)
        await finishing

    async def _fail(self) -> None:
        self.lane.fail(ClusterError("broken"))

    async def _again(self, distance: int) -> None:
        self.lane.deliver_again(max(0, self.lane.next - distance))

    async def _delete(self, distance: int) -> None:
        self.queue.delete_before(max(self.queue.deleted_before, min(self.queue.end, self.lane.next + distance)))

    # --- checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        stored = self.queue.committed or 0
        lost = [number for number in self.queue.between(0, stored) if not self._is_settled(number)]
        assert not lost, f"the group was moved behind {lost}, which no client has got"
        assert not self.queue.between(self.committed, stored), "more is committed than clients have committed"
        assert self.feed.committed in {None, self.committed}
        assert self.bench.memory.used == self.bench.held
        assert self.bench.held <= LIMIT_BYTES + 3 * MESSAGE_BYTES

    def _is_settled(self, number: int) -> bool:
        return number in self.received or any(first <= number < end for first, end in self.skipped)

    async def drain(self) -> None:
        """The clients get everything to the end, and commit it."""
        await self._give_up()
        await self._note_pulls()
        async with asyncio.timeout(PATIENCE_S):
            while self.next < self.queue.end or self.queue.between(self.queue.committed or 0, self.queue.end):
                if self.next < self.queue.end:
                    await self.apply(("pull", 0, 3, 1000, False))
                    await settle()
                    await self._note_pulls()
                await self.apply(("commit", 0))
                await settle()
                self.check()
                await self._give_up()
                await self._note_pulls()
        await self.bench.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(OPERATIONS, min_size=5, max_size=40), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_clients_get_everything_that_they_have_not_committed(
    operations: list[tuple[Any, ...]], is_wide: bool, needs_contents: bool, knows_begin: bool, is_dense: bool
) -> None:
    async def run() -> None:
        checked = Checked(is_wide=is_wide, needs_contents=needs_contents, knows_begin=knows_begin, is_dense=is_dense)
        await checked.apply(("store", [0, 0, 1, 0, 0, 0, 5, 0, 0, 0]))
        for operation in operations:
            await checked.apply(operation)
            checked.check()
        await checked.drain()

    asyncio.run(run())
