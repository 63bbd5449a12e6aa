"""The interfaces by which an adapter reads from its system.

An `Inbound` is a membership in a group, with one `InboundLane` per assigned partition.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.message import Batch, Partition, Position

if TYPE_CHECKING:
    from pydantic import BaseModel


class Start(Enum):
    """Where a group begins in partitions without a committed position."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Sharing(Enum):
    """How the members of a group share the messages of a partition."""

    EXCLUSIVE = "exclusive"
    """The group has one member, and others are refused."""
    FAILOVER = "failover"
    """One member at a time reads a partition, in order."""
    SHARED = "shared"
    """Each message goes to one of the members, in any order."""
    KEY_SHARED = "key_shared"
    """Messages with the same key go to the same member, in order."""


class HeldPositions(Protocol):
    """Where a gateway keeps, beyond a membership, up to where the messages of its partitions are confirmed.

    For systems whose servers may move a group past messages that were delivered and not confirmed, such as a TubeMQ Broker that
    shuts down in order: the next registration of this gateway then sets the group back.
    """

    def unsettled(self, topic: str, partition: str) -> tuple[Position, Position] | None:
        """Return the positions that an earlier membership recorded, if it held the partition and did not release it; else None.

        They are the position up to which messages are confirmed, and the largest one to which a server may have moved the group.
        """

    def trace(self, topic: str, partition: str) -> tuple[Position, ...]:
        """Return what was recorded as read of a partition last, held or not; empty if nothing was."""

    def record(self, topic: str, partition: str, confirmed: Position, limit: Position, trace: tuple[Position, ...] = ()) -> None:
        """Record these positions of a partition that the membership holds.

        `trace` says what was read last, in a form of the adapter. It outlives the release, so that the next membership can find
        out whether the server still has it.
        """

    def released(self, topic: str, partition: str) -> None:
        """Record that the server has confirmed the release of the partition."""


class LockOwners(Protocol):
    """Where a gateway keeps, beyond its process, the names under which its memberships of a group have locked partitions.

    For systems whose servers keep the locks of a member that was killed until they expire, such as RocketMQ: the next process of
    this gateway releases them. Raises nothing.
    """

    @property
    def abandoned(self) -> Sequence[str]:
        """The names of memberships that ended with an earlier process of this gateway, and may not have released their locks."""

    async def record(self, owner: str) -> None:
        """Record the name of a membership, before it locks anything."""

    async def forget(self, owners: Sequence[str]) -> None:
        """Forget memberships that have no locks any more."""


@dataclass(frozen=True, slots=True)
class InboundSpec:
    """The topics and the group of an inbound, and how it reads."""

    topics: tuple[str, ...]
    group: str
    start: Start = Start.EARLIEST
    msg_types: frozenset[str] = frozenset()
    """Message types to read; empty means all. An adapter may filter at the server; the gateway filters in any case."""
    topic_msg_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Message types to read of single topics, instead of `msg_types`."""
    max_bytes: int = 64 << 20
    """Maximum bytes that the inbound may read ahead, over all lanes; a batch larger than this is read alone."""
    options: "BaseModel | None" = None
    """The system's own settings (`Adapter.inbound_options`)."""
    initial_partitions: Mapping[str, frozenset[str]] | None = None
    """Names of the partitions, by topic, that existed when the route first joined the group; None means all partitions."""
    began_ms: int | None = None
    """When the route first joined the group, ms since the epoch: what was stored later is read even if `start` is LATEST."""
    positions: HeldPositions | None = None
    """Where positions are kept beyond the membership; None: they are not."""
    lock_owners: LockOwners | None = None
    """Where it is kept who has locked partitions; None: it is not. Only an inbound that locks partitions uses it."""
    sharing: Sharing | None = None
    """How the members share a partition, one of `Capabilities.sharing`; None: as `options` say, or FAILOVER."""
    member: str | None = None
    """Name of this member, for operators; None: the adapter makes one. Members of one group may have the same name."""
    sent_back: bool = True
    """Whether to receive messages that members of the group have sent back, if the system stores them in a topic of its own."""
    keep_units: bool = False
    """Whether `Batch.units` are needed as they were stored: without it, an adapter may keep only their messages."""
    release_wait_s: float = 0.0
    """How long a partition that the group takes away is kept, so that messages in flight can still be acknowledged.

    Only systems whose members give partitions up themselves wait: see `AnnouncesRelease`.
    """

    def msg_types_of(self, topic: str) -> frozenset[str]:
        """Return the message types to read of a topic; empty means all."""
        return self.topic_msg_types.get(topic, self.msg_types)

    def start_of(self, topic: str, partition: str) -> Start:
        """Return where the group begins in a partition without a committed position.

        `start` applies only to the initial partitions. Later ones (of a new topic that matches a pattern, or added to a topic)
        are read from the beginning: starting at the end would lose messages without reporting a gap. An adapter may leave out
        what was stored before `began_ms`: such a partition may have been missing only because its broker was down.
        """
        is_initial = self.initial_partitions is None or partition in self.initial_partitions.get(topic, ())
        return self.start if is_initial else Start.EARLIEST


