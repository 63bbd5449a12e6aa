"""What a server of a protocol gets from its listener, and what it provides; servers are registered by the system they speak for.

A server has no socket and no storage: it gets the frames of each connection, calls the services, and sends frames.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

from mqbridge.adapter.inbound import Sharing
from mqbridge.adapter.numbering import Numbering
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ConfigError
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.groups import Groups, Partitions
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.limits import InFlightBytes, UnacknowledgedBytes
from mqbridge.listener.notes import Notes
from mqbridge.listener.parking import Parking
from mqbridge.listener.publishers import Publishers
from mqbridge.listener.topics import NO_FIXED_NAMES, FixedNames, ListenedTopics
from mqbridge.net.listen import ClientSession

OpenDeadLetters = Callable[[], Awaitable[DeadLetters]]
"""Returns the open dead-letter topic of a listener; may be called again. Raises ClusterError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The shared parts of one listener.

    name               the listener's name
    cluster            name of the backing cluster
    topics             finds and creates topics
    publishers         store what producers send
    groups             feeds of groups, and requests about groups
    partitions         reads partitions by position
    parking            keeps messages that wait long for a group
    definitions        definitions that clients have registered, such as schemas; the server starts and closes them
    notes              short texts that the server keeps
    in_flight          bytes that were received and are not stored: while it is full, nothing more is read from clients
    numbering          how positions become numbers
    max_message_bytes  returns the maximum bytes of a message in the backing, once it is connected; None if that is not known
    may_manage         True if clients and tools may delete, reset, skip and change
    open_dead_letters  returns the open dead-letter topic; creates it if it does not exist, and raises ClusterError
    deduplicates       True if the messages of producers that users have named are stored once
    memory             counts the bytes of messages that were read for clients
    delays             returns True if the backing delays messages by itself
    internal_topic     returns a topic that the gateways of this listener keep for themselves, by the end of its name
    port               returns the bound port of the listener
    advertise          address (`host:port`) that clients are told to connect to; None: the one that they have used
    """

    name: str
    cluster: str
    topics: ListenedTopics
    publishers: Publishers
    groups: Groups
    partitions: Partitions
    parking: Parking
    definitions: Definitions
    notes: Notes
    in_flight: InFlightBytes
    numbering: Numbering
    max_message_bytes: Callable[[], int | None]
    may_manage: bool
    open_dead_letters: OpenDeadLetters
    deduplicates: bool
    memory: UnacknowledgedBytes
    delays: Callable[[], bool]
    internal_topic: Callable[[str], InternalTopic]
    advertise: str | None
    port: Callable[[], int]


class ServerCounts(NamedTuple):
    """Numbers of what a server serves now, and totals of what it has received and delivered, for metrics."""

    producers: int = 0
    consumers: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    redelivered_messages: int = 0
    refused_requests: int = 0


class ProtocolServer(Protocol):
    """The server's side of a protocol, for all connections of a listener."""

    web: Any
    """The ASGI application of the listener's web address; None if the protocol has none."""
    refusal: bytes
    """What a connection gets if there are too many of them."""

    @property
    def counts(self) -> ServerCounts:
        """Present numbers and totals."""

    def make_session(self) -> ClientSession:
        """Make the session of a new connection."""

    async def start(self) -> None:
        """Read what is needed before the first connection. Raises ClusterError."""

    async def drain(self, deadline: float) -> None:
        """Send all clients away: stop delivering, answer what is in flight, close connections; by the deadline (loop time)."""

    async def close(self, deadline: float) -> None:
        """End what is left when all clients are gone, by the deadline (loop time)."""

    def describe(self) -> Mapping[str, Any]:
        """Return details of producers and consumers for `/listeners`, as JSON."""


class MadeTopic(NamedTuple):
    """An example of topics that a listener creates when they are needed, also where its clients may create none.

    name         the clients' name, or what follows `parking` in the name of an internal topic
    without      what happens if it cannot be created
    is_internal  True if clients do not see it
    """

    name: str
    without: str
    is_internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSystem:
    """The registration of a server.

    system            the system whose protocol it speaks
    port, web_port    default ports; `web_port` is None if the protocol has no web address
    unit_format       format in which clients send and receive units
    default_topics    default of the template that names topics
    answers_in_order  True if producers are answered in the order of their sends
    make              makes the server
    fixed_names       names of topics for which the template does not count
    made_topics       topics that the listener creates when they are needed
    sharing           the ways in which clients of a group can share partitions

    groups_span_topics   True if a group of clients may read several topics; False if it is one of a single topic
    numbers_messages     True if producers have names and number their messages
    needs_dense_numbers  True if clients need numbers that count the messages of a partition (`Numbering.dense`)
    parks_messages       True if messages of clients may wait for their time in topics of the listener
    """

    system: str
    port: int
    web_port: int | None
    unit_format: str
    default_topics: str
    answers_in_order: bool
    make: Callable[[Services], ProtocolServer]
    fixed_names: FixedNames = NO_FIXED_NAMES
    made_topics: tuple[MadeTopic, ...] = ()
    sharing: frozenset[Sharing] = frozenset({Sharing.FAILOVER})
    groups_span_topics: bool = False
    numbers_messages: bool = False
    needs_dense_numbers: bool = False
    parks_messages: bool = False


ENTRY_POINT_GROUP = "mqbridge.listeners"
"""The entry point group in which packages register their servers."""


class _InstalledServers(Mapping[str, ServedSystem]):
    """Servers by system name; each is imported on first use."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}

    def __getitem__(self, system: str) -> ServedSystem:
        try:
            loaded = self._entries[system].load()
        except ImportError as error:
            raise ConfigError(
                f"the listener {system!r} cannot be loaded: {error}", hint="Reinstall the package that provides it"
            ) from error
        assert isinstance(loaded, ServedSystem)  # noqa: S101 - a bug of the package
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@cache
def load_servers() -> Mapping[str, ServedSystem]:
    """Return every installed server by system name."""
    return _InstalledServers()
