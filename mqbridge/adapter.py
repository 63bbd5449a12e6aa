"""The contract between the gateway and a system, and the registry that finds systems.

Everything is about batches. Where messages come from is an `Inbound`, which hands out one `InboundLane` per assigned partition;
where they go is an `Outbound`, which is sent shares of batches. What an acknowledgement is on the wire (a confirm, an offset
commit, an ack) is known to the adapter alone. One conformance suite (`tests/conformance`) holds every adapter to this page.

What may be raised, besides what a method says itself: ClusterError with a `failure` of RETRY or REFRESH means that the same call
may succeed later (the gateway begins the session anew, with backoff); FATAL means that a person has to change something (the
route stops and shows it). REFUSED concerns messages and stands in receipts. ProtocolError is a peer that breaks the protocol,
LaneRevoked and GapError are how a lane ends. Anything else is a bug.

Deadlines are times of the event loop. None is CLOSE_S from now; nobody below has a deadline of its own for shutting down.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict

from mqbridge.errors import ConfigError, Failure
from mqbridge.mapping.field_table import FieldTable
from mqbridge.message import NOWHERE, Batch, Message, Partition, Position, Share, origin_prefix

CLOSE_S = 30.0
"""How long closing may take where nobody gave a deadline."""


def seconds_until(deadline: float | None) -> float:
    """How long that is from now; never negative."""
    return CLOSE_S if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


def deadline_of(deadline: float | None) -> float:
    """A time of the event loop, not before now, also where nobody gave one."""
    return asyncio.get_running_loop().time() + seconds_until(deadline)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What routes are checked against before anything starts."""

    seek: bool = False
    """A lane can be moved to a position."""
    empty_payload: bool = True
    """Takes a payload of no bytes."""
    delay: bool = False
    """Can hold a message until its `deliver_at`."""
    create_topics: bool = True
    list_topics: bool = True
    group_topics: int | None = None
    """The most topics that one group may read; None is no limit."""
    growing_outbound: bool = False
    """An open outbound notices by itself when its topic got more partitions; a route is restarted to notice it otherwise."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its cluster describes it; `partitions` is sorted, the index of a partition is its index in it.

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

    @property
    def origin_of(self) -> Callable[[Partition], str | None]:
        """By the source, what every origin that is stamped begins with; None where messages keep the one that they have."""
        return _stamped_origin if self.stamp_origin else _kept_origin


@lru_cache(maxsize=4096)  # asked once per batch
def _stamped_origin(source: Partition) -> str | None:
    return None if source is NOWHERE else origin_prefix(source)


def _kept_origin(source: Partition) -> str | None:  # noqa: ARG001 - whatever the source is
    return None


class MessageFailure:
    """One message of a share that was not stored: its index in the share, and why."""

    __slots__ = ("index", "kind", "reason")

    def __init__(self, index: int, kind: Failure, reason: str) -> None:
        self.index, self.kind, self.reason = index, kind, reason


class Receipt:
    """What became of one `send`: which messages were not stored, and where the others are, made when somebody asks."""

    __slots__ = ("_positions", "failures")

    def __init__(
        self,
        positions: Callable[[], Sequence[Position]] | Sequence[Position] = (),
        failures: Sequence[MessageFailure] = (),
    ) -> None:
        self._positions = positions
        self.failures = list(failures)

    @property
    def positions(self) -> Sequence[Position]:
        """One per message of the share; () for a message that was not stored, or where the system does not tell."""
        if callable(self._positions):
            self._positions = self._positions()
        return self._positions

    @property
    def position(self) -> Position:
        """The last one, () where the system does not tell."""
        return max(self.positions, default=())


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

    async def resume(self, source: Partition) -> Mapping[int, Position]:
        """The last position of this source partition that each target partition holds; those that hold none are left out.

        Read from the origins that are stamped on what is stored, so it is true after any crash. Where the system can, producers
        of others are fenced off until this outbound is closed. Raises ClusterError.
        """

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go; what has no receipt by then fails with FATAL."""


class Operations(Protocol):
    """What people ask of a cluster's groups and topics. Raises ClusterError (FATAL where the cluster cannot do it)."""

    backlog_unit: str
    """What `backlog` counts."""

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume the topic."""

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """How much the group has before it by partition name, in `backlog_unit`; where the system can tell."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who consumes the topic as this group now; empty when nobody does, or the group is not there."""

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Let a group go on at these positions, by partition name, back or forth.

        A group that is not there is made. Other partitions stay where they are. A system that keeps positions of whole entries
        takes the beginning of the entry. Raises ClusterError (FATAL) while members consume: they would write over it, or miss it.
        """

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """The first message stored at this time or later by partition name, else the next one."""

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """A position by partition name with at least `count` messages behind it, near the end, or the first position.

        There may be fewer behind it where the system cannot count back.
        """

    async def settings(self, topic: str) -> Mapping[str, str]:
        """How the topic is set up, in the system's own words, for people; empty where there is nothing to say."""

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """What deletes messages of the topic before they are consumed: a sentence each, which ends with what to do about it.

        With a `group`, of a source: what threatens messages that this group has still to read. Without, of a target: what
        threatens messages that are written there; the topic may be missing yet, and `planned` are the groups that are made with
        it. Only looks. A sentence stays the same as long as nothing changes: it is logged when it is new.
        """


