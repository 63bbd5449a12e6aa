"""Reads the lanes of an inbound for a person: from where, how many, until when.

Every batch is acknowledged once it was shown; what protects real groups is that reading without a group uses a throw-away one. A
batch that is shown in part (by --count) is rejected, so its group gets it again.
The end of a partition is where it was when the reading began, where the cluster tells: a topic that is written to has no other.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mqbridge.adapter import Bounds, Inbound, InboundLane, Topic
from mqbridge.errors import ConfigError, LaneRevoked, MqbridgeError
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

POLL_S = 0.1
"""How long a lane that says it is caught up must stay silent to count as read to its end."""
SETTLE_S = 3.0
"""How long to wait for more lanes, where other members of the group may hold the rest."""
FIRST_S = 60.0
"""How long to wait for the first one: a TubeMQ Master as shipped takes half a minute. Then others hold them all."""

Show = Callable[[Partition, list[Message]], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read."""

    partitions: frozenset[str]
    """Names or indexes; empty is all."""
    position: str | Position | Mapping[str, Position]
    """What lanes are moved to first: a word, a position, or one by partition name."""
    exit_at_end: bool = False
    count: int | None = None
    shared: bool = False
    """A real group: others may be in it, and it may have a position already."""
    each: int | None = None
    """Most messages of each partition."""
    begin: Mapping[str, Position] = field(default_factory=dict)
    """Messages before this, by partition name, are left out: not every system can begin at any of them."""
    msg_types: frozenset[str] = frozenset()
    """Only these; empty is all. Not every system filters by itself."""


class Tail:
    """One reading of one topic."""

    def __init__(self, wanted: Wanted, show: Show) -> None:
        self._wanted = wanted
        self._show = show
        self._bounds: Mapping[str, Bounds] = {}
        self._expected: set[str] = set()
        self._at_end: set[str] = set()
        self._lanes: set[str] = set()
        self._assigned = False
        """It was given a partition at all."""
        self._shown_of: dict[str, int] = {}
        self._failed: BaseException | None = None
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.shown = 0

    def expect(self, topic: Topic, bounds: Mapping[str, Bounds], *, seek: bool) -> None:
        """Learn the topic. Raises ConfigError for a partition that it has not, or a position that cannot be sought."""
        self._bounds = bounds
        known = {name: str(index) for index, name in enumerate(topic.partitions)}
        unknown = self._wanted.partitions - known.keys() - set(known.values())
        if unknown:
            raise ConfigError(
                f"{topic.name!r} has no partition {', '.join(sorted(unknown))}", hint=f"It has {', '.join(topic.partitions)}"
            )
        self._expected = {name for name, index in known.items() if self._takes(name, index)}
        if self._seeks and not seek:
            raise ConfigError("this system cannot move to a position", hint="Use -o stored, or read without a group")

    def _takes(self, name: str, index: str) -> bool:
        return not self._wanted.partitions or name in self._wanted.partitions or index in self._wanted.partitions

    @property
    def _seeks(self) -> bool:
        position = self._wanted.position
        return not isinstance(position, str) or (self._wanted.shared and position != "stored")

    async def run(self, inbound: Inbound) -> int:
        """Read until the end that is wanted; the number of messages shown. Raises what ended a lane."""
        acceptor = spawn(self._accept(inbound), "lanes")
        try:
            await self._until_over()
        finally:
            await cancel(acceptor, *self._tasks)
        if self._failed is not None:
            raise self._failed
        return self.shown

    async def _until_over(self) -> None:
        if not (self._wanted.exit_at_end and self._wanted.shared):
            await self._over.wait()
            return
        quiet_s = 0.0
        while not self._over.is_set() and quiet_s < (SETTLE_S if self._assigned else FIRST_S):
            await asyncio.sleep(POLL_S)
            quiet_s = quiet_s + POLL_S if self._lanes <= self._at_end else 0.0

    async def _accept(self, inbound: Inbound) -> None:
        try:
            async for lane in inbound.lanes():
                self._assigned = True
                if lane.partition.name in self._expected:
                    self._lanes.add(lane.partition.name)
                    self._at_end.discard(lane.partition.name)
                    task = spawn(self._read(lane), f"read {lane.partition}")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._end(error)

    async def _read(self, lane: InboundLane) -> None:
        try:
            if self._seeks:
                await self._seek(lane)
            while not self._over.is_set() and self._has_room(lane.partition.name):
                batch = await self._next(lane)
                self._deliver(lane, batch)
        except LaneRevoked:
            self._lanes.discard(lane.partition.name)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            self._end(error)

    def _has_room(self, name: str) -> bool:
        return self._wanted.each is None or self._shown_of.get(name, 0) < self._wanted.each

    async def _seek(self, lane: InboundLane) -> None:
        position = self._wanted.position
        if isinstance(position, Mapping):
            if (found := position.get(lane.partition.name)) is not None:
                await lane.seek(found)
            return
        if isinstance(position, str):
            bounds = self._bounds.get(lane.partition.name)
            if bounds is None:
                raise ConfigError(
                    f"the cluster does not say where {lane.partition} {'begins' if position == 'beginning' else 'ends'}",
                    hint="Use -o stored, or read without a group",
                )
            position = bounds.first if position == "beginning" else bounds.next
        await lane.seek(position)

    async def _next(self, lane: InboundLane) -> Batch:
        receiving: asyncio.Task[Batch | MqbridgeError] = spawn(_received(lane), f"receive {lane.partition}")
        try:
            while True:
                done, _ = await asyncio.wait([receiving], timeout=POLL_S)
                if done:
                    batch = receiving.result()
                    if isinstance(batch, MqbridgeError):
                        raise batch
                    return batch
                if lane.caught_up:
                    self._reached_end(lane.partition.name)
        finally:
            await cancel(receiving)

    def _reached_end(self, name: str) -> None:
        self._at_end.add(name)
        if self._wanted.exit_at_end and self._at_end >= self._expected:
            self._over.set()

    def _deliver(self, lane: InboundLane, batch: Batch) -> None:
        name = lane.partition.name
        self._at_end.discard(name)
        messages = self._chosen(name, batch)
        left = self._left(name, len(messages))
        if messages[:left]:
            self._show(batch.partition, messages[:left])
        shown = min(left, len(messages))
        self.shown += shown
        self._shown_of[name] = self._shown_of.get(name, 0) + shown
        if left >= len(messages):
            lane.acknowledge(batch)
        else:
            lane.reject(batch)
        if self.shown == self._wanted.count:
            self._over.set()
        elif not self._has_room(name) or (name in self._bounds and batch.next >= self._bounds[name].next):
            self._reached_end(name)

    def _chosen(self, name: str, batch: Batch) -> list[Message]:
        begin, types = self._wanted.begin.get(name), self._wanted.msg_types
        return [
            message
            for message in batch.messages
            if (begin is None or message.position >= begin) and (not types or message.msg_type in types)
        ]

    def _left(self, name: str, most: int) -> int:
        """How many more may be shown: of all, and of this partition."""
        wanted = self._wanted
        all_ = most if wanted.count is None else wanted.count - self.shown
        return all_ if wanted.each is None else min(all_, wanted.each - self._shown_of.get(name, 0))

    def _end(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._over.set()


async def _received(lane: InboundLane) -> Batch | MqbridgeError:
    """The next batch, or what the lane ended by: as a value, because a task that fails is logged as a fault."""
    try:
        return await lane.receive()
    except MqbridgeError as error:
        return error
