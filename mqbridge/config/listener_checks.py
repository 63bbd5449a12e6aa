"""Checks of listeners across option groups: their clusters and systems, their addresses, and what `groups` and `open` require.

Like `cross_checks`, they read the plain data. Values of a wrong type are skipped here, because the models report them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from mqbridge.config.cross_checks import Section, duplicate_names, section, sections_of_list, unknown_cluster
from mqbridge.config.document import Document, KeyPath
from mqbridge.config.listened_systems import DEFAULT_HOST, ListenedSystem
from mqbridge.config.options.http import Http
from mqbridge.config.options.listener import is_loopback
from mqbridge.config.problems import nearest
from mqbridge.config.units import split_listen_address
from mqbridge.errors import ConfigError

_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
"""Hosts that stand for all addresses of the machine."""
_BOOLEAN = TypeAdapter(bool)


class _BoundAddress(NamedTuple):
    """An address that the process would bind, and the path of its option."""

    path: KeyPath
    host: str
    port: int

    def conflicts(self, other: "_BoundAddress") -> bool:
        """Return True if only one of the two can be bound."""
        same_host = self.host == other.host or bool(_WILDCARDS & {self.host, other.host})
        return self.port == other.port != 0 and same_host


def listener_errors(document: Document, systems: Mapping[str, ListenedSystem]) -> list[ConfigError]:
    """Return the problems of all listeners; `systems` are those whose clients can be served."""
    data = document.data
    if not isinstance(data, dict):
        return []
    listeners = list(sections_of_list(data.get("listeners"), ("listeners",)))
    clusters = data.get("clusters")
    cluster_names = set(clusters) if isinstance(clusters, dict) else set()
    errors = list(duplicate_names(document, listeners, "listener"))
    for path, listener in listeners:
        errors += unknown_cluster(document, path, listener, cluster_names)
        for sends_path, sends in section(listener, "sends", path):
            for letters_path, letters in section(sends, "dead_letter", sends_path):
                errors += unknown_cluster(document, letters_path, letters, cluster_names)
        errors += _system_errors(document, path, listener, systems)
        errors += _client_errors(document, path, listener, systems)
        errors += _open_errors(document, path, listener, systems)
        if listener.get("groups") == "own" and data.get("state") is None:
            problem = "`groups: own` needs the top-level option `state`: this gateway keeps the groups beside that file"
            errors.append(document.error((*path, "groups"), problem, "Set state: FILE (--state), or write groups: backing"))
    return [*errors, *_address_errors(document, data.get("http"), listeners, systems)]


def _system_errors(
    document: Document, path: KeyPath, listener: Mapping[str, Any], systems: Mapping[str, ListenedSystem]
) -> Iterator[ConfigError]:
    """Yield an error for a system that has no server, and for a web address that its server does not have."""
    name = listener.get("system")
    if not isinstance(name, str):
        return
    if name not in systems:
        problem = f"there is no listener for clients of the system {name!r}"
        yield document.error((*path, "system"), problem, nearest(name, systems))
        return
    try:
        has_web = systems[name].web_port is not None
    except ConfigError as error:
        yield document.error((*path, "system"), error.problem, error.hint)
        return
    if listener.get("web") is not None and not has_web:
        yield document.error((*path, "web"), f"a listener for {name} clients has no web address", "Remove it")


def _client_errors(
    document: Document, path: KeyPath, listener: Mapping[str, Any], systems: Mapping[str, ListenedSystem]
) -> Iterator[ConfigError]:
    """Yield an error for each option that the clients of the listener's system cannot use."""
    if (system := _find(listener, systems)) is None:
        return
    if not system.numbers_messages:
        for sends_path, sends in section(listener, "sends", path):
            if _is_true(sends.get("deduplicate", False)):
                problem = (
                    f"producers of {system.system} do not number their messages, so one that is sent again cannot be recognized"
                )
                yield document.error((*sends_path, "deduplicate"), problem, "Remove it: a message may be stored twice")
    group = listener.get("group")
    if system.groups_span_topics and isinstance(group, str) and "{topic}" in group:
        problem = f"a group of {system.system} clients reads several topics, and is one group in the cluster"
        yield document.error((*path, "group"), problem, "Write {group} without {topic}")


def _open_errors(
    document: Document, path: KeyPath, listener: Mapping[str, Any], systems: Mapping[str, ListenedSystem]
) -> Iterator[ConfigError]:
    """Yield an error for each address that other machines can reach, unless the listener is open."""
    if _is_true(listener.get("open", False), of_invalid=True):
        return
    for bound in _addresses(path, listener, systems):
        if not is_loopback(bound.host):
            yield document.error(
                bound.path,
                f"other machines can reach {bound.host}, and listeners do not authenticate: whoever connects may read and write "
                "all topics of the listener",
                "Listen at 127.0.0.1, or set open: true (--open) if only trusted clients can reach the address",
            )


def _is_true(value: Any, *, of_invalid: bool = False) -> bool:
    """Return the value of a switch, which a variable gives as text; `of_invalid` for one that the models report."""
    try:
        return _BOOLEAN.validate_python(value)
    except ValidationError:
        return of_invalid


def _address_errors(
    document: Document, http: Any, listeners: list[Section], systems: Mapping[str, ListenedSystem]
) -> Iterator[ConfigError]:
    """Yield an error for each address that is bound twice."""
    taken = list(_http_address(http)) if listeners else []
    for path, listener in listeners:
        for bound in _addresses(path, listener, systems):
            other = next((each for each in taken if each.conflicts(bound)), None)
            if other is not None:
                location = document.location(other.path)
                used_by = "http.listen" if other.path[0] == "http" else f"another listener ({location})"
                problem = f"{bound.host}:{bound.port} is already used by {used_by}"
                yield document.error(bound.path, problem, "Choose another port")
            taken.append(bound)


def _addresses(path: KeyPath, listener: Mapping[str, Any], systems: Mapping[str, ListenedSystem]) -> Iterator[_BoundAddress]:
    """Yield the addresses of a listener; invalid ones are skipped."""
    if listener.get("listen") is None:
        if (system := _find(listener, systems)) is not None:
            yield _BoundAddress((*path, "listen"), DEFAULT_HOST, system.port)
    else:
        yield from _address((*path, "listen"), listener["listen"])
    if listener.get("web") is not None:
        yield from _address((*path, "web"), listener["web"])


def _http_address(http: Any) -> Iterator[_BoundAddress]:
    """Yield the address of metrics and health, unless it is off or invalid."""
    options = http if isinstance(http, dict) else {}
    if options.get("enabled", True) is not False:
        yield from _address(("http", "listen"), options.get("listen", Http().listen))


def _address(path: KeyPath, text: Any) -> Iterator[_BoundAddress]:
    try:
        yield _BoundAddress(path, *split_listen_address(text))
    except (TypeError, ValueError):
        return


def _find(listener: Mapping[str, Any], systems: Mapping[str, ListenedSystem]) -> ListenedSystem | None:
    """Return the system of a listener; None if it is unknown, or cannot be loaded."""
    name = listener.get("system")
    try:
        return systems[name] if isinstance(name, str) and name in systems else None
    except ConfigError:
        return None
