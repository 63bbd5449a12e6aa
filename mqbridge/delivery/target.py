"""A target of a route: drops looped messages of a batch, edits the other messages, and chooses their partitions.

    loop prevention -> edits -> partitions

Steps without configuration are skipped. A batch is decoded only if a step needs its messages.
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

    __slots__ = ("_loop", "_progress_at", "sends")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop, kept because every send needs its time; None before the first send."""
        self.sends = 0
        """Number of sends that have no receipt yet."""
        self._progress_at = 0.0
        """Loop time of the last receipt, or of a send that was made while none was in flight."""

    def count_send(self) -> None:
        """Count a send."""
        if not self.sends:
            self._mark_progress()
        self.sends += 1

    def count_receipt(self) -> None:
        """Count a send that has ended, with a receipt or with a failure."""
        self.sends -= 1
        self._mark_progress()

    def _mark_progress(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._progress_at = self._loop.time()

    def waiting_s(self, now: float) -> float:
        """Return the seconds that have passed without a receipt while sends were in flight; 0 if no send is in flight."""
        return now - self._progress_at if self.sends else 0.0


class Target:
    """One outbound of a route, with its loop prevention, edits and partitioner."""

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
        """Divide the messages that passed the route's filter: return pairs of a target partition and its share."""
        if self._guard is not None:
            needs_messages = self._edit is not None or share.batch.format not in self.outbound.formats
            share = self._guard.keep(share, needs_messages=needs_messages)
        if self._edit is not None:
            share = self._edit.apply(share)
        return self.partitioner.divide(share) if share.count else ()
