"""A member of a consumer group to which the Master assigns partitions.

Three activities run concurrently: heartbeats to the Master (`group_consumer`); the handling of the events that the Master's
responses contain, one event at a time; and the heartbeats to Brokers (`held_partitions`), together with commits of those
confirmed packs (a pack has the messages of one response) that no later get has reported to the Broker in time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError, ProtocolError, RequestTimeout, ServerRefused
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.group_consumer import GroupConsumer
from mqbridge.tubemq.client.consumer.held_partitions import (
    HEARTBEAT_S,
    MAX_GETS,
    HeldPartitions,
    OffsetLookup,
    PositionStore,
    StartOffset,
)
from mqbridge.tubemq.client.consumer.membership import (
    CONNECT_OPS,
    DISCONNECT_OPS,
    EVENT_DONE,
    STOP_REBALANCE_OP,
    BoundSubscription,
    Membership,
)
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire.pb.master_pb2 import EventProto
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef, parse_subscription

log = logging.getLogger(__name__)

REPORT_EVERY = 6
"""Every sixth heartbeat reports all partitions that this member holds."""

_RESPONSE_LOST_ERRORS = (ConnectionLost, RequestTimeout, ProtocolError)
"""Errors of a heartbeat that the Master may have handled: its response did not arrive, or could not be parsed (ProtocolError)."""


class PackConsumer(GroupConsumer):
    """A member of `group`, which reads all of `topics`. All members of a group must have the same topics and filters.

    `start` says where reading starts, see `StartOffset`. `offsets` is called before a partition is acquired and returns its
    start offset, or None for the group's position; if it raises, the partition is not acquired. `is_new_partition` returns True
    for a partition that a group without a position reads from its first message, whatever `start` is. `filters` maps topics to
    message types; other topics are read without a filter. With `bound`, all members of the group start together, at offsets
    that they choose. At most `max_gets` gets are in flight; with `budget`, its bytes are the limit.

    `priority` (qryPriorityId) selects which stores of a Broker are read. Its hundreds digit is for topics without a filter, its
    ones digit for topics with a filter: 1 reads only the file, 2 also the memory being written to disk, 3 everything. None takes
    the value that the Master sends.

    `is_alone` returns True for a partition whose store has no other partition: if the store's data was deleted before it was
    read, messages are lost for sure. `positions` keeps the positions of partitions beyond this consumer, see `PositionStore`.

    `member` is a name that operators see as part of the client id. A partition that the Master takes away is kept for up to
    `release_wait_s`, or until it is released. The Master does not balance the group meanwhile, but after ten of its balancing
    periods (5 min by default) it no longer waits. It then gives the partition to another member, which the Broker refuses, and
    takes it away from this one again; so a longer wait is useless, and harmless.
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
        is_alone: Callable[[PartitionRef], bool] | None = None,
        positions: PositionStore | None = None,
        member: str | None = None,
        release_wait_s: float = 0.0,
    ) -> None:
        types = {topic: frozenset(msg_types) for topic, msg_types in (filters or {}).items()}
        self.membership = Membership(masters, group, topics, types, priority=priority, bound=bound, name=member)
        budget = budget or ReadBudget(max_gets * GET_BYTES)
        held = HeldPartitions(
            self.membership,
            start=start,
            heartbeat_s=heartbeat_s,
            budget=budget,
            offsets=offsets,
            is_new_partition=is_new_partition,
            is_alone=is_alone,
            positions=positions,
        )
        super().__init__(self.membership, held, heartbeat_s=heartbeat_s, report_every=REPORT_EVERY)
        self._release_wait_s = release_wait_s
        self._assigned_partitions: asyncio.Queue[HeldPartition | None] = asyncio.Queue()
        """Acquired partitions for `assignments`; None ends them."""
        self._refusals: dict[PartitionKey, tuple[str, str]] = {}
        """Names of assigned partitions, and why their Brokers refused to register this member, since the last attempt."""
        self._events: asyncio.Queue[EventProto] = asyncio.Queue()
        """Events from the Master that are not handled yet."""
        self._completed_events: list[EventProto] = []
        """Completed events that are not acknowledged yet."""
        self._last_acknowledgement = EventProto(rebalanceId=1, opType=STOP_REBALANCE_OP, status=EVENT_DONE)
        """An acknowledgement of the last event (at first with any valid id); see `_substitute_event`."""
        self._is_response_lost = False
        """True if the response to the last heartbeat was lost; it may have contained an event."""

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five attempts; FATAL errors (missing topic, different filters) at once."""
        await super().start()
        self._tasks.append(spawn(self._handle_events(), f"tubemq events of {self.membership.client_id}"))

    async def assignments(self) -> AsyncIterator[HeldPartition]:
        """Yield partitions as they are acquired, until `close`. Raises ClusterError after a permanent refusal by the Master."""
        self._home.check()
        while (partition := await self._assigned_partitions.get()) is not None:
            if not partition.revoked.is_set():
                yield partition
        self._assigned_partitions.put_nowait(None)  # ends the iteration of other tasks, too
        if self._permanent_error is not None:
            raise self._permanent_error

    async def close(self, timeout: float | None = None) -> None:
        """Release all partitions, committing confirmed packs, and leave the group, within `timeout` seconds (None: no limit)."""
        await super().close(timeout)
        self._assigned_partitions.put_nowait(None)

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why Brokers refuse to let this member read now, by `TOPIC/PARTITION`."""
        held = {f"{each.ref.topic}/{each.ref.name}": why for each in self.held_partitions.held.values() if (why := each.refusal)}
        return dict(self._refusals.values()) | held

    # --- Master -----------------------------------------------------------------------------------------------------

    async def _send_heartbeat(self, held: list[PartitionRef] | None) -> None:
        """Report the partitions `held` (None: no report), and acknowledge the oldest completed event, which also reports all."""
        completed = self._completed_events[0] if self._completed_events else self._substitute_event()
        if completed is not None:  # the Master takes the list in an acknowledgement as all partitions of this member
            held = self.held_partitions.refs
        try:
            event = await self.membership.heartbeat(held, completed)
        except _RESPONSE_LOST_ERRORS:
            self._is_response_lost = True
            raise
        self._is_response_lost = False
        if self._completed_events and completed is self._completed_events[0]:
            self._completed_events.pop(0)
        if self._completed_events:
            self._heartbeat_now.set()
        if event is not None:
            self._last_acknowledgement.rebalanceId = event.rebalanceId
            self._events.put_nowait(event)

    def _substitute_event(self) -> EventProto | None:
        """Return an event to acknowledge, if the response to the last heartbeat was lost and may have contained an event.

        A Master sends an event once, and does not balance the group until the member acknowledges the event or ten balancing
        periods have passed (5 min by default). It does not check the id in the acknowledgement. So any acknowledgement lets it
        continue, and it assigns partitions again that this member does not report as held.
        """
        # In its first round, a bound group gets the partitions that its members listed. Any acknowledgement ends this round.
        in_first_round = self.membership.bound is not None and self.membership.is_first_round_open
        return self._last_acknowledgement if self._is_response_lost and not in_first_round else None

    def _on_permanent_refusal(self, error: ClusterError) -> None:
        super()._on_permanent_refusal(error)
        self._assigned_partitions.put_nowait(None)

    # --- events -----------------------------------------------------------------------------------------------------

    async def _handle_events(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._handle_event(event)
            except ProtocolError as error:
                log.warning(
                    "an event of the Master for group %s could not be parsed, acknowledging it without effect: %s",
                    self.membership.group,
                    error,
                )
            event.status = EVENT_DONE
            self._completed_events.append(event)
            self._heartbeat_now.set()

    async def _handle_event(self, event: EventProto) -> None:
        held = self.held_partitions.held
        refs = [parse_subscription(text, self.membership.masters.broker_port) for text in event.subscribeInfo]
        if event.opType in DISCONNECT_OPS:
            for ref in refs:
                self._refusals.pop(ref.key, None)
            await asyncio.gather(*(held[ref.key].revoke(self._release_wait_s) for ref in refs if ref.key in held))
            await self.held_partitions.wait_set_back()
        elif event.opType in CONNECT_OPS:
            # The offsets that this member listed apply in the first round only: after it, another member may have read further.
            bound = self.membership.bound if event.rebalanceId == self.membership.first_round_id else None
            listed = bound.offsets if bound is not None else {}
            await asyncio.gather(*(self._acquire(ref, listed.get(ref.key)) for ref in refs if ref.key not in held))

    async def _acquire(self, ref: PartitionRef, offset: int | None) -> None:
        """Acquire an assigned partition. If this fails, it is not reported as held, and the Master assigns it again later."""
        try:
            partition = await self.held_partitions.acquire(ref, offset)
        except MqbridgeError as error:
            is_known = ref.key in self._refusals
            if isinstance(error, ServerRefused):
                self._refusals[ref.key] = f"{ref.topic}/{ref.name}", str(error)
            log.log(
                logging.DEBUG if is_known else retry_log_level(error, logging.WARNING),
                "group %s: acquiring the assigned partition %s failed, the Master will assign it again: %s",
                self.membership.group,
                ref,
                error,
            )
            return
        self._refusals.pop(ref.key, None)
        self._assigned_partitions.put_nowait(partition)
