"""A member of a group that reads, acknowledges, leaves and joins again, and records all of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.errors import ClusterError, GapError, LaneRevoked
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.message import Batch
from mqbridge.net.tasks import cancel, spawn
from tests.log.faults.history import Recorder
from tests.log.faults.messages import parse, topic_name, topic_number

RETRY_S = 0.05
"""Pause after an error of the log."""
STAY_S = (0.2, 1.0)
"""How long a member stays in its group before it joins again."""


class Member:
    """Reads all topics in a group."""

    def __init__(
        self, cluster: LogCluster, group: str, topics: Mapping[int, int], rng: random.Random, recorder: Recorder
    ) -> None:
        self._cluster, self._group, self._topics = cluster, group, topics
        self._rng, self._recorder = rng, recorder
        self._tasks: list[asyncio.Task[None]] = []
        self._inbound: Inbound | None = None
        self._lanes: set[asyncio.Task[None]] = set()
        self._committed: dict[tuple[int, int], int] = {}
        self.handled = 0
        """Number of batches that were received."""

    def start(self, *, rejoins: bool) -> None:
        """Join the group in the background."""
        self._tasks = [spawn(self._stay(rejoins=rejoins), "member"), spawn(self._watch(), "watch committed positions")]

    async def drain(self, seconds: float) -> None:
        """Read until everything is committed or the time is over, then leave the group."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not await self._is_drained():
            await asyncio.sleep(0.02)
        await cancel(*self._tasks)
        await self._leave()
        await self._record_committed()

    async def _is_drained(self) -> bool:
        """Return True if the group has committed all messages."""
        try:
            for topic in self._topics:
                committed = await self._cluster.committed(topic_name(topic), self._group)
                bounds = await self._cluster.bounds(topic_name(topic))
                if any(committed.get(name, (0,)) < bound.next for name, bound in bounds.items()):
                    return False
        except ClusterError as error:
            self._recorder.record("said", f"committed: {error}")
            return False
        return True

    async def _stay(self, *, rejoins: bool) -> None:
        while True:
            try:
                spec = InboundSpec(tuple(map(topic_name, self._topics)), self._group)
                self._inbound = await self._cluster.inbound(spec)
                self._recorder.record("join")
                async with asyncio.timeout(self._rng.uniform(*STAY_S) if rejoins else None):
                    async for lane in self._inbound.lanes():
                        task = spawn(self._read(lane), "lane")
                        self._lanes.add(task)
                        task.add_done_callback(self._lanes.discard)
            except TimeoutError:
                pass
            except ClusterError as error:
                self._recorder.record("said", f"member: {error}")
                await asyncio.sleep(RETRY_S)
            await self._leave()

    async def _leave(self) -> None:
        await cancel(*self._lanes)
        if self._inbound is not None:
            inbound, self._inbound = self._inbound, None
            await inbound.close(asyncio.get_running_loop().time() + 5)

    async def _read(self, lane: InboundLane) -> None:
        topic, partition = topic_number(lane.partition.topic), int(lane.partition.name)
        position = 0
        while True:
            try:
                batch = await lane.receive()
                position = batch.next[0]
                self._record_batch(topic, partition, batch)
                if self._rng.random() < 0.3:
                    await asyncio.sleep(self._rng.uniform(0, 0.01))
                if not lane.revoked.is_set():
                    self._recorder.record("acknowledge", self._group, topic, partition, position)
                    lane.acknowledge(batch)
            except LaneRevoked:
                return
            except GapError as error:
                resume = error.resume[0] if error.resume else None
                self._recorder.record("gap", self._group, topic, partition, position, resume or position, str(error))
                if resume is None:
                    return
                self._recorder.record("acknowledge", self._group, topic, partition, resume)
                position = resume
                try:
                    await lane.seek((resume,))
                except LaneRevoked:
                    return
            except ClusterError as error:
                self._recorder.record("said", f"receive: {error}")
                await asyncio.sleep(RETRY_S)

    def _record_batch(self, topic: int, partition: int, batch: Batch) -> None:
        self.handled += 1
        numbers = []
        for message in batch.messages:
            id_ = parse(message.payload)
            if id_ is None or (id_.topic, id_.partition) != (topic, partition):
                self._recorder.record("problem", f"wrong message: group {self._group} received a payload that is {id_}")
            numbers.append((0, 0) if id_ is None else (id_.writer, id_.number))
        self._recorder.record("delivered", self._group, topic, partition, batch.first[0], numbers)

    async def _watch(self) -> None:
        while True:
            await self._record_committed()
            await asyncio.sleep(0.03)

    async def _record_committed(self) -> None:
        """Record the group's committed positions that changed."""
        for topic in self._topics:
            begin_ns = time.monotonic_ns()
            try:
                positions = await self._cluster.committed(topic_name(topic), self._group)
            except ClusterError as error:
                self._recorder.record("said", f"committed: {error}")
                continue
            for name, (position,) in positions.items():
                key = topic, int(name)
                if self._committed.get(key) != position:
                    self._committed[key] = position
                    self._recorder.record("committed", begin_ns, self._group, topic, int(name), position)
