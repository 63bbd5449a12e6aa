"""Where messages go: a way into one topic."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from pydantic import BaseModel

from mqbridge.adapter.receipt import Receipt
from mqbridge.message import NOWHERE, Partition, Position, Share, origin_prefix


@dataclass(frozen=True, slots=True)
class OutboundSpec:
    """Where to send. One outbound serves one topic."""

    topic: str
    ordered: bool = True
    """Messages of one partition must be stored in the order in which they were sent."""
    stamp_origin: bool = True
    """Write `mqbridge.origin` on messages that come from a source: the batch's partition and the message's position."""
    max_elapsed_s: float | None = None
    """How long transient failures are retried before they are reported; None is for ever."""
    options: BaseModel | None = None
    """The system's own settings (`Adapter.outbound_options`)."""
    sender: str | None = None
    """A name under which nobody else sends into this topic at the same time; all that it sends comes from one source partition.

    Where the system can, a second one of the name is kept out until the first has gone, and messages are numbered by their
    positions in the source, so that what is sent twice is stored once. There `resume` comes before the first send and after every
    failure, what it says is stored is left out of what is sent, and positions that do not ascend fail with ClusterError. A system
    that cannot drop what it is sent twice sends nothing again whose answer was lost: it reports the failure at once, and whoever
    sends asks `resume` what is stored.
    """
    repeats: bool = True
    """False: such a system sends nothing again without a sender either. Whoever sends looks for it."""

    @property
    def resend_s(self) -> float | None:
        """For how long a system that cannot drop what it is sent twice tries again what may be stored; None is for ever."""
        return self.max_elapsed_s if self.sender is None and self.repeats else 0.0

    @property
    def origin_of(self) -> Callable[[Partition], str | None]:
        """By the source, what every origin that is stamped begins with; None where messages keep the one that they have."""
        return _stamped_origin if self.stamp_origin else _kept_origin


@lru_cache(maxsize=4096)  # asked once per batch
def _stamped_origin(source: Partition) -> str | None:
    return None if source is NOWHERE else origin_prefix(source)


def _kept_origin(source: Partition) -> str | None:  # noqa: ARG001 - whatever the source is
    return None


class Outbound(Protocol):
    """A way into one topic of one cluster."""

    @property
    def formats(self) -> Collection[str]:
        """Batches of these formats are written without being decoded into messages."""

    @property
    def partitions(self) -> int:
        """How many partitions the target has.

        May grow while the outbound is open, never shrink: it is read for every batch, and each partition below it can be sent to
        at once (see `Capabilities.growing_outbound`).
        """

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order, without waiting; the future is the receipt. The share is encoded before this returns.

        `share.held_bytes` then says what is held until the receipt, if it is not the batch itself.

        Transient failures are retried inside, in order, until `max_elapsed_s`; so a receipt's failures are what retrying
        does not help. When the outbound is `ordered` and something of a partition fails for a reason other than REFUSED,
        everything that was sent behind it to that partition before its receipt is out fails too: nothing overtakes. The future
        itself fails only when the outbound was closed or its cluster refuses everything (ClusterError with Failure.FATAL).
        """

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Take back what is not on its way of these sends; their source was given to somebody else.

        What was never handed to the network, or waits to be sent again, is never sent: it stands in the receipt as a failure with
        RETRY. What is on its way stays so. A receipt comes as soon as nothing of its send is, not before: until then its bytes
        may be in use. Sends of others to the same partition go on, also those behind. Sends that are done are ignored.
        """

    def partition_of(self, key: bytes) -> int:
        """The partition that the system's own producers would choose for this key."""

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """The last position of this source partition that each target partition holds; those that hold none are left out.

        Read from the origins that are stamped on what is stored, so it is true after any crash; or, with a `sender`, from what
        the system knows of it. `since` is a position of each target partition before which nothing of the source is looked for.
        Where the system can, producers of others are fenced off until this outbound is closed: all of them, or with a `sender`
        only who sends under that name. Raises ClusterError, RETRY while such a one is there.
        """

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go; what has no receipt by then fails with FATAL."""
