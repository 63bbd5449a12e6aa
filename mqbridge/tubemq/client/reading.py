"""Consuming all partitions of a member at once: pulled one pack after the other, or pushed to a function.

Each partition has a reader of its own, which fetches the next pack when the one before is confirmed or rejected. So at most one
pack of each partition is held, and one that is never settled blocks its partition only, for `settle_s` seconds at most.
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

SETTLE_S = 60.0
"""After this long a pack that was neither confirmed nor rejected is read again, as with the Java clients."""
HANDLERS = 4
AGAIN_S = 1.0
"""Before a pack that a handler failed on is read again."""


class Assigning(Protocol):
    """A member of a group: `Consumer`, or whatever else hands out partitions."""

    def assignments(self) -> AsyncIterator[HeldPartition]:
        """Partitions as they become ours."""


class Delivery(NamedTuple):
    """A pack and its partition, which is told what becomes of it."""

    partition: HeldPartition
    pack: Pack

    def confirm(self) -> None:
        """It is consumed; without effect when it is no longer out."""
        if self.partition.pack is self.pack:
            self.partition.confirm()

    def reject(self) -> None:
        """It is to come again; without effect when it is no longer out."""
        if self.partition.pack is self.pack:
            self.partition.reject()


class Puller:
    """Packs of all partitions, one after the other, the partitions in turn as they have something."""

    def __init__(self, consumer: Assigning, *, settle_s: float = SETTLE_S) -> None:
        self._consumer, self._settle_s = consumer, settle_s
        self._ready: asyncio.Queue[Delivery | MqbridgeError] = asyncio.Queue()
        self._readers: set[asyncio.Task[None]] = set()
        self._end: MqbridgeError = ClusterError("the consumer was closed: there is nothing more to pull", Failure.FATAL)
        """Why there are no more assignments, once there are none."""
        self._assigning = spawn(self._assign(), "tubemq pull: assignments")

    async def pull(self, timeout: float | None = None) -> Delivery | None:
        """The next pack; None when there is none for `timeout` seconds. A pack that is settled twice counts once.

        Raises GapError once for a partition that lost data and is no longer read (`seek` it and it is not: see `Consumer`), and
        ClusterError when the group does not want us any more, or the consumer or this puller was closed.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    found = await self._ready.get()
                    if found is self._end:
                        self._ready.put_nowait(found)  # for whoever asks again, or waits beside us
                    if isinstance(found, MqbridgeError):
                        raise found
                    if found.partition.pack is found.pack:  # else its partition was taken away meanwhile
                        return found
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Stop reading; what is not confirmed will come again."""
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
                delivery = Delivery(partition, await partition.fetch())
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
"""Handles a pack. When it returns the pack is confirmed; when it raises, `push` says what becomes of the pack."""


async def push(
    consumer: Assigning,
    handler: Handler,
    *,
    handlers: int = HANDLERS,
    skip_failed: bool = False,
    again_s: float = AGAIN_S,
) -> None:
    """Call `handler` for each pack until the consumer is closed, for at most `handlers` packs at once, each partition in order.

    A pack on which it raised comes again after `again_s` seconds; with `skip_failed` it counts as consumed, as with the Java
    clients as they are set. Raises GapError, and ClusterError when the group does not want us any more.
    """
    gate = asyncio.Semaphore(handlers)
    readers: set[asyncio.Task[None]] = set()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(partition: HeldPartition) -> None:
        try:
            while True:
                pack = await partition.fetch()
                async with gate:
                    is_done = await _handled(handler, partition, pack)
                if is_done or skip_failed:
                    Delivery(partition, pack).confirm()
                else:
                    Delivery(partition, pack).reject()
                    await asyncio.sleep(again_s)
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


async def _handled(handler: Handler, partition: HeldPartition, pack: Pack) -> bool:
    try:
        await handler(partition, pack)
    except Exception:  # the handler is the caller's, and whatever it raises is about this pack
        log.exception("the handler failed on a pack of %s at offset %d", partition, pack.offset)
        return False
    return True
