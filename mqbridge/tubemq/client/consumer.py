"""A member of a consumer group to which the Master assigns partitions.

Activities side by side: heartbeats to the Master, which never wait for anything else; the events that come with their answers,
one after the other; and what `holding` does to keep the partitions.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ProtocolError, RequestTimeout, ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.bound import Bound
from mqbridge.tubemq.client.holding import HEARTBEAT_S, MAX_GETS, From, Holding, Offsets
from mqbridge.tubemq.client.master import Masters, retried
from mqbridge.tubemq.client.membership import CONNECTS, DISCONNECTS, DONE, STOP, Membership
from mqbridge.tubemq.client.partition import PartitionSession
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto
from mqbridge.tubemq.wire.text import PartitionRef, parse_subscription

__all__ = ["Bound", "Consumer", "From"]

log = logging.getLogger(__name__)

RETRY_S = 1.0
REPORT_EVERY = 6
"""Heartbeats between reports of all that we hold."""

_UNANSWERED = (ConnectionLost, RequestTimeout, ProtocolError)


class Consumer:
    """A member of `group`, which reads all of `topics`. Members of a group name the same topics and filters.

    `filters` are message types by topic; topics that are missing are read whole. `offsets` is asked, before a partition is
    taken, where to start; a partition whose offset it cannot tell is not taken. `bound` makes it a bound group. `priority`
    (qryPriorityId) is which stores of a Broker are read: hundreds for topics without a filter, ones for those with one; 1 only
    the file, 2 also memory that is being written, 3 all.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        *,
        start: From = From.EARLIEST,
        filters: Mapping[str, Iterable[str]] | None = None,
        offsets: Offsets | None = None,
        bound: Bound | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_gets: int = MAX_GETS,
        priority: int | None = None,
    ) -> None:
        types = {topic: frozenset(wanted) for topic, wanted in (filters or {}).items()}
        self.membership = Membership(masters, group, topics, types, priority=priority, bound=bound)
        self.holding = Holding(
            self.membership,
            start=start,
            heartbeat_s=heartbeat_s,
            max_gets=max_gets,
            offsets=offsets,
        )
        self._heartbeat_s = heartbeat_s
        self._new: asyncio.Queue[PartitionSession | None] = asyncio.Queue()
        self._events: asyncio.Queue[EventProto] = asyncio.Queue()
        self._done: list[EventProto] = []
        self._last_event = EventProto(rebalanceId=1, opType=STOP, status=DONE)
        self._unanswered = False
        """A heartbeat's answer was lost, and maybe an event with it."""
        self._wake = asyncio.Event()
        self._failed: ClusterError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (no such topic, other filters) at once."""
        member = self.membership
        await member.identify()
        await retried(f"joining group {member.group}", self._register)
        self.holding.begin()
        work = {"heartbeats": self._heartbeats, "events": self._obey_all}
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
        await self.holding.close()
        try:
            await self.membership.leave()
        except (ClusterError, ProtocolError) as error:
            log.info("the Master was not told that %s left: %s", self.membership.client_id, error)
        self._new.put_nowait(None)

    # --- Master -----------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self.membership.register(self.holding.refs)
        self.holding.seen_at = self._loop.time()

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
        holding = self.holding
        done = self._done[0] if self._done else self._lost_event()
        held = holding.refs if report or done is not None or holding.changed else None
        due, holding.changed = holding.changed, False
        try:
            event = await self.membership.heartbeat(held, done)
        except (ClusterError, ProtocolError) as error:
            holding.changed |= due
            self._unanswered |= isinstance(error, _UNANSWERED)
            if not isinstance(error, ServerRefused) or error.code != codes.NO_NODE:
                raise
            log.info("the Master does not know %s any more; it joins again", self.membership.client_id)
            await self._register()
            return
        holding.seen_at = self._loop.time()
        self._unanswered = False
        if self._done and done is self._done[0]:
            self._done.pop(0)
        if event is not None:
            self._last_event.rebalanceId = event.rebalanceId
            self._events.put_nowait(event)

    def _lost_event(self) -> EventProto | None:
        """What to echo when an event may have been lost with its answer.

        A Master hands an event out once, and until it is echoed it does not balance the group, for ten of its periods (5 min as
        shipped). It looks at no number, only that there is one; what we then lack it assigns again.
        """
        in_first_round = self.membership.bound is not None and self.membership.unallocated  # an echo would end it
        return self._last_event if self._unanswered and not in_first_round else None

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
        held = self.holding.held
        refs = [parse_subscription(text) for text in event.subscribeInfo]
        if event.opType in DISCONNECTS:
            await asyncio.gather(*(held[ref.key].revoke() for ref in refs if ref.key in held))
        elif event.opType in CONNECTS:
            # Later another member has read from a partition: only the first round starts where this one listed.
            bound = self.membership.bound if event.rebalanceId == self.membership.first_round else None
            listed = bound.offsets if bound is not None else {}
            await asyncio.gather(*(self._take(ref, listed.get(ref.key)) for ref in refs if ref.key not in held))

    async def _take(self, ref: PartitionRef, offset: int | None) -> None:
        """Register at the Broker. What cannot be had is left out of the report, and the Master assigns it again."""
        try:
            partition = await self.holding.take(ref, offset)
        except MqbridgeError as error:
            log.warning("%s was assigned to us but could not be taken: %s", ref, error)
            return
        self._new.put_nowait(partition)
