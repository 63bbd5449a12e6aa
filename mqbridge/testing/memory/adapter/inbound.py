"""Inbound of a memory cluster.

A lane reads its partition from an offset on. Rejected batches wait in a queue of the lane and are redelivered first.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import groupby

from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, GapError, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.net.budget import Budget
from mqbridge.net.read_ahead import ReadAheadAccount
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import Broker, Progress


class MemoryInbound:
    """An inbound: one member of a consumer group."""

    def __init__(self, broker: Broker, cluster: str, config: MemoryConfig, spec: InboundSpec) -> None:
        self.topics, self.name = spec.topics, spec.member or "member"
        self.broker, self.config, self.spec = broker, config, spec
        self.individual_ack = config.individual_ack
        self._initial_partitions = {topic: self._count_initial_partitions(topic) for topic in spec.topics}
        """Number of partitions of each topic that are not new to the group; new ones are read from their beginning."""
        self.read_budget = Budget(spec.max_bytes)
        self._cluster = cluster
        self._lanes: dict[tuple[str, int], MemoryLane] = {}
        self._new_lanes: asyncio.Queue[MemoryLane | ClusterError | None] = asyncio.Queue()
        """Lanes that `lanes` yields next; an error or None ends it."""

    async def lanes(self) -> AsyncIterator["MemoryLane"]:
        """Yield the lanes as they are assigned, until `close`. Raises the error given to `fail`."""
        while (lane := await self._new_lanes.get()) is not None:
            if isinstance(lane, ClusterError):
                raise lane
            if not lane.revoked.is_set():
                yield lane

    async def close(self, deadline: float | None = None) -> None:
        """Leave the group; `deadline` is not used: this takes no time."""
        for lane in list(self._lanes.values()):
            self.revoke(lane.partition.topic, lane.partition.index)
        self.broker.leave(self.spec.group, self)
        self._new_lanes.put_nowait(None)

    def assign(self, topic: str, number: int) -> None:
        """Open a lane for a newly assigned partition, at the group's committed offset; without one, where `_start_of` says."""
        stored = self.broker.topics[topic][number]
        begin = stored.next if self._start_of(topic, number) is Start.LATEST else stored.first
        progress = self.broker.progress.setdefault((self.spec.group, topic, number), Progress(begin))
        lane = self._lanes[topic, number] = MemoryLane(self, Partition(self._cluster, topic, str(number), number), progress)
        self._new_lanes.put_nowait(lane)

    def _start_of(self, topic: str, number: int) -> Start:
        """Return where the group starts in a partition: as in the spec, but EARLIEST in one added to a topic that it reads."""
        return Start.EARLIEST if number >= self._initial_partitions[topic] else self.spec.start_of(topic, str(number))

    def _count_initial_partitions(self, topic: str) -> int:
        """Return the number of partitions that the group already reads; all present ones if it does not read the topic yet."""
        numbers = [
            number for group, read_topic, number in self.broker.progress if (group, read_topic) == (self.spec.group, topic)
        ]
        return max(numbers, default=len(self.broker.topics[topic]) - 1) + 1

    def revoke(self, topic: str, number: int) -> None:
        """End the lane of a partition, if it is assigned to this member."""
        if (lane := self._lanes.pop((topic, number), None)) is not None:
            lane.end()

    def keeps(self, topic: str, number: int) -> bool:
        """Announce to the lane that its partition is wanted; True until it is released, or `release_wait_s` has passed."""
        lane, wait_s = self._lanes.get((topic, number)), self.spec.release_wait_s
        if lane is None or not wait_s:
            return False
        if not lane.releasing.is_set():
            lane.releasing.set()
            asyncio.get_running_loop().call_later(wait_s, lane.give_up)
        return True

    def fail(self, error: ClusterError) -> None:
        """End `lanes` with this error."""
        self._new_lanes.put_nowait(error)


