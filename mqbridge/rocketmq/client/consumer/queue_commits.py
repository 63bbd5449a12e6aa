"""Commits of one queue that wait for the store's confirmation, as when the queue is released or after a seek.

The store keeps the committed offsets: the brokers for a group, otherwise see `offset_store`.
Regular commits do not wait: pulls carry them, and `held_queues` sends those of all queues every few seconds.
"""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ProtocolError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.rocketmq.client.connection.brokers import repeat_if_lost
from mqbridge.rocketmq.client.consumer.commit_carrying_pulls import CommitCarryingPulls
from mqbridge.rocketmq.client.consumer.offset_store import OffsetStore
from mqbridge.rocketmq.client.consumer.queue_state import QueueState
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

MAX_WAIT_S = 3.0
"""How long a commit waits for the response to a pull that carries an older commit; a healthy broker responds within
milliseconds."""
MAX_REVOKED_WAIT_S = 0.25
"""The same for the last commit of a revoked queue. It is shorter because the member that gets the queue queries the offset 0.5 s
after the queue is assigned to it."""


class CommitContext(Protocol):
    """The part of a consumer that the commits of its queues use."""

    store: OffsetStore


class QueueCommits:
    """Commits the acknowledged offset of `state` to the store.

    It first waits until no older commit, carried by one of `commit_carrying_pulls`, can overwrite this one. `name` is the
    queue's, for logs.
    """

    def __init__(
        self, name: str, queue: Queue, state: QueueState, context: CommitContext, commit_carrying_pulls: CommitCarryingPulls
    ) -> None:
        self._name, self._queue = name, queue
        self._state, self._context = state, context
        self._commit_carrying_pulls = commit_carrying_pulls
        self._loop = asyncio.get_running_loop()

    async def save(self) -> None:
        """Commit and wait for the store. A failure is only logged: messages after the previous commit may be delivered again."""
        await self._commit_carrying_pulls.wait(MAX_REVOKED_WAIT_S if self._state.taken_away else MAX_WAIT_S)
        try:
            await repeat_if_lost(self._save)
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "%s: committing offset %d failed, so messages after the previous commit may be delivered again: %s",
                self._name,
                self._state.acknowledged,
                error,
            )

    async def flush(self) -> None:
        """Commit once and wait for the store. Raises ClusterError or ProtocolError after a failure."""
        await self._commit_carrying_pulls.wait(MAX_WAIT_S)
        await self._save()

    async def _save(self) -> None:
        """Commit the acknowledged offset, unless the store has it or it may not be committed now (no valid lock, for example).

        Raises ClusterError, ProtocolError.
        """
        state = self._state
        offset, run = state.unsaved(self._loop.time()), state.run
        if offset is not None:
            await self._context.store.save(self._queue, offset)
            if run == state.run:  # else a seek or a reset began a new run meanwhile, with an offset that is not saved yet
                state.mark_saved(offset)

    async def cancel_pulls(self) -> None:
        """Cancel the tasks whose pulls carry a commit and have no response yet."""
        await self._commit_carrying_pulls.cancel()
