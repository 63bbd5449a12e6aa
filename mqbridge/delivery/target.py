"""One target of a route: what of a batch goes to it, in which form, and to which partitions.

    loop prevention -> edits -> partitions

Each step is left out where the route does not ask for it, and none of them makes messages of a batch that nobody asks for.
"""

from collections.abc import Sequence

from mqbridge.adapter import Outbound
from mqbridge.message import Share
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner


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
        self._guard, self._edit = guard, edit

    def shares(self, share: Share) -> Sequence[tuple[int, Share]]:
        """What goes to which partition of what the route's filter left of a batch."""
        if self._guard is not None:
            needs_messages = self._edit is not None or share.batch.format not in self.outbound.formats
            share = self._guard.keep(share, needs_messages=needs_messages)
        if self._edit is not None:
            share = self._edit.apply(share)
        return self.partitioner.divide(share) if share.count else ()
