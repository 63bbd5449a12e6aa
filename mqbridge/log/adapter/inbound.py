"""Membership in a consumer group of a log cluster; one task sends its heartbeats.

Acknowledged offsets are committed within ACK_FLUSH_S, and at once when a lane or the inbound is closed. After a crash, messages
whose acknowledgement was not committed are delivered again. The heartbeat that leases a partition also commits its start offset
if the group has none there, so that every message after it is either delivered or reported as a gap.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.lane import LogLane
from mqbridge.log.store import groups
from mqbridge.log.store.database import Store
from mqbridge.log.store.groups import AssignmentChange, Membership
from mqbridge.message import Partition
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

ACK_FLUSH_S = 0.1
"""Time for which acknowledgements are collected, so that all lanes of the group share one disk sync."""

RETRY_S = 1.0
"""Pause between attempts to commit while the file cannot be written."""

HEARTBEATS_PER_LEASE = 4
"""A member sends this many heartbeats in the time (`lease`) after which it would expire without them."""

MAX_MEMBER_CHARS = 200
"""Maximum length of `InboundSpec.member`, as far as it is shown."""


def member_id(name: str | None) -> str:
    """Return a unique id of a member, which begins with its name as operators see it."""
    unique = uuid.uuid4().hex
    if name is None:
        return unique
    shown = "".join(char if char.isprintable() else "?" for char in name[:MAX_MEMBER_CHARS])
    return f"{shown}-{unique}"


class LogInbound:
    """A member of a group: opens a lane for each partition assigned to it, and revokes the lanes of partitions that it loses."""

    individual_ack = False
    """An acknowledgement covers all messages up to it: a group has one offset per partition."""

    def __init__(self, store: Store, cluster: str, spec: InboundSpec) -> None:
        self._store, self._cluster = store, cluster
        lease_ms = int(store.config.lease * 1000)
        self._release_wait_s = spec.release_wait_s
        keeps = spec.release_wait_s > 0
        self._membership = Membership(spec.group, member_id(spec.member), spec.topics, spec.start_of, lease_ms, keeps)
        self._read_budget = Budget(spec.max_bytes)
        self._lanes: dict[int, LogLane] = {}
        """Lanes that are not revoked, by partition id."""
        self._uncommitted: dict[int, int] = {}
        """Acknowledged offsets that the next flush commits, by partition id; each is of the lane in `_lanes`."""
        self._flush_timer: asyncio.TimerHandle | None = None
        """The timer that starts the next flush; None if no flush is scheduled."""
        self._new_lanes: asyncio.Queue[LogLane | ClusterError | None] = asyncio.Queue()
        """Lanes that `lanes` yields next; an error or None ends it."""
        self._rebalance_event = asyncio.Event()
        """Set when another member of this process may have released partitions; the next heartbeat is then sent at once."""
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[None]] = set()
        """Flushes, and releases of partitions after `release_wait_s`."""
        self._closed = False

    async def join(self) -> None:
        """Join the group. Raises ClusterError."""
        await self._rebalance()
        self._store.rebalance_events.setdefault(self._membership.group, set()).add(self._rebalance_event)
        self._heartbeat_task = spawn(self._heartbeat_loop(), f"log group {self._membership.group}")

    async def lanes(self) -> AsyncIterator[LogLane]:
        """Yield lanes as they are assigned, until the inbound is closed. Raises a FATAL error of a heartbeat."""
        while (lane := await self._new_lanes.get()) is not None:
            if isinstance(lane, ClusterError):
                raise lane
            if not lane.revoked.is_set():
                yield lane

    async def close(self, deadline: float | None = None) -> None:
        """Commit the acknowledged offsets, release all partitions and leave the group.

        After `deadline` (loop time; None: in 30 s), writes are no longer awaited, and the leases expire instead.
        """
        if self._closed:
            return
        self._closed = True
        self._new_lanes.put_nowait(None)
        await cancel(self._heartbeat_task)
        self._cancel_flush()
        if self._writes:
            await asyncio.wait(self._writes, timeout=seconds_until(deadline))
            await cancel(*self._writes)
        offsets = {partition: lane.acknowledged for partition, lane in self._lanes.items()}
        for lane in list(self._lanes.values()):
            self._end_lane(lane)
        events = self._store.rebalance_events.get(self._membership.group, set())
        events.discard(self._rebalance_event)
        if not events:
            self._store.rebalance_events.pop(self._membership.group, None)
        if self._store.is_open:
            await self._write_until(groups.leave, offsets, deadline, "leaving the group")
        self._notify_other_members()

    async def _heartbeat_loop(self) -> None:
        """Send a heartbeat at regular intervals, and at once when another member may have released partitions.

        A FATAL error ends the loop, and `lanes` raises it: also the one of a member of which a topic was deleted.
        """
        interval_s = self._store.config.lease / HEARTBEATS_PER_LEASE
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._rebalance_event.wait()
            except TimeoutError:
                pass
            self._rebalance_event.clear()
            if not self._store.is_open:  # the cluster was closed first
                return
            try:
                await self._rebalance()
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    self._new_lanes.put_nowait(error)
                    return
                log.warning(
                    "cluster %s, group %s: this member's heartbeat failed, trying again within %g s: %s",
                    self._cluster,
                    self._membership.group,
                    interval_s,
                    error,
                )

    async def _rebalance(self) -> None:
        """Send a heartbeat, and revoke and open lanes as its result requires."""
        acknowledged = {partition: lane.acknowledged for partition, lane in self._lanes.items()}
        self._apply(await self._store.write(groups.heartbeat, self._membership, self._store.observer, acknowledged))

    def _apply(self, change: AssignmentChange) -> None:
        """Revoke the lanes of lost partitions, and open lanes for new ones."""
        for partition in change.revoked:
            if (lane := self._lanes.get(partition)) is not None:
                text = "group %s: %s was revoked: it is assigned to another member, or this member's lease has expired"
                log.info(text, self._membership.group, lane.partition)
                self._end_lane(lane)
                self._rebalance_event.set()  # only a heartbeat without it may lease the partition again
        for partition in change.kept:
            if (lane := self._lanes.get(partition)) is not None and not lane.releasing.is_set():
                text = "group %s: %s is assigned to another member, and will be released within %g s"
                log.info(text, self._membership.group, lane.partition, self._release_wait_s)
                lane.announce_release(self._release_wait_s)
        for row, offset in change.assigned:
            source = Partition(self._cluster, row.topic, str(row.number), row.number)
            lane = LogLane(self, self._store, row.id, source, offset, self._read_budget)
            self._lanes[row.id] = lane
            self._new_lanes.put_nowait(lane)
        if change.notifies_others:
            self._notify_other_members()

    def _notify_other_members(self) -> None:
        """Let the other members of the group in this process send a heartbeat at once."""
        for event in self._store.rebalance_events.get(self._membership.group, ()):
            if event is not self._rebalance_event:
                event.set()

    def _end_lane(self, lane: LogLane) -> None:
        """Revoke the lane and forget its uncommitted offset.

        `close` and `release_lane` commit the offset afterwards. If a heartbeat revokes the lane, the heartbeat has committed it
        already, unless the lease was lost.
        """
        lane.end()
        self._lanes.pop(lane.id, None)
        self._uncommitted.pop(lane.id, None)

    def schedule_commit(self, lane: LogLane, offset: int) -> None:
        """Commit the lane's acknowledged offset with the next flush, after ACK_FLUSH_S at the latest."""
        self._uncommitted[lane.id] = offset
        self._schedule_flush(ACK_FLUSH_S)

    def _schedule_flush(self, delay_s: float) -> None:
        if self._flush_timer is None and not self._closed:
            self._flush_timer = asyncio.get_running_loop().call_later(delay_s, self._start_flush)

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _start_flush(self) -> None:
        self._flush_timer = None
        self._spawn_write(self._flush(), f"log acknowledge {self._membership.group}")

    def _spawn_write(self, write: Coroutine[Any, Any, None], name: str) -> None:
        """Run a write in the background; `close` waits for it."""
        task = spawn(write, name)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _flush(self) -> None:
        """Commit the acknowledged offsets; after a failure, schedule another flush."""
        offsets, self._uncommitted = self._uncommitted, {}
        lanes = {partition: self._lanes.get(partition) for partition in offsets}
        try:
            await self._store.write(groups.commit, self._membership, offsets)
        except ClusterError as error:
            log.warning(
                "cluster %s, group %s: acknowledged offsets cannot be committed, trying again in %g s: %s",
                self._cluster,
                self._membership.group,
                RETRY_S,
                error,
            )
            for partition, offset in offsets.items():
                # A new lane of the partition may have begun at a higher offset. A later acknowledgement is in `_uncommitted`.
                if (lane := lanes[partition]) is not None and self._lanes.get(partition) is lane:
                    self._uncommitted.setdefault(partition, offset)
            self._schedule_flush(RETRY_S)

    async def release_lane(self, lane: LogLane, deadline: float | None = None) -> None:
        """Commit the lane's offset and end its lease. A later heartbeat may assign the partition again, even to this member."""
        if self._lanes.get(lane.id) is lane:
            is_awaited = lane.releasing.is_set()
            self._end_lane(lane)
            await self._write_until(groups.release, {lane.id: lane.acknowledged}, deadline, f"release of {lane.partition}")
            if is_awaited:
                self._notify_other_members()

    def give_up(self, lane: LogLane) -> None:
        """Release a lane in the background, whose partition another member has waited for."""
        if not self._closed and self._store.is_open:
            self._spawn_write(self.release_lane(lane), f"log release {lane.partition}")

    async def _write_until(
        self, job: Callable[..., None], offsets: Mapping[int, int | None], deadline: float | None, action: str
    ) -> None:
        """Run this write job with these offsets by partition id, at most until the deadline: another process may lock the file.

        An offset is None if nothing was acknowledged. `action` names the job in the log. If it fails, the lease expires instead,
        and uncommitted messages are delivered again to the next owner of the partition.
        """
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await self._store.write(job, self._membership, offsets)
        except (ClusterError, TimeoutError) as error:
            reason = error if isinstance(error, ClusterError) else "the deadline has passed; another process may lock the file"
            log.warning(
                "cluster %s, group %s: %s failed; partitions that are not released become free when their leases expire: %s",
                self._cluster,
                self._membership.group,
                action,
                reason,
            )
