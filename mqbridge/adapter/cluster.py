"""The `Cluster` protocol: a cluster's capabilities, and every request that the gateway makes to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mqbridge.adapter.inbound import Inbound, InboundSpec, Sharing
from mqbridge.adapter.names import ANY_NAME, NameRule
from mqbridge.adapter.numbering import Numbering
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reader import READ_BYTES, PartitionReader
from mqbridge.adapter.topics import Bounds, Topic, UnitRange
from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Features of a cluster; routes are checked against them before anything starts."""

    seek: bool = False
    """Lanes support `InboundLane.seek`."""
    empty_payload: bool = True
    """The cluster stores messages with an empty payload."""
    delay: bool = False
    """The cluster can delay a message until its `deliver_at`."""
    create_topics: bool = True
    """`Cluster.create` is supported."""
    delete_topics: bool = False
    """`Cluster.delete` is supported, with this configuration."""
    list_topics: bool = True
    """`Cluster.topics` is supported."""
    group_topics: int | None = None
    """Maximum number of topics that one group may read; None means no limit."""
    growing_outbound: bool = False
    """An open outbound detects new partitions of its topic; otherwise the gateway reopens the outbound to use them."""
    sharing: frozenset[Sharing] = frozenset({Sharing.FAILOVER})
    """The supported values of `InboundSpec.sharing`."""
    topic_name: NameRule = ANY_NAME
    """Names that topics can have."""
    group_name: NameRule = ANY_NAME
    """Names that groups can have."""
    max_message_bytes: int | None = None
    """Maximum bytes of a message with its properties; None if there is no limit, or if it is known only to the servers."""
    acknowledges_dropped: bool = False
    """A lane acknowledges a whole batch also after `Batch.drop_contents`: it keeps what it needs in `Batch.handle`."""
    stable_positions: bool = True
    """A lane delivers a message again at the same position.

    If False, only the committed position and those of a `PartitionReader` with an end are exact: a unit that is delivered again
    may be cut elsewhere.
    """


@runtime_checkable
class IdentifiedCluster(Protocol):
    """A cluster that knows which real cluster it is. All of this package are; adapters of other packages need not be."""

    identity: str | None
    """See `ClusterModel.identity`."""


