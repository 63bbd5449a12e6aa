"""A target of a route: drops messages that have looped back, edits the others, and chooses their partitions.

    loop prevention -> edits -> partitions

Steps without configuration are skipped. A batch is decoded only if a step or the outbound needs its messages.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.adapter.outbound import Outbound
from mqbridge.message import Share
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner


class TargetProgress:
    """Progress of a target: the number of its sends in flight, and the time since its last receipt."""

    __slots__ = ("_loop", "_progress_at", "sends_in_flight")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop, kept because every send needs its time; None before the first send."""
        self.sends_in_flight = 0
        """Number of sends that have no receipt yet."""
        self._progress_at = 0.0
        """Loop time of the last receipt, or of a send that was made while none was in flight."""

    def count_send(self) -> None:
        """Count a send."""
        if not self.sends_in_flight:
            self._mark_progress()
        self.sends_in_flight += 1

    def count_receipt(self) -> None:
        """Count a send that has ended, with a receipt or with a failure."""
        self.sends_in_flight -= 1
        self._mark_progress()

    def _mark_progress(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._progress_at = self._loop.time()

    def waiting_s(self, now: float) -> float:
        """Return the seconds without a receipt until the loop time `now`, while sends were in flight; 0 if none is in flight."""
        return now - self._progress_at if self.sends_in_flight else 0.0


class Target:
    """One outbound of a route, with its loop prevention, edits and partitioner; `label` is its cluster and topic, for logs."""

    def __init__(
        self,
        label: str,
        outbound: Outbound,
        partitioner: Partitioner,
        *,
        guard: LoopGuard | None = None,
        edit: Edit | None = None,
    ) -> None:
        self.label, self.outbound, self.partitioner = label, outbound, partitioner
        self.progress = TargetProgress()
        self._guard, self._edit = guard, edit

    def shares(self, share: Share) -> Sequence[tuple[int, Share]]:
        """Apply the steps to the messages that passed the route's filter; return pairs of a target partition and its share."""
        if self._guard is not None:
            # The outbound can send only batches of its `formats` without decoding.
            needs_messages = self._edit is not None or share.batch.format not in self.outbound.formats
            share = self._guard.keep(share, needs_messages=needs_messages)
        if self._edit is not None:
            share = self._edit.apply(share)
        return self.partitioner.divide(share) if share.count else ()
