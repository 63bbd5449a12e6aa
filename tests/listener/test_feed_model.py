"""A feed against a model that knows what was acknowledged: nothing is lost, and nothing comes again without a reason."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.groups.store import GroupStore
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed
from tests.listener.feeds import make_feed, numbers, settle
from tests.listener.scripted_source import ScriptedSource

SMALL = st.integers(0, 20)
OPERATIONS = st.one_of(
    st.tuples(st.just("store"), st.lists(st.sampled_from([0, 0, 1, 2, 5]), min_size=1, max_size=8)),
    st.tuples(st.just("take"), st.integers(1, 12)),
    st.tuples(st.just("take"), st.integers(1, 12)),
    st.tuples(st.just("take"), st.just(12)),
    st.tuples(st.just("acknowledge"), SMALL, st.integers(1, 31)),
    st.tuples(st.just("acknowledge all"), SMALL),
    st.tuples(st.just("acknowledge all"), st.integers(0, 2)),
    st.tuples(st.just("acknowledge all"), st.integers(0, 2)),
    st.tuples(st.just("acknowledge to"), st.integers(0, 60)),
    st.tuples(st.just("give back"), SMALL, st.booleans(), st.sampled_from([0.0, 0.0, 0.001])),
    st.tuples(st.just("seek"), st.integers(0, 40)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("lose")),
)


class Checked:
    """A feed, the units that its consumers have, and what they have acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = GroupStore(path)
        self.source = ScriptedSource(batch_units=4)
        self.out: list[Delivered] = []
        self.acknowledged: set[int] = set()
        """Numbers that were acknowledged since the last seek."""
        self.forgiven: set[int] = set()
        """Numbers that may come again although they were acknowledged: a crash may have lost that."""
        self.begin = 0
        """Number of the first message that is to be delivered."""
        self.feed = self._attach()

    def _attach(self) -> Feed:
        feed = make_feed(self.store, limit=400, span=40)
        feed.attach(self.source)
        return feed

    def take(self, count: int) -> list[Delivered]:
        taken = self.feed.take(count, 1000)
        for each in taken:
            again = set(numbers(each)) & (self.acknowledged - self.forgiven)
            assert not again, f"acknowledged messages {again} came again"
            assert all(number >= self.begin for number in numbers(each))
        self.out += taken
        return taken

    def acknowledge(self, delivered: Delivered, bits: int | None) -> None:
        if any(each is delivered for each in self.out):
            acknowledged = delivered.remaining if bits is None else delivered.remaining & bits
            self.acknowledged |= {delivered.number + bit for bit in range(delivered.count) if acknowledged >> bit & 1}
        self.feed.acknowledge(delivered, bits)

    async def apply(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        if name == "store":
            self.source.store(*arguments[0])
        elif name == "take":
            await self._take_several(arguments[0])
        elif name == "acknowledge to":
            self._acknowledge_to(arguments[0])
        elif name == "seek":
            await self._seek(arguments[0])
        elif name in {"restart", "crash", "lose"}:
            await self._begin_anew(name)
        elif self.out:
            self._settle_one(name, self.out[arguments[0] % len(self.out)], *arguments[1:])

    async def _take_several(self, count: int) -> None:
        """Take up to `count` messages, with some patience."""
        for _ in range(3):
            count -= sum(each.count for each in self.take(count))
            if count <= 0:
                break
            await settle()

    def _acknowledge_to(self, number: int) -> None:
        for each in self.feed._units:
            behind = {each.number + bit for bit in range(each.count) if each.remaining >> bit & 1}
            self.acknowledged |= {one for one in behind if one < number}
        self.feed.acknowledge_to(number)

    async def _seek(self, number: int) -> None:
        if self.feed.is_held:
            self.begin = min(number, self.source.end)
            await self.feed.seek((self.begin,))
            self.acknowledged, self.forgiven, self.out = set(), set(), []

    def _settle_one(self, name: str, delivered: Delivered, *arguments: Any) -> None:
        if name == "give back":
            self.feed.give_back(delivered, counted=arguments[0], delay_s=arguments[1])
        else:
            self.acknowledge(delivered, arguments[0] if name == "acknowledge" else None)

    async def _begin_anew(self, name: str) -> None:
        """End the feed, and read what the group has committed with a new one."""
        if name == "crash":
            self.forgiven |= self.acknowledged
            self.source.lost.set()
            committed = self.source.resume()
            await self.feed.detach()
            self.store._changed.clear()
        elif name == "restart":
            await self.feed.detach()
            committed = self.source.resume()
        else:
            await settle()
            self.source.lost.set()
            await settle()
            committed = self.source.resume()
        if name != "lose":
            await self.store.close()
            self.store = GroupStore(self.path)
        self.out, self.source = [], committed
        self.feed = self._attach()

    def check(self) -> None:
        unacknowledged = [number for number in range(self.begin, self.source.end) if number not in self.acknowledged]
        assert self.source.committed <= min(unacknowledged, default=self.source.end), "the group was moved behind a message"

    async def drain(self) -> None:
        """Everything that is not acknowledged comes, and the group reaches the end."""
        wanted = {number for number in range(self.begin, self.source.end) if number not in self.acknowledged}
        for each in self.out:
            self.feed.give_back(each, counted=False)
        for _ in range(1000):
            await settle()
            for each in self.take(100):
                wanted -= set(numbers(each))
                self.acknowledge(each, None)
            if not wanted and self.source.committed == self.source.end:
                break
            await asyncio.sleep(0.0005)
        assert not wanted, "messages never came"
        assert self.source.committed == self.source.end
        await self.feed.detach()
        assert self.feed._limits.unacknowledged.used == 0
        await self.store.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, min_size=5, max_size=40))
def test_a_feed_loses_nothing_and_repeats_only_what_it_must(operations: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            checked = Checked(Path(folder) / "state.db")
            await checked.apply(("store", [2, 1, 5, 2, 0, 0, 0, 0, 1, 1, 2, 5, 5]))
            checked.take(1)
            for operation in operations:
                await settle()
                checked.check()
                await checked.apply(operation)
                checked.check()
            await checked.drain()

    asyncio.run(run())
