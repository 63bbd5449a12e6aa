"""Reads a topic as a member of a group, and acknowledges the messages that were shown.

If only a part of a batch is shown, because of `count`, the batch is rejected, and the group receives all of it again.

With `stop_at_end` a partition is read up to the end that it had at the start. The reader compares that end with the group's
committed position and with the end of each batch. This is not enough if the last messages are never delivered (the broker filters
them, or they are already acknowledged). So if a lane delivers nothing for a while, the reader checks whether it is caught up.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mqbridge.adapter.inbound import Inbound, InboundLane, ask_caught_up
from mqbridge.cli.output.console import print_note
from mqbridge.errors import ClusterError, Failure, LaneRevoked, RequestTimeout
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.net.tasks import cancel, spawn

SILENCE_S = 1.0
"""Time without a batch after which the reader checks whether a lane is caught up."""
MORE_LANES_S = 3.0
"""How long the reader waits for a further lane once all assigned ones are read to their end; other members may have
the remaining partitions."""
CONFIRM_TIMEOUT_S = 30.0
"""Time limit for the source of a silent lane to confirm that it has no more messages."""
NOTE_AFTER_S = 3.0
"""If the first lane is not assigned within this time, a note says so."""
FIRST_LANE_S = 60.0
"""Time limit for the first lane: a TubeMQ Master with default settings assigns partitions after half a minute. If none is
assigned in this time, other members have all partitions."""

T = TypeVar("T")
ShowMessages = Callable[[Partition, list[Message]], None]
"""A callback that prints consecutive messages of a partition."""


@dataclass(frozen=True, slots=True)
class GroupReadSpec:
    """What to read, and where to begin and end."""

    partitions: frozenset[str]
    """Names of the partitions to read; lanes of other partitions are ignored."""
    ends: Mapping[str, Position] = field(default_factory=dict)
    """The position after the last message, by partition name, for partitions where it is known."""
    begin: Mapping[str, Position] = field(default_factory=dict)
    """Positions to seek to before reading, by partition name."""
    committed: Mapping[str, Position] = field(default_factory=dict)
    """The group's positions by partition name, where known: lanes without a position in `begin` begin there."""
    stop_at_end: bool = False
    """Stop at the ends that the partitions had at the start; else wait for new messages."""
    count: int | None = None
    """Number of messages after which reading stops; None means no limit."""
    msg_types: frozenset[str] = frozenset()
    """Message types to show; empty means all. The reader filters too, because not every system does."""


