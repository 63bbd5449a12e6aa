"""Read the packs of all partitions of a member: pull them one after the other, or have them pushed to a function.

Each partition has a reader task, which fetches the next pack when the last one is confirmed or rejected. So a member holds at
most one pack of each partition, and a pack that is never settled blocks only its partition, for `settle_s` seconds at most.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from mqbridge.errors import ClusterError, Failure, LaneRevoked, MqbridgeError
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
SETTLE_S = 60.0
"""A pack that is neither confirmed nor rejected for so long is read again, as in the Java clients."""
HANDLERS = 4
RETRY_S = 1.0
"""Pause before a pack whose handler has failed is read again."""


class AssignsPartitions(Protocol):
    """A member of a group that has partitions assigned, such as `PackConsumer`."""

    def assignments(self) -> AsyncIterator[HeldPartition]:
        """Yield partitions as they are assigned."""


class PackDelivery(NamedTuple):
    """A pack, and the partition at which it is confirmed or rejected."""

    partition: HeldPartition
    pack: Pack

    def confirm(self) -> None:
        """Confirm the pack. No effect when it is already settled, or its partition is lost."""
        if self.partition.pack is self.pack:
            self.partition.confirm()

    def reject(self) -> None:
        """Have the pack delivered again. No effect when it is already settled, or its partition is lost."""
        if self.partition.pack is self.pack:
            self.partition.reject()


class PackPuller:
    """Hands out the packs of all partitions, one after the other, in the order of their arrival."""

    def __init__(
        self,
        consumer: AssignsPartitions,
        *,
        settle_s: float = SETTLE_S,
        close_consumer: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._consumer, self._settle_s, self._close_consumer = consumer, settle_s, close_consumer
        self.closed = False
        self._ready: asyncio.Queue[PackDelivery | MqbridgeError] = asyncio.Queue()
        self._readers: set[asyncio.Task[None]] = set()
        self._end: MqbridgeError = ClusterError("the consumer was closed: there is nothing more to pull", Failure.FATAL)
        """The error that `pull` raises once there are no more assignments."""
        self._assigning = spawn(self._assign(), "tubemq pull: assignments")

    async def pull(self, timeout: float | None = None) -> PackDelivery | None:
        """Return the next pack; None when there is none for `timeout` seconds.

        Raises GapError once for a partition that lost data; this puller then reads that partition no more, even after `seek`.
        Raises ClusterError when the Master has excluded this member, or the consumer or this puller was closed.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    item = await self._ready.get()
                    if item is self._end:
                        self._ready.put_nowait(item)  # for other and later callers
                    if isinstance(item, MqbridgeError):
                        raise item
                    if item.partition.pack is item.pack:  # else its partition was lost meanwhile
                        return item
        except TimeoutError:
            return None

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop reading; packs that are not confirmed will come again. Closes the consumer with `close_consumer`, if given."""
        self.closed = True
        if self._close_consumer is not None:
            await self._close_consumer(timeout)
        await cancel(self._assigning, *self._readers)
        self._ready.put_nowait(self._end)

    async def _assign(self) -> None:
        try:
            async for partition in self._consumer.assignments():
                reader = spawn(self._read(partition), f"tubemq pull: {partition}")
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
        except MqbridgeError as error:
            self._end = error
        finally:
            self._ready.put_nowait(self._end)

    async def _read(self, partition: HeldPartition) -> None:
        try:
            while True:
                delivery = PackDelivery(partition, await partition.fetch())
                self._ready.put_nowait(delivery)
                try:
                    async with asyncio.timeout(self._settle_s):
                        await partition.settled()
                except TimeoutError:
                    log.warning("%s: a pack was not settled within %g s and will come again", partition, self._settle_s)
                    delivery.reject()
        except LaneRevoked:
            return
        except MqbridgeError as error:
            self._ready.put_nowait(error)


Handler = Callable[[HeldPartition, Pack], Awaitable[None]]
"""Handles a pack. When it returns, the pack is confirmed; `push` says what happens when it raises."""


async def push(
    consumer: AssignsPartitions,
    handler: Handler,
    *,
    handlers: int = HANDLERS,
    skip_failed: bool = False,
    retry_s: float = RETRY_S,
) -> None:
    """Call `handler` for each pack until the consumer is closed, for at most `handlers` packs at once, each partition in order.

    A pack whose handler raised comes again after `retry_s` seconds; with `skip_failed` it is confirmed, which is the default of
    the Java clients. Raises GapError, and ClusterError when the Master excludes this member.
    """
    gate = asyncio.Semaphore(handlers)
    readers: set[asyncio.Task[None]] = set()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(partition: HeldPartition) -> None:
        try:
            while True:
                pack = await partition.fetch()
                async with gate:
                    succeeded = await _handle(handler, partition, pack)
                if succeeded or skip_failed:
                    PackDelivery(partition, pack).confirm()
                else:
                    PackDelivery(partition, pack).reject()
                    await asyncio.sleep(retry_s)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            if not failed.done():
                failed.set_exception(error)

    async def assign() -> None:
        async for partition in consumer.assignments():
            reader = spawn(read(partition), f"tubemq push: {partition}")
            readers.add(reader)
            reader.add_done_callback(readers.discard)

    assigning = spawn(assign(), "tubemq push: assignments", quiet=True)
    try:
        await asyncio.wait([assigning, failed], return_when=asyncio.FIRST_COMPLETED)
        (failed if failed.done() else assigning).result()
    finally:
        failed.cancel()
        await cancel(assigning, *readers)


async def _handle(handler: Handler, partition: HeldPartition, pack: Pack) -> bool:
    try:
        await handler(partition, pack)
    except Exception:  # code of the caller: any error concerns this pack only
        log.exception("the handler failed on a pack of %s at offset %d", partition, pack.offset)
        return False
    return True
