"""An in-memory cluster whose sends fail according to a script, and whose clients can crash with everything that is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Partition, Position, Share
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker
from tests.kit.virtual_time import VirtualTimeLoop

Action = Literal["store", "lose the response", "fail", "crash before storing", "crash after storing"]
"""What happens to one send."""
BAD = b"bad"
SOURCE = Partition("there", "orders", "1", 1)


class FlakyCluster(MemoryCluster):
    """`script` has the actions for the next sends, also for those to the dead-letter topic. All later sends are stored."""

    def __init__(self, name: str, script: Sequence[Action] = (), **config: Any) -> None:
        super().__init__(name, MemoryConfig(**config))
        self.script = list(script)
        self.specs: list[OutboundSpec] = []
        self.opened: list[FlakyOutbound] = []
        self.sent: list[Share] = []
        self.crashed = asyncio.Event()
        self.broker.faults.refuse = _refuse

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open an outbound that follows the script. Asserts that no other outbound of this sender and topic is open."""
        self.specs.append(spec)
        assert spec.sender is None or not any(
            other.spec.sender == spec.sender and other.is_open and other.spec.topic == spec.topic for other in self.opened
        )
        outbound = FlakyOutbound(self, await super().outbound(spec), spec)
        self.opened.append(outbound)
        return outbound

    def restart(self) -> None:
        """Begin anew after a crash, without the outbounds that were open."""
        self.crashed = asyncio.Event()
        self.opened = []

    def stored(self, topic: str) -> list[list[Message]]:
        """Return the stored messages of each partition."""
        return [partition.messages for partition in self.broker.topics[topic]]

    @asynccontextmanager
    async def find(self, ref: ClusterRef) -> AsyncIterator[MemoryCluster]:
        """Replace `BackgroundLoop.cluster`."""
        assert ref.name == self.name
        yield self


def _refuse(message: Message) -> str | None:
    """Refuse bad messages, except as dead letters."""
    return "it is bad" if message.payload == BAD and message.property("mqbridge.dead.reason") is None else None


class FlakyOutbound:
    """Keeps the order: after a failed send, all sends to the same partition fail until the outbound is reopened."""

    def __init__(self, cluster: FlakyCluster, inner: Outbound, spec: OutboundSpec) -> None:
        self.cluster, self.inner, self.spec = cluster, inner, spec
        self.is_open = True
        self._failed_partitions: set[int] = set()

    @property
    def formats(self) -> Collection[str]:
        return self.inner.formats

    @property
    def partitions(self) -> int:
        return self.inner.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        self.cluster.sent.append(share)
        unanswered: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.cluster.crashed.is_set():
            return unanswered
        failed = Receipt(failures=[MessageFailure(index, Failure.RETRY, "lost") for index in range(share.count)])
        if partition in self._failed_partitions:
            unanswered.set_result(failed)
            return unanswered
        action = self.cluster.script.pop(0) if self.cluster.script else "store"
        if action == "crash before storing":
            self.cluster.crashed.set()
            return unanswered
        if action == "fail":
            self._failed_partitions.add(partition)
            unanswered.set_result(failed)
            return unanswered
        stored = self.inner.send(partition, share)
        if action == "lose the response":
            self._failed_partitions.add(partition)
            stored.add_done_callback(lambda _: unanswered.set_result(failed))
            return unanswered
        if action == "crash after storing":
            stored.add_done_callback(lambda _: self.cluster.crashed.set())
            return unanswered
        return stored

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        self.inner.withdraw(sends)

    def partition_of(self, key: bytes) -> int:
        return self.inner.partition_of(key)

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        assert self.spec.sender is not None
        return await self.inner.resume(source, since)

    async def close(self, deadline: float | None = None) -> None:
        self.is_open = False
        if not self.cluster.crashed.is_set():
            await self.inner.close(deadline)


def message(number: int, payload: bytes | None = None, **fields: Any) -> Message:
    """Return a message at position `number`."""
    return Message(b"%d" % number if payload is None else payload, position=(number,), **fields)


def batch(messages: Sequence[Message], source: Partition = SOURCE) -> Batch:
    """Return a batch that is decoded when its messages are first used."""
    first = messages[0].position if messages else ()
    next_position = (*messages[-1].position[:-1], messages[-1].position[-1] + 1) if messages[-1].position else ()
    return Batch(source, lambda: messages, count=len(messages), size=100 * len(messages), first=first, next=next_position)


async def iterate(batches: Sequence[Batch]) -> AsyncIterator[Batch]:
    """Yield the batches as reading a range does."""
    for each in batches:
        await asyncio.sleep(0)
        yield each


def run_in_virtual_time(run: Callable[[], Awaitable[None]]) -> None:
    """Run the coroutine in virtual time, and then discard its in-memory brokers."""

    async def run_and_forget() -> None:
        try:
            await run()
        finally:
            for name in ("here", "other"):
                delete_broker(name)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run_and_forget())
