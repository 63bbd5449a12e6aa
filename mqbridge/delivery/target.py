"""One target of a route: what of a batch goes to it, in which form, and to which partitions.

    loop prevention -> edits -> partitions

Each step is left out where the route does not ask for it, and none of them makes messages of a batch that nobody asks for.
"""

import asyncio
from collections.abc import Sequence

from mqbridge.adapter.outbound import Outbound
from mqbridge.message import Share
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner


class TargetProgress:
    """What was sent and has no receipt, and since when nothing has moved."""

    __slots__ = ("_loop", "_moved_at", "sends")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.sends = 0
        """Shares of batches that were sent and have no receipt."""
        self._moved_at = 0.0

    def sent(self) -> None:
        """One more."""
        if not self.sends:
            self._move()
        self.sends += 1

    def answered(self) -> None:
        """A receipt, good or bad."""
        self.sends -= 1
        self._move()

    def _move(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()

    def waiting_s(self, now: float) -> float:
        """For how long receipts have been due and none has come; 0 when none is due."""
        return now - self._moved_at if self.sends else 0.0


class Target:
    """One outbound, with what is done to messages on the way to it."""

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
        """What goes to which partition of what the route's filter left of a batch."""
        if self._guard is not None:
            needs_messages = self._edit is not None or share.batch.format not in self.outbound.formats
            share = self._guard.keep(share, needs_messages=needs_messages)
        if self._edit is not None:
            share = self._edit.apply(share)
        return self.partitioner.divide(share) if share.count else ()
