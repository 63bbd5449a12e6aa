"""Lanes and range readers with pulls that a real Broker returns only rarely."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.message import Partition
from mqbridge.rocketmq.adapter import range_reader
from mqbridge.rocketmq.adapter.lane import RocketMQLane, make_batch
from mqbridge.rocketmq.adapter.range_reader import RangeReader
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.compression import compress
from mqbridge.rocketmq.wire.record import Record, SysFlag, encode_record

QUEUE = Queue("T", "broker-a", 0)
PARTITION = Partition("c", "T", "broker-a:0", 0)
WANTED = frozenset({"wanted"})

pytestmark = pytest.mark.usefixtures("both_ways")


def pulled(*offsets: int, tag: str = "wanted", tags: frozenset[str] = frozenset()) -> PulledRecords:
    """Return a pull with messages at these offsets; the first is the offset that was requested."""
    stored = properties.encode([("TAGS", tag)])
    body = b"".join(encode_record(Record("T", b"x", stored, queue_offset=offset)) for offset in offsets)
    return PulledRecords(QUEUE, body, offsets[0], offsets[-1] + 1, tags)


class FakeAssignedQueue:
    """An assigned queue with these pulls, which records commits."""

    def __init__(self, *pulls: PulledRecords) -> None:
        self.waiting = deque(pulls)
        self.state = SimpleNamespace(run=1)
        self.ended, self.releasing, self.revoked = asyncio.Event(), asyncio.Event(), False
        self.committed: list[int] = []
        self.rewound: list[int] = []
        self.holds_budget = False

    def release_budget(self, size: int) -> None:
        pass

    def take(self) -> PulledRecords | None:
        return self.waiting.popleft() if self.waiting else None

    async def receive(self) -> PulledRecords:
        while not self.waiting:
            await asyncio.sleep(0)
        return self.waiting.popleft()

    def commit(self, offset: int, run: int | None = None) -> None:
        if run is None or run == self.state.run:
            self.committed.append(offset)

    def rewind(self, offset: int, run: int | None = None) -> bool:
        self.rewound.append(offset)
        return True

    @property
    def acknowledged(self) -> int:
        return max(self.committed, default=0)


async def test_a_range_ends_at_a_hole_that_extends_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction removed the offsets 2 to 19. The pull after this hole arrives while the first batch is processed."""
    assigned = FakeAssignedQueue(pulled(0, 1))

    async def join(*_: Any) -> Any:
        return SimpleNamespace(held={QUEUE: assigned}, close=lambda: asyncio.sleep(0))

    async def next_(_: Queue) -> int:
        return 30

    monkeypatch.setattr(range_reader, "join", join)
    client: Any = SimpleNamespace(positions=SimpleNamespace(next=next_))
    found: list[int] = []
    reader = RangeReader(client, PARTITION, QUEUE, (0,), (10,), 1 << 20)
    await reader.open()
    while (batch := await reader.receive()) is not None:
        found += [message.position[0] for message in batch.messages]
        assigned.waiting.append(pulled(20))
    assert found == [0, 1]


async def test_filtered_messages_are_committed_after_a_reset_too() -> None:
    """A batch that is in flight at the reset must not delay the commit: its acknowledgement has no effect any more."""
    assigned = FakeAssignedQueue(pulled(0, tags=WANTED))
    lane = RocketMQLane(PARTITION, assigned)  # type: ignore[arg-type]
    batch = await lane.receive()
    assigned.state.run = 2
    assigned.committed.append(5)
    lane.acknowledge(batch)
    assigned.waiting += [pulled(5, tag="other", tags=WANTED)]
    receiving = asyncio.ensure_future(lane.receive())
    while assigned.waiting:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assigned.waiting += [pulled(6, tags=WANTED)]
    await receiving
    assert assigned.committed == [5, 6]


async def test_filtered_messages_are_not_committed_before_a_batch_in_flight() -> None:
    assigned = FakeAssignedQueue(pulled(0, tags=WANTED))
    lane = RocketMQLane(PARTITION, assigned)  # type: ignore[arg-type]
    batch = await lane.receive()
    assigned.waiting += [pulled(1, tag="other", tags=WANTED)]
    receiving = asyncio.ensure_future(lane.receive())
    while assigned.waiting:
        await asyncio.sleep(0)
    assert assigned.committed == []
    assigned.waiting += [pulled(2, tags=WANTED)]
    await receiving
    lane.acknowledge(batch)
    assert assigned.committed == [1]


async def test_the_offset_of_a_message_is_committed_if_offsets_have_holes() -> None:
    """Of the offsets 3, 4, 7 and 9 the group has acknowledged the first ones."""
    assigned = FakeAssignedQueue(pulled(3, 4, 7, 9))
    lane = RocketMQLane(PARTITION, assigned)  # type: ignore[arg-type]
    batch = await lane.receive()
    for count in range(5):
        lane.acknowledge(batch, range(count))
    assert assigned.committed == [4, 7, 9, 10]


async def test_a_rejected_batch_comes_again_from_the_first_message_that_is_not_acknowledged() -> None:
    assigned = FakeAssignedQueue(pulled(3, 4, 7, 9), pulled(10))
    lane = RocketMQLane(PARTITION, assigned)  # type: ignore[arg-type]
    batch = await lane.receive()
    lane.acknowledge(batch, range(2))
    lane.reject(batch)
    assert assigned.rewound == [7]
    lane.acknowledge(batch)
    lane.reject(batch)
    assert assigned.rewound == [7], "everything is acknowledged"


def test_the_messages_of_a_pull_take_the_place_of_its_bytes() -> None:
    """They are not in memory twice: they refer to the received bytes, or these are dropped."""
    batch = make_batch(PARTITION, [pulled(3, 4)], 1)
    assert batch is not None
    size = batch.held_bytes
    assert batch.keep_messages() == size
    assert (batch.data, batch.has_units) == (None, False)
    assert [message.payload for message in batch.messages] == [b"x", b"x"]
    lane = RocketMQLane(PARTITION, FakeAssignedQueue())  # type: ignore[arg-type]
    lane.acknowledge(batch, range(1))
    lane.acknowledge(batch)
    assert lane._assigned.committed == [4, 5]  # type: ignore[attr-defined]


def test_messages_that_were_decompressed_count_beside_the_received_bytes() -> None:
    record = Record("T", compress(0, bytes(5000)), sys_flag=SysFlag.COMPRESSED, queue_offset=0)
    batch = make_batch(PARTITION, [PulledRecords(QUEUE, encode_record(record), 0, 1)], 1)
    assert batch is not None
    assert batch.held_bytes < 1000
    assert batch.keep_messages() == batch.held_bytes + 5000
