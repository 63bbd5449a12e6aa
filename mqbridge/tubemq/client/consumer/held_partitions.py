"""The partitions that one group member holds: acquires them at their Brokers, renews their leases, releases them.

A partition stays held while its Broker does not respond to heartbeats. It is registered again when the Broker responds and no
longer knows the registration.

If a Broker does not confirm a release, it may shut down in order later, or have done so, and count a pack as consumed that
nobody has confirmed. So the offset of that pack is kept: the group is set back to it as soon as the Broker responds, or when the
partition is acquired again (see `Unsettled`). A `PositionStore` keeps it beyond the consumer.

A Broker may be killed while nobody reads a partition, and give the offsets of messages that it lost to new ones. So the store
also keeps what was read last. Whoever acquires the partition compares it with what the Broker has, unless the connection to it is
still the one over which the partition was registered then.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import Protocol

from mqbridge.errors import ClusterError, ConnectionLost, Failure, ProtocolError
from mqbridge.net.tasks import cancel, is_cancelled, spawn
from mqbridge.tubemq.client.connection.counters import total
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.broker_heartbeats import BrokerHeartbeats
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.pack_reader import COMMIT_AFTER_S
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_state import Unsettled
from mqbridge.tubemq.client.consumer.read_budget import ReadBudget
from mqbridge.tubemq.client.consumer.read_history import LastRead
from mqbridge.tubemq.wire.string_formats import Broker, PartitionKey, PartitionRef

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
"""Interval between heartbeats, to the Master and to Brokers."""
MAX_GETS = 32
"""Default of the maximum number of get requests in flight, divided equally among the Brokers. A response has about half a MiB, at
most about one MiB."""

RESTORE_PAUSE_S = 0.5
"""Pause after a failed attempt to set a group back."""
RESTORE_S = 120.0
"""How long a group that was not set back yet is tried; afterwards only the next registration does it."""
SET_BACK_WAIT_S = 5.0
"""How long the Master is not told that revoked partitions are free, while their groups have to be set back."""
RESTORE_RELEASE_S = 3.0
"""How long the release of a partition that was only set back may take."""
COMPARE_ATTEMPTS = 3
"""Number of attempts to compare and register over one connection."""
LEAVE_S = 1.0
"""Part of the time to close that is left for leaving the group, when Brokers do not respond."""


class PositionStore(Protocol):
    """Where the positions of held partitions outlive this consumer."""

    def unsettled(self, ref: PartitionRef) -> Unsettled | None:
        """Return where the group has to go on, if an earlier consumer of this store held the partition and did not release it."""

    def last_read(self, ref: PartitionRef) -> LastRead | None:
        """Return what was read of the partition last, by a consumer of this store; None if nothing was."""

    def record(self, ref: PartitionRef, unsettled: Unsettled, last_read: LastRead) -> None:
        """Record that this consumer holds the partition, what it has read, and where to go on if it does not release it."""

    def released(self, ref: PartitionRef) -> None:
        """Record that the Broker has confirmed the release of the partition."""


class MemoryPositions:
    """A `PositionStore` in memory."""

    def __init__(self) -> None:
        self._unsettled: dict[PartitionKey, Unsettled] = {}
        self._last_read: dict[PartitionKey, LastRead] = {}

    def unsettled(self, ref: PartitionRef) -> Unsettled | None:
        """Return what was recorded last, unless the partition was released."""
        return self._unsettled.get(ref.key)

    def last_read(self, ref: PartitionRef) -> LastRead | None:
        """Return what was recorded last."""
        return self._last_read.get(ref.key)

    def record(self, ref: PartitionRef, unsettled: Unsettled, last_read: LastRead) -> None:
        """Keep where the group has to go on, and what was read."""
        self._unsettled[ref.key], self._last_read[ref.key] = unsettled, last_read

    def released(self, ref: PartitionRef) -> None:
        """Forget where the group has to go on."""
        self._unsettled.pop(ref.key, None)


OffsetLookup = Callable[[PartitionRef], Awaitable[int | None]]
"""Returns the start offset of a partition, from the application's own storage; None for the group's position."""


class StartOffset(IntEnum):
    """Where a group starts (readStatus). Applies only when this consumer acquires a partition for the first time."""

    EARLIEST = 0
    """At the group's position; if it has none, at the first message."""
    LATEST = 1
    """At the group's position; if it has none, after the last message."""
    ALWAYS_LATEST = 2
    """After the last message, even if the group has a position."""


