"""Reads a topic as a member of a group, and acknowledges what was shown.

A batch that is shown in part (by a count) is rejected, so the group gets all of it again.

With `until_end` a partition is read to its end as it was when the reading began. Positions tell when that is: what the group has
committed, and where each batch ends. They are not enough where the last messages are never delivered (the broker filters them, or
they are acknowledged already): a lane that stays silent is asked whether it is caught up.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mqbridge.adapter.inbound import Inbound, InboundLane
from mqbridge.cli.console import say
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

SILENT_S = 1.0
"""How long a lane must be silent before it is asked whether it is caught up."""
SETTLE_S = 3.0
"""How long to wait for more lanes when those that we hold are read to their end: other members may hold the rest."""
TELL_AFTER_S = 3.0
"""How long nothing is said of waiting for the first lane."""
FIRST_S = 60.0
"""How long to wait for the first lane: a TubeMQ Master as shipped takes half a minute. Then others hold them all."""

T = TypeVar("T")
Show = Callable[[Partition, list[Message]], None]


@dataclass(frozen=True, slots=True)
class GroupReading:
    """What to read."""

    partitions: frozenset[str]
    """Names; lanes of others are left alone."""
    ends: Mapping[str, Position] = field(default_factory=dict)
    """Where partitions end, by name, as far as that is known."""
    begin: Mapping[str, Position] = field(default_factory=dict)
    """Where lanes are moved to first, by partition name."""
    committed: Mapping[str, Position] = field(default_factory=dict)
    """Where the other lanes begin, as far as that is known."""
    until_end: bool = False
    count: int | None = None
    msg_types: frozenset[str] = frozenset()
    """Only these; empty is all. Not every system filters by itself."""


class GroupReader:
    """One reading of one topic."""

    def __init__(self, reading: GroupReading, show: Show) -> None:
        self._reading, self._show = reading, show
        self._begin = dict(reading.begin)
        self._held: dict[str, InboundLane] = {}
        """Lanes that are ours now, by partition name."""
        self._at_end: set[str] = set()
        self._assigned = False
        self._over = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        """Set when any of the above changes."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown = 0

    async def run(self, inbound: Inbound) -> int:
        """Read until the end that is wanted; the number of messages shown. Raises what ended the inbound or a lane."""
        self._start("lanes", self._accept, inbound)
        self._start("waiting", self._tell_waiting, TELL_AFTER_S)
        try:
            while not self._over and await self._change():
                pass
        finally:
            await cancel(*self._tasks)
        if self._error is not None:
            raise self._error
        return self._shown

    async def _tell_waiting(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not self._assigned:
            say("waiting for the group's first partition; groups of some systems take half a minute")

    async def _change(self) -> bool:
        """Wait until something changes; False when nothing did for so long that others must hold the remaining partitions."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._patience_s()):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _patience_s(self) -> float | None:
        if not self._reading.until_end or not self._held.keys() <= self._at_end:
            return None
        return SETTLE_S if self._assigned else FIRST_S

    async def _accept(self, inbound: Inbound) -> None:
        async for lane in inbound.lanes():
            self._assigned = True
            self._changed.set()
            if lane.partition.name in self._reading.partitions:
                self._held[lane.partition.name] = lane
                self._start(f"read {lane.partition}", self._read, lane)

    async def _read(self, lane: InboundLane) -> None:
        name = lane.partition.name
        try:
            begin = self._reading.committed.get(name)
            if (moved := self._begin.pop(name, None)) is not None:
                await lane.seek(begin := moved)
            if begin is not None:
                self._reached(name, begin)
            while not self._over and not self._is_read(name):
                batch = await self._receive(lane)
                self._at_end.discard(name)  # it was caught up, and there is more now
                self._deliver(lane, batch)
                self._reached(name, batch.next)
        except LaneRevoked:
            if self._held.get(name) is lane:
                del self._held[name]
                self._changed.set()

    def _is_read(self, name: str) -> bool:
        return self._reading.until_end and name in self._at_end

    async def _receive(self, lane: InboundLane) -> Batch:
        while self._reading.until_end:
            try:
                async with asyncio.timeout(SILENT_S):
                    return await lane.receive()
            except TimeoutError:
                if lane.caught_up:
                    self._ended(lane.partition.name)
        return await lane.receive()

    def _deliver(self, lane: InboundLane, batch: Batch) -> None:
        types, count = self._reading.msg_types, self._reading.count
        messages = [message for message in batch.messages if not types or message.msg_type in types]
        shown = messages if count is None else messages[: count - self._shown]
        if shown:
            self._show(batch.partition, shown)
        self._shown += len(shown)
        if len(shown) == len(messages):
            lane.acknowledge(batch)
        else:
            lane.reject(batch)
        if self._shown == count:
            self._finish()

    def _reached(self, name: str, position: Position) -> None:
        end = self._reading.ends.get(name)
        if end is not None and position >= end:
            self._ended(name)

    def _ended(self, name: str) -> None:
        if name in self._at_end:
            return
        self._at_end.add(name)
        self._changed.set()
        if self._reading.until_end and self._at_end >= self._reading.partitions:
            self._finish()

    def _finish(self, error: Exception | None = None) -> None:
        self._over, self._error = True, self._error or error
        self._changed.set()

    def _start(self, name: str, work: Callable[[T], Coroutine[None, None, None]], argument: T) -> None:
        async def guarded() -> None:
            try:
                await work(argument)
            except Exception as error:  # noqa: BLE001 - raised again by `run`; a task that fails would be logged as a bug
                self._finish(error)

        task = spawn(guarded(), name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
