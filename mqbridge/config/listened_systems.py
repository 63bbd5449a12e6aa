"""The facts about the servers of listeners that a configuration needs; packages register them by system.

`mqbridge.listener.server` has the whole registration. It lies above the configuration, which therefore only knows these facts.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Protocol, cast

from mqbridge.errors import ConfigError

ENTRY_POINT_GROUP = "mqbridge.listeners"
"""The entry point group in which packages register their servers."""
DEFAULT_HOST = "127.0.0.1"
"""The host that a listener binds if its configuration names none."""


class ListenedSystem(Protocol):
    """A system whose clients a listener can serve."""

    @property
    def system(self) -> str:
        """Its name."""

    @property
    def port(self) -> int:
        """The default port."""

    @property
    def web_port(self) -> int | None:
        """The default port of its HTTP interface; None if it has none."""

    @property
    def default_topics(self) -> str:
        """The default of the template that names topics."""

    @property
    def groups_span_topics(self) -> bool:
        """True if a group of clients may read several topics; False if it is one of a single topic."""

    @property
    def numbers_messages(self) -> bool:
        """True if producers have names and number their messages, so that one which is sent again can be recognized."""


class _InstalledSystems(Mapping[str, ListenedSystem]):
    """Systems by name; the registration of each is imported on first use."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}

    def __getitem__(self, system: str) -> ListenedSystem:
        try:
            return cast("ListenedSystem", self._entries[system].load())
        except ImportError as error:
            raise ConfigError(
                f"the listener {system!r} cannot be loaded: {error}", hint="Reinstall the package that provides it"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@cache
def load_listened_systems() -> Mapping[str, ListenedSystem]:
    """Return every system whose clients can be served, by name."""
    return _InstalledSystems()
