"""Confirms the packs of a partition at its Broker: with the next get request, or by a separate commit."""

import asyncio
from collections.abc import Callable

from mqbridge.errors import ServerRefused, Unreachable
from mqbridge.tubemq.client.connection.counters import ReadCounters
from mqbridge.tubemq.client.consumer.partition_calls import PartitionCalls
from mqbridge.tubemq.client.consumer.partition_signals import PartitionSignals
from mqbridge.tubemq.client.consumer.partition_state import PartitionState
from mqbridge.tubemq.client.consumer.partition_transitions import CONFIRMED
from mqbridge.tubemq.wire import codes

COMMIT_AFTER_S = 0.2
"""If no get request has reported a confirmation to the Broker after this time, it is sent in a commit request."""


class PartitionCommits:
    """The confirmations of one partition. The caller of `commit` ensures that no other request of the partition is in flight.

    `on_position` is called after each commit with the offset at which the Broker continues, and the end of the store.
    """

    def __init__(
        self,
        calls: PartitionCalls,
        state: PartitionState,
        signals: PartitionSignals,
        counters: ReadCounters,
        on_position: Callable[[int, int], None],
    ) -> None:
        self._calls, self._state, self._signals, self._counters = calls, state, signals, counters
        self._on_position = on_position
        self._confirmed_at = 0.0
        """Event loop time of the last call of `confirm`."""
        self._loop = asyncio.get_running_loop()

    def confirm(self) -> None:
        """Record that the reader confirmed the delivered pack; sends no request."""
        self._state.confirm()
        self._confirmed_at = self._loop.time()
        self._signals.settled.set()  # wakes tasks that wait until the pack is confirmed or rejected

    def needs_commit(self, now: float) -> bool:
        """Return True if a pack was confirmed COMMIT_AFTER_S ago, no get has reported this yet, and a commit is possible."""
        state = self._state
        has_waited = state.pack_state is CONFIRMED and now - self._confirmed_at >= COMMIT_AFTER_S
        return has_waited and not state.must_register and not state.is_over

    async def commit(self, *, consumed: bool) -> int:
        """Send a commit: confirm the last pack, or without `consumed` have it delivered again. Return the next offset to read.

        Raises ClusterError.
        """
        try:
            offset, store_end = await self._calls.commit(consumed=consumed)
        except ServerRefused as error:
            if error.code == codes.INTERNAL_ERROR:  # the Broker refuses with any other code before it changes anything
                self._state.on_commit_failed(is_abandoned=False)
            raise
        except Unreachable:  # the request was never sent
            raise
        except BaseException:  # no response: the Broker may execute the request later
            self._state.on_commit_failed(is_abandoned=True)
            raise
        else:
            self._counters.commits += 1
            self._state.on_commit(offset)
            self._on_position(offset, store_end)
            return offset
        finally:
            self._signals.update()
