"""The source side: a membership in a group, and a lane per partition."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.message import Batch, Partition, Position

if TYPE_CHECKING:
    from pydantic import BaseModel


class Start(Enum):
    """Where a group without a committed position begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class InboundSpec:
    """What to consume. Empty `msg_types` means all; an adapter may filter at the server, the core filters again."""

    topics: tuple[str, ...]
    group: str
    start: Start = Start.EARLIEST
    msg_types: frozenset[str] = frozenset()
    max_bytes: int = 64 << 20
    """Maximum bytes that the inbound may read ahead of the core, over all lanes; a larger batch is handed out alone."""
    options: "BaseModel | None" = None
    """The system's own settings (`Adapter.inbound_options`)."""
    initial_partitions: Mapping[str, frozenset[str]] | None = None
    """Names of the partitions, by topic, that existed when the group first began; None if unknown."""

    def start_of(self, topic: str, partition: str) -> Start:
        """Return where the group begins in a partition without a committed position.

        `start` applies only to the partitions that exist at first. Later ones (a new topic that matches a pattern, an added
        partition) are read from the beginning: starting at the end would lose messages without a gap.
        """
        is_known = self.initial_partitions is None or partition in self.initial_partitions.get(topic, ())
        return self.start if is_known else Start.EARLIEST


class InboundLane(Protocol):
    """One ordered stream of a source: a partition, for as long as it is assigned to us.

    A lane object stands for one assignment (generation): after revocation, acknowledging does nothing. Unless its inbound
    acknowledges individually, batches are acknowledged in the order in which they were received.
    """

    partition: Partition

    revoked: asyncio.Event
    """Set as soon as the partition is revoked or released; messages not yet on the wire to a target are then not sent."""

    @property
    def caught_up(self) -> bool:
        """True if the last response of the source said that there are no more messages."""

    async def receive(self) -> Batch:
        """Wait for the next batch; a system with one batch in flight also waits until the last one is acknowledged or rejected.

        A batch counts against `InboundSpec.max_bytes` until the next `receive`, or until it is acknowledged or rejected: the core
        calls `receive` only when its own budget has charged the batch before, so every byte that a waiting lane holds is counted.
        Cancellation loses nothing.

        Raises LaneRevoked when the partition was revoked or released, GapError when the source lost data, ClusterError.
        """

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Acknowledge these messages of the batch (None: all that are left), stored as `receipt` says; does not wait.

        `indexes` is given only if the inbound acknowledges individually.
        """

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Have the unacknowledged messages of this batch, which were not stored, delivered again, after at least `delay_s`.

        `failures` give the reasons, by index in the batch; empty if unknown. Without individual acknowledgement everything after
        them is delivered again too, in order.
        """

    async def seek(self, position: Position) -> None:
        """Continue from this position (only with `Capabilities.seek`). Raises LaneRevoked, ClusterError."""

    async def release(self, deadline: float | None = None) -> None:
        """Commit what is acknowledged and give the partition back; unacknowledged messages will be delivered again.

        The group decides who gets them: the partition may come back to this member, as a new lane. Raises nothing: a commit or
        release that fails is logged.
        """


class Inbound(Protocol):
    """A membership in a group of one cluster."""

    individual_ack: bool
    """Messages may be acknowledged in any order; only rejected messages are delivered again."""

    def lanes(self) -> AsyncIterator[InboundLane]:
        """Yield lanes as they are assigned; ends when the inbound is closed. Raises ClusterError if it cannot continue."""

    async def close(self, deadline: float | None = None) -> None:
        """Leave the group. Lanes that are not released yet are released first, with their acknowledgements."""