class GroupReader:
    """Reads one topic as the spec says. Call `run` once."""

    def __init__(self, spec: GroupReadSpec, show: ShowMessages) -> None:
        self._spec, self._show = spec, show
        self._begin = dict(spec.begin)
        """Positions to seek to, of partitions that have had no lane yet."""
        self._lanes: dict[str, InboundLane] = {}
        """Lanes that are assigned to this member, by partition name."""
        self._at_end: set[str] = set()
        """Names of partitions that are read to their end."""
        self._any_assigned = False
        """True once a lane was assigned, also of a partition that is not to be read."""
        self._finished = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        """Set when one of the fields above changes, except `_begin`."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown_count = 0

    async def run(self, inbound: Inbound) -> int:
        """Read until the count, the end, or the time limit for lanes is reached; return the number of messages shown.

        Raises the error that ended the inbound or a lane.
        """
        self._spawn("lanes", self._accept_lanes, inbound)
        self._spawn("waiting", self._print_waiting_note, NOTE_AFTER_S)
        try:
            while not self._finished and await self._wait_for_change():
                pass
        finally:
            await cancel(*self._tasks)
        if self._error is not None:
            raise self._error
        return self._shown_count

    async def _print_waiting_note(self, after_s: float) -> None:
        """Print a note if no lane is assigned within this time."""
        await asyncio.sleep(after_s)
        if not self._any_assigned:
            print_note("waiting for the group's first partition; groups of some systems take half a minute")

    async def _wait_for_change(self) -> bool:
        """Wait for a change. Return False after the time limit: other members must have the remaining partitions."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._timeout_s()):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _timeout_s(self) -> float | None:
        """Return the time limit for the next lane; None without `stop_at_end`, and while an assigned lane is not at its end."""
        if not self._spec.stop_at_end or not self._lanes.keys() <= self._at_end:
            return None
        return MORE_LANES_S if self._any_assigned else FIRST_LANE_S

    async def _accept_lanes(self, inbound: Inbound) -> None:
        """Start reading each assigned lane whose partition is to be read."""
        async for lane in inbound.lanes():
            self._any_assigned = True
            self._changed.set()
            if lane.partition.name in self._spec.partitions:
                self._lanes[lane.partition.name] = lane
                self._spawn(f"read {lane.partition}", self._read_lane, lane)

    async def _read_lane(self, lane: InboundLane) -> None:
        """Seek if the spec requires it, then read the lane until it is revoked or complete, or the reader has finished."""
        name = lane.partition.name
        try:
            begin = self._spec.committed.get(name)
            seek_to = self._begin.pop(name, None)  # only once: a lane that is assigned again continues
            if seek_to is not None:
                await lane.seek(seek_to)
                begin = seek_to
            if begin is not None:
                self._check_end(name, begin)
            while not self._finished and not self._is_complete(name):
                batch = await self._receive(lane)
                self._at_end.discard(name)  # the lane delivered a batch after its end was reached
                self._show_batch(lane, batch)
                self._check_end(name, batch.next)
        except LaneRevoked:
            if self._lanes.get(name) is lane:
                del self._lanes[name]
                self._changed.set()

    def _is_complete(self, name: str) -> bool:
        """Return True if the partition need not be read further."""
        return self._spec.stop_at_end and name in self._at_end

    async def _receive(self, lane: InboundLane) -> Batch:
        """Return the next batch; with `stop_at_end`, mark the lane's partition as read while it is silent and caught up."""
        while self._spec.stop_at_end:
            try:
                async with asyncio.timeout(SILENCE_S):
                    return await lane.receive()
            except TimeoutError:
                if await self._is_caught_up(lane):
                    self._mark_at_end(lane.partition.name)
        return await lane.receive()

    async def _is_caught_up(self, lane: InboundLane) -> bool:
        """Ask the source of the lane whether it has more messages.

        Raises ClusterError if the source cannot be asked. If the lane was not caught up before, and the source may come back, it
        is asked again later instead: reading survives outages.
        """
        was_caught_up = lane.caught_up
        try:
            return await self._ask_caught_up(lane)
        except ClusterError as error:
            if was_caught_up or error.failure in (Failure.FATAL, Failure.REFUSED):
                raise
            return False

    async def _ask_caught_up(self, lane: InboundLane) -> bool:
        """Ask the source of the lane, with a deadline. Raises ClusterError if it cannot be asked."""
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                return await ask_caught_up(lane)
        except TimeoutError as error:
            problem = f"partition {lane.partition}: its source has not responded for {CONFIRM_TIMEOUT_S:g} s"
            raise RequestTimeout(f"{problem}, so it is unknown whether it has more messages") from error

    def _show_batch(self, lane: InboundLane, batch: Batch) -> None:
        """Show the selected messages of the batch, and acknowledge it, or reject it if the count left some out."""
        types, count = self._spec.msg_types, self._spec.count
        messages = [message for message in batch.messages if not types or message.msg_type in types]
        shown = messages if count is None else messages[: count - self._shown_count]
        if shown:
            self._show(batch.partition, shown)
        self._shown_count += len(shown)
        if len(shown) == len(messages):
            lane.acknowledge(batch)
        else:
            lane.reject(batch)
        if self._shown_count == count:
            self._finish()

    def _check_end(self, name: str, position: Position) -> None:
        """Mark the partition as read to its end if this position, the next to read, has reached it."""
        end = self._spec.ends.get(name)
        if end is not None and position >= end:
            self._mark_at_end(name)

    def _mark_at_end(self, name: str) -> None:
        """Mark the partition as read to its end; with `stop_at_end`, finish after the last one."""
        if name in self._at_end:
            return
        self._at_end.add(name)
        self._changed.set()
        if self._spec.stop_at_end and self._at_end >= self._spec.partitions:
            self._finish()

    def _finish(self, error: Exception | None = None) -> None:
        """End the reading; `run` raises the first error, if there is one."""
        self._finished, self._error = True, self._error or error
        self._changed.set()

    def _spawn(self, name: str, work: Callable[[T], Coroutine[None, None, None]], argument: T) -> None:
        """Run `work(argument)` in a task; an error of it ends the reading."""

        async def run_and_report() -> None:
            try:
                await work(argument)
            except Exception as error:  # noqa: BLE001 - raised again by `run`; a task that fails would be logged as a bug
                self._finish(error)

        task = spawn(run_and_report(), name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
