"""Clients of one system for a test: opened by the test, closed after it, and checked for leaks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec, Start
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import PartitionReader
from mqbridge.adapter.receipt import Receipt
from mqbridge.message import Batch, Message, Partition, Position, Share
from tests.conformance.harness import Harness

T = TypeVar("T")

SOURCE = Partition("here", "a|topic%", "p:0", 0)
"""The origin of the suite's messages."""


def numbered(begin: int, end: int) -> list[Message]:
    """Make small numbered messages, with the positions that they would have in a source."""
    return [Message(b"%06d" % number, position=(number,)) for number in range(begin, end)]


def numbers(messages: Sequence[Message]) -> list[int]:
    """Return the numbers of messages that `numbered` made."""
    return [int(message.payload or b"-1") for message in messages]


class Arena:
    """Opens clients of the system under test, with timeouts; `close` closes all of them."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def within(self, awaitable: Awaitable[T]) -> T:
        """Await with the timeout of the system."""
        async with asyncio.timeout(self.harness.patience_s):
            return await awaitable

    async def until(self, condition: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(self.harness.patience_s):
            while not await condition():
                await asyncio.sleep(0.02)

    async def cluster(self) -> Cluster:
        cluster = self.harness.cluster()
        self._closers.append(cluster.close)
        await self.within(cluster.connect())
        return cluster

    async def topic(self, cluster: Cluster, partitions: int = 1) -> str:
        return await self.within(self.harness.topic(cluster, partitions))

    async def inbound(self, cluster: Cluster, topic: str, group: str, start: Start = Start.EARLIEST) -> Inbound:
        inbound = await self.within(cluster.inbound(InboundSpec((topic,), group, start, options=self.harness.inbound_options)))
        self._closers.append(inbound.close)
        return inbound

    async def open(self, joining: Awaitable[Inbound]) -> Inbound:
        """Await a join with other settings than `inbound` has, and close the inbound at the end."""
        inbound = await self.within(joining)
        self._closers.append(inbound.close)
        return inbound

    async def outbound(
        self,
        cluster: Cluster,
        topic: str,
        *,
        stamp_origin: bool = True,
        sender: str | None = None,
        writer: str | None = None,
        whole_shares: bool = False,
        keep_units: bool = False,
        options: BaseModel | None = None,
    ) -> Outbound:
        spec = OutboundSpec(
            topic,
            stamp_origin=stamp_origin,
            sender=sender,
            writer=writer,
            whole_shares=whole_shares,
            keep_units=keep_units,
            options=options,
        )
        outbound = await self.within(cluster.outbound(spec))
        self._closers.append(outbound.close)
        return outbound

    async def reader(
        self, cluster: Cluster, topic: str, partition: str, begin: Position, end: Position | None = None
    ) -> PartitionReader:
        reader = await self.within(cluster.reader(topic, partition, begin, end))
        self._closers.append(reader.close)
        return reader

    async def send(self, outbound: Outbound, partition: int, messages: Sequence[Message]) -> Receipt:
        """Send messages, which must all be stored, and wait until bounds and groups include them."""
        receipt = await self.within(outbound.send(partition, Share(Batch.of(messages, SOURCE))))
        assert [(failure.index, failure.reason) for failure in receipt.failures] == []
        assert len(receipt.highest_position) > 0
        await self.within(self.harness.settle())
        return receipt

    def operations(self, cluster: Cluster) -> Operations:
        """Return the operations; skip the test if the system has none."""
        if cluster.operations is None:
            pytest.skip("the system has no operations on groups and topics")
        return cluster.operations

    async def lane(self, inbound: Inbound) -> InboundLane:
        return await self.within(anext(inbound.lanes()))

    async def receive(self, lane: InboundLane) -> Batch:
        """Receive a batch and check it against the contract. Its number of messages is up to the system."""
        batch = await self.within(lane.receive())
        assert batch.partition == lane.partition
        assert batch.count == len(batch.messages) > 0
        assert batch.size > 0 or all(not message.payload for message in batch.messages)
        positions = [message.position for message in batch.messages]
        assert positions[0] == batch.first
        assert positions == sorted(set(positions))
        assert positions[-1] < batch.next
        return batch

    async def take(self, lane: InboundLane, count: int, *, acknowledge: bool = True) -> tuple[list[Message], list[Batch]]:
        """Receive batches until this many messages arrived; acknowledge each at once, as some systems have one batch in
        flight."""
        messages: list[Message] = []
        batches: list[Batch] = []
        while len(messages) < count:
            batch = await self.receive(lane)
            if batches and not batch.messages[0].delivery_count:
                assert batch.first >= batches[-1].next
            messages += batch.messages
            batches.append(batch)
            if acknowledge:
                lane.acknowledge(batch)
        assert len(messages) == count, "more messages than were sent"
        return messages, batches

    async def close(self) -> None:
        """Close everything in the order that the contract requires: clusters last."""
        for closer in reversed(self._closers):
            await self.within(closer())
        self._closers.clear()


def fresh_group() -> str:
    return f"group-{uuid4().hex[:8]}"
