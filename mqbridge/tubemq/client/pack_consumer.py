"""A member of a consumer group to which the Master assigns partitions.

Three activities run side by side: heartbeats to the Master (`group_consumer`), the rebalance events in their responses, handled
one at a time, and the upkeep of the partitions (`held_partitions`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError, ProtocolError, RequestTimeout
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.bound_subscription import BoundSubscription
from mqbridge.tubemq.client.group_consumer import GroupConsumer
from mqbridge.tubemq.client.held_partitions import HEARTBEAT_S, MAX_GETS, HeldPartitions, OffsetLookup, StartOffset
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.membership import CONNECT_OPS, DISCONNECT_OPS, DONE, STOP, Membership
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto
from mqbridge.tubemq.wire.string_formats import PartitionRef, parse_subscription

log = logging.getLogger(__name__)

REPORT_EVERY = 6
"""Heartbeats between reports of all partitions that this member holds."""

_NO_RESPONSE = (ConnectionLost, RequestTimeout, ProtocolError)


class PackConsumer(GroupConsumer):
    """A member of `group`, which reads all of `topics`. Members of a group name the same topics and filters.

    `filters` are message types by topic; other topics are read without a filter. `offsets` is asked, before a partition is
    taken, where to start; a partition for which it raises is not taken. `bound` makes it a bound group. `priority`
    (qryPriorityId) says which stores of a Broker are read: hundreds for topics without a filter, ones for topics with one; 1 only
    the file, 2 also memory that is being written, 3 all.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        *,
        start: StartOffset = StartOffset.EARLIEST,
        filters: Mapping[str, Iterable[str]] | None = None,
        offsets: OffsetLookup | None = None,
        bound: BoundSubscription | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_gets: int = MAX_GETS,
        budget: ReadBudget | None = None,
        priority: int | None = None,
        is_new_partition: Callable[[PartitionRef], bool] | None = None,
    ) -> None:
        types = {topic: frozenset(wanted) for topic, wanted in (filters or {}).items()}
        self.membership = Membership(masters, group, topics, types, priority=priority, bound=bound)
        budget = budget or ReadBudget(max_gets * GET_BYTES)
        held = HeldPartitions(
            self.membership,
            start=start,
            heartbeat_s=heartbeat_s,
            budget=budget,
            offsets=offsets,
            is_new_partition=is_new_partition,
        )
        super().__init__(self.membership, held, heartbeat_s=heartbeat_s, report_every=REPORT_EVERY)
        self._assigned: asyncio.Queue[HeldPartition | None] = asyncio.Queue()
        self._events: asyncio.Queue[EventProto] = asyncio.Queue()
        self._done: list[EventProto] = []
        """Events that were carried out, and not echoed yet."""
        self._last_event = EventProto(rebalanceId=1, opType=STOP, status=DONE)
        self._is_response_lost = False
        """The response to the last heartbeat was lost, and maybe an event in it."""

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (no such topic, other filters) at once."""
        await super().start()
        self._tasks.append(spawn(self._handle_events(), f"tubemq events of {self.membership.client_id}"))

    async def assignments(self) -> AsyncIterator[HeldPartition]:
        """Yield partitions as they are assigned; ends with `close`. Raises ClusterError when the Master excludes this member."""
        while (partition := await self._assigned.get()) is not None:
            if not partition.revoked.is_set():
                yield partition
        self._assigned.put_nowait(None)  # for other tasks that iterate
        if self._failed is not None:
            raise self._failed

    async def close(self, timeout: float | None = None) -> None:
        """Give all partitions back with their confirmed packs, and leave the group, within `timeout` seconds."""
        await super().close(timeout)
        self._assigned.put_nowait(None)

    # --- Master -----------------------------------------------------------------------------------------------------

    async def _beat(self, held: list[PartitionRef] | None) -> None:
        done = self._done[0] if self._done else self._lost_event()
        if done is not None:
            held = self.held_partitions.refs
        try:
            event = await self.membership.heartbeat(held, done)
        except _NO_RESPONSE:
            self._is_response_lost = True
            raise
        self._is_response_lost = False
        if self._done and done is self._done[0]:
            self._done.pop(0)
        if self._done:
            self._wake.set()
        if event is not None:
            self._last_event.rebalanceId = event.rebalanceId
            self._events.put_nowait(event)

    def _lost_event(self) -> EventProto | None:
        """The event to echo when one may have been lost with its response; None to echo nothing.

        A Master sends an event once, and does not balance the group until the member echoes it, or ten of its periods have passed
        (5 min as shipped). It does not check the number of the echo; partitions that this member then lacks are assigned again.
        """
        in_first_round = self.membership.bound is not None and self.membership.unallocated  # an echo would end it
        return self._last_event if self._is_response_lost and not in_first_round else None

    def _fail(self, error: ClusterError) -> None:
        super()._fail(error)
        self._assigned.put_nowait(None)

    # --- events -----------------------------------------------------------------------------------------------------

    async def _handle_events(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._handle(event)
            except ProtocolError as error:
                log.warning("an event of the Master for group %s could not be parsed: %s", self.membership.group, error)
            event.status = DONE
            self._done.append(event)
            self._wake.set()

    async def _handle(self, event: EventProto) -> None:
        held = self.held_partitions.held
        refs = [parse_subscription(text, self.membership.masters.broker_port) for text in event.subscribeInfo]
        if event.opType in DISCONNECT_OPS:
            await asyncio.gather(*(held[ref.key].revoke() for ref in refs if ref.key in held))
        elif event.opType in CONNECT_OPS:
            # The listed offsets count in the first round only: after it, another member may have read from the partition.
            bound = self.membership.bound if event.rebalanceId == self.membership.first_round else None
            listed = bound.offsets if bound is not None else {}
            await asyncio.gather(*(self._take(ref, listed.get(ref.key)) for ref in refs if ref.key not in held))

    async def _take(self, ref: PartitionRef, offset: int | None) -> None:
        """Register at the Broker. A partition that is refused is left out of the report, and the Master assigns it again."""
        try:
            partition = await self.held_partitions.acquire(ref, offset)
        except MqbridgeError as error:
            log.log(level_of(error, logging.WARNING), "%s was assigned to this member but could not be taken: %s", ref, error)
            return
        self._assigned.put_nowait(partition)
