"""Reads a topic as a member of a group, and acknowledges the messages that were shown.

A batch that is shown in part (because of a count) is rejected, so the group gets all of it again.

With `stop_at_end` a partition is read up to the end that it had at the start. Positions tell when that is reached: the group's
committed position, and the end of each batch. They are not enough where the last messages are never delivered (the broker filters
them, or they are acknowledged already): then a silent lane is asked whether it is caught up.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mqbridge.adapter.inbound import Inbound, InboundLane
from mqbridge.cli.output.console import print_note
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

SILENT_S = 1.0
"""Time without a batch after which a lane is asked whether it is caught up."""
MORE_LANES_S = 3.0
"""Wait this long for more lanes once all held lanes are at their end: other members may hold the rest."""
NOTE_AFTER_S = 3.0
"""Waiting this long for the first lane prints a note."""
FIRST_LANE_S = 60.0
"""Wait this long for the first lane: a TubeMQ Master with default settings takes half a minute. After that, other members
hold all partitions."""

T = TypeVar("T")
Show = Callable[[Partition, list[Message]], None]


@dataclass(frozen=True, slots=True)
class GroupReadSpec:
    """What to read, and where to begin and end."""

    partitions: frozenset[str]
    """Names; lanes of other partitions are ignored."""
    ends: Mapping[str, Position] = field(default_factory=dict)
    """Ends of partitions by name, as far as they are known."""
    begin: Mapping[str, Position] = field(default_factory=dict)
    """Positions to seek to first, by partition name."""
    committed: Mapping[str, Position] = field(default_factory=dict)
    """Positions where the other lanes begin, as far as they are known."""
    stop_at_end: bool = False
    count: int | None = None
    msg_types: frozenset[str] = frozenset()
    """Only these types; empty means all. Not every system filters by itself."""


class GroupReader:
    """Reads one topic once."""

    def __init__(self, spec: GroupReadSpec, show: Show) -> None:
        self._spec, self._show = spec, show
        self._begin = dict(spec.begin)
        self._held: dict[str, InboundLane] = {}
        """Lanes that this member holds, by partition name."""
        self._at_end: set[str] = set()
        self._assigned = False
        self._finished = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        """Set when any of the above changes."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown = 0

    async def run(self, inbound: Inbound) -> int:
        """Read until the end and return the number of messages shown. Raises the error that ended the inbound or a lane."""
        self._start("lanes", self._accept, inbound)
        self._start("waiting", self._note_waiting, NOTE_AFTER_S)
        try:
            while not self._finished and await self._wait_for_change():
                pass
        finally:
            await cancel(*self._tasks)
        if self._error is not None:
            raise self._error
        return self._shown

    async def _note_waiting(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if not self._assigned:
            print_note("waiting for the group's first partition; groups of some systems take half a minute")

    async def _wait_for_change(self) -> bool:
        """Wait for a change; False if none came for so long that other members must hold the remaining partitions."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._timeout_s()):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _timeout_s(self) -> float | None:
        if not self._spec.stop_at_end or not self._held.keys() <= self._at_end:
            return None
        return MORE_LANES_S if self._assigned else FIRST_LANE_S

    async def _accept(self, inbound: Inbound) -> None:
        async for lane in inbound.lanes():
            self._assigned = True
            self._changed.set()
            if lane.partition.name in self._spec.partitions:
                self._held[lane.partition.name] = lane
                self._start(f"read {lane.partition}", self._read, lane)

    async def _read(self, lane: InboundLane) -> None:
        name = lane.partition.name
        try:
            begin = self._spec.committed.get(name)
            if (moved := self._begin.pop(name, None)) is not None:
                await lane.seek(begin := moved)
            if begin is not None:
                self._reached(name, begin)
            while not self._finished and not self._is_read(name):
                batch = await self._receive(lane)
                self._at_end.discard(name)  # it was at its end, and there is more now
                self._deliver(lane, batch)
                self._reached(name, batch.next)
        except LaneRevoked:
            if self._held.get(name) is lane:
                del self._held[name]
                self._changed.set()

    def _is_read(self, name: str) -> bool:
        return self._spec.stop_at_end and name in self._at_end

    async def _receive(self, lane: InboundLane) -> Batch:
        while self._spec.stop_at_end:
            try:
                async with asyncio.timeout(SILENT_S):
                    return await lane.receive()
            except TimeoutError:
                if lane.caught_up:
                    self._ended(lane.partition.name)
        return await lane.receive()

    def _deliver(self, lane: InboundLane, batch: Batch) -> None:
        types, count = self._spec.msg_types, self._spec.count
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
        end = self._spec.ends.get(name)
        if end is not None and position >= end:
            self._ended(name)

    def _ended(self, name: str) -> None:
        if name in self._at_end:
            return
        self._at_end.add(name)
        self._changed.set()
        if self._spec.stop_at_end and self._at_end >= self._spec.partitions:
            self._finish()

    def _finish(self, error: Exception | None = None) -> None:
        self._finished, self._error = True, self._error or error
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
