"""The assigned queues of one consumer: renews their locks, and commits their offsets every 5 s."""

import asyncio
import logging
from collections.abc import Collection

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.offset_store import OffsetStore
from mqbridge.rocketmq.client.consumer.queue_locks import RENEW_INTERVAL_S, QueueLocks
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S = 5.0
"""Interval of the commits, as in the Java clients (persistConsumerOffsetInterval)."""


class HeldQueues(dict[Queue, AssignedQueue]):
    """The AssignedQueue of each queue assigned to us. `locks` is None unless the group is orderly, see `needs_locks`."""

    def __init__(self, store: OffsetStore, locks: QueueLocks | None) -> None:
        super().__init__()
        self._store, self._locks = store, locks
        self.unused_locks: set[Queue] = set()
        """Queues whose lock we requested and may hold, but without an AssignedQueue yet. `unlock_unused` releases these locks."""
        self._loop = asyncio.get_running_loop()

    @property
    def needs_locks(self) -> bool:
        """True if queues are read only under a lock."""
        return self._locks is not None

    def start_tasks(self, name: str) -> list[asyncio.Task[None]]:
        """Start and return the tasks that commit offsets and renew locks; they run until they are cancelled.

        `name` is the consumer's, for the names of the tasks.
        """
        tasks = [spawn(self._commit_loop(), f"rocketmq commits of {name}")]
        if self._locks is not None:
            tasks.append(spawn(self._renew_loop(), f"rocketmq locks of {name}"))
        return tasks

    def add(self, assigned: AssignedQueue) -> None:
        """Add an assigned queue; from now on its AssignedQueue releases its lock."""
        self[assigned.queue] = assigned
        self.unused_locks.discard(assigned.queue)

    # --- locks ------------------------------------------------------------------------------------------------------

    async def lock(self, queues: Collection[Queue]) -> list[Queue]:
        """Lock queues before reading them; return those whose lock we hold now. Does nothing unless `needs_locks`."""
        if self._locks is None or not queues:
            return []
        self.unused_locks.update(queues)
        locked, refused = await self._locks.lock(list(queues))
        self.unused_locks -= refused
        return [queue for queue in queues if queue in locked]

    async def unlock(self, queues: Collection[Queue]) -> None:
        """Release the locks of these queues; without effect unless the group is orderly."""
        if self._locks is not None and queues:
            await self._locks.unlock(list(queues))

    async def unlock_unused(self, queues: set[Queue]) -> None:
        """Release the locks of queues without an AssignedQueue; otherwise other members could not read them for a minute."""
        await self.unlock(queues)
        self.unused_locks -= queues

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            await self.renew()

    async def renew(self) -> None:
        """Renew the locks of our queues; stop reading a queue if another member has its lock, or it was not renewed in time."""
        if self._locks is None:
            return
        requested_at = self._loop.time()
        held = dict(self)  # a copy: queues may be added or removed during the request
        locked, refused = await self._locks.lock(list(held))
        now = self._loop.time()
        for queue, assigned in held.items():
            if queue in locked:
                assigned.on_lock_renewed(requested_at)
            # A queue in neither set, because its request failed, is read until its last lock may have expired.
            elif queue in refused or not assigned.state.lock_holds(now):
                log.warning("%s lost its lock at the broker, so this member stops reading the queue", assigned)
                assigned.on_lock_lost()

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self) -> None:
        """Save the offsets acknowledged since the last commit. Brokers get them in one-way requests, which have no response.

        An offset that could not be sent, or that the caller's own store did not save, is saved by the next call.
        """
        offsets = {queue: offset for queue, assigned in self.items() if (offset := assigned.unreported()) is not None}
        for queue, offset in offsets.items():
            self[queue].mark_reported(offset)  # before the save, so that a commit in the meantime does not send it again
        failed_queues = await self._store.save_soon(offsets) if offsets else []
        for queue in failed_queues:
            if (assigned := self.get(queue)) is not None:
                assigned.mark_reported(None)  # `unreported` returns the offset again
