"""Both kinds of groups against a model that knows what was acknowledged.

Nothing is lost; and a message that was acknowledged comes again only within the span from the oldest message that was not, to the
newest one that was delivered, and only where another gateway or a killed one had it.
"""

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, LaneRevoked, RequestRefused
from mqbridge.groups.store import GroupStore
from mqbridge.listener import backing_groups as backing_groups_module
from mqbridge.listener.backing_groups import BackingGroups
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.groups import GroupNames, Groups, Partitions
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.own_groups import OwnGroups
from mqbridge.listener.topics import ListenedTopic
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from tests.example_counts import examples
from tests.listener.faulty import FORMAT
from tests.listener.feeds import numbers
from tests.patience import PATIENCE_S

TOPIC = "orders"
PARTITIONS = 3
PARTITION = st.integers(0, PARTITIONS - 1)
GATEWAY = st.integers(0, 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("send"), PARTITION, st.integers(1, 12)),
    st.tuples(st.just("open"), GATEWAY, PARTITION),
    st.tuples(st.just("open"), GATEWAY, PARTITION),
    st.tuples(st.just("release"), GATEWAY, PARTITION),
    st.tuples(st.just("take"), GATEWAY, PARTITION, st.integers(1, 8)),
    st.tuples(st.just("take"), GATEWAY, PARTITION, st.integers(1, 8)),
    st.tuples(st.just("acknowledge"), GATEWAY, PARTITION, st.integers(0, 7)),
    st.tuples(st.just("acknowledge"), GATEWAY, PARTITION, st.integers(0, 7)),
    st.tuples(st.just("give back"), GATEWAY, PARTITION, st.integers(0, 7)),
    st.tuples(st.just("move"), GATEWAY, PARTITION, st.integers(0, 20)),
    st.tuples(st.just("delete"), GATEWAY),
    st.tuples(st.just("restart"), GATEWAY),
    st.tuples(st.just("kill"), GATEWAY),
)


class _Gateway:
    """One gateway, with the feeds that its consumers have open, and the units that they have."""

    def __init__(self, path: Path, kind: str, number: int) -> None:
        self.path, self.kind, self.number = path, kind, number
        self.open: dict[int, Feed] = {}
        self.out: dict[int, list[Delivered]] = {partition: [] for partition in range(PARTITIONS)}

    async def start(self) -> None:
        self.cluster = LogCluster("log", LogSettings(path=self.path / "log.db", poll="5ms", lease="1s"))
        await self.cluster.connect()
        self.store = GroupStore(self.path / f"state-{self.number}.db")
        self.unacknowledged = UnacknowledgedBytes(1 << 20)
        partitions = Partitions(self.cluster, "app", FORMAT, FeedLimits(self.unacknowledged, 1000))
        self.groups: Groups = (
            OwnGroups(partitions, self.store, "app", "log")
            if self.kind == "own"
            else BackingGroups(
                self.cluster, partitions, GroupNames("{group}", self.cluster.capabilities.group_name), self.store, "m"
            )
        )

    async def stop(self, *, is_killed: bool = False) -> None:
        self.open.clear()
        for out in self.out.values():
            out.clear()
        if is_killed:  # nothing is written any more: neither to the state file, nor to the log
            self.store._closed = True
            self.store._changed.clear()
            for inbound in self._inbounds():
                inbound._uncommitted.clear()
                for lane in inbound._lanes.values():
                    lane.acknowledged = None
        await self.groups.close()
        assert self.unacknowledged.used == 0
        if is_killed:
            self.store._closed = False
        await self.store.close()
        await self.cluster.close()

    def _inbounds(self) -> list[Any]:
        if not isinstance(self.groups, BackingGroups):
            return []
        memberships = [member.membership for member in self.groups._members.values()]
        return [each._inbound for each in memberships if each is not None and each._inbound is not None]


