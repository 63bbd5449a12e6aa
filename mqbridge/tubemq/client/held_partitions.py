"""The partitions that one member of a group holds, whoever gave them to it: taken at their Brokers, kept, given back.

A Broker that does not answer a heartbeat keeps its partitions here: they are registered again when it is back.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from enum import IntEnum

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.tasks import cancel, is_cancelled, spawn
from mqbridge.tubemq.client.broker_heartbeats import BrokerHeartbeats
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_commits import COMMIT_AFTER_S
from mqbridge.tubemq.client.read_budget import ReadBudget
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.stats import total
from mqbridge.tubemq.wire.text import Key, PartitionRef

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
MAX_GETS = 32
"""Answers of half a MiB, sometimes one, that may be on their way at once; Brokers have equal shares."""

Offsets = Callable[[PartitionRef], Awaitable[int | None]]
"""Where a partition is to be read from, as whoever keeps the results knows it; None leaves it to the group's own position."""


class From(IntEnum):
    """Where a group starts, as readStatus. It counts only when this consumer takes a partition for the first time."""

    EARLIEST = 0
    """At the first message, or where the group stands."""
    LATEST = 1
    """After the last message, or where the group stands."""
    ALWAYS_LATEST = 2
    """After the last message, wherever the group stands."""


class HeldPartitions:
    """What `membership` holds. `held` is by key; `seen_at` is when the Master answered last."""

    def __init__(
        self,
        membership: Member,
        *,
        start: From,
        heartbeat_s: float,
        budget: ReadBudget,
        offsets: Offsets | None,
        came_later: Callable[[PartitionRef], bool] | None = None,
    ) -> None:
        self.membership = membership
        self.budget = budget
        self.seen_at = 0.0
        self.held: dict[Key, HeldPartition] = {}
        self.changed = False
        """Something was lost that the Master does not know of yet."""
        self.close_by: float | None = None
        """When everything is to be given back, once the member is closing; a time of the event loop."""
        self.heartbeats = BrokerHeartbeats(membership, self.held.values, self.session_for, heartbeat_s)
        self._start, self._offsets, self._came_later = start, offsets, came_later
        self._taken: set[Key] = set()
        """Partitions that this consumer has held at some time."""
        self._strayed: set[Key] = set()
        """Those of them that ended with requests given up, which may yet arrive: they need a client id of their own next time."""
        self._turns: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a partition is being taken."""
        self._taking: set[asyncio.Task[HeldPartition]] = set()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Start what keeps partitions."""
        name = self.membership.client_id
        self._tasks = [
            spawn(self.heartbeats.run(), f"tubemq broker heartbeats of {name}"),
            spawn(self._late_commits(), f"tubemq late commits of {name}"),
        ]

    async def close(self) -> None:
        """Give everything back until `close_by`, keeping what was confirmed; what is being taken is given back, too."""
        self._closed = True
        await cancel(*self._tasks, *self._taking)
        await asyncio.gather(*(partition.release(self.close_by) for partition in list(self.held.values())))

    @property
    def refs(self) -> list[PartitionRef]:
        """What is held now."""
        return [partition.ref for partition in self.held.values()]

    def snapshot(self) -> dict[str, int]:
        """The counters of all partitions that are held, together."""
        return total([partition.counters.snapshot() for partition in self.held.values()])

    # --- taking and losing ------------------------------------------------------------------------------------------

    async def take(self, ref: PartitionRef, offset: int | None = None) -> HeldPartition:
        """Take a partition at its Broker: at `offset`, else where `offsets` says, else where the group stands.

        The same object again when it is held already, also when somebody else was just taking it. Raises ClusterError (410:
        another member has it; also when `offsets` raises, or when this member is closed).
        """
        async with self._turns[ref.key]:
            if (held := self.held.get(ref.key)) is not None:
                return held
            if self._closed:
                raise _closed(ref)
            task: asyncio.Task[HeldPartition] = spawn(self._take(ref, offset), f"tubemq taking {ref}", quiet=True)
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)
            try:
                return await task
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                raise _closed(ref) from None

    async def _take(self, ref: PartitionRef, offset: int | None) -> HeldPartition:
        partition = HeldPartition(self, ref, fresh_id=ref.key in self._strayed)
        is_later = self._came_later is not None and self._came_later(ref)
        status = 0 if is_later or ref.key in self._taken else self._start
        try:
            if offset is None and self._offsets is not None:
                offset = await self._known_offset(self._offsets, ref)
            if offset is None:
                await partition.register(status)
            else:
                # With readStatus 2 a Broker would not look at the offset.
                await partition.start_at(min(status, From.LATEST), offset)
        except BaseException:
            if partition.has_strays:  # the Broker may count it as ours all the same
                self._strayed.add(ref.key)
                await partition.release(self.close_by)
            raise
        self._taken.add(ref.key)
        self.held[ref.key] = partition
        self._share_budget()
        return partition

    @staticmethod
    async def _known_offset(offsets: Offsets, ref: PartitionRef) -> int | None:
        try:
            return await offsets(ref)
        except Exception as error:  # the caller's own code, which must not end what keeps the other partitions
            raise ClusterError(f"where to read {ref} from could not be found out: {type(error).__name__}: {error}") from error

    def session_for(self, ref: PartitionRef) -> Session:
        """The session of a partition's Broker."""
        return self.membership.masters.sessions.to(ref.broker.host, ref.broker.port, str(ref.key))

    def dropped(self, partition: HeldPartition) -> None:
        """A partition is not ours any more: the Master hears of it with the next heartbeat."""
        if partition.has_strays:
            self._strayed.add(partition.ref.key)
        if self.held.get(partition.ref.key) is partition:
            del self.held[partition.ref.key]
            self.changed = True
            self._share_budget()

    def _share_budget(self) -> None:
        self.budget.share_among({partition.ref.broker for partition in self.held.values()})

    # --- keeping ----------------------------------------------------------------------------------------------------

    async def _late_commits(self) -> None:
        """Each on its own: a Broker that does not answer delays nobody else's."""
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                await asyncio.sleep(COMMIT_AFTER_S)
                now = self._loop.time()
                for partition in self.held.values():
                    if partition.has_late_commit(now):
                        task = spawn(partition.commit_late(now), f"tubemq late commit of {partition}")
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)
        finally:
            await cancel(*under_way)


def _closed(ref: PartitionRef) -> ClusterError:
    return ClusterError(f"{ref} is not taken: the consumer is closed", Failure.FATAL)
