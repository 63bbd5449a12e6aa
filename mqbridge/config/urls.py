"""Parses URLs of clusters: `system://HOST:PORT[,HOST:PORT]?NAME=VALUE&…`; the names are the keys of the configuration."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel

from mqbridge.config.problems import nearest

ADMIN_SHORT_NAME = {"admin": "admin_url"}
"""The short parameter name `admin` for the key `admin_url`, the address of a cluster's web interface."""

_LOOPBACK = frozenset({"localhost", "::1"})
"""Other spellings of 127.0.0.1."""


def split_url(
    url: str, model: type[BaseModel], *, excluded: Iterable[str], short_names: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Split a URL into the part before `?` and its parameters, as nested data for the model.

    Valid names are the model's fields except `excluded`, and the keys of `short_names`, whose values are fields. A name with dots
    is a path into groups of options: `tls.authorities=FILE`, `auth.token.file=FILE`; the model checks the names after the first.
    Raises ValueError for an unknown parameter (with the nearest known name), for one that is given twice, and for one that is
    given both as a value and as a group.
    """
    base, _, query = url.partition("?")
    names = {name: name for name in model.model_fields.keys() - set(excluded)} | dict(short_names or {})
    parameters: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        first, *nested = name.split(".")
        if first not in names:
            hint = nearest(name, names) or "This URL has no parameters"
            raise ValueError(f"there is no parameter {name!r}. {hint}")
        _put(parameters, [names[first], *nested], value, name)
    return base, parameters


def join_addresses(system: str, addresses: Iterable[tuple[str, int]]) -> str:
    """Return `system://host:port,host:port`, the same for every order and spelling of these addresses."""
    lower = {(host.lower(), port) for host, port in addresses}
    return f"{system}://" + ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sorted(lower))


def server_identities(system: str, addresses: Iterable[tuple[str, int]]) -> frozenset[str]:
    """Return `system://host:port` for each of these addresses, with one spelling of this machine's own address."""
    return frozenset(
        join_addresses(system, [("127.0.0.1" if host.lower() in _LOOPBACK else host, port)]) for host, port in addresses
    )


def split_names(value: Any) -> Any:
    """Return a text with commas as a list of its parts, a number as a list of its text, and every other value as it is.

    In a list, numbers become texts: YAML reads `1` as a number, and it may be a name.
    """
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in values]


def _put(parameters: dict[str, Any], path: list[str], value: str, name: str) -> None:
    """Store a value under its path of nested groups; `name` is the parameter in errors. Raises ValueError for a conflict."""
    *groups, last = path
    for depth, group in enumerate(groups, 1):
        inner = parameters.setdefault(group, {})
        if not isinstance(inner, dict):
            value_name = ".".join(name.split(".")[:depth])
            raise ValueError(f"{name!r} and {value_name!r} cannot be given together")  # noqa: TRY004 - a wrong URL, not a type
        parameters = inner
    if last in parameters:
        if isinstance(parameters[last], dict):
            raise ValueError(
                f"{name!r} and options below it, such as '{name}.{next(iter(parameters[last]))}', cannot be given together"
            )
        raise ValueError(f"the parameter {name!r} is given twice")
    parameters[last] = value
