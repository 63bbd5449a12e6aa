"""The partitions that one member of a group holds, whoever gave them to it: taken at their Brokers, kept, given back.

A Broker that does not answer a heartbeat keeps its partitions here: they are registered again when it is back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_commits import COMMIT_AFTER_S
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.stats import total
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatRequestC2B, HeartBeatResponseB2C
from mqbridge.tubemq.wire.text import Broker, Key, PartitionRef, parse_failure

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
MAX_GETS = 32
"""Answers of half a MiB, sometimes one, that may be on their way at once."""

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

    def __init__(self, membership: Member, *, start: From, heartbeat_s: float, max_gets: int, offsets: Offsets | None) -> None:
        self.membership = membership
        self.gets = asyncio.Semaphore(max_gets)
        self.seen_at = 0.0
        self.held: dict[Key, HeldPartition] = {}
        self.changed = False
        """Something was lost that the Master does not know of yet."""
        self.close_by: float | None = None
        """When everything is to be given back, once the member is closing; a time of the event loop."""
        self._start, self._heartbeat_s, self._offsets = start, heartbeat_s, offsets
        self._taken: set[Key] = set()
        """Partitions that this consumer has held at some time."""
        self._strayed: set[Key] = set()
        """Those of them that ended with requests given up, which may yet arrive: they need a client id of their own next time."""
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Start what keeps partitions."""
        name = self.membership.client_id
        self._tasks = [
            spawn(self._heartbeats(), f"tubemq broker heartbeats of {name}"),
            spawn(self._late_commits(), f"tubemq late commits of {name}"),
        ]

    async def close(self) -> None:
        """Give everything back until `close_by`, keeping what was confirmed."""
        await cancel(*self._tasks)
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

        Raises ClusterError (410: another member has it; also when `offsets` raises).
        """
        partition = HeldPartition(self, ref, fresh_id=ref.key in self._strayed)
        status = 0 if ref.key in self._taken else self._start
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

    # --- keeping ----------------------------------------------------------------------------------------------------

    async def _late_commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_AFTER_S)
            now = self._loop.time()
            await asyncio.gather(*(partition.commit_late(now) for partition in list(self.held.values())))

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            groups: dict[tuple[Broker, str], list[HeldPartition]] = {}
            for partition in self.held.values():
                if partition.state.is_registered:
                    groups.setdefault((partition.ref.broker, partition.client_id), []).append(partition)
            await asyncio.gather(*(self._heartbeat(*key, partitions) for key, partitions in groups.items()))

    async def _heartbeat(self, broker: Broker, client_id: str, partitions: list[HeldPartition]) -> None:
        """Keep the lease of what one client id holds at one Broker, and hear what is lost."""
        member = self.membership
        request = HeartBeatRequestC2B(
            clientId=client_id,
            groupName=member.group,
            readStatus=0,
            partitionInfo=[str(partition.ref) for partition in partitions],
            qryPriorityId=member.priority,
            authInfo=member.masters.authorized(),
        )
        runs = {partition.ref.key: (partition, partition.state.run) for partition in partitions}
        session = self.session_for(partitions[0].ref)
        try:
            answer = await session.call(rpc.READ, rpc.PARTITION_HEARTBEAT, request, HeartBeatResponseB2C)
            failures = [parse_failure(text) for text in answer.failureInfo]
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.WARNING), "a heartbeat to Broker %s failed: %s", broker, error)
            return
        if not answer.success:
            log.warning("a heartbeat to Broker %s was refused with %d: %s", broker, answer.errCode, answer.errMsg)
        for code, ref in failures:
            if ref.key in runs:
                partition, run = runs[ref.key]
                partition.heartbeat_failed(code, run)