class _Checked:
    """Gateways over one log, and what was acknowledged of each partition."""

    def __init__(self, path: Path, kind: str) -> None:
        self.kind = kind
        self.gateways = [_Gateway(path, kind, number) for number in range(1 if kind == "own" else 2)]
        self.sent = [0] * PARTITIONS
        self.begin = [0] * PARTITIONS
        """The first message that the group is to get."""
        self.acknowledged: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.delivered: list[int] = [-1] * PARTITIONS
        """The newest message that was delivered."""

    async def start(self) -> None:
        for gateway in self.gateways:
            await gateway.start()
        cluster = self.gateways[0].cluster
        await cluster.create(TOPIC, PARTITIONS)
        self.topic = ListenedTopic(TOPIC, TOPIC, {n: str(n) for n in range(PARTITIONS)}, is_partitioned=True)
        for partition in range(PARTITIONS):
            await self.send(partition, 10)

    async def send(self, partition: int, count: int) -> None:
        outbound = await self.gateways[0].cluster.outbound(OutboundSpec(TOPIC, stamp_origin=False))
        messages = [Message(b"%d" % number) for number in range(self.sent[partition], self.sent[partition] + count)]
        receipt = await outbound.send(partition, Share(Batch.of(messages)))
        assert not receipt.failures
        self.sent[partition] += count
        await outbound.close()

    def missing(self, partition: int) -> set[int]:
        return set(range(self.begin[partition], self.sent[partition])) - self.acknowledged[partition]

    async def apply(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        if name == "send":
            await self.send(*arguments)
            return
        gateway = self.gateways[arguments[0] % len(self.gateways)]
        if name in {"restart", "kill"}:
            await gateway.stop(is_killed=name == "kill")
            await gateway.start()
        elif name == "delete":
            await self.delete(gateway)
        elif name == "open":
            await self.open(gateway, arguments[1])
        elif (feed := gateway.open.get(arguments[1])) is not None:
            await self.use(gateway, feed, name, *arguments[1:])

    async def open(self, gateway: _Gateway, partition: int) -> None:
        if partition not in gateway.open:
            gateway.open[partition] = await gateway.groups.open(self.topic, partition, "g", Start.EARLIEST, Sharing.SHARED)

    async def use(self, gateway: _Gateway, feed: Feed, name: str, partition: int, *arguments: int) -> None:
        out = gateway.out[partition]
        if name == "release":
            for each in out:
                feed.give_back(each, counted=False)
            out.clear()
            gateway.groups.release(gateway.open.pop(partition))
        elif name == "take":
            for _ in range(5):
                if self.take(gateway, feed, partition, arguments[0]):
                    break
                await asyncio.sleep(0.002)
        elif name == "move":
            await self.move(gateway, partition, min(arguments[0], self.sent[partition]))
        elif out:
            each = out.pop(arguments[0] % len(out))
            if name == "give back":
                feed.give_back(each, counted=True)
            else:
                self.acknowledge(feed, partition, each)

    def take(self, gateway: _Gateway, feed: Feed, partition: int, count: int) -> int:
        taken = feed.take(count, 1 << 20)
        missing = self.missing(partition)
        for each in taken:
            for number in numbers(each):
                assert number >= self.begin[partition], "it is before the position to which the group was moved"
                if number in self.acknowledged[partition]:
                    assert self.kind == "backing" or self.may_repeat, "it was acknowledged, and nobody was killed"
                    assert number <= self.delivered[partition], "it was never delivered"
                    assert self.may_repeat or number >= min(missing, default=0), (
                        "it is before the oldest that was not acknowledged"
                    )
                self.delivered[partition] = max(self.delivered[partition], number)
        gateway.out[partition] += taken
        return len(taken)

    may_repeat = False
    """True once a gateway was killed: what it had not written is delivered again."""

    def acknowledge(self, feed: Feed, partition: int, each: Delivered) -> None:
        if each.generation == feed.generation:
            self.acknowledged[partition] |= set(numbers(each))
        feed.acknowledge(each)

    async def move(self, gateway: _Gateway, partition: int, number: int) -> None:
        try:
            await gateway.groups.move(self.topic, "g", {partition: (number,)})
        except (RequestRefused, ClusterError, LaneRevoked):
            return
        self.begin[partition], self.delivered[partition] = number, -1
        self.acknowledged[partition] = set()
        for each in self.gateways:
            each.out[partition].clear()

    async def delete(self, gateway: _Gateway) -> None:
        try:
            await gateway.groups.delete(self.topic, "g")
        except RequestRefused:
            return
        self.begin, self.delivered = [0] * PARTITIONS, [-1] * PARTITIONS
        self.acknowledged = [set() for _ in range(PARTITIONS)]
        for each in self.gateways:
            for out in each.out.values():
                out.clear()

    async def drain(self) -> None:
        """Everything that is not acknowledged comes."""
        for gateway in self.gateways:
            for partition in range(PARTITIONS):
                await self.open(gateway, partition)
                for each in gateway.out[partition]:
                    gateway.open[partition].give_back(each, counted=False)
                gateway.out[partition].clear()
        async with asyncio.timeout(PATIENCE_S):
            while any(self.missing(partition) for partition in range(PARTITIONS)):
                for gateway in self.gateways:
                    for partition, feed in gateway.open.items():
                        self.take(gateway, feed, partition, 100)
                        for each in gateway.out[partition]:
                            self.acknowledge(feed, partition, each)
                        gateway.out[partition].clear()
                await asyncio.sleep(0.002)
        for gateway in self.gateways:
            await gateway.stop()


@pytest.mark.parametrize("kind", ["own", "backing"])
def test_groups_lose_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_groups_module, "LINGER_S", 0.005)
    monkeypatch.setattr(backing_groups_module, "RELEASE_WAIT_S", 0.05)

    @settings(max_examples=examples(100), deadline=None)
    @given(st.lists(OPERATIONS, min_size=5, max_size=30), st.integers(0, 1 << 30))
    def check(operations: list[tuple[Any, ...]], seed: int) -> None:
        async def run() -> None:
            random.seed(seed)
            with tempfile.TemporaryDirectory() as folder:
                checked = _Checked(Path(folder), kind)
                await checked.start()
                await checked.open(checked.gateways[0], 0)
                for operation in operations:
                    checked.may_repeat |= operation[0] == "kill"
                    await checked.apply(operation)
                    await asyncio.sleep(random.choice([0, 0.002]))
                await checked.drain()

        asyncio.run(run())

    check()
