"""Consumes a retry queue: messages that members of a group sent back, of all the group's topics.

Its messages are divided among lanes, one per topic, created with the topic's first message. The queue's offset moves past a
message only when it and all before it are stored, in whichever lane.

Reading continues as long as the queue is assigned to us: a message that a Broker refuses to take back is offered again, and
messages that retention has deleted are skipped with an error in the log, since a lane of one topic cannot stop or move the queue
of all. The lanes end together: as soon as the queue is revoked, or when any of them is released.
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
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record

log = logging.getLogger(__name__)

FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
MAX_WAITING_BYTES = 8 << 20
"""Limit of messages read ahead of all lanes together."""

SendBack = Callable[[Record], Awaitable[None]]
"""Sends a message back once more: it comes again later, or becomes a dead letter of the group."""


def topic_of(record: Record) -> str | None:
    """Return the topic of a message before it was sent back."""
    return next((value for name, value in decode_properties(record.properties) if name == Name.RETRY_TOPIC), None)


class RetryQueue:
    """One assigned retry queue; passes every new lane to `on_lane`, and the error that ends the queue."""

    def __init__(
        self,
        assigned: AssignedQueue,
        cluster: str,
        topics: Iterable[str],
        on_lane: Callable[[RetryLane | MqbridgeError], None],
        send_back: SendBack,
    ) -> None:
        self.assigned = assigned
        assigned.holds_budget = True
        self._cluster, self._topics, self._on_lane, self._send_back = cluster, frozenset(topics), on_lane, send_back
        self._lanes: dict[str, RetryLane] = {}
        self._portions: deque[Portion] = deque()
        """Portions read and not yet committed, in the queue's order."""
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._all_done = asyncio.Event()
        self._backoff = Backoff(FIRST_WAIT_S, MOST_WAIT_S)
        self.ended: MqbridgeError | None = None
        """The error that the lanes raise once nothing waits."""
        self._reading = spawn(self._read(), f"retries of {assigned.queue}")
        self._watching = spawn(self._watch(), f"the end of retries of {assigned.queue}")

    @property
    def over(self) -> asyncio.Event:
        """Set as soon as the queue is revoked, lost or released."""
        return self.assigned.over

    @property
    def caught_up(self) -> bool:
        """True if the Broker has nothing more, and nothing waits here."""
        return self.assigned.caught_up and not self._waiting_bytes

    async def _read(self) -> None:
        try:
            while True:
                try:
                    pulled = await self.assigned.receive()
                except GapError as gap:
                    await self._skip_gap(gap)
                    continue
                await self._divide(pulled)
                while self._waiting_bytes >= MAX_WAITING_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except LaneRevoked:
            pass  # `_watch` tells the lanes
        except MqbridgeError as error:
            self.ended = error
            self._on_lane(error)  # there may be no lane yet to raise it
            self._wake_lanes()

    async def _watch(self) -> None:
        """End the lanes as soon as the queue is no longer ours, even while the reading task waits."""
        await self.assigned.over.wait()
        self._wake_lanes()
        await cancel(self._reading)

    def _wake_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.wake()

    async def _skip_gap(self, gap: GapError) -> None:
        """Continue behind the lost messages once all before them is stored, because seeking commits."""
        while self._portions:
            self._all_done.clear()
            await self._all_done.wait()
        after = self.assigned.end_offset if gap.resume is None else gap.resume[0]
        log.error("messages that were sent back are lost, continuing at offset %d: %s", after, gap)
        await self.assigned.seek(after)

    async def _divide(self, pulled: PulledRecords) -> None:
        records, run = pulled.records, self.assigned.state.run
        end = {record.queue_offset: after.queue_offset for record, after in pairwise(records)}
        counted = pulled.size
        for topic, group in groupby(records, topic_of):
            part = list(group)
            size = sum(len(record.body) for record in part)
            portion = Portion(part, end.get(part[-1].queue_offset, pulled.next), size, counted, run)
            counted = 0
            self._portions.append(portion)
            if topic is not None and topic in self._topics:
                self._waiting_bytes += portion.held_bytes
                self._lane(topic).put(portion)
            else:
                for record in part:
                    await self._send_back_again(record)
                self.release_budget(portion)
                self.done(portion)
        if not records:
            self.assigned.release_budget(counted)
            self._commit(pulled.next)

    async def _send_back_again(self, record: Record) -> None:
        """Send back a message of another member's topic, with as many attempts as needed."""
        while True:
            try:
                await self._send_back(record)
            except (ClusterError, ProtocolError) as error:
                delay = self._backoff.delay()
                log.warning("%s could not be sent back, retrying in %.1f s: %s", record, delay, error)
                await asyncio.sleep(delay)
            else:
                self._backoff.reset()
                return

    def _lane(self, topic: str) -> RetryLane:
        lane = self._lanes.get(topic)
        if lane is None:
            queue = self.assigned.queue
            partition = Partition(self._cluster, topic, f"{queue.topic}:{queue.broker}:{queue.id}", 0)
            lane = self._lanes[topic] = RetryLane(partition, self)
            self._on_lane(lane)
        return lane

    def taken(self, portion: Portion) -> None:
        """A lane delivered it."""
        self._waiting_bytes -= portion.held_bytes
        self._room.set()

    def release_budget(self, portion: Portion) -> None:
        """Release its bytes from the budget: another account holds them, or none."""
        if portion.counted:
            self.assigned.release_budget(portion.counted)
            portion.counted = 0

    def put_back(self, portion: Portion) -> None:
        """A lane will deliver it again."""
        self._waiting_bytes += portion.held_bytes

    def done(self, portion: Portion) -> None:
        """All its messages are stored."""
        portion.done = True
        while self._portions and self._portions[0].done:
            reached = self._portions.popleft()
            self.assigned.commit(reached.next, reached.run)  # no effect for a run before an administrator's reset
        if not self._portions:
            self._all_done.set()

    def _commit(self, offset: int) -> None:
        if not self._portions:
            self.assigned.commit(offset)

    async def release(self, deadline: float | None = None) -> None:
        """Release the queue."""
        await self.assigned.release(deadline)
        await cancel(self._watching, self._reading)
