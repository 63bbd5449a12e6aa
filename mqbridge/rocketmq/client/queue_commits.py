"""Commits of one queue that wait for the store; other commits travel with pulls, or with those of all queues."""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.rocketmq.client.brokers import twice
from mqbridge.rocketmq.client.commit_carrying_pulls import CommitCarryingPulls
from mqbridge.rocketmq.client.offset_store import OffsetStore
from mqbridge.rocketmq.client.queue_state import QueueState
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

OVERTAKEN_S = 3.0
"""How long the last commit waits for a pull that carries a commit; a healthy broker answers within milliseconds."""
REVOKED_S = 0.25
"""The same for a queue that another member takes over: it queries the offset half a second after it learns of us."""


class CommitContext(Protocol):
    """The consumer, as committing needs it."""

    store: OffsetStore


class QueueCommits:
    """Commits the offset of `state` to the store, after the commits that `carrying` pulls bring."""

    def __init__(self, name: str, queue: Queue, state: QueueState, context: CommitContext, carrying: CommitCarryingPulls) -> None:
        self._name, self._queue, self._state, self._context, self._carrying = name, queue, state, context, carrying
        self._loop = asyncio.get_running_loop()

    async def save(self) -> None:
        """Commit and wait for the store. A failure is logged: messages read after the last commit come again."""
        await self._carrying.wait(REVOKED_S if self._state.taken_away else OVERTAKEN_S)
        try:
            await twice(self._save)
        except (ClusterError, ProtocolError) as error:
            log.log(
                level_of(error, logging.WARNING),
                "%s: offset %d could not be committed: %s",
                self._name,
                self._state.acknowledged,
                error,
            )

    async def flush(self) -> None:
        """Tell the store and wait for its answer. Raises ClusterError."""
        await self._carrying.wait(OVERTAKEN_S)
        await self._save()

    async def _save(self) -> None:
        state = self._state
        offset, run = state.unsaved(self._loop.time()), state.run
        if offset is not None:
            await self._context.store.save(self._queue, offset)
            if run == state.run:
                state.mark_saved(offset)

    async def cancel(self) -> None:
        """Cancel the pulls that carry a commit."""
        await self._carrying.cancel()
