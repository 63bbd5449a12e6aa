"""What members of a group sent back: one retry queue holds messages of all the group's topics.

A retry queue is read here and divided among lanes, one per topic, made when its first message comes. The queue's offset moves
over a message only when it and all before it are stored, whichever lanes they went to.

Reading goes on as long as the queue is ours: what a Broker refuses to take back is offered again, and messages that retention has
deleted are passed over with an error in the log, since a lane of one topic cannot stop, or move, the queue of all. The lanes end
together, at once when the queue is taken away, and with the release of any of them.
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
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record

log = logging.getLogger(__name__)

FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
MAX_WAITING_BYTES = 8 << 20
"""Read ahead of the lanes, all of them together."""

SendBack = Callable[[Record], Awaitable[None]]
"""Sends a message back once more, so that it comes again later or ends in the group's dead letters."""


def topic_of(record: Record) -> str | None:
    """The topic that a message had before it was sent back."""
    return next((value for name, value in decode_properties(record.properties) if name == Name.RETRY_TOPIC), None)


class RetryQueue:
    """One retry queue while it is ours; hands every new lane to `found`, and what ends it for good."""

    def __init__(
        self,
        stream: QueueStream,
        cluster: str,
        topics: Iterable[str],
        found: Callable[[RetryLane | MqbridgeError], None],
        send_back: SendBack,
    ) -> None:
        self.stream = stream
        stream.lends = True
        self._cluster, self._topics, self._found, self._send_back = cluster, frozenset(topics), found, send_back
        self._lanes: dict[str, RetryLane] = {}
        self._portions: deque[Portion] = deque()
        """Read and not yet committed, in the queue's order."""
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._all_done = asyncio.Event()
        self._backoff = Backoff(FIRST_WAIT_S, MOST_WAIT_S)
        self.ended: MqbridgeError | None = None
        """What the lanes raise once nothing waits."""
        self._reading = spawn(self._read(), f"retries of {stream.queue}")
        self._watching = spawn(self._watch(), f"the end of retries of {stream.queue}")

    @property
    def over(self) -> asyncio.Event:
        """Set at once when the queue is taken away, lost or given back."""
        return self.stream.over

    @property
    def caught_up(self) -> bool:
        """Nothing more at the Broker, and nothing waits here."""
        return self.stream.caught_up and not self._waiting_bytes

    async def _read(self) -> None:
        try:
            while True:
                try:
                    pulled = await self.stream.receive()
                except GapError as gap:
                    await self._pass_over(gap)
                    continue
                await self._divide(pulled)
                while self._waiting_bytes >= MAX_WAITING_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except LaneRevoked:
            pass  # `_watch` tells the lanes
        except MqbridgeError as error:
            self.ended = error
            self._found(error)  # there may be no lane yet that could say so
            self._wake_lanes()

    async def _watch(self) -> None:
        """The lanes end as soon as the queue is not ours any more, whatever the reading task waits for."""
        await self.stream.over.wait()
        self._wake_lanes()
        await cancel(self._reading)

    def _wake_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.wake()

    async def _pass_over(self, gap: GapError) -> None:
        """Go on behind what is lost, once all before it is stored: moving commits."""
        while self._portions:
            self._all_done.clear()
            await self._all_done.wait()
        after = self.stream.end_offset if gap.resume is None else gap.resume[0]
        log.error("messages that were sent back are lost, reading goes on at offset %d: %s", after, gap)
        await self.stream.seek(after)

    async def _divide(self, pulled: Pulled) -> None:
        records, run = pulled.records, self.stream.state.run
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
                    await self._give_away(record)
                self.give_back(portion)
                self.done(portion)
        if not records:
            self.stream.give_back(counted)
            self._commit(pulled.next)

    async def _give_away(self, record: Record) -> None:
        """Send back what another member may want, as often as it takes."""
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
            queue = self.stream.queue
            partition = Partition(self._cluster, topic, f"{queue.topic}:{queue.broker}:{queue.id}", 0)
            lane = self._lanes[topic] = RetryLane(partition, self)
            self._found(lane)
        return lane

    def taken(self, portion: Portion) -> None:
        """A lane handed it out."""
        self._waiting_bytes -= portion.held_bytes
        self._room.set()

    def give_back(self, portion: Portion) -> None:
        """It is on somebody else's account, or nobody's."""
        if portion.counted:
            self.stream.give_back(portion.counted)
            portion.counted = 0

    def put_back(self, portion: Portion) -> None:
        """A lane will hand it out again."""
        self._waiting_bytes += portion.held_bytes

    def done(self, portion: Portion) -> None:
        """All of it is stored."""
        portion.done = True
        while self._portions and self._portions[0].done:
            reached = self._portions.popleft()
            self.stream.commit(reached.next, reached.run)  # of a run before an administrator's reset it counts no more
        if not self._portions:
            self._all_done.set()

    def _commit(self, offset: int) -> None:
        if not self._portions:
            self.stream.commit(offset)

    async def release(self, deadline: float | None = None) -> None:
        """Give the queue back."""
        await self.stream.release(deadline)
        await cancel(self._watching, self._reading)
