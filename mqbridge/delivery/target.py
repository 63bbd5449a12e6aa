"""One target of a route: what of a batch goes to it, in which form, and to which partitions.

    loop prevention -> edits -> partitions

Each step is left out where the route does not ask for it.
"""

from collections.abc import Sequence

from mqbridge.adapter import Outbound
from mqbridge.message import Batch, Message
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner, Share


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

    def shares(self, batch: Batch, messages: Sequence[Message]) -> Sequence[Share]:
        """What goes where; `messages` is what the route's filter left of the batch."""
        if self._guard is not None:
            messages = self._guard.keep(messages)
        if self._edit is not None:
            messages = self._edit.apply(messages, batch.partition)
        return self.partitioner.divide(batch, messages) if messages else ()

    def originals(self, batch: Batch, share: Sequence[Message]) -> Sequence[Message]:
        """A share as it came, before edits: what a dead letter keeps."""
        if self._edit is None:
            return share
        came = {message.position: message for message in batch.messages}
        return [came[message.position] for message in share]