@runtime_checkable
class GroupMaker(Protocol):
    """Operations of a system in which a topic keeps messages for the groups that it has, and may delete them without any.

    Only there a target's `create` may name subscriptions.
    """

    async def create_group(self, topic: str, group: str) -> None:
        """Make the group, at the first message, in each partition where it is missing; elsewhere it stays where it is."""

    def check_create_group(self) -> None:
        """Raise what `create_group` would raise for any topic, as the cluster is configured. Raises ClusterError (FATAL)."""


class Cluster(Protocol):
    """A configured cluster, the owner of its connections."""

    name: str
    capabilities: Capabilities

    @property
    def operations(self) -> Operations | None:
        """What people may ask; None where the system, or this configuration of it, answers nobody."""

    async def connect(self) -> None:
        """Prove that the cluster can be reached and lets us in; raises ClusterError, and may then be called again."""

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection. Inbounds and outbounds are closed before it."""

    async def topics(self) -> list[str]:
        """All topic names that this client may see (only with `Capabilities.list_topics`)."""

    async def describe(self, topic: str) -> Topic | None:
        """The topic, or None if there is none."""

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic or grow it to that many partitions; nothing happens when it is already so."""

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise what `create` would raise, as far as the cluster tells without being changed."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """First and next position by partition name."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """The position by partition name from which the group would resume; partitions never committed are left out.

        An acknowledgement shows here a little later. On some systems joining commits the start. Raises ClusterError (FATAL) where
        the cluster cannot tell.
        """

    def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """The batches of one partition from `begin` up to, not including, `end`, as no group's member.

        Moves no group and leaves none behind. Begins and ends exactly there, also inside of what the system stores as one piece;
        each batch's `next` is exact. Without an `end` it goes on as messages come. Ends early, without a word, when the partition
        held less. Close it (`aclose`) when it is not read to its end. Raises ClusterError, and GapError when data between the
        two was lost.
        """

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group. Raises ClusterError (FATAL for a missing topic)."""

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise what `inbound` would raise, as far as the cluster tells without being changed: the group is not joined."""

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into an existing topic. Raises ClusterError (FATAL for a missing topic)."""


class Connectivity(Protocol):
    """Whether the servers of a cluster can be reached, for the log, health and metrics; totals only grow."""

    reconnects: int
    """Connections to servers that had been connected before."""
    failures: int
    """Connections that could not be made, or ended because the server was silent."""
    retries: int
    """Sends that were repeated."""

    @property
    def away_s(self) -> float | None:
        """For how many seconds a server that is needed could not be reached; None while all can."""

    @property
    def reason(self) -> str | None:
        """Why, in a sentence; None while all can be reached."""


@runtime_checkable
class Connected(Protocol):
    """What a cluster may say besides: one that has connections to lose says how they are, and logs each outage itself."""

    connectivity: Connectivity


def dense_backlog(committed: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> dict[str, int]:
    """`Operations.backlog` of a system whose positions are offsets that count messages.

    What retention has dropped before the group read it is not before it any more.
    """
    return {
        name: max(0, bounds[name].next[0] - max(position[0], bounds[name].first[0]))
        for name, position in committed.items()
        if name in bounds
    }


def dense_newest(bounds: Mapping[str, Bounds], count: int) -> dict[str, Position]:
    """`Operations.newest` of such a system."""
    return {name: (max(one.first[0], one.next[0] - count),) for name, one in bounds.items()}


class ClusterModel(BaseModel):
    """The base of every system's cluster configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The configuration that a URL such as `system://host:port` stands for. Raises ValueError."""
        raise ValueError(f"{url.partition('://')[0]} clusters cannot be given by a URL; write a configuration file")


class MakeCluster(Protocol):
    """Builds a cluster object from its name and its validated configuration; opens no connection yet."""

    def __call__(self, name: str, config: Any, /) -> Cluster:
        """Make it."""


Preview = Callable[[Message, str | None, int], list[tuple[str, str | bytes]]]
"""What a message would be in a system, as native names and values: by the message, its origin's prefix, and the time (ms).

Raises MappingError for a message that the system cannot hold.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What a system registers: its name, its configuration models, how a cluster of it is made, how it is explained."""

    system: str
    cluster_model: type[ClusterModel]
    inbound_options: type[BaseModel]
    outbound_options: type[BaseModel]
    make_cluster: MakeCluster
    table: FieldTable
    """What becomes of every field of its messages."""
    preview: Preview
    uniform_groups: bool = False
    """The members of a group must all subscribe to the same: they are refused otherwise, or take messages from each other."""


GROUP = "mqbridge.adapters"


class _Installed(Mapping[str, Adapter]):
    """Adapters by their system's name; each is imported when it is asked for, once."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, Adapter] = {}

    def __getitem__(self, system: str) -> Adapter:
        if system not in self._loaded:
            try:
                self._loaded[system] = self._entries[system].load()
            except ImportError as error:
                raise ConfigError(
                    f"the adapter {system!r} cannot be loaded: {error}", hint="Reinstall the package that provides it"
                ) from error
        return self._loaded[system]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_adapters() -> Mapping[str, Adapter]:
    """Every installed adapter by its system's name, imported when it is asked for: ConfigError when that cannot be done."""
    return _Installed(entry_points(group=GROUP))