class MemoryLane:
    """One partition while it is assigned to this member.

    With individual acknowledgement, a reject redelivers only the messages of the batch, and their `delivery_count` increases.
    Without it, a reject or a seek starts a new run of deliveries: all messages from its start offset on are delivered again. So
    a batch of an earlier run can be acknowledged only if it ends at or before that offset. The handle of a batch is its run.
    """

    def __init__(self, inbound: MemoryInbound, partition: Partition, progress: Progress) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        self.releasing = asyncio.Event()
        self._inbound, self._progress = inbound, progress
        self._read_ahead = ReadAheadAccount(inbound.read_budget, self.revoked)
        self._stored = inbound.broker.topics[partition.topic][partition.index]
        self._next = self._run_start = progress.committed
        """Offset of the next message to receive, and start offset of the current run."""
        self._run = 0
        """Number of the current run of deliveries."""
        self._redeliveries: deque[Batch] = deque()
        """Rejected batches, which are returned before new messages (with individual acknowledgement)."""
        self._caught_up = False
        self._wake = asyncio.Event()
        """Set when messages are stored or redelivered, after a seek, and when the lane ends."""
        self._stored.readers.add(self._wake)

    @property
    def caught_up(self) -> bool:
        """True if the last read found no message, or returned the last one."""
        return self._caught_up

    async def confirm_caught_up(self) -> bool:
        """Return True if nothing was stored or is to be redelivered since the last read."""
        return self._caught_up and not self._wake.is_set()

    async def receive(self) -> Batch:
        """Return the next batch; waits for new messages and for read-ahead budget. Raises LaneRevoked, GapError."""
        return await self._read_ahead.receive(self._receive())

    @property
    def held_bytes(self) -> int:
        """Bytes of the last returned batch, until it is acknowledged or rejected, or `receive` is called again.

        The gateway calls `receive` again only after its own budget has counted them.
        """
        return self._read_ahead.held_bytes

    async def _receive(self) -> Batch:
        """Wait for a batch, and for read-ahead budget of its size. The batch is made again after each wait."""
        while True:
            if delay := self._inbound.broker.faults.receive_delay_s:
                await asyncio.sleep(delay)
            if self.revoked.is_set():
                raise LaneRevoked(f"partition {self.partition} was released, or may now belong to another member of the group")
            if self.releasing.is_set():  # no more messages: the partition is given up soon
                await self.revoked.wait()
                continue
            if not self._redeliveries and self._next < self._stored.first:
                first = self._stored.first
                raise GapError(f"{self.partition}: offsets {self._next} to {first - 1} were deleted; seek to {first}", (first,))
            batch = self._redeliveries[0] if self._redeliveries else self._peek_batch()
            if batch is None:
                self._read_ahead.release()
                self._wake.clear()
                await self._wake.wait()
            elif (missing_bytes := batch.held_bytes - self._read_ahead.held_bytes) > 0:
                del batch  # free the memory before waiting for its budget
                await self._read_ahead.reserve(missing_bytes)
            else:
                return self._advance(batch)

    def _advance(self, batch: Batch) -> Batch:
        """Continue after this batch, which is returned to the caller of `receive`."""
        if self._redeliveries:
            self._redeliveries.popleft()
        else:
            (self._next,) = batch.next
        self._read_ahead.record_batch(batch.held_bytes, batch.next)
        return batch

    def _peek_batch(self) -> Batch | None:
        """Return a batch of the next unacknowledged messages, None at the end; `_advance` continues after it."""
        # Acknowledgements may have moved `committed` beyond the next offset; their ranges are then no longer stored.
        self._next = max(self._next, self._progress.committed)
        while (range_end := self._progress.acknowledged_ranges.get(self._next)) is not None:
            self._next = range_end
        first, stored = self._next, self._stored
        end = min(
            [
                first + self._inbound.config.batch_messages,
                stored.next,
                *(range_first for range_first in self._progress.acknowledged_ranges if range_first > first),
            ]
        )
        self._caught_up = end >= stored.next
        if end <= first:
            return None
        return self._make_batch(stored.messages[first - stored.first : end - stored.first], first, end)

    def _make_batch(self, messages: list[Message], first: int, end: int) -> Batch:
        return make_batch(self.partition, messages, first, end, self._run)

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Mark a batch, or the messages at `indexes`, as acknowledged: a `range(n)` without individual acknowledgement.

        Ignored after the lane has ended, and for batches of earlier runs that no longer count. `receipt` is not used.
        """
        if indexes is None:
            self._read_ahead.release_batch(batch.next)
        (first,) = batch.first
        (end,) = batch.next if indexes is None or self._inbound.individual_ack else (first + len(indexes),)
        is_current_run = batch.handle == self._run
        if self.revoked.is_set() or not (is_current_run or (end <= self._run_start and not self._inbound.individual_ack)):
            return
        if not self._inbound.individual_ack:
            self._progress.committed = max(self._progress.committed, end)
            return
        for offset in range(first, end) if indexes is None else [first + index for index in indexes]:
            self._progress.acknowledge(offset, offset + 1)

    def counted(self, batch: Batch) -> None:
        """Release the bytes of the batch from the read-ahead budget."""
        self._read_ahead.release_batch(batch.next)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Redeliver a batch after the delay; without individual acknowledgement, also all messages after it.

        Does nothing for a batch of an earlier run, if the current run delivers it anyway or started by a seek. `failures` is not
        used.
        """
        self._read_ahead.release_batch(batch.next)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self.reject, batch, failures)
        elif self.revoked.is_set():
            return
        elif not self._inbound.individual_ack:
            if batch.handle == self._run or batch.first[0] <= self._run_start:
                self._restart(max(batch.first[0], min(self._progress.committed, batch.next[0])))
        elif batch.handle == self._run:
            self._redeliveries += self._unacknowledged_batches(batch)
            self._wake.set()

    def _unacknowledged_batches(self, batch: Batch) -> list[Batch]:
        """Return the unacknowledged messages, with increased `delivery_count`, as one batch per range of adjacent offsets."""
        (first,), messages = batch.first, batch.messages
        unacknowledged = [index for index in range(batch.count) if not self._progress.covers(first + index)]
        # Adjacent indexes have the same distance to their index in the list.
        ranges = [list(range_) for _, range_ in groupby(unacknowledged, key=lambda index: index - unacknowledged.index(index))]
        return [
            self._make_batch(
                [messages[index].replace(delivery_count=messages[index].delivery_count + 1) for index in range_],
                first + range_[0],
                first + range_[-1] + 1,
            )
            for range_ in ranges
        ]

    async def seek(self, position: Position) -> None:
        """Continue from this offset, and commit it."""
        if self.revoked.is_set():
            raise LaneRevoked(
                f"cannot seek in {self.partition}: it was released, or may now belong to another member of the group"
            )
        (offset,) = position
        self._restart(offset)
        self._run_start = -1  # below every offset: acknowledgements of batches received before the seek no longer count
        self._progress.committed = offset
        self._progress.acknowledged_ranges.clear()
        self._redeliveries.clear()

    def _restart(self, offset: int) -> None:
        """Start a new run of deliveries at this offset."""
        self._run += 1
        self._next = self._run_start = offset
        self._caught_up = False
        self._wake.set()

    def give_up(self) -> None:
        """Release the partition and assign it to the member that waits for it, unless the lane has ended."""
        if not self.revoked.is_set():
            self._release()
            self._inbound.broker.rebalance(self._inbound.spec.group)

    def end(self) -> None:
        """End the lane and wake its reader."""
        self.revoked.set()
        self.releasing.set()
        self._read_ahead.release()
        self._stored.readers.discard(self._wake)
        self._wake.set()

    async def release(self, deadline: float | None = None) -> None:
        """Release the partition; it is assigned again when the group's members or partitions change.

        If another member waits for it, it is assigned to this member at once.
        """
        if self.releasing.is_set():
            self.give_up()
        elif not self.revoked.is_set():
            self._release()

    def _release(self) -> None:
        topic, number = self.partition.topic, self.partition.index
        self._inbound.revoke(topic, number)
        self._inbound.broker.unassign(self._inbound.spec.group, topic, number)


def make_batch(partition: Partition, messages: list[Message], first: int, end: int, run: int = 0) -> Batch:
    """Make a batch of the messages at offsets from `first` to before `end`; `run` is the lane's run of deliveries."""
    size = sum(len(message.payload or b"") for message in messages)
    return Batch(partition, messages, count=end - first, size=size, first=(first,), next=(end,), handle=run)
