"""A cluster: what it is capable of, and everything that is asked of it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.topics import Bounds, Stretch, Topic
from mqbridge.message import Batch, Position


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

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[Stretch]:
        """What lies from `begin` up to, not including, `end`, in units that may be counted and cut at; none for an empty range.

        Ranges that are cut at the beginnings of units hold together, read by `read`, exactly the messages of the whole. The first
        stretch begins at `begin`, or behind it where nothing lies between, and nothing was lost. Raises ClusterError.
        """

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group. Raises ClusterError (FATAL for a missing topic)."""

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise what `inbound` would raise, as far as the cluster tells without being changed: the group is not joined."""

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a way into an existing topic. Raises ClusterError (FATAL for a missing topic)."""

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise what `outbound` would, and what sends would be refused for, as far as the cluster tells without being changed.

        A missing right is FATAL, and says who may not do what, and how it is granted.
        """


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
class Expiring(Protocol):
    """What a cluster may say besides: one that shows and is shown certificates and tokens knows when they end."""

    @property
    def expiries(self) -> Mapping[str, float]:
        """When each ends, s since the epoch, by a short text: `own certificate`, `certificate of HOST:PORT`, `token`."""


@runtime_checkable
class Connected(Protocol):
    """What a cluster may say besides: one that has connections to lose says how they are, and logs each outage itself."""

    connectivity: Connectivity
