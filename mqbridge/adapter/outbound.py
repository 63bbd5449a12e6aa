"""The target side: a producer into one topic."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from mqbridge.adapter.receipt import Receipt
from mqbridge.message import NO_SOURCE, Partition, Position, Share, origin_prefix

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class OutboundSpec:
    """Where and how to send. One outbound serves one topic."""

    topic: str
    ordered: bool = True
    """Messages of one partition must be stored in the order in which they were sent."""
    stamp_origin: bool = True
    """Write `mqbridge.origin` on messages that come from a source: the batch's partition and the message's position."""
    max_elapsed_s: float | None = None
    """How long transient failures are retried before they are reported; None means forever."""
    options: "BaseModel | None" = None
    """The system's own settings (`Adapter.outbound_options`)."""
    sender: str | None = None
    """A producer name that is unique in this topic; everything sent under it comes from one source partition.

    A system that can deduplicate keeps a second producer of the name out until the first is gone, and numbers messages by their
    source positions, so that a duplicate send is stored once. The caller then calls `resume` before the first send and after
    every failure, and leaves out what is stored already; positions that do not ascend fail with ClusterError. A system that
    cannot deduplicate does not repeat a send whose response was lost: it reports the failure at once, and the caller asks
    `resume` what is stored.
    """
    retries_unanswered: bool = True
    """False: a system that cannot deduplicate never repeats a send with a lost response, also without a `sender`. The caller then
    checks what is stored."""

    @property
    def resend_s(self) -> float | None:
        """How long a system that cannot deduplicate retries sends that may be stored already; None means forever."""
        return self.max_elapsed_s if self.sender is None and self.retries_unanswered else 0.0

    @property
    def origin_of(self) -> Callable[[Partition], str | None]:
        """A function from the source partition to the prefix of stamped origins; it gives None if messages keep their origin."""
        return _stamped_origin if self.stamp_origin else _kept_origin


@lru_cache(maxsize=4096)  # called once per batch
def _stamped_origin(source: Partition) -> str | None:
    return None if source is NO_SOURCE else origin_prefix(source)


def _kept_origin(source: Partition) -> str | None:  # noqa: ARG001 - the same for every source
    return None


class Outbound(Protocol):
    """A producer into one topic of one cluster."""

    @property
    def formats(self) -> Collection[str]:
        """Formats of batches that are written without decoding them into messages."""

    @property
    def partitions(self) -> int:
        """Number of partitions of the target.

        May grow while the outbound is open, never shrink. It is read for every batch, and every partition below it accepts sends
        at once (see `Capabilities.growing_outbound`).
        """

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order, without waiting; the future gives the receipt. The share is encoded before this returns.

        `share.held_bytes` then is what is held until the receipt besides the batch itself.

        Transient failures are retried inside, in order, until `max_elapsed_s`; the failures of a receipt are therefore those that
        a retry does not help. If the outbound is `ordered` and a message fails for a reason other than REFUSED, every later send
        to that partition made before its receipt fails too: nothing overtakes. The future itself fails only if the outbound was
        closed or its cluster refuses everything (ClusterError with Failure.FATAL).
        """

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Cancel the part of these sends that is not on the wire; another consumer holds their source partition now.

        Requests that were never handed to the network, or that wait for a retry, are never sent: the receipt lists them as
        failures with RETRY. Requests on the wire stay there. A receipt comes only when none of its send is on the wire any more:
        until then its bytes may be in use. Other sends to the same partition continue, also later ones. Finished sends are
        ignored.
        """

    def partition_of(self, key: bytes) -> int:
        """Return the partition that the system's own producers would choose for this key."""

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Return the last position of this source partition that each target partition holds; those without any are left out.

        The result is read from the origins stamped on the stored messages, so it is right after any crash; or, with a `sender`,
        from the system's deduplication state. `since` gives a position of each target partition before which nothing is searched.
        If the system can fence, other producers are fenced off until this outbound is closed: all of them, or with a `sender`
        only those of the same name. Raises ClusterError, RETRY while another such producer is connected.
        """

    async def close(self, deadline: float | None = None) -> None:
        """Wait for sends in flight until the deadline, then close; sends without a receipt fail with FATAL."""
