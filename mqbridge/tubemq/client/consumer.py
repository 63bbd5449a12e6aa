"""A member of a consumer group to which the Master assigns partitions.

Three activities side by side: heartbeats to the Master, which never wait for anything else; the events that come with their
answers, one after the other; heartbeats to the Brokers of the partitions that we hold.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import IntEnum

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.master import Masters, client_id, retried
from mqbridge.tubemq.client.membership import DONE, Membership
from mqbridge.tubemq.client.partition import COMMIT_AFTER_S, PartitionSession
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.broker_pb2 import HeartBeatRequestC2B, HeartBeatResponseB2C
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto
from mqbridge.tubemq.wire.text import Broker, PartitionRef, parse_failure, parse_subscription

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
RETRY_S = 1.0
REPORT_EVERY = 6
"""Heartbeats between reports of all that we hold."""
MAX_GETS = 32
"""Answers of half a MiB, sometimes one, that may be on their way at once."""

CONNECT, DISCONNECT, ONLY_CONNECT, ONLY_DISCONNECT = 1, 2, 10, 20
"""opType of events; the others ask for nothing but an echo."""


class From(IntEnum):
    """Where a group starts, as readStatus. It counts only when this consumer takes a partition for the first time."""

    EARLIEST = 0
    """At the first message, or where the group stands."""
    LATEST = 1
    """After the last message, or where the group stands."""
    ALWAYS_LATEST = 2
    """After the last message, wherever the group stands."""


class Consumer:
    """A member of `group`. `filters` are message types by topic; topics that are missing are read whole."""

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        *,
        start: From = From.EARLIEST,
        filters: Mapping[str, Iterable[str]] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_gets: int = MAX_GETS,
        priority: int | None = None,
    ) -> None:
        self._filters = {topic: frozenset(types) for topic, types in (filters or {}).items()}
        self.membership = Membership(masters, group, topics, self._filters)
        self.gets = asyncio.Semaphore(max_gets)
        self.seen_at = 0.0
        self._priority = priority
        self._start = start
        self._heartbeat_s = heartbeat_s
        self._held: dict[tuple[int, str, int], PartitionSession] = {}
        self._taken: set[tuple[int, str, int]] = set()
        """Partitions that this consumer has held at some time."""
        self._new: asyncio.Queue[PartitionSession | None] = asyncio.Queue()
        self._events: asyncio.Queue[EventProto] = asyncio.Queue()
        self._done: list[EventProto] = []
        self._wake = asyncio.Event()
        self._report_due = False
        self._failed: ClusterError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (no such topic, other filters) at once."""
        member = self.membership
        member.host = await retried("connecting to the Master", member.masters.local_host)
        member.client_id = client_id(member.host, member.group)
        await retried(f"joining group {member.group}", self._register)
        work = {
            "heartbeats": self._heartbeats,
            "events": self._obey_all,
            "broker heartbeats": self._broker_heartbeats,
            "late commits": self._late_commits,
        }
        self._tasks = [spawn(run(), f"tubemq {name} of {member.client_id}") for name, run in work.items()]

    async def assignments(self) -> AsyncIterator[PartitionSession]:
        """Partitions as they become ours; ends with `close`. Raises ClusterError when the group does not want us any more."""
        while (partition := await self._new.get()) is not None:
            if not partition.revoked:
                yield partition
        self._new.put_nowait(None)  # for whoever else asks
        if self._failed is not None:
            raise self._failed

    async def close(self) -> None:
        """Give all partitions back, keeping what was confirmed, and leave the group."""
        await cancel(*self._tasks)
        await asyncio.gather(*(partition.release() for partition in list(self._held.values())))
        try:
            await self.membership.leave()
        except ClusterError as error:
            log.info("the Master was not told that %s left: %s", self.membership.client_id, error)
        self._new.put_nowait(None)

    # --- what partitions need ---------------------------------------------------------------------------------------

    def session_for(self, ref: PartitionRef) -> Session:
        """The session of a partition's Broker."""
        return self.membership.masters.sessions.to(ref.broker.host, ref.broker.port)

    def dropped(self, partition: PartitionSession) -> None:
        """A partition is not ours any more: the Master hears of it with the next heartbeat."""
        if self._held.get(partition.ref.key) is partition:
            del self._held[partition.ref.key]
            self._report_due = True

    # --- Master -----------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self.membership.register([partition.ref for partition in self._held.values()])
        if self._priority is not None:
            self.membership.priority = self._priority
        self.seen_at = self._loop.time()

    async def _heartbeats(self) -> None:
        beats = 0
        while True:
            beats += 1
            try:
                await self._heartbeat(report=beats % REPORT_EVERY == 0)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ServerRefused) and error.failure is Failure.FATAL and error.code != codes.TOPIC_NOT_DEPLOYED:
                    self._fail(error)
                    return
                log.warning("a heartbeat of group %s failed, trying again: %s", self.membership.group, error)
                await asyncio.sleep(RETRY_S)
            else:
                await self._until_next()

    async def _heartbeat(self, *, report: bool) -> None:
        done = self._done[0] if self._done else None
        held = None
        if report or done is not None or self._report_due:
            held = [partition.ref for partition in self._held.values()]
        due, self._report_due = self._report_due, False
        try:
            event = await self.membership.heartbeat(held, done)
        except ClusterError as error:
            self._report_due |= due
            if not isinstance(error, ServerRefused) or error.code != codes.NO_NODE:
                raise
            log.info("the Master does not know %s any more; it joins again", self.membership.client_id)
            await self._register()
            return
        self.seen_at = self._loop.time()
        if done is not None:
            self._done.pop(0)
        if event is not None:
            self._events.put_nowait(event)

    async def _until_next(self) -> None:
        """Until the next heartbeat is due, or there is something to say."""
        if not self._done:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _fail(self, error: ClusterError) -> None:
        log.error("group %s cannot go on: %s", self.membership.group, error)
        self._failed = error
        self._new.put_nowait(None)

    # --- events -----------------------------------------------------------------------------------------------------

    async def _obey_all(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._obey(event)
            except ProtocolError as error:
                log.warning("an event of the Master for group %s was not understood: %s", self.membership.group, error)
            event.status = DONE
            self._done.append(event)
            self._wake.set()

    async def _obey(self, event: EventProto) -> None:
        refs = [parse_subscription(text) for text in event.subscribeInfo]
        if event.opType in (DISCONNECT, ONLY_DISCONNECT):
            held = [self._held[ref.key] for ref in refs if ref.key in self._held]
            await asyncio.gather(*(partition.revoke() for partition in held))
        elif event.opType in (CONNECT, ONLY_CONNECT):
            await asyncio.gather(*(self._take(ref) for ref in refs if ref.key not in self._held))

    async def _take(self, ref: PartitionRef) -> None:
        """Register at the Broker. What cannot be had is left out of the report, and the Master assigns it again."""
        partition = PartitionSession(self, ref, sorted(self._filters.get(ref.topic, ())))
        try:
            await partition.register(0 if ref.key in self._taken else self._start)
        except (ClusterError, ProtocolError) as error:
            log.warning("%s was assigned to us but could not be taken: %s", partition, error)
            return
        self._taken.add(ref.key)
        self._held[ref.key] = partition
        self._new.put_nowait(partition)

    # --- Brokers ----------------------------------------------------------------------------------------------------

    async def _broker_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            brokers: dict[Broker, list[PartitionSession]] = {}
            for partition in self._held.values():
                if partition.registered:
                    brokers.setdefault(partition.ref.broker, []).append(partition)
            await asyncio.gather(*(self._broker_heartbeat(*item) for item in brokers.items()))

    async def _late_commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_AFTER_S)
            now = self._loop.time()
            for partition in list(self._held.values()):
                await partition.commit_late(now)

    async def _broker_heartbeat(self, broker: Broker, partitions: list[PartitionSession]) -> None:
        """Keep the lease. A Broker that does not answer keeps its partitions here: they are registered again when it is back."""
        member = self.membership
        request = HeartBeatRequestC2B(
            clientId=member.client_id,
            groupName=member.group,
            readStatus=0,
            partitionInfo=[str(partition.ref) for partition in partitions],
            qryPriorityId=member.priority,
            authInfo=member.masters.authorized(),
        )
        session = self.session_for(partitions[0].ref)
        try:
            answer = await session.call(rpc.READ, rpc.PARTITION_HEARTBEAT, request, HeartBeatResponseB2C)
            failures = [parse_failure(text) for text in answer.failureInfo]
        except (ClusterError, ProtocolError) as error:
            log.warning("a heartbeat to Broker %s failed: %s", broker, error)
            return
        if not answer.success:
            log.warning("a heartbeat to Broker %s was refused with %d: %s", broker, answer.errCode, answer.errMsg)
        for code, ref in failures:
            if (partition := self._held.get(ref.key)) is not None:
                partition.failed(code)
