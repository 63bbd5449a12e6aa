"""What a system registers, and how installed systems are found."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, Self

from pydantic import BaseModel, ConfigDict

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ConfigError
from mqbridge.mapping.field_table import FieldTable
from mqbridge.message import Message


class ClusterModel(BaseModel):
    """The base of every system's cluster configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

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
