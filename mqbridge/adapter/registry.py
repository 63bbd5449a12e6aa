"""The registration of a system, and the lookup of installed systems."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import UnitFormat
from mqbridge.errors import ConfigError
from mqbridge.mapping.field_table import FieldTable
from mqbridge.message import Message


class ClusterModel(BaseModel):
    """The base of every system's cluster configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Make the configuration from a URL such as `system://host:port`. Raises ValueError if the URL is not supported."""
        raise ValueError(f"{url.partition('://')[0]} clusters cannot be given by a URL; write a configuration file")

    @property
    def identity(self) -> str | None:
        """A text that names the real cluster, such as its addresses, whatever a configuration calls it; None if there is none.

        Two clusters never have the same identity. One cluster may have several, for example those of different servers.
        """
        return None

    @property
    def server_identities(self) -> frozenset[str]:
        """Texts that each name the real cluster, one for each configured server: two configurations that share one mean the same.

        Empty if the cluster has no identity.
        """
        return frozenset() if self.identity is None else frozenset({self.identity})

    def check_topic_name(self, topic: str) -> None:
        """Raise ConfigError or ClusterError if no topic of the system can have this name; so does `Cluster.check_create`."""

    def full_topic_name(self, topic: str) -> str:
        """Return the name that all spellings of a topic share, also those of other configurations of the same cluster.

        The name of a partition stands for its topic. An invalid name is returned as it is.
        """
        return topic

    def listed_topic_name(self, topic: str) -> str:
        """Return the name under which `Cluster.topics` lists a topic, which is the name that patterns are compared with."""
        return topic


class MakeCluster(Protocol):
    """Builds a cluster object from its name and its validated configuration; opens no connection."""

    def __call__(self, name: str, config: Any, /) -> Cluster:
        """Build the cluster object."""


Preview = Callable[[Message, str | None, int], list[tuple[str, str | bytes]]]
"""Function that returns the fields which a message would have in the system, as pairs (name in the system, value).

It takes the message, the prefix of the origin to write, to which the message's position is appended (None: no new origin), and
the current time (ms). It raises MappingError for a message that the system cannot represent.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The registration of a system: its name, configuration models, cluster factory, and mapping table."""

    system: str
    cluster_model: type[ClusterModel]
    inbound_options: type[BaseModel]
    outbound_options: type[BaseModel]
    make_cluster: MakeCluster
    table: FieldTable
    """The rules by which each message field is mapped to the system."""
    preview: Preview
    formats: tuple[UnitFormat, ...] = ()
    """The formats of units that the system stores, by which others decode them."""
    uniform_groups: bool = False
    """True if all members of a group must subscribe to the same topics with the same filter.

    If members differ in this, the system refuses them, or assigns partitions of a topic also to members that do not subscribe to
    it.
    """


ENTRY_POINT_GROUP = "mqbridge.adapters"
"""The entry point group in which packages register their adapters."""


class _InstalledAdapters(Mapping[str, Adapter]):
    """Adapters by system name; each is imported on first use."""

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
    """Return every installed adapter by system name; each is imported on first use. An ImportError is raised as ConfigError."""
    return _InstalledAdapters(entry_points(group=ENTRY_POINT_GROUP))


@cache
def find_format(name: str) -> UnitFormat | None:
    """Return the format of units with this name; None if no adapter is installed that knows it."""
    adapter = load_adapters().get(name.partition(".")[0])
    return None if adapter is None else next((each for each in adapter.formats if each.name == name), None)
