"""The queues that a member holds: their locks, which are renewed, and their offsets, which are committed every few seconds."""

import asyncio
import logging
from collections.abc import Collection

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.locks import RENEW_S, Locks
from mqbridge.rocketmq.client.offsets import OffsetStore
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

COMMIT_S = 5.0


class HeldQueues(dict[Queue, QueueStream]):
    """The stream of each queue. `locks` is None where the group does not read in order."""

    def __init__(self, store: OffsetStore, locks: Locks | None) -> None:
        super().__init__()
        self._store, self._locks = store, locks
        self.unused: set[Queue] = set()
        """Queues whose locks we asked for, and may have without a stream that would give them back."""
        self._loop = asyncio.get_running_loop()

    @property
    def needs_locks(self) -> bool:
        """Whether a queue is read only under its lock."""
        return self._locks is not None

    def keep(self, name: str) -> list[asyncio.Task[None]]:
        """Tasks that commit and renew until they are cancelled."""
        tasks = [spawn(self._commits(), f"rocketmq commits of {name}")]
        if self._locks is not None:
            tasks.append(spawn(self._renewals(), f"rocketmq locks of {name}"))
        return tasks

    def add(self, stream: QueueStream) -> None:
        """Its queue is read from now on."""
        self[stream.queue] = stream
        self.unused.discard(stream.queue)

    # --- locks ------------------------------------------------------------------------------------------------------

    async def lock(self, queues: Collection[Queue]) -> list[Queue]:
        """Take the locks of queues that are to be read; gives those that we have now."""
        if self._locks is None or not queues:
            return []
        self.unused.update(queues)
        locked, refused = await self._locks.lock(list(queues))
        self.unused -= refused
        return [queue for queue in queues if queue in locked]

    async def unlock(self, queues: Collection[Queue]) -> None:
        """Give locks back."""
        if self._locks is not None and queues:
            await self._locks.unlock(list(queues))

    async def unlock_unused(self, queues: set[Queue]) -> None:
        """Give locks back that no stream holds: nobody else could have these queues for a minute."""
        await self.unlock(queues)
        self.unused -= queues

    async def _renewals(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self.renew()

    async def renew(self) -> None:
        """Take the locks of our queues again; those that another member has, or that have become too old, are lost."""
        if self._locks is None:
            return
        asked_at = self._loop.time()
        held = dict(self)
        locked, refused = await self._locks.lock(list(held))
        now = self._loop.time()
        for queue, stream in held.items():
            if queue in locked:
                stream.lock_renewed(asked_at)
            elif queue in refused or not stream.state.lock_holds(now):
                log.warning("the lock of %s is lost", stream)
                stream.lock_lost()

    # --- offsets ----------------------------------------------------------------------------------------------------

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self.commit()

    async def commit(self) -> None:
        """Tell the store of what was acknowledged since it was told last, without waiting for answers."""
        due = {queue: offset for queue, stream in self.items() if (offset := stream.due()) is not None}
        for queue, offset in due.items():
            self[queue].told(offset)
        for queue in await self._store.save_soon(due) if due else ():
            if (stream := self.get(queue)) is not None:
                stream.told(None)
