"""A cluster in memory whose outbounds fail as a script says, and that can crash with everything that is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import Failure
from mqbridge.memory.adapter.cluster import MemoryCluster
from mqbridge.memory.adapter.config import MemoryConfig
from mqbridge.memory.broker import forget
from mqbridge.message import Batch, Message, Partition, Position, Share
from mqbridge.spark.cluster_ref import ClusterRef
from tests.kit.virtual_time import VirtualTimeLoop

Action = Literal["store", "lose the answer", "fail", "crash", "crash behind it"]
BAD = b"bad"
SOURCE = Partition("there", "orders", "1", 1)


class FlakyCluster(MemoryCluster):
    """`script` has what happens to the next sends, those to dead letters among them; when it is over, all are stored."""

    def __init__(self, name: str, script: Sequence[Action] = (), **config: Any) -> None:
        super().__init__(name, MemoryConfig(**config))
        self.script = list(script)
        self.specs: list[OutboundSpec] = []
        self.opened: list[FlakyOutbound] = []
        self.sent: list[Share] = []
        self.crashed = asyncio.Event()
        self.broker.faults.refuse = _refuse

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """One that fails; a sender that is still open is kept out."""
        self.specs.append(spec)
        assert spec.sender is None or not any(one.spec.sender == spec.sender and one.is_open and one.spec.topic == spec.topic
                                              for one in self.opened)  # fmt: skip
        one = FlakyOutbound(self, await super().outbound(spec), spec)
        self.opened.append(one)
        return one

    def restart(self) -> None:
        """After a crash: what was open is gone."""
        self.crashed = asyncio.Event()
        self.opened = []

    def stored(self, topic: str) -> list[list[Message]]:
        """By partition."""
        return [stored.messages for stored in self.broker.topics[topic]]

    @asynccontextmanager
    async def find(self, ref: ClusterRef) -> AsyncIterator[MemoryCluster]:
        """As `Portal.cluster`."""
        assert ref.name == self.name
        yield self


def _refuse(message: Message) -> str | None:
    """Bad messages, but not as dead letters."""
    return "it is bad" if message.payload == BAD and message.property("mqbridge.dead.reason") is None else None


class FlakyOutbound:
    """Ordered: behind a send that failed, those to the same partition fail until the outbound is opened anew."""

    def __init__(self, cluster: FlakyCluster, inner: Outbound, spec: OutboundSpec) -> None:
        self.cluster, self.inner, self.spec = cluster, inner, spec
        self.is_open = True
        self._barred: set[int] = set()

    @property
    def formats(self) -> Collection[str]:
        return self.inner.formats

    @property
    def partitions(self) -> int:
        return self.inner.partitions

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        self.cluster.sent.append(share)
        never: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if self.cluster.crashed.is_set():
            return never
        failed = Receipt(failures=[MessageFailure(index, Failure.RETRY, "lost") for index in range(share.count)])
        if partition in self._barred:
            never.set_result(failed)
            return never
        action = self.cluster.script.pop(0) if self.cluster.script else "store"
        if action == "crash":
            self.cluster.crashed.set()
            return never
        if action == "fail":
            self._barred.add(partition)
            never.set_result(failed)
            return never
        future = self.inner.send(partition, share)
        if action == "lose the answer":
            self._barred.add(partition)
            future.add_done_callback(lambda _: never.set_result(failed))
            return never
        if action == "crash behind it":
            future.add_done_callback(lambda _: self.cluster.crashed.set())
            return never
        return future

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
    """Message `number` of the source."""
    return Message(b"%d" % number if payload is None else payload, position=(number,), **fields)


def batch(messages: Sequence[Message], source: Partition = SOURCE) -> Batch:
    """A batch that decodes when it is asked to, and can forget."""
    first = messages[0].position if messages else ()
    behind = (*messages[-1].position[:-1], messages[-1].position[-1] + 1) if messages[-1].position else ()
    return Batch(source, lambda: messages, count=len(messages), size=100 * len(messages), first=first, next=behind)


async def iterate(batches: Sequence[Batch]) -> AsyncIterator[Batch]:
    """As a range is read."""
    for one in batches:
        await asyncio.sleep(0)
        yield one


def conversation(run: Callable[[], Awaitable[None]]) -> None:
    """Run it in virtual time, on brokers that are forgotten afterwards."""

    async def whole() -> None:
        try:
            await run()
        finally:
            for name in ("here", "other"):
                forget(name)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(whole())
