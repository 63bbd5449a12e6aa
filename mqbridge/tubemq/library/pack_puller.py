"""Read the packs of all partitions of a member: pull them one after the other, or have a function called with each pack.

Each partition has a reader task, which fetches the next pack when the last one is settled (confirmed or rejected). So a member
has at most one unsettled pack of each partition, which blocks only its partition. `PackPuller` rejects an unsettled pack after
`settle_s` seconds; `push` waits for the handler without a limit.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from mqbridge.errors import ClusterError, Failure, LaneRevoked, MqbridgeError
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Default time that `PackPuller.close` gives `close_consumer`."""
SETTLE_S = 60.0
"""Default time after which an unsettled pack is read again, as in the Java clients."""
HANDLERS = 4
"""Number of packs that `push` handles at once by default."""
RETRY_S = 1.0
"""Default pause before a pack is read again after its handler failed."""


class AssignsPartitions(Protocol):
    """A member of a group to which a Master assigns partitions, such as `PackConsumer`."""

    def assignments(self) -> AsyncIterator[HeldPartition]:
        """Yield partitions as they are assigned."""


class PackDelivery(NamedTuple):
    """A pack and its partition; confirms or rejects the pack."""

    partition: HeldPartition
    pack: Pack

    def confirm(self) -> None:
        """Confirm the pack. Does nothing if it is already settled or its partition was revoked."""
        if self.partition.pack is self.pack:
            self.partition.confirm()

    def reject(self) -> None:
        """Have the pack delivered again. Does nothing if it is already settled or its partition was revoked."""
        if self.partition.pack is self.pack:
            self.partition.reject()


class PackPuller:
    """Returns the packs of all partitions, one per `pull`, in order of arrival.

    settle_s        seconds after which a pack that is neither confirmed nor rejected is read again
    close_consumer  called by `close` with its timeout, to close the consumer; None if the caller closes the consumer itself
    """

    def __init__(
        self,
        consumer: AssignsPartitions,
        *,
        settle_s: float = SETTLE_S,
        close_consumer: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self._home = HomeLoop("the pack puller")
        self._consumer, self._settle_s, self._close_consumer = consumer, settle_s, close_consumer
        self.closed = False
        """True after `close` was called."""
        self._ready: asyncio.Queue[PackDelivery | MqbridgeError] = asyncio.Queue()
        self._read_tasks: set[asyncio.Task[None]] = set()
        self._end_error: MqbridgeError = ClusterError("cannot pull: the consumer was closed", Failure.FATAL)
        """The error that `pull` raises once there are no more assignments."""
        self._assign_task = spawn(self._accept_assignments(), "tubemq pull: assignments")

    async def pull(self, timeout: float | None = None) -> PackDelivery | None:
        """Return the next pack; None if none arrives within `timeout` seconds. With `timeout` None, wait without limit.

        Raises GapError once for a partition that lost data; this puller never reads it again, even after a seek.
        Raises ClusterError if the Master has excluded this member, or the consumer or this puller was closed.
        """
        self._home.check()
        try:
            async with asyncio.timeout(timeout):
                while True:
                    item = await self._ready.get()
                    if item is self._end_error:
                        self._ready.put_nowait(item)  # other and later calls of `pull` raise it, too
                    if isinstance(item, MqbridgeError):
                        raise item
                    if item.partition.pack is item.pack:  # otherwise it was rejected or its partition was revoked meanwhile
                        return item
        except TimeoutError:
            return None

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer with `close_consumer`, if given, and stop reading; unconfirmed packs will be delivered again."""
        if self._home.is_over():
            return
        self.closed = True
        if self._close_consumer is not None:
            await self._close_consumer(timeout)
        await cancel(self._assign_task, *self._read_tasks)
        self._ready.put_nowait(self._end_error)  # `_accept_assignments` puts nothing if it is cancelled before it begins

    async def _accept_assignments(self) -> None:
        """Start a reader for each partition that the Master assigns; after the last one, queue the error for `pull`."""
        try:
            async for partition in self._consumer.assignments():
                task = spawn(self._read(partition), f"tubemq pull: {partition}")
                self._read_tasks.add(task)
                task.add_done_callback(self._read_tasks.discard)
        except MqbridgeError as error:
            self._end_error = error
        finally:
            self._ready.put_nowait(self._end_error)

    async def _read(self, partition: HeldPartition) -> None:
        """Queue the packs of a partition, each after the last one is settled, until the partition is revoked or fails."""
        try:
            while True:
                delivery = PackDelivery(partition, await partition.fetch())
                self._ready.put_nowait(delivery)
                try:
                    async with asyncio.timeout(self._settle_s):
                        await partition.wait_until_settled()
                except TimeoutError:
                    log.warning(
                        "%s: a pack of messages was neither confirmed nor rejected within %g s and is read again",
                        partition,
                        self._settle_s,
                    )
                    delivery.reject()
        except LaneRevoked:
            return
        except MqbridgeError as error:
            self._ready.put_nowait(error)


Handler = Callable[[HeldPartition, Pack], Awaitable[None]]
"""Handles a pack, which is confirmed when the function returns; see `push` for exceptions."""


async def push(
    consumer: AssignsPartitions,
    handler: Handler,
    *,
    handlers: int = HANDLERS,
    skip_failed: bool = False,
    retry_s: float = RETRY_S,
) -> None:
    """Call `handler` with each pack until the consumer is closed; at most `handlers` run at once, and each partition is in order.

    A pack whose handler raised is read again after `retry_s` seconds; with `skip_failed` it is confirmed, which is the default
    of the Java clients. Stops all partitions and raises GapError if one lost data, or ClusterError if the Master excludes
    this member.
    """
    failure_outcome = "confirmed, because of skip_failed" if skip_failed else f"read again in {retry_s:g} s"
    slots = asyncio.Semaphore(handlers)
    read_tasks: set[asyncio.Task[None]] = set()
    first_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(partition: HeldPartition) -> None:
        try:
            while True:
                pack = await partition.fetch()
                async with slots:
                    succeeded = await _handle(handler, partition, pack, failure_outcome)
                # A pack that was revoked while its handler ran is not confirmed: `PackDelivery` checks this.
                if succeeded or skip_failed:
                    PackDelivery(partition, pack).confirm()
                else:
                    PackDelivery(partition, pack).reject()
                    await asyncio.sleep(retry_s)
        except LaneRevoked:
            return
        except MqbridgeError as error:
            if not first_error.done():
                first_error.set_exception(error)

    async def accept_assignments() -> None:
        async for partition in consumer.assignments():
            task = spawn(read(partition), f"tubemq push: {partition}")
            read_tasks.add(task)
            task.add_done_callback(read_tasks.discard)

    assign_task = spawn(accept_assignments(), "tubemq push: assignments", log_errors=False)
    try:
        await asyncio.wait([assign_task, first_error], return_when=asyncio.FIRST_COMPLETED)
        (first_error if first_error.done() else assign_task).result()  # raises the error, if any
    finally:
        first_error.cancel()
        await cancel(assign_task, *read_tasks)


async def _handle(handler: Handler, partition: HeldPartition, pack: Pack, failure_outcome: str) -> bool:
    """Call the handler. If it raises, return False and log the exception and `failure_outcome`: what happens to the pack."""
    try:
        await handler(partition, pack)
    except Exception:  # the handler is the application's code: any error concerns this pack only
        log.exception(
            "the handler failed for the pack of messages of %s at offset %d, which is %s",
            partition,
            pack.offset,
            failure_outcome,
        )
        return False
    return True