class Cluster(Protocol):
    """A configured cluster, with its connections."""

    name: str
    capabilities: Capabilities

    @property
    def numbering(self) -> Numbering:
        """How positions become numbers, and back."""

    @property
    def operations(self) -> Operations | None:
        """Administrative requests; None if the system does not support them, or not with this configuration."""

    async def connect(self) -> None:
        """Check that the cluster is reachable and accepts our credentials.

        Raises ClusterError; the caller may then call `connect` again.
        """

    async def close(self, deadline: float | None = None) -> None:
        """Close every connection. The caller closes all inbounds and outbounds first.

        At `deadline` (event loop time; None: a default of the system) this stops waiting for responses.
        """

    async def topics(self) -> list[str]:
        """Return the names of all topics that our credentials may list (only with `Capabilities.list_topics`)."""

    async def describe(self, topic: str) -> Topic | None:
        """Return the topic, or None if it does not exist."""

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic, or grow it to this number of partitions; do nothing if it has that many already."""

    async def check_create(self, topic: str, partitions: int) -> None:
        """Raise the errors that `create` would raise and that can be found without changing the cluster."""

    async def delete(self, topic: str) -> None:
        """Delete the topic with its messages; do nothing if it does not exist (only with `Capabilities.delete_topics`).

        Raises ClusterError, FATAL if the system refuses, for example while it is used.
        """

    async def bounds(self, topic: str, partition: str | None = None) -> Mapping[str, Bounds]:
        """Return the first position still held, and the position of the next message, by partition name.

        With `partition`, of this partition only. Raises ClusterError (FATAL) if it does not exist.
        """

    async def committed(self, topic: str, group: str) -> Mapping[str, Position]:
        """Return the position from which the group would resume, by partition name.

        Partitions without a commit are left out. An acknowledgement appears here after a short delay. On some systems, joining a
        group commits its start position. Raises ClusterError (FATAL) if the cluster cannot report committed positions.
        """

    async def reader(
        self, topic: str, partition: str, begin: Position, end: Position | None = None, *, max_bytes: int = READ_BYTES
    ) -> PartitionReader:
        """Open a reader of one partition from `begin` up to, not including, `end`, without joining a group.

        No group is created, and none is moved. `begin` and `end` are exact, also inside a storage unit such as a Pulsar entry
        or a TubeMQ pack. Without `end`, the reader continues with new messages as they arrive. `max_bytes` limits what it reads
        ahead; a batch larger than this is read alone. Raises ClusterError (FATAL if the partition does not exist).
        """

    async def measure(self, topic: str, partition: str, begin: Position, end: Position) -> Sequence[UnitRange]:
        """Return the range from `begin` up to, not including, `end` as ranges of units; empty for an empty range.

        A unit is the smallest amount that the system counts, see `UnitRange`. If the range is split where units begin, reading
        all parts yields exactly the messages of the whole range. The first unit range begins at `begin`, or later if there
        is nothing in between, neither a message nor a gap. Raises ClusterError.
        """

    async def inbound(self, spec: InboundSpec) -> Inbound:
        """Join a group. Raises ClusterError (FATAL if the topic does not exist)."""

    async def check_inbound(self, spec: InboundSpec) -> None:
        """Raise the errors that `inbound` would raise and that can be found without joining the group."""

    async def outbound(self, spec: OutboundSpec) -> Outbound:
        """Open a producer into an existing topic. Raises ClusterError (FATAL if the topic does not exist)."""

    async def check_outbound(self, spec: OutboundSpec) -> None:
        """Raise the errors that `outbound` and its sends would raise and that can be found without changing the cluster.

        A missing permission is FATAL; the text names the principal, the missing permission, and how to grant it.
        """


@runtime_checkable
class JudgesDeletions(Protocol):
    """Optional extension of a cluster whose positions are not contiguous.

    On such a system a partition may begin after the last position that a group has read, although no message lies between the
    two: the end of a deleted storage segment is followed by the beginning of the next one. Without this extension, positions
    count as contiguous: every position between two messages stands for a message.
    """

    async def deleted_unread(self, topic: str, partition: str, group: str, begin: Position, first: Position) -> bool | None:
        """Return True if the source has deleted messages from `begin` on that the group had not acknowledged.

        `first` is the first position that the partition holds, see `bounds`. False means that the group had acknowledged all of
        them, or that there were none; None means that this cannot be known. True and False must be certain: at True the
        partition stops. Raises ClusterError.
        """


class Connectivity(Protocol):
    """Reachability of a cluster's servers, for the log, health and metrics."""

    reconnects: int
    """Total number of connections to servers that had been connected before."""
    failures: int
    """Total number of connection attempts that failed, and of connections closed because the server was silent."""
    retries: int
    """Total number of retried sends."""

    @property
    def unreachable_s(self) -> float | None:
        """Seconds since the outage began: since its first server became unreachable. None while all are reachable."""

    @property
    def reason(self) -> str | None:
        """Why servers are unreachable, as text; None while all are reachable."""


@runtime_checkable
class CountsUnreplicated(Protocol):
    """Optional extension of `Connectivity` for a system that stores messages although a replica is missing, and says so."""

    unreplicated: int
    """Total number of messages stored without the flush or the replica that the servers' settings demand."""


@runtime_checkable
class ReportsExpiries(Protocol):
    """Optional extension of a cluster that knows when its certificates (ours and the servers') and its tokens expire."""

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times (s since the epoch) by a short label: `own certificate`, `certificate of HOST:PORT`, `token`."""


@runtime_checkable
class ReportsConnectivity(Protocol):
    """Optional extension of a cluster that makes network connections, whether or not it is connected now.

    Such a cluster tracks which of its servers are reachable, and logs the start and the end of each outage itself.
    """

    connectivity: Connectivity
    """The reachability of the servers."""
