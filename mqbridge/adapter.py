"""The contract between the gateway and a system, and the registry that finds systems.

Everything is about batches. Where a message comes from is an `Inbound`, which hands out one `InboundLane` per assigned partition;
where it goes is an `Outbound`. What an acknowledgement means on the wire (a confirm, an offset commit, an ack) is the adapter's
business and only its. One conformance suite (`tests/conformance`) holds every adapter to what is written here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import entry_points
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from mqbridge.errors import ConfigError, Failure
from mqbridge.message import Batch, Message, Partition, Position


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a system can do; routes are checked against it before anything starts."""

    ordered: bool = True
    """Keeps the order of one partition when it is sent in order."""
    individual_ack: bool = False
    """Can acknowledge batches out of order."""
    seek: bool = False
    """A lane can be moved to a position."""
    empty_payload: bool = True
    """Takes a payload of no bytes."""
    dedupe: bool = False
    """Drops what a producer of the same name sent before."""
    delay: bool = False
    """Can hold a message until its `deliver_at`."""
    create_topics: bool = True
    list_topics: bool = True
    group_topics: int | None = None
    """The most topics that one group may read; None is no limit."""
    growing_outbound: bool = False
    """An open outbound notices by itself when its topic got more partitions; a route is restarted to notice it otherwise."""
    move_groups: bool = False
    """A group can be moved from outside (`Cluster.move`)."""
    find_times: bool = False
    """Knows the position of a time (`Cluster.position_at`)."""
    backlog_unit: str = "messages"
    """What `Cluster.backlog` counts."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its cluster describes it; `partitions` is sorted, a partition's place in it is its index.

    `aliases` are further spellings under which the same topic may stand in an origin; loop prevention compares all of them.
    """

    name: str
    partitions: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first position a partition still holds and the one that its next message will get."""

    first: Position
    next: Position


@dataclass(frozen=True, slots=True)
class Member:
    """Who consumes as part of a group: its name there, its address, and the partitions that it holds.

    `address` is empty and `partitions` None where the system does not tell.
    """

    id: str
    address: str = ""
    partitions: tuple[str, ...] | None = None


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
    temporary: bool = False
    """The group ends with this inbound: nothing of it is to be kept, where the system can do that."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """Where a temporary inbound of one topic begins, by partition name; partitions that are not named begin at `start`."""
    max_bytes: int = 64 << 20
    """Most bytes that the inbound may hold ahead of the core, all lanes together."""
    options: BaseModel | None = None
    """The system's own settings (`Adapter.inbound_options`)."""


@dataclass(frozen=True, slots=True)
class OutboundSpec:
    """Where to send. One outbound serves one topic."""

    topic: str
    ordered: bool = True
    """Messages of one partition must be stored in the order in which they were sent."""
    stamp_origin: bool = True
    """Write `mqbridge.origin` on every message."""
    max_elapsed_s: float | None = None
    """How long transient failures are retried before they are reported; None is for ever."""
    options: BaseModel | None = None
    """The system's own settings (`Adapter.outbound_options`)."""


class MessageFailure:
    """One message of a batch that was not stored: its index in what was sent, and why."""

    __slots__ = ("index", "kind", "reason")

    def __init__(self, index: int, kind: Failure, reason: str) -> None:
        self.index, self.kind, self.reason = index, kind, reason


@dataclass(slots=True)
class Receipt:
    """What became of one `send`: where the last stored message is, and which were not stored."""

    position: Position = ()
    failures: list[MessageFailure] = field(default_factory=list)


class InboundLane(Protocol):
    """One ordered stream of a source: a partition, for as long as it is assigned to us.

    A lane object stands for one assignment (its generation): once revoked, acknowledging it does nothing. Unless the
    system acknowledges individually, batches are acknowledged in the order in which they were received.
    """

    partition: Partition

    @property
    def caught_up(self) -> bool:
        """The source said that there was nothing more the last time it was asked."""

    async def receive(self) -> Batch:
        """The next batch; waits, on a system that hands out one at a time also until the one before is acknowledged or rejected.

        Nothing is lost when it is cancelled. Raises LaneRevoked when the partition was taken away or released, GapError
        when the source lost data.
        """

    def acknowledge(self, batch: Batch) -> None:
        """This batch is stored; does not wait."""

    def reject(self, batch: Batch) -> None:
        """This batch was not stored: deliver it again, and on systems without individual acknowledgement all after it too."""

    async def seek(self, position: Position) -> None:
        """Continue from this position (only with `Capabilities.seek`)."""

    async def release(self) -> None:
        """Send what is acknowledged, give the partition back; what is not acknowledged will be delivered again.

        To whom is the group's business: the partition may come back to this member, as a new lane.
        """


