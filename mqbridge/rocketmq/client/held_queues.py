"""The queues that a member holds: renews their locks, and commits their offsets every few seconds."""

import asyncio
import logging
from collections.abc import Collection

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.offset_store import OffsetStore
from mqbridge.rocketmq.client.queue_locks import RENEW_S, QueueLocks
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

COMMIT_S = 5.0


class HeldQueues(dict[Queue, AssignedQueue]):
    """The assigned queues by queue. `locks` is None unless the group is orderly."""

    def __init__(self, store: OffsetStore, locks: QueueLocks | None) -> None:
        super().__init__()
        self._store, self._locks = store, locks
        self.unused: set[Queue] = set()
        """Queues whose locks were requested and may be held, with no AssignedQueue to release them."""
        self._loop = asyncio.get_running_loop()

    @property
    def needs_locks(self) -> bool:
        """True if queues are read only under a lock."""
        return self._locks is not None

    def start_tasks(self, name: str) -> list[asyncio.Task[None]]:
        """Start the tasks that commit and renew until they are cancelled."""
        tasks = [spawn(self._commits(), f"rocketmq commits of {name}")]
        if self._locks is not None:
            tasks.append(spawn(self._renewals(), f"rocketmq locks of {name}"))
        return tasks

    def add(self, assigned: AssignedQueue) -> None:
        """Add an assigned queue."""
        self[assigned.queue] = assigned
        self.unused.discard(assigned.queue)

    # --- locks ------------------------------------------------------------------------------------------------------

    async def lock(self, queues: Collection[Queue]) -> list[Queue]:
        """Lock queues before reading them; return those that we hold now."""
        if self._locks is None or not queues:
            return []
        self.unused.update(queues)
        locked, refused = await self._locks.lock(list(queues))
        self.unused -= refused
        return [queue for queue in queues if queue in locked]

    async def unlock(self, queues: Collection[Queue]) -> None:
        """Release locks."""
        if self._locks is not None and queues:
            await self._locks.unlock(list(queues))

    async def unlock_unused(self, queues: set[Queue]) -> None:
        """Release locks without an AssignedQueue, which would start_tasks these queues from other members for a minute."""
        await self.unlock(queues)
        self.unused -= queues

    async def _renewals(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self.renew()

    async def renew(self) -> None:
        """Renew the locks of our queues; locks held by another member, or too old, are lost."""
        if self._locks is None:
            return
        asked_at = self._loop.time()
        held = dict(self)
        locked, refused = await self._locks.lock(list(held))
        now = self._loop.time()
        for queue, assigned in held.items():
            if queue in locked:
                assigned.lock_renewed(asked_at)
            elif queue in refused or not assigned.state.lock_holds(now):
                log.warning("the lock of %s is lost", assigned)
                assigned.lock_lost()

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()

    async def commit(self) -> None:
        """Send offsets acknowledged since the last commit to the store, without waiting for responses."""
        due = {queue: offset for queue, assigned in self.items() if (offset := assigned.unreported()) is not None}
        for queue, offset in due.items():
            self[queue].mark_reported(offset)
        for queue in await self._store.save_soon(due) if due else ():
            if (assigned := self.get(queue)) is not None:
                assigned.mark_reported(None)
