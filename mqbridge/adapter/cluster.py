"""A cluster: its capabilities, and every request that the gateway makes to it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.inbound import Inbound, InboundSpec
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.message import Batch, Position


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of a cluster; routes are checked against them before anything starts."""

    seek: bool = False
    """A lane can be moved to a position."""
    empty_payload: bool = True
    """Stores messages with an empty payload."""
    delay: bool = False
    """Can delay a message until its `deliver_at`."""
    create_topics: bool = True
    list_topics: bool = True
    group_topics: int | None = None
    """Maximum number of topics that one group may read; None means no limit."""
    growing_outbound: bool = False
    """An open outbound sees new partitions of its topic by itself; otherwise the route is restarted to see them."""


class Cluster(Protocol):
    """A configured cluster; owns its connections."""

    name: str
    capabilities: Capabilities

    @property
    def operations(self) -> Operations | None:
        """Requests for people; None if the system, or this configuration of it, does not support them."""

    async def connect(self) -> None:
        """Prove that the cluster is reachable and accepts our credentials. Raises ClusterError; may then be called again."""

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection. Inbounds and outbounds are closed before it."""

    async def topics(self) -> list[str]:
        """Return all topic names that this client may see (only with `Capabilities.list_topics`)."""

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic, or None if it does not exist."""

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic or grow it to this number of partitions; do nothing if it has them."""

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise what `create` would raise, as far as this can be found without changing the cluster."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        """Return the first and next position by partition name."""

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the position, by partition name, from which the group would resume; partitions never committed are left out.

        An acknowledgement appears here with a short delay. On some systems joining commits the start. Raises ClusterError (FATAL)
        if the cluster cannot tell.
        """

    def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the batches of one partition from `begin` up to, not including, `end`, without joining a group.

        Moves no group and leaves none behind. Begins and ends exactly there, also inside a unit of storage such as an entry or a
        pack; each batch's `next` is exact. Without `end`, continues with new messages as they arrive. Ends early, without an
        error, if the partition holds less. Close the generator (`aclose`) if it is not read to its end. Raises ClusterError,
        and GapError if data in the range was lost.
        """

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range from `begin` up to, not including, `end` as countable units; empty for an empty range.

        If a range is split where units begin, `read` of the parts gives exactly the messages of the whole. The first unit range
        begins at `begin`, or later if nothing was stored or lost in between. Raises ClusterError.
        """

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group. Raises ClusterError (FATAL if the topic does not exist)."""

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise what `inbound` would raise, as far as this can be found without changing the cluster: does not join the group."""

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a producer into an existing topic. Raises ClusterError (FATAL if the topic does not exist)."""

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise what `outbound` and its sends would raise, as far as this can be found without changing the cluster.

        A missing permission is FATAL; the text names the principal, the missing permission, and how to grant it.
        """


class Connectivity(Protocol):
    """Reachability of a cluster's servers, for the log, health and metrics; totals only grow."""

    reconnects: int
    """Connections to servers that had been connected before."""
    failures: int
    """Connections that could not be made, or that were closed because the server was silent."""
    retries: int
    """Sends that were retried."""

    @property
    def away_s(self) -> float | None:
        """Seconds since a needed server became unreachable; None while all are reachable."""

    @property
    def reason(self) -> str | None:
        """The reason, as a sentence; None while all are reachable."""


@runtime_checkable
class Expiring(Protocol):
    """Optional extension of a cluster: the expiry times of the certificates and tokens that it presents and receives."""

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times (s since the epoch) by a short label: `own certificate`, `certificate of HOST:PORT`, `token`."""


@runtime_checkable
class Connected(Protocol):
    """Optional extension of a cluster with connections: it reports their state and logs each outage itself."""

    connectivity: Connectivity