class Inbound(Protocol):
    """A membership in a group of one cluster."""

    def lanes(self) -> AsyncIterator[InboundLane]:
        """Lanes as they are assigned; ends when the inbound is closed, raises when it cannot go on."""

    async def close(self) -> None:
        """Leave the group. Lanes not yet released are released first, keeping their acknowledgements."""


class Outbound(Protocol):
    """A way into one topic of one cluster."""

    @property
    def partitions(self) -> int:
        """How many partitions the target has.

        May grow while the outbound is open, never shrink: it is read for every batch, and each partition below it can be sent to
        at once (see `Capabilities.growing_outbound`).
        """

    def send(self, partition: int, messages: Sequence[Message], source: Partition | None) -> "asyncio.Future[Receipt]":
        """Send in order, without waiting; the future is the receipt.

        Transient failures are retried inside, in order, until `max_elapsed_s`; so a receipt's failures are what retrying
        does not help. The future itself fails only when the outbound was closed or its cluster refuses everything
        (ClusterError with Failure.FATAL). `source` is what `mqbridge.origin` is made from.
        """

    def partition_of(self, key: bytes) -> int:
        """The partition that the system's own producers would choose for this key."""

    async def last_origin(self, partition: int) -> str | None:
        """The origin stamped on the newest message of the partition, None where there is none."""

    async def close(self) -> None:
        """Wait for what is in flight (bounded), then let go."""


class Cluster(Protocol):
    """A configured cluster, the owner of its connections."""

    name: str
    capabilities: Capabilities

    async def connect(self) -> None:
        """Prove that the cluster can be reached and lets us in; raises ClusterError."""

    async def close(self) -> None:
        """Close every connection. Inbounds and outbounds are closed before it."""

    async def topics(self) -> list[str]:
        """All topic names that this client may see."""

    async def describe(self, topic: str) -> Topic | None:
        """The topic, or None if there is none."""

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic or grow it to that many partitions; nothing happens when it is already so."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next position by partition name; empty where the cluster cannot tell."""

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume the topic."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The position by partition name from which the group would resume; partitions never committed are left out.

        An acknowledgement shows here a little later. On some systems joining commits the start.
        """

    # --- for people -------------------------------------------------------------------------------------------------

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """How much the group has before it by partition name, in `Capabilities.backlog_unit`; where the system can tell."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who consumes the topic as this group now; empty when nobody does, or the group is not there."""

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Let a group go on at these positions, by partition name, back or forth (only with `Capabilities.move_groups`).

        A group that is not there is made. Other partitions stay where they are. A system that keeps places of whole entries
        takes the beginning of the entry. Raises ClusterError (FATAL) while members consume: they would write over it, or miss
        it.
        """

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """The first message stored at this time or later by partition name, else the next one (only with `find_times`)."""

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """A position by partition name with at least `count` messages behind it, near the end, or the first position.

        There may be fewer behind it where the system cannot count back; empty where it cannot tell its end.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """How the topic is set up, in the system's own words, for people; empty where there is nothing to say."""

    # --- ends -------------------------------------------------------------------------------------------------------

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group. Raises ClusterError (FATAL for a missing topic)."""

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into an existing topic. Raises ClusterError (FATAL for a missing topic)."""


def dense_backlog(committed: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """`Cluster.backlog` of a system whose positions are offsets that count messages.

    What retention has dropped before the group read it is not before it any more.
    """
    return {
        name: max(0, bounds[name].next[0] - max(position[0], bounds[name].first[0]))
        for name, position in committed.items()
        if name in bounds
    }


def dense_newest(bounds: Mapping[str, Bounds], count: int) -> dict[str, Position]:
    """`Cluster.newest` of such a system."""
    return {name: (max(one.first[0], one.next[0] - count),) for name, one in bounds.items()}


class ClusterModel(BaseModel):
    """The base of every system's cluster configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The configuration that a URL such as `system://host:port` stands for. Raises ValueError."""
        raise ValueError(f"{url.partition('://')[0]} clusters cannot be given by a URL; write a configuration file")


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a system registers: its name, the models of its configuration, and how a cluster of it is made."""

    system: str
    cluster_model: type[ClusterModel]
    inbound_options: type[BaseModel]
    outbound_options: type[BaseModel]
    make_cluster: "MakeCluster"


class MakeCluster(Protocol):
    """Builds a cluster object from its name and its validated configuration; opens no connection yet."""

    def __call__(self, name: str, config: Any, /) -> Cluster:
        """Make it."""


GROUP = "mqbridge.adapters"


def load_adapters() -> dict[str, Adapter]:
    """Every installed adapter by its system's name. Raises ConfigError when one cannot be imported."""
    found: dict[str, Adapter] = {}
    for entry in entry_points(group=GROUP):
        try:
            adapter = entry.load()
        except ImportError as error:
            raise ConfigError(
                f"the adapter {entry.name!r} cannot be loaded: {error}", hint="Reinstall the package that provides it"
            ) from error
        found[entry.name] = adapter
    return found
