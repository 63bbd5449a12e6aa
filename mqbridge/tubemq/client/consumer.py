"""A member of a consumer group to which the Master assigns partitions.

Activities side by side: heartbeats to the Master (`group_consumer`), the events that come with their answers, one at a time,
and what `held_partitions` does to keep the partitions.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError, ProtocolError, RequestTimeout
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.bound import Bound
from mqbridge.tubemq.client.group_consumer import GroupConsumer
from mqbridge.tubemq.client.held_partitions import HEARTBEAT_S, MAX_GETS, From, HeldPartitions, Offsets
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.membership import CONNECTS, DISCONNECTS, DONE, STOP, Membership
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto
from mqbridge.tubemq.wire.text import PartitionRef, parse_subscription

log = logging.getLogger(__name__)

REPORT_EVERY = 6
"""Heartbeats between reports of all that we hold."""

_UNANSWERED = (ConnectionLost, RequestTimeout, ProtocolError)


class Consumer(GroupConsumer):
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
        budget: ReadBudget | None = None,
        priority: int | None = None,
        came_later: Callable[[PartitionRef], bool] | None = None,
    ) -> None:
        types = {topic: frozenset(wanted) for topic, wanted in (filters or {}).items()}
        self.membership = Membership(masters, group, topics, types, priority=priority, bound=bound)
        budget = budget or ReadBudget(max_gets * GET_BYTES)
        held = HeldPartitions(
            self.membership, start=start, heartbeat_s=heartbeat_s, budget=budget, offsets=offsets, came_later=came_later
        )
        super().__init__(self.membership, held, heartbeat_s=heartbeat_s, report_every=REPORT_EVERY)
        self._new: asyncio.Queue[HeldPartition | None] = asyncio.Queue()
        self._events: asyncio.Queue[EventProto] = asyncio.Queue()
        self._done: list[EventProto] = []
        self._last_event = EventProto(rebalanceId=1, opType=STOP, status=DONE)
        self._unanswered = False
        """A heartbeat's answer was lost, and maybe an event with it."""

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (no such topic, other filters) at once."""
        await super().start()
        self._tasks.append(spawn(self._obey_all(), f"tubemq events of {self.membership.client_id}"))

    async def assignments(self) -> AsyncIterator[HeldPartition]:
        """Partitions as they become ours; ends with `close`. Raises ClusterError when the group does not want us any more."""
        while (partition := await self._new.get()) is not None:
            if not partition.revoked.is_set():
                yield partition
        self._new.put_nowait(None)  # for whoever else asks
        if self._failed is not None:
            raise self._failed

    async def close(self, deadline: float | None = None) -> None:
        """Give all partitions back, keeping what was confirmed, and leave the group; `deadline` is a time of the event loop."""
        await super().close(deadline)
        self._new.put_nowait(None)

    # --- Master -----------------------------------------------------------------------------------------------------

    async def _beat(self, held: list[PartitionRef] | None) -> None:
        done = self._done[0] if self._done else self._lost_event()
        if done is not None:
            held = self.held_partitions.refs
        try:
            event = await self.membership.heartbeat(held, done)
        except _UNANSWERED:
            self._unanswered = True
            raise
        self._unanswered = False
        if self._done and done is self._done[0]:
            self._done.pop(0)
        if self._done:
            self._wake.set()
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

    def _fail(self, error: ClusterError) -> None:
        super()._fail(error)
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
        held = self.held_partitions.held
        refs = [parse_subscription(text, self.membership.masters.broker_port) for text in event.subscribeInfo]
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
            partition = await self.held_partitions.take(ref, offset)
        except MqbridgeError as error:
            log.log(level_of(error, logging.WARNING), "%s was assigned to us but could not be taken: %s", ref, error)
            return
        self._new.put_nowait(partition)
