"""Members of a group at the in-memory Broker: without a Master, and ended in any way."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqbridge.errors import ConnectionLost
from mqbridge.tubemq.client.consumer import held_partitions, read_history
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions, MemoryPositions, PositionStore, StartOffset
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from mqbridge.tubemq.wire.string_formats import PartitionRef
from tests.kit.conversation import until
from tests.tubemq.client.model import BROKER, Model
from tests.tubemq.client.quick import shorten_pauses

REF = PartitionRef(BROKER, "demo", 0)
KEY = ("g", "demo", 0)
ADDRESS = (BROKER.host, BROKER.port)
MESSAGES = 8
"""More than a pack of the model has."""


def send(model: Model, count: int) -> None:
    for _ in range(count):
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"x", flag=0))


class Member:
    """A member without a Master; its Broker heartbeats come every 3 ms."""

    def __init__(self, model: Model, positions: PositionStore | None = None) -> None:
        identity = MemberIdentity(model.masters(), "g", ["demo"], {})
        identity.client_id = f"c{id(self)}"
        self.held = HeldPartitions(
            identity,
            start=StartOffset.EARLIEST,
            heartbeat_s=0.003,
            budget=ReadBudget(GET_BYTES),
            offsets=None,
            positions=positions,
        )
        self.held.master_seen_at = asyncio.get_running_loop().time() + 1e6
        self.held.start_tasks()

    async def take(self) -> HeldPartition:
        return await self.held.acquire(REF)

    async def take_pack(self) -> HeldPartition:
        """Acquire the partition, and fetch a pack that is not confirmed."""
        partition = await self.take()
        await partition.fetch()
        return partition

    async def close(self, timeout: float = 5.0) -> None:
        self.held.close_deadline = asyncio.get_running_loop().time() + timeout
        await self.held.close()

    async def kill(self) -> None:
        """End without another request."""
        await held_partitions.cancel(*self.held._tasks, *self.held._restorations.values())


def shut_down(model: Model) -> None:
    """The Broker shuts down in order: it counts packs that are out as consumed, and cannot be reached."""
    model.broker.restart_cleanly()
    model.unreachable.add(ADDRESS)
    for connection in model.connections.values():
        connection.cut(ConnectionLost("the Broker is down"))


def come_back(model: Model) -> None:
    model.unreachable.discard(ADDRESS)


@asynccontextmanager
async def member(model: Model, positions: PositionStore | None = None) -> AsyncIterator[Member]:
    one = Member(model, positions)
    try:
        yield one
    finally:
        await one.kill()


async def first_offset(model: Model, positions: PositionStore | None = None) -> int:
    """Return the offset of the first pack that the next member gets."""
    model.broker.forget()  # the lease of a killed member has expired
    async with member(model, positions) as next_member:
        return (await (await next_member.take()).fetch()).offset


def filled_model() -> Model:
    """Return a Broker with MESSAGES messages in one partition."""
    model = Model({"demo": 1})
    send(model, MESSAGES)
    return model


def shorten_all_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses and retries short."""
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(held_partitions, "RESTORE_PAUSE_S", 0.001)


async def read_on(partition: HeldPartition) -> None:
    while True:
        await partition.fetch()
        partition.confirm()


# --- Brokers that are killed, and what was read before ---------------------------------------------------------------


def remember_every_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember each pack that is read, not one per interval."""
    monkeypatch.setattr(read_history, "SPACING_S", 0.0)
    monkeypatch.setattr(read_history, "TRACE_SPACING_S", 0.0)


async def read_to_end(partition: HeldPartition) -> list[int]:
    """Read and confirm until the store has no more; return the ids of the messages, in order of reading."""
    ids: list[int] = []

    async def read() -> None:
        while True:
            ids.extend(message.messageId for message in (await partition.fetch()).messages)
            partition.confirm()

    reading = asyncio.ensure_future(read())
    await until(lambda: (partition.caught_up and not partition._request_lock.locked()) or reading.done())
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    return ids


async def run(model: Model, positions: MemoryPositions) -> list[int]:
    """Return the ids that one member reads from its start to its orderly end."""
    async with member(model, positions) as one:
        ids = await read_to_end(await one.take())
        await one.close()
    return ids


def kill(model: Model, kept: int) -> None:
    """Kill the Broker, which keeps that many entries of the index."""
    model.broker.forget()
    model.broker.lose("demo", 0, kept)
    for connection in model.connections.values():
        connection.cut(ConnectionLost("the Broker was killed"))


def stored(model: Model) -> list[int]:
    return [entry.messageId for entry in model.broker.stored["demo", 0] if entry is not None]


@contextlib.contextmanager
def before_each(model: Model, method: int, function: Callable[[Any, int], None]) -> Iterator[None]:
    """Call `function(request, number)` before each request of this kind; the number counts from 1."""
    kind, handler = model.handlers[method]
    numbers = itertools.count(1)

    def handle(request: Any) -> Any:
        function(request, next(numbers))
        return handler(request)

    model.handlers[method] = kind, handle
    try:
        yield
    finally:
        model.handlers[method] = kind, handler
