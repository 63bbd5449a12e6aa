"""The target side of the contract between gateway and systems: an `Outbound` is a producer of one topic."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mqbridge.adapter.receipt import Receipt
from mqbridge.message import NO_SOURCE, Partition, Position, Share, origin_prefix

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class OutboundSpec:
    """The topic of an outbound, and how it sends."""

    topic: str
    ordered: bool = True
    """Messages of one partition must be stored in the order in which they were sent."""
    stamp_origin: bool = True
    """Stamp `mqbridge.origin` on messages that come from a source: the batch's partition and the message's position."""
    max_elapsed_s: float | None = None
    """How long transient failures are retried before they are reported; None means forever."""
    options: "BaseModel | None" = None
    """The system's own settings (`Adapter.outbound_options`)."""
    sender: str | None = None
    """A producer name that is unique in this topic; all messages sent under it come from one source partition.

    A system that can deduplicate admits no second producer of this name while the first is connected. It numbers messages by
    their source positions, and so stores a repeated send once. The caller calls `resume` before the first send and after every
    failure, and leaves out messages that are stored already; positions that do not ascend fail with ClusterError.

    A system that cannot deduplicate does not repeat a send whose response was lost. It reports the failure at once, and the
    caller finds out with `resume` which messages are stored.
    """
    writer: str | None = None
    """An id that the stamped origins name besides the source: one writer stores each message of a source at most once.

    `resume` finds the messages of this writer only. None: origins name no writer, and `resume` finds such messages.
    """
    keep_units: bool = False
    """Store units of `Outbound.formats` as they are; otherwise every batch is decoded into messages.

    Units keep what a producer said about itself and when it published: right for messages that come from their producers, and
    wrong for copies, whose retention would count from the publish time of the original.
    """
    whole_shares: bool = False
    """Store a share whole or not at all, as far as this can be known before its first request is sent.

    If a message cannot be stored (its size, a name, a property), the receipt has a failure, REFUSED, for every message of the
    share, and nothing is stored. A message that the servers refuse later fails alone.
    """
    retries_unanswered: bool = True
    """Whether a system that cannot deduplicate repeats a send whose response was lost. It never does so with a `sender`.

    If False, the send fails, and the caller finds out itself which messages are stored.
    """

    @property
    def resend_s(self) -> float | None:
        """How long a system that cannot deduplicate retries sends that may be stored already; 0: never, None: forever."""
        return self.max_elapsed_s if self.sender is None and self.retries_unanswered else 0.0

    @property
    def origin_of(self) -> Callable[[Partition], str | None]:
        """A function that returns the origin prefix to stamp for a source partition, or None if messages keep their origin."""
        if not self.stamp_origin:
            return _no_stamp
        return _stamped_origin if self.writer is None else partial(_stamped_origin, writer=self.writer)


@lru_cache(maxsize=4096)  # called once per batch
def _stamped_origin(source: Partition, writer: str | None = None) -> str | None:
    return None if source is NO_SOURCE else origin_prefix(source, writer)


def _no_stamp(source: Partition) -> str | None:  # noqa: ARG001 - the same for every source
    return None


class SendFailure(NamedTuple):
    """Why sends of an outbound fail and are retried, for the partition that has failed for the longest time.

    since     loop time of its first failure since a message was stored there last
    reason    text of its last failure
    failures  number of its failures since then
    """

    since: float
    reason: str
    failures: int


@runtime_checkable
class ReportsSendFailure(Protocol):
    """Optional extension of an outbound that retries sends: a target that is full or refuses everything can then be explained."""

    @property
    def send_failure(self) -> SendFailure | None:
        """Why sends fail now; None while messages are stored."""


@runtime_checkable
class KeepsIndexes(Protocol):
    """Optional extension of an outbound whose partitions are sorted anew when a broker joins."""

    @property
    def indexed(self) -> Sequence[int]:
        """The partition of each index by which `identity` and `table` choose one: an index keeps its partition.

        A partition that is not in it yet is used by the other rules only.
        """


class Outbound(Protocol):
    """A producer into one topic of one cluster."""

    @property
    def formats(self) -> Collection[str]:
        """Formats of units that this outbound stores as they are; `share.batch.format` is one of them.

        Units are stored as they are with `OutboundSpec.keep_units`, if the share is the whole batch, is not edited, and no origin
        is stamped on its messages; otherwise the batch is decoded into messages. A `sender` is recorded beside the units. For
        `Share.deliver_at` see there.
        """

    @property
    def partitions(self) -> int:
        """Number of partitions of the target.

        May grow while the outbound is open, never shrink. The gateway reads it for every batch; each partition with an index
        below it accepts sends at once (see `Capabilities.growing_outbound`).
        """

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Queue a share for sending, without waiting; return the future of its receipt.

        The share is encoded before this returns, and `share.held_bytes` is set to the bytes that the outbound holds until the
        receipt, besides the batch itself.

        The outbound retries transient failures, in order, until `max_elapsed_s`. If it is `ordered` and a message fails for a
        reason other than REFUSED, all sends that wait behind it fail too, and all later ones of its source partition until the
        receipt of the failure has called its callbacks, so that no message overtakes another one of its source partition. The
        future fails only if the outbound was closed or the cluster refuses every request (ClusterError, FATAL).
        """

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Cancel the requests of these sends that are not on the wire: their source partition has another consumer now.

        Requests that were not handed to the network yet, or that are scheduled for a retry, are never sent; the receipt lists
        their messages as failures with RETRY. Requests on the wire are not cancelled, and the receipt is set only when they have
        ended, because their bytes may be in use until then. Other sends to the same partition continue. Finished sends are
        ignored.
        """

    def partition_of(self, key: bytes) -> int:
        """Return the partition that the system's own producers would choose for this key."""

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of this source partition that each target partition has stored, by partition index.

        With `partitions`, only the target partitions with these indexes are searched, and only they accept sends of a `sender`.

        Target partitions without a message of the source are left out. The result comes from the origins stamped on the stored
        messages, so it is correct after any crash; with a `sender`, it may come from the system's deduplication state. Messages
        of other writers (`OutboundSpec.writer`) do not count. `since` limits the search: in a target partition (by index),
        messages before this position are not searched.

        If the system supports fencing, other producers are fenced until this outbound is closed: all of them, or with a `sender`
        only those of the same name. Raises ClusterError, RETRY while another such producer is connected.
        """

    async def close(self, deadline: float | None = None) -> None:
        """Wait for sends in flight, then close; sends without a receipt at the deadline fail with FATAL.

        `deadline` is an event loop time; None: CLOSE_S (30 s) from now.
        """