class HeldPartitions:
    """The held partitions of one member.

    `held` contains the held partitions by key. `master_seen_at` is the loop time of the Master's last response to this
    member, set by the owner; 0.0 before the first response.
    `start` and `offsets` say where to start reading; see `PackConsumer`. `is_new_partition` returns True for a partition that a
    group without a position reads from its first message, whatever `start` is. `heartbeat_s` is the interval between heartbeats
    to Brokers. `is_alone` returns True for a partition whose store has no other partition. `positions` may be shared with other
    consumers of the group, one after the other.
    """

    def __init__(
        self,
        membership: MemberIdentity,
        *,
        start: StartOffset,
        heartbeat_s: float,
        budget: ReadBudget,
        offsets: OffsetLookup | None,
        is_new_partition: Callable[[PartitionRef], bool] | None = None,
        is_alone: Callable[[PartitionRef], bool] | None = None,
        positions: PositionStore | None = None,
    ) -> None:
        self.membership = membership
        self.budget = budget
        self.master_seen_at = 0.0
        self.held: dict[PartitionKey, HeldPartition] = {}
        self.has_unreported_changes = False
        """True after a partition was lost or released, until a heartbeat has reported this to the Master.

        A `BalancedConsumer` sets it also when it has acquired a partition.
        """
        self.close_deadline: float | None = None
        """Event loop time until which a closing member may release its partitions; None for no limit."""
        self.heartbeats = BrokerHeartbeats(membership, self.held.values, self.connection_for, heartbeat_s)
        self._start, self._offsets, self._is_new_partition = start, offsets, is_new_partition
        self._is_alone = is_alone
        self._positions: PositionStore = positions or MemoryPositions()
        self._restorations: dict[PartitionKey, asyncio.Task[None]] = {}
        """The tasks that set groups back, by partition."""
        self._ever_held: set[PartitionKey] = set()
        """All partitions that this consumer has ever held."""
        self._released_over: dict[PartitionKey, tuple[Broker, int]] = {}
        """By partition that is not held any more: its Broker, and the number of the connection over which it was registered."""
        self._needs_fresh_id: set[PartitionKey] = set()
        """Partitions with abandoned requests that may still arrive; after a registration with a fresh id, Brokers refuse them."""
        self._locks: defaultdict[PartitionKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per partition, held while the partition is being acquired."""
        self._acquire_tasks: set[asyncio.Task[HeldPartition]] = set()
        """The calls of `_acquire` that are in progress, for `close` to cancel."""
        self._closed = self._finished = False
        """Set by `close`, when it begins and when it ends."""
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    def start_tasks(self) -> None:
        """Start the background tasks: heartbeats to Brokers and late commits."""
        name = self.membership.client_id
        self._tasks = [
            spawn(self.heartbeats.run(), f"tubemq broker heartbeats of {name}"),
            spawn(self._late_commit_loop(), f"tubemq late commits of {name}"),
        ]

    async def close(self) -> None:
        """Stop acquiring, commit confirmed packs and release all partitions, until `close_deadline`."""
        self._closed = True
        await cancel(*self._tasks, *self._acquire_tasks)
        await asyncio.gather(*(partition.release(self.close_deadline) for partition in list(self.held.values())))
        if self._restorations:
            await self._finish_restorations()
        self._finished = True

    def _release_deadline(self) -> float:
        """Return the deadline (loop time) for the release of a partition that was only set back."""
        deadline = self._loop.time() + RESTORE_RELEASE_S
        return deadline if self.close_deadline is None else min(deadline, self.close_deadline - LEAVE_S)

    async def wait_set_back(self) -> None:
        """Wait a moment until groups are set back in the partitions that were released last, before others get them."""
        if self._restorations:
            await asyncio.wait(self._restorations.values(), timeout=SET_BACK_WAIT_S)

    async def _finish_restorations(self) -> None:
        """Wait until all groups are set back, or until LEAVE_S before `close_deadline`."""
        deadline = self._loop.time() + RESTORE_S if self.close_deadline is None else self.close_deadline - LEAVE_S
        await asyncio.wait(self._restorations.values(), timeout=max(0.0, deadline - self._loop.time()))
        await cancel(*self._restorations.values())

    @property
    def refs(self) -> list[PartitionRef]:
        """The names and addresses of the partitions held now."""
        return [partition.ref for partition in self.held.values()]

    def snapshot(self) -> dict[str, int]:
        """Return the sum of the counters of all held partitions."""
        return total([partition.counters.snapshot() for partition in self.held.values()])

    # --- acquiring and losing ---------------------------------------------------------------------------------------

    async def acquire(self, ref: PartitionRef, offset: int | None = None) -> HeldPartition:
        """Register a partition at its Broker: at `offset`, else at the offset from `offsets`, else as `start` says.

        If the partition is held already, or a concurrent call acquires it, returns the same object. Raises ClusterError, for
        example if another member holds the partition (410), if `offsets` raised, or if this member is closed.
        """
        async with self._locks[ref.key]:
            if (held := self.held.get(ref.key)) is not None:
                return held
            if self._closed:
                raise _closed_error(ref)
            task: asyncio.Task[HeldPartition] = spawn(self._acquire(ref, offset), f"tubemq acquiring {ref}", log_errors=False)
            self._acquire_tasks.add(task)
            task.add_done_callback(self._acquire_tasks.discard)
            try:
                return await task
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                raise _closed_error(ref) from None  # `close` has cancelled the acquiring task

    async def _acquire(self, ref: PartitionRef, offset: int | None) -> HeldPartition:
        setting_back = self._restorations.pop(ref.key, None)
        await cancel(setting_back)  # the registration sets the group back itself
        is_alone = bool if self._is_alone is None else partial(self._is_alone, ref)
        partition = HeldPartition(self, ref, fresh_id=ref.key in self._needs_fresh_id, is_alone=is_alone)
        is_new = self._is_new_partition is not None and self._is_new_partition(ref)
        # A new partition is read from its first message. One that was held before is not started at its end again, because this
        # would skip messages that arrived meanwhile.
        was_held = ref.key in self._ever_held or self._positions.last_read(ref) is not None
        status = StartOffset.EARLIEST if is_new or was_held else self._start
        try:
            if offset is None and self._offsets is not None:
                offset = await self._look_up_offset(self._offsets, ref)
            if offset is None:
                await self._register(partition, status)
            else:
                # With ALWAYS_LATEST a Broker would ignore the offset.
                await partition.start_at(min(status, StartOffset.LATEST), offset)
        except BaseException:
            if partition.has_abandoned_requests:  # the Broker may have carried out the registration
                self._needs_fresh_id.add(ref.key)
            if partition.has_abandoned_requests or partition.state.is_registered:
                await partition.release(self.close_deadline)
            unsettled = self._positions.unsettled(ref)
            if unsettled is None and partition.unsettled is not None:  # a comparison has moved the group
                unsettled = partition.unsettled
                self._positions.record(ref, unsettled, self._positions.last_read(ref) or partition.last_read)
            if unsettled is not None and (setting_back is not None or partition.unsettled is not None):
                self._set_back(ref, unsettled)
            raise
        self._ever_held.add(ref.key)
        self.held[ref.key] = partition
        self._record(partition)
        partition.on_progress = self._record
        self._share_budget()
        return partition

    async def _register(self, partition: HeldPartition, status: StartOffset) -> None:
        """Register at the group's position; set the group back if it is behind messages that nobody has confirmed or read.

        What was read before is compared only if the position is not behind it. Otherwise another member has read on: it knows
        what it has read, and comparing what was there before would deliver all of it again.
        """
        position = offset = (await partition.register(status)).currOffset
        if status is StartOffset.ALWAYS_LATEST:
            return
        unsettled, last_read = self._positions.unsettled(partition.ref), self._positions.last_read(partition.ref)
        if unsettled is not None and unsettled.is_needed_at(position):
            offset = unsettled.offset
            log.warning(
                "%s: the group goes back from offset %d to %d: this member held the partition before, its release was not"
                " confirmed, and the Broker has counted messages as consumed that nobody has confirmed",
                partition,
                position,
                offset,
            )
        is_known = last_read is not None and offset <= last_read.confirmed and partition.remember(last_read)
        if is_known and self._may_have_restarted(partition):
            await self._register_compared(partition, position, offset)
        elif offset != position:
            await partition.start_at(StartOffset.EARLIEST, offset)

    async def _register_compared(self, partition: HeldPartition, position: int, offset: int) -> None:
        """Register at `offset`, or earlier if the Broker has lost what was read. Raises ClusterError, LaneRevoked.

        The Broker may be killed between the comparison and the registration, which then has another connection.
        """
        for _ in range(COMPARE_ATTEMPTS):
            number = partition.registered_over
            start = await partition.find_start(position, offset)
            if start < offset:
                log.warning(
                    "%s: the group goes back from offset %d to %d: the Broker no longer has what was read before that offset, and"
                    " may have stored new messages there; messages may be delivered again",
                    partition,
                    offset,
                    start,
                )
            await partition.start_at(StartOffset.EARLIEST, start, exact=start == offset)
            if partition.registered_over == number:
                return
            position = offset = start
        raise ConnectionLost(f"{partition}: the connection to the Broker was lost in each of {COMPARE_ATTEMPTS} registrations")

    def _may_have_restarted(self, partition: HeldPartition) -> bool:
        """Return True unless the Broker still has the connection over which the partition was registered before."""
        return self._released_over.get(partition.ref.key) != (partition.ref.broker, partition.registered_over)

    def _record(self, partition: HeldPartition) -> None:
        """Record up to where the messages of a held partition are confirmed, and what was read."""
        if self._finished:  # a later consumer may hold the partition
            return
        state = partition.state
        self._positions.record(partition.ref, Unsettled(state.safe_offset, state.end_of_unsettled), partition.last_read)

    @staticmethod
    async def _look_up_offset(offsets: OffsetLookup, ref: PartitionRef) -> int | None:
        """Call the application's function `offsets`; any error that it raises becomes a ClusterError."""
        try:
            return await offsets(ref)
        except Exception as error:  # the error must not stop the handling of other partitions
            raise ClusterError(
                f"the application's start offset of partition {ref} is not available: {type(error).__name__}: {error}"
            ) from error

    def connection_for(self, ref: PartitionRef) -> ServerConnection:
        """Return the connection to a partition's Broker."""
        return self.membership.masters.connections.connection_to(ref.broker.host, ref.broker.port, str(ref.key))

    def partition_ended(self, partition: HeldPartition) -> None:
        """Remove a lost or released partition; the next heartbeat reports this to the Master."""
        if partition.has_abandoned_requests:
            self._needs_fresh_id.add(partition.ref.key)
        if self.held.get(partition.ref.key) is partition:
            del self.held[partition.ref.key]
            self._released_over[partition.ref.key] = (partition.ref.broker, partition.registered_over)
            self.has_unreported_changes = True
            self._share_budget()
            self._settle(partition)

    def _settle(self, partition: HeldPartition) -> None:
        """Forget the position of a released partition, or have its group set back if the Broker did not confirm the release."""
        if self._finished:  # a later consumer may hold the partition, and own its position
            return
        ref, unsettled = partition.ref, partition.unsettled
        if unsettled is None:
            self._positions.released(ref)
            return
        self._positions.record(ref, unsettled, partition.last_read)
        self._set_back(ref, unsettled)

    def _set_back(self, ref: PartitionRef, unsettled: Unsettled) -> None:
        """Start a task that sets the group back in a partition that is not held any more."""
        task = spawn(self._restore(ref, unsettled), f"tubemq setting back {ref}")
        self._restorations[ref.key] = task
        task.add_done_callback(lambda task: self._restorations.get(ref.key) is task and self._restorations.pop(ref.key))

    async def _restore(self, ref: PartitionRef, unsettled: Unsettled) -> None:
        """Set the group back in a partition that is not held any more, as soon as its Broker responds.

        Gives up after RESTORE_S, for example if another member holds the partition: the next registration of this member then
        does it.
        """
        deadline = self._loop.time() + RESTORE_S
        while True:
            partition = HeldPartition(self, ref, fresh_id=True)
            try:
                position = (await partition.register(StartOffset.EARLIEST)).currOffset
                if unsettled.is_needed_at(position):
                    await partition.start_at(StartOffset.EARLIEST, unsettled.offset)
            except (ClusterError, ProtocolError) as error:
                if self._loop.time() > deadline:
                    log.warning(
                        "%s: the Broker may count messages after offset %d as consumed, although nobody has confirmed them; the"
                        " group goes back when this member gets the partition again: %s",
                        partition,
                        unsettled.offset,
                        error,
                    )
                    return
                await asyncio.sleep(RESTORE_PAUSE_S)
            else:
                self._positions.released(ref)
                log.info("%s: the group continues at offset %d", partition, unsettled.offset)
                return
            finally:
                await partition.release(self._release_deadline())

    def _share_budget(self) -> None:
        self.budget.share_among({partition.ref.broker for partition in self.held.values()})

    # --- late commits -----------------------------------------------------------------------------------------------

    async def _late_commit_loop(self) -> None:
        """Commit packs that the reader has confirmed, if no get request has reported this in time.

        Each commit runs in its own task, so that a silent Broker does not delay the commits at other Brokers.
        """
        pending: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(COMMIT_AFTER_S)
                now = self._loop.time()
                for partition in self.held.values():
                    if partition.needs_late_commit(now):
                        task = spawn(partition.commit_late(now), f"tubemq late commit of {partition}")
                        pending.add(task)
                        task.add_done_callback(pending.discard)
        finally:
            await cancel(*pending)


def _closed_error(ref: PartitionRef) -> ClusterError:
    return ClusterError(f"partition {ref} cannot be acquired: the consumer is closed", Failure.FATAL)
