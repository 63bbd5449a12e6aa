"""Confirms the packs of a partition at its Broker: with the next get, or by a commit of its own."""

import asyncio

from mqbridge.errors import ServerRefused, Unreachable
from mqbridge.tubemq.client.counters import ReadCounters
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_transitions import CONFIRMED
from mqbridge.tubemq.wire import codes

COMMIT_AFTER_S = 0.2
"""A confirmation not carried by a get until then is sent as a commit."""


class PartitionCommits:
    """Confirmations of one partition. `commit` is one request: the caller makes sure that no other is in flight."""

    def __init__(self, calls: PartitionCalls, state: PartitionState, signals: PartitionSignals, counters: ReadCounters) -> None:
        self._calls, self._state, self._signals, self._counters = calls, state, signals, counters
        self._confirmed_at = 0.0
        self._loop = asyncio.get_running_loop()

    def confirm(self) -> None:
        """Note that the delivered pack is consumed."""
        self._state.confirm()
        self._confirmed_at = self._loop.time()
        self._signals.settled.set()

    def is_late(self, now: float) -> bool:
        """Return True if a pack was confirmed a while ago, no get has carried it since, and a commit is possible."""
        state = self._state
        is_due = state.pack is CONFIRMED and now - self._confirmed_at >= COMMIT_AFTER_S
        return is_due and not state.must_register and not state.is_over

    async def commit(self, *, consumed: bool) -> int:
        """Confirm the last pack, or have it delivered again. Return where reading continues. Raises ClusterError."""
        try:
            offset = await self._calls.commit(consumed=consumed)
        except ServerRefused as error:
            if error.code == codes.INTERNAL_ERROR:
                self._state.commit_failed(given_up=False)
            raise
        except Unreachable:  # it was never sent
            raise
        except BaseException:
            self._state.commit_failed(given_up=True)
            raise
        else:
            self._counters.commits += 1
            self._state.committed(offset)
            return offset
        finally:
            self._signals.update()
