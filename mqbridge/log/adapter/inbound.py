"""A membership in a group of a log, kept alive by one task.

Acknowledgements are written every ACK_FLUSH_S, and at once when a lane or the inbound ends; what a crash loses of them is
delivered again. Joining commits where the group begins, so that nothing behind that point can be lost unseen.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping

from mqbridge.adapter.deadlines import seconds_until
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.lane import LogLane
from mqbridge.log.store import groups
from mqbridge.log.store.database import Store
from mqbridge.log.store.groups import Balance, Membership
from mqbridge.message import Partition
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

ACK_FLUSH_S = 0.1
"""Acknowledgements wait that long for company: one sync for all lanes of the group."""

RETRY_S = 1.0
"""Between attempts while the file cannot be written."""

HEARTBEATS_PER_LEASE = 4


class LogInbound:
    """Gets partitions by the group's rule, hands them out as lanes, and takes them back when the rule says so."""

    individual_ack = False

    def __init__(self, store: Store, cluster: str, spec: InboundSpec) -> None:
        self._store, self._cluster = store, cluster
        lease_ms = int(store.config.lease * 1000)
        self._me = Membership(spec.group, uuid.uuid4().hex, spec.topics, spec.start_of, lease_ms)
        self._room = Budget(spec.max_bytes)
        self._held: dict[int, LogLane] = {}
        self._dirty: dict[int, int] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self._new: asyncio.Queue[LogLane | ClusterError | None] = asyncio.Queue()
        self._nudge = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def join(self) -> None:
        """Become a member. Raises ClusterError."""
        await self._balance()
        self._store.nudges.setdefault(self._me.group, set()).add(self._nudge)
        self._task = spawn(self._live(), f"log group {self._me.group}")

    async def lanes(self) -> AsyncIterator[LogLane]:
        """Lanes as they are assigned; ends when the inbound is closed."""
        while (lane := await self._new.get()) is not None:
            if isinstance(lane, ClusterError):
                raise lane
            if not lane.revoked.is_set():
                yield lane

    async def close(self, deadline: float | None = None) -> None:
        """Commit, give every partition back, leave the group."""
        if self._closed:
            return
        self._closed = True
        self._new.put_nowait(None)
        await cancel(self._task)
        self._stop_timer()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds_until(deadline))
            await cancel(*self._tasks)
        offsets = {partition: lane.acknowledged for partition, lane in self._held.items()}
        for lane in list(self._held.values()):
            self._drop(lane)
        members = self._store.nudges.get(self._me.group, set())
        members.discard(self._nudge)
        if not members:
            self._store.nudges.pop(self._me.group, None)
        await self._write_last(groups.leave, offsets, deadline, "leaving")
        self._nudge_others()

    async def _live(self) -> None:
        interval = self._store.config.lease / HEARTBEATS_PER_LEASE
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._nudge.wait()
            except TimeoutError:
                pass
            self._nudge.clear()
            try:
                await self._balance()
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    self._new.put_nowait(error)
                    return
                log.warning("group %s: the heartbeat failed, trying again: %s", self._me.group, error)

    async def _balance(self) -> None:
        held = {partition: lane.acknowledged for partition, lane in self._held.items()}
        self._apply(await self._store.write(groups.heartbeat, self._me, held))

    def _apply(self, balance: Balance) -> None:
        for partition in balance.lost:
            if (lane := self._held.get(partition)) is not None:
                log.info("group %s: %s was taken away", self._me.group, lane.partition)
                self._drop(lane)
        for row, offset in balance.won:
            source = Partition(self._cluster, row.topic, str(row.number), row.number)
            lane = LogLane(self, self._store, row.id, source, offset, self._room)
            self._held[row.id] = lane
            self._new.put_nowait(lane)
        if balance.changed:
            self._nudge_others()

    def _nudge_others(self) -> None:
        for nudge in self._store.nudges.get(self._me.group, ()):
            if nudge is not self._nudge:
                nudge.set()

    def _drop(self, lane: LogLane) -> None:
        lane.end()
        self._held.pop(lane.id, None)
        self._dirty.pop(lane.id, None)

    def moved(self, lane: LogLane, offset: int) -> None:
        """The lane's acknowledged offset is to be committed."""
        self._dirty[lane.id] = offset
        self._flush_in(ACK_FLUSH_S)

    def _flush_in(self, delay_s: float) -> None:
        if self._flushing is None and not self._closed:
            self._flushing = asyncio.get_running_loop().call_later(delay_s, self._start_flush)

    def _stop_timer(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None

    def _start_flush(self) -> None:
        self._flushing = None
        task = spawn(self._flush(), f"log acknowledge {self._me.group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        try:
            await self._store.write(groups.commit, self._me, dirty)
        except ClusterError as error:
            log.warning("group %s: positions cannot be written, trying again: %s", self._me.group, error)
            for partition, offset in dirty.items():
                if partition in self._held:
                    self._dirty.setdefault(partition, offset)
            self._flush_in(RETRY_S)

    async def give_back(self, lane: LogLane, deadline: float | None = None) -> None:
        """Commit and end the lease of one lane. The group's rule may assign the partition again, to this member too."""
        if self._held.get(lane.id) is lane:
            self._drop(lane)
            await self._write_last(groups.give_back, {lane.id: lane.acknowledged}, deadline, f"giving {lane.partition} back")

    async def _write_last(
        self, job: Callable[..., None], offsets: Mapping[int, int | None], deadline: float | None, what: str
    ) -> None:
        """Write, or give up at the deadline: another process may have the file locked for as long as `busy_timeout`.

        What is not written is delivered again, to whoever gets the partition when our lease has ended.
        """
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await self._store.write(job, self._me, offsets)
        except (ClusterError, TimeoutError) as error:
            why = error if isinstance(error, ClusterError) else "the file is locked by somebody else"
            log.warning("group %s: %s is left to the end of the lease: %s", self._me.group, what, why)