class BatchSource(Protocol):
    """The ordered stream of a partition's batches: what a lane and a `PartitionReader` have in common."""

    partition: Partition

    @property
    def caught_up(self) -> bool:
        """True if the source reported in its last response that the partition has no more messages.

        False once a request has failed since then, or the connection was lost. A system whose requests wait for messages needs
        `ConfirmsEnd` too: while such a request waits, nobody knows whether the source can still be reached. So does a system that
        reports the end only if it is asked: reading sends no request for it, and this is False until `confirm_caught_up` is True.
        """

    async def seek(self, position: Position) -> None:
        """Continue from this position; batches in flight are dropped. Raises LaneRevoked, ClusterError.

        A lane supports this only with `Capabilities.seek`.
        """


class InboundLane(BatchSource, Protocol):
    """One assignment of a partition to this member, and the ordered stream of its batches.

    Each assignment has its own lane object: after the revocation, acknowledging on the old object does nothing. Unless the
    inbound has `individual_ack`, the caller acknowledges batches in the order in which it received them.
    """

    revoked: asyncio.Event
    """Set as soon as the partition is revoked or released; messages not yet on the wire to a target are then not sent."""

    async def receive(self) -> Batch:
        """Wait for the next batch; cancelling this call loses no message.

        If the system allows only one batch in flight, this also waits until the previous batch is acknowledged or rejected.

        A batch counts against `InboundSpec.max_bytes` until it is acknowledged or rejected, or until the next `receive`. The
        gateway calls `receive` only after it has charged the previous batch to its own budget, so every byte is always counted.

        Raises LaneRevoked when the partition was revoked or released, GapError when the source lost data (`seek` continues
        behind the gap), ClusterError.
        """

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Acknowledge the messages of the batch at `indexes`, without waiting; None means all not acknowledged yet.

        Without `individual_ack`, `indexes` is `range(n)`: everything before message n. The batch then stays in flight until it is
        acknowledged without `indexes`, or rejected. A system that confirms whole units waits for the rest of the unit; a batch
        that it confirms whole is such a unit.

        `receipt` has the positions at which a target stored the messages. Without
        `indexes`, it has one position per message of the batch. With `indexes`, it is the receipt of the send
        that completed these messages: it has one position per message of that send's `Share`, which may contain further ones.
        """

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Request redelivery of all messages of the batch that are not acknowledged, after at least `delay_s`.

        On a system that confirms whole units, those of a unit that is acknowledged in part are delivered again, too.

        `failures` gives the reasons, by index in the batch; it is empty if they are unknown. Without `individual_ack`, all later
        messages of the partition are delivered again too, in order.
        """

    async def release(self, deadline: float | None = None) -> None:
        """Commit all acknowledgements and release the partition; unacknowledged messages will be delivered again.

        The group may assign the partition to this member again, as a new lane. Returns by `deadline` (event loop time; None: a
        limit of the adapter). Raises nothing: a failed commit or release is logged.
        """


@runtime_checkable
class ConfirmsEnd(Protocol):
    """A lane that can ask its source whether the partition has more messages, beside the reading."""

    async def confirm_caught_up(self) -> bool:
        """Ask the source now; return True if everything that it has was received. Raises ClusterError if it cannot be asked.

        After True, `caught_up` is True, too, while the lane is read, until a message arrives or the connection is lost.
        """


@runtime_checkable
class KeepsPrefixes(Protocol):
    """A lane that finds in the received form of a batch where a prefix of it ends, but can note that before it is dropped."""

    def keep_prefixes(self, batch: Batch) -> None:
        """Note what acknowledging any prefix of the batch needs: `Batch.drop_contents` follows."""


async def ask_caught_up(lane: InboundLane) -> bool:
    """Return True if everything that the source has was received; ask the source if the lane can. Raises ClusterError."""
    return await lane.confirm_caught_up() if isinstance(lane, ConfirmsEnd) else lane.caught_up


@runtime_checkable
class AnnouncesRelease(Protocol):
    """Optional extension of a lane whose member gives partitions up itself: the group wants the partition for another member.

    With `InboundSpec.release_wait_s`, the partition stays assigned for that time at most after `releasing` is set. No more
    messages are received; messages in flight can be acknowledged. The caller ends the wait with `InboundLane.release`.
    """

    releasing: asyncio.Event
    """Set when the member is going to give the partition up, and when it is revoked at once."""


@runtime_checkable
class CountsReadAhead(Protocol):
    """Optional extension of a lane, for callers that may not call its `receive` again for long, while others have to be read."""

    def counted(self, batch: Batch) -> None:
        """Count the last batch against `InboundSpec.max_bytes` no longer: the caller counts it from now on."""


@runtime_checkable
class CountsPossibleGaps(Protocol):
    """Optional extension of a lane whose source may have deleted unread data of which nobody knows whose messages it had."""

    @property
    def possible_gaps(self) -> int:
        """How often that was found on this lane."""


@runtime_checkable
class ReportsPauses(Protocol):
    """Optional extension of an inbound: its source may refuse to let it read for a while, and it waits.

    Examples are a paused group, or a topic that is closed for consumers. Lost connections do not count.
    """

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why the source refuses to let this member read now, by `TOPIC/PARTITION` or `TOPIC`; empty while it may read all."""


class Inbound(Protocol):
    """A membership in a consumer group of one cluster."""

    individual_ack: bool
    """True if messages may be acknowledged in any order, and only rejected messages are delivered again."""

    def lanes(self) -> AsyncIterator[InboundLane]:
        """Yield a lane for each assigned partition until the inbound is closed. Raises ClusterError if it cannot continue."""

    async def close(self, deadline: float | None = None) -> None:
        """Commit all acknowledgements, release all assigned lanes, and leave the group.

        `deadline` is that of `InboundLane.release`.
        """
