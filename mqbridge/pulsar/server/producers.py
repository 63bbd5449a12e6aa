"""The producers of one partition: their names are unique, and one of them may have the partition for itself.

    SHARED      any number of producers
    EXCLUSIVE   one producer; others are refused, or wait for it to go

A name is taken as long as its connection lives. The connection of a client that is gone without a word looks alive: it is asked,
and closed if it does not answer, so that a client that comes back gets its name.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from mqbridge.errors import RefusalReason, RequestRefused
from mqbridge.pulsar.server.producer import ServedProducer, ServedProducerState
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import ProducerAccessMode

MAX_PRODUCERS = 10_000
"""Maximum number of producers of a partition."""
MAX_EPOCH = 1 << 62
"""Largest topic epoch that a client may name: the next one has to be a number of the protocol, too."""


class ProducerFenced(RequestRefused):
    """Another producer has the partition for itself."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, RefusalReason.BUSY)


class PartitionProducers:
    """See the module."""

    def __init__(self, topic_epoch: int) -> None:
        """`topic_epoch` is that of the last producer which had the partition for itself, see `topic_epochs`."""
        self.by_name: dict[str, ServedProducer] = {}
        """The producers that are open, or being opened, by name."""
        self.users = 0
        """Number of producers that are open, wait, or are being opened; its owner counts them."""
        self.topic_epoch = topic_epoch
        """Number of times that a producer has got the partition for itself, from 0; one that comes back names its own."""
        self._exclusive: ServedProducer | None = None
        self._waiting: OrderedDict[ServedProducer, asyncio.Future[None]] = OrderedDict()
        """Producers that wait for the partition, in the order in which they came."""

    async def add(
        self,
        producer: ServedProducer,
        is_alive: Callable[[ServedProducer], Awaitable[bool]],
        close: Callable[[ServedProducer], None],
    ) -> bool:
        """Register a producer; return False if it has to wait (see `wait`). Raises RequestRefused.

        `is_alive` finds out if the connection of another producer lives, and `close` closes a producer.
        """
        await self._get_name(producer, is_alive, close)
        if producer.state is ServedProducerState.CLOSED:
            raise RequestRefused("the producer was closed while it was opened", RefusalReason.NOT_READY)
        if producer.topic_epoch is not None and producer.topic_epoch > MAX_EPOCH:
            raise RequestRefused(f"the topic epoch {producer.topic_epoch} is not one of this listener", RefusalReason.NOT_ALLOWED)
        if producer.topic_epoch is not None and producer.topic_epoch < self.topic_epoch:
            raise ProducerFenced("another producer has got the topic since")
        if len(self.by_name) + len(self._waiting) >= MAX_PRODUCERS:
            raise RequestRefused(f"there are {MAX_PRODUCERS} producers", RefusalReason.NOT_ALLOWED)
        mode = producer.access_mode
        if mode == ProducerAccessMode.ExclusiveWithFencing:
            for each in [*self.by_name.values(), *self._waiting]:
                close(each)
        elif mode == ProducerAccessMode.Shared:
            if self._exclusive is not None or self._waiting:
                raise RequestRefused("the topic has an exclusive producer", RefusalReason.BUSY)
        elif self.by_name or self._waiting:
            if mode == ProducerAccessMode.WaitForExclusive:
                self._waiting[producer] = asyncio.get_running_loop().create_future()
                return False
            raise ProducerFenced("the topic has other producers")
        self._admit(producer)
        return True

    async def _get_name(
        self,
        producer: ServedProducer,
        is_alive: Callable[[ServedProducer], Awaitable[bool]],
        close: Callable[[ServedProducer], None],
    ) -> None:
        """Wait until the name of a producer is free. Raises RequestRefused if another one has it, whose client answers."""
        while (other := self.by_name.get(producer.name)) is not None:  # yet another one may get it while this one is asked
            if other.link is not producer.link and not await is_alive(other):
                close(other)
            elif self.by_name.get(producer.name) is other:
                is_closing = other.link is producer.link and other.id == producer.id  # what it has sent is not answered yet
                reason = RefusalReason.NOT_READY if is_closing else RefusalReason.BUSY
                raise RequestRefused(f"a producer named {producer.name} is connected already", reason)

    def _admit(self, producer: ServedProducer) -> None:
        self.by_name[producer.name] = producer
        if producer.access_mode != ProducerAccessMode.Shared:
            self._exclusive = producer
            if producer.topic_epoch is None:
                producer.topic_epoch = self.topic_epoch + 1
            self.topic_epoch = producer.topic_epoch

    async def wait(self, producer: ServedProducer) -> None:
        """Wait until a producer gets the partition; `remove` ends the wait, see its state."""
        await self._waiting[producer]

    def remove(self, producer: ServedProducer) -> None:
        """Forget a producer; the one that has waited longest may get the partition."""
        if (waiter := self._waiting.pop(producer, None)) is not None and not waiter.done():
            waiter.set_result(None)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if not self.by_name and self._waiting:
            next_producer, waiter = self._waiting.popitem(last=False)
            self._admit(next_producer)
            waiter.set_result(None)
