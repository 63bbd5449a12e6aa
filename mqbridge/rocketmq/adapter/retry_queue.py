"""Consumes a retry queue, which contains the messages that members of a group sent back, of all topics of the group.

The messages are divided among lanes, one per topic; the first message of a topic creates its lane. The committed offset of the
queue passes a message only when this message and all before it are stored, in whichever lane they are.

A message of a topic that this member does not consume is sent back again, so that another member gets it; a failed request is
retried until it succeeds. If retention has deleted messages before they were read, reading continues after them, with an error
in the log: no lane can decide about a gap in a queue that all topics share. All lanes end together, when the queue is revoked or
lost, or when one of the lanes is released.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby, pairwise

from mqbridge.errors import ClusterError, GapError, LaneRevoked, MqbridgeError, ProtocolError
from mqbridge.message import Partition
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.adapter.retry_lane import Portion, RetryLane
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record

log = logging.getLogger(__name__)

MIN_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
"""Bounds of the pause before a failed request to send a message back is retried."""
MAX_BUFFERED_BYTES = 8 << 20
"""Limit of the messages that all lanes of a queue buffer together; above it, no further pull is read."""

MERGE_PORTIONS = 64
"""Stored portions behind one that is not stored are merged once there are this many, or twice as many as are left."""

SendBack = Callable[[Record], Awaitable[None]]
"""Sends a message back: the Broker delivers it to the group again later, or makes it a dead letter."""


def original_topic(record: Record) -> str | None:
    """Return the topic in which a message was before it was sent back; None if the message does not say."""
    return next((value for name, value in decode_properties(record.properties) if name == Name.RETRY_TOPIC), None)


class RetryQueue:
    """One assigned retry queue, which two tasks read and watch.

    Calls `on_lane` with every new lane, and with the error that ends the queue. `topics` are those that this member consumes.
    """

    def __init__(
        self,
        assigned: AssignedQueue,
        cluster: str,
        topics: Iterable[str],
        on_lane: Callable[[RetryLane | MqbridgeError], None],
        send_back: SendBack,
    ) -> None:
        self.assigned = assigned
        assigned.holds_budget = True  # pulled bytes count against the consumer's budget until `release_budget`
        self._cluster = cluster
        self._topics = frozenset(topics)
        self._on_lane, self._send_back = on_lane, send_back
        self._lanes: dict[str, RetryLane] = {}
        self._portions: deque[Portion] = deque()
        """Portions that are read and not yet committed, in the order of the queue."""
        self._merge_at = MERGE_PORTIONS
        """Number of portions at which the stored ones are merged."""
        self._buffered_bytes = 0
        """Bytes in memory of the portions that lanes buffer."""
        self._has_room = asyncio.Event()
        """Set when a lane has delivered a buffered portion."""
        self._all_stored = asyncio.Event()
        """Set when all messages that were read are stored in a target, or sent back again."""
        self._backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
        self.error: MqbridgeError | None = None
        """The error that ended the reading; None if none did. Each lane raises it after its buffered messages."""
        self._read_task = spawn(self._read(), f"retries of {assigned.queue}")
        self._watch_task = spawn(self._watch_end(), f"end of the retries of {assigned.queue}")

    @property
    def ended(self) -> asyncio.Event:
        """Set as soon as the queue is revoked, lost or released."""
        return self.assigned.ended

    @property
    def releasing(self) -> asyncio.Event:
        """Set when the queue is going to be released for another member, and as soon as it is revoked, lost or released."""
        return self.assigned.releasing

    @property
    def caught_up(self) -> bool:
        """True if the Broker has no more messages, and no lane has buffered ones."""
        return self.assigned.caught_up and not self._buffered_bytes

    async def confirm_caught_up(self) -> bool:
        """Ask the Broker for the end of the queue; return True if it is reached, and no lane has buffered messages."""
        return await self.assigned.confirm_caught_up() and self.caught_up

    async def _read(self) -> None:
        try:
            while True:
                try:
                    pulled = await self.assigned.receive()
                except GapError as gap:
                    await self._skip_gap(gap)
                    continue
                await self._distribute(pulled)
                while self._buffered_bytes >= MAX_BUFFERED_BYTES:
                    self._has_room.clear()
                    await self._has_room.wait()
        except LaneRevoked:
            pass  # `_watch_end` wakes the lanes, which then raise LaneRevoked
        except MqbridgeError as error:
            self.error = error
            self._on_lane(error)  # there may be no lane that could raise it
            self._wake_lanes()

    async def _watch_end(self) -> None:
        """End the lanes as soon as the queue is revoked, lost or released, even while the reading task waits."""
        await self.assigned.ended.wait()
        self._wake_lanes()
        await cancel(self._read_task)

    def _wake_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.wake()

    async def _skip_gap(self, gap: GapError) -> None:
        """Continue after the deleted messages. The seek commits the new offset: first wait until earlier messages are stored.

        A gap without `resume` means that offsets have decreased, so which messages were read is unknown: continue at the end.
        """
        while self._portions:
            self._all_stored.clear()
            await self._all_stored.wait()
        offset = self.assigned.end_offset if gap.resume is None else gap.resume[0]
        log.error("%s: messages that members sent back are lost (%s); continuing at offset %d", self.assigned, gap, offset)
        await self.assigned.seek(offset)

    async def _distribute(self, pulled: PulledRecords) -> None:
        """Split a pull into portions of one topic each; pass them to the lanes, and send messages of other topics back again."""
        records = pulled.records
        run = self.assigned.state.run  # a later seek or reset begins another run; commits of this one then have no effect
        # The offset after a record is that of the following one, because a retry queue may have gaps.
        next_offsets = {record.queue_offset: following.queue_offset for record, following in pairwise(records)}
        budget_bytes = pulled.size
        for topic, group in groupby(records, original_topic):
            part = list(group)
            body_bytes = sum(len(record.body) for record in part)
            portion = Portion(part, next_offsets.get(part[-1].queue_offset, pulled.next), body_bytes, budget_bytes, run)
            budget_bytes = 0  # the first portion of a pull releases the bytes of the whole pull
            if len(self._portions) >= self._merge_at:
                self._merge_stored()
            self._portions.append(portion)
            if topic is not None and topic in self._topics:
                self._buffered_bytes += portion.held_bytes
                self._lane_of(topic).put(portion)
            else:
                for record in part:
                    await self._send_back_again(record)
                self.release_budget(portion)
                self.on_stored(portion)
        if not records:
            self.assigned.release_budget(budget_bytes)
            if not self._portions:  # otherwise earlier messages are not stored yet; the next portion commits for this pull, too
                self.assigned.commit(pulled.next)

    def _merge_stored(self) -> None:
        """Replace consecutive stored portions of a run by the last of them, whose commit covers them."""
        merged: deque[Portion] = deque()
        for portion in self._portions:
            if merged and portion.is_stored and merged[-1].is_stored and merged[-1].run == portion.run:
                merged.pop()
            merged.append(portion)
        self._portions = merged
        self._merge_at = max(MERGE_PORTIONS, 2 * len(merged))

    async def _send_back_again(self, record: Record) -> None:
        """Send back a message of a topic that this member does not consume; retry until a Broker accepts it."""
        while True:
            try:
                await self._send_back(record)
            except (ClusterError, ProtocolError) as error:
                delay = self._backoff.delay()
                log.warning(
                    "%s: cannot send back offset %d, of topic %s, which this member does not consume: %s; retrying in %.1f s",
                    self.assigned,
                    record.queue_offset,
                    original_topic(record),
                    error,
                    delay,
                )
                await asyncio.sleep(delay)
            else:
                self._backoff.reset()
                return

    def _lane_of(self, topic: str) -> RetryLane:
        """Return the lane of a topic; create it if there is none."""
        lane = self._lanes.get(topic)
        if lane is None:
            queue = self.assigned.queue
            name = f"{queue.topic}:{queue.broker}:{queue.id}"
            # The retry queue is no partition of the topic, so its index says nothing.
            partition = Partition(self._cluster, topic, name, index=0)
            lane = self._lanes[topic] = RetryLane(partition, self)
            self._on_lane(lane)
        return lane

    def on_delivered(self, portion: Portion) -> None:
        """Record that a lane delivered the portion, so the next pull may be read."""
        self._buffered_bytes -= portion.held_bytes
        self._has_room.set()

    def on_requeued(self, portion: Portion) -> None:
        """Record that a lane will deliver the portion again."""
        self._buffered_bytes += portion.held_bytes

    def on_stored(self, portion: Portion) -> None:
        """Record that all messages of the portion are stored in a target, or sent back again.

        Commits the offset below which all messages are stored or sent back.
        """
        portion.is_stored = True
        portion.records = ()  # it may wait long for an earlier portion
        while self._portions and self._portions[0].is_stored:
            oldest = self._portions.popleft()
            self.assigned.commit(oldest.next, oldest.run)  # has no effect if the offsets were reset in the meantime
        if self._portions:
            self._commit_begin(self._portions[0])
        else:
            self._all_stored.set()

    def on_acknowledged(self, portion: Portion) -> None:
        """Commit the offset of a portion's first message that is not acknowledged, if nothing before it is missing."""
        if self._portions and self._portions[0] is portion:
            self._commit_begin(portion)

    def _commit_begin(self, portion: Portion) -> None:
        if portion.acknowledged is not None:
            self.assigned.commit(portion.acknowledged, portion.run)

    def release_budget(self, portion: Portion) -> None:
        """Release the portion's bytes from the consumer's budget; further calls have no effect."""
        if portion.budget_bytes:
            self.assigned.release_budget(portion.budget_bytes)
            portion.budget_bytes = 0

    async def release(self, deadline: float | None = None) -> None:
        """Commit the acknowledged messages and release the queue, by `deadline` (loop time; None: no limit); all lanes end."""
        await self.assigned.release(deadline)
        await cancel(self._watch_task, self._read_task)
