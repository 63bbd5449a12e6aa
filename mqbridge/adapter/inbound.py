"""Where messages come from: a membership in a group, and a lane per partition."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pydantic import BaseModel

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.message import Batch, Partition, Position


class Start(Enum):
    """Where a group begins that has no committed position yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class InboundSpec:
    """What to consume. `msg_types` empty means all; an adapter that can filters at the server, the core checks again."""

    topics: tuple[str, ...]
    group: str
    start: Start = Start.EARLIEST
    msg_types: frozenset[str] = frozenset()
    max_bytes: int = 64 << 20
    """Most bytes that the inbound may hold ahead of the core, all lanes together; one batch that is larger comes alone."""
    options: BaseModel | None = None
    """The system's own settings (`Adapter.inbound_options`)."""
    known: Mapping[str, frozenset[str]] | None = None
    """By topic the names of the partitions that there were when the group first began; None while nobody knows."""

    def start_of(self, topic: str, partition: str) -> Start:
        """Where the group begins in a partition that it has no position in.

        `start` counts once, for what there is at first. What comes later (a topic that a pattern matches, a partition that is
        added) is read from its beginning, whichever session finds it: at its end, messages would be lost without a gap.
        """
        is_known = self.known is None or partition in self.known.get(topic, ())
        return self.start if is_known else Start.EARLIEST


class InboundLane(Protocol):
    """One ordered stream of a source: a partition, for as long as it is assigned to us.

    A lane object stands for one assignment (its generation): once revoked, acknowledging it does nothing. Unless its inbound
    acknowledges individually, batches are acknowledged in the order in which they were received.
    """

    partition: Partition

    revoked: asyncio.Event
    """Set at once when the partition was taken away or released; what is not on its way to a target yet is not sent any more."""

    @property
    def caught_up(self) -> bool:
        """The source said that there was nothing more the last time it was asked."""

    async def receive(self) -> Batch:
        """The next batch; waits, on a system that hands out one at a time also until the one before is acknowledged or rejected.

        A batch counts against `InboundSpec.max_bytes` until the lane is asked for the next one, or the batch is acknowledged or
        rejected: the core asks only when it has taken the bytes of the one before on its own account, so a lane that waits for
        room holds nothing that nobody counts. Nothing is lost when it is cancelled.

        Raises LaneRevoked when the partition was taken away or released, GapError
        when the source lost data, ClusterError.
        """

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """These messages of the batch (None: all that are left of it) are stored, where `receipt` says; does not wait.

        A part of a batch is given only where the inbound acknowledges individually.
        """

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """What is not acknowledged of this batch was not stored: deliver it again, not before `delay_s` seconds.

        `failures` say why, by index in the batch; none: nobody knows. Without individual acknowledgement everything behind comes
        again too, in order.
        """

    async def seek(self, position: Position) -> None:
        """Continue from this position (only with `Capabilities.seek`). Raises LaneRevoked, ClusterError."""

    async def release(self, deadline: float | None = None) -> None:
        """Send what is acknowledged, give the partition back; what is not acknowledged will be delivered again.

        To whom is the group's business: the partition may come back to this member, as a new lane. Raises nothing: what cannot be
        said to the cluster is logged.
        """


class Inbound(Protocol):
    """A membership in a group of one cluster."""

    individual_ack: bool
    """Messages may be acknowledged in any order; only what was rejected comes again."""

    def lanes(self) -> AsyncIterator[InboundLane]:
        """Lanes as they are assigned; ends when the inbound is closed. Raises ClusterError when it cannot go on."""

    async def close(self, deadline: float | None = None) -> None:
        """Leave the group. Lanes not yet released are released first, keeping their acknowledgements."""
