"""Parses URLs of clusters: `system://HOST:PORT[,HOST:PORT]?NAME=VALUE&…`; the names are the keys of the configuration."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel

from mqbridge.config.problems import nearest

ADMIN = {"admin": "admin_url"}
"""Short parameter name of the address of a web interface, with its key in the configuration."""


def split_url(
    url: str, model: type[BaseModel], *, without: Iterable[str], short: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Split a URL into the part before `?` and its parameters, as nested data for the model.

    The parameters are the model's fields except `without`, and the `short` names. A name with dots is a path into groups of
    options: `tls.authorities=FILE`, `auth.token.file=FILE`. Raises ValueError for an unknown parameter (with the nearest known
    name) and for a duplicate one.
    """
    rest, _, query = url.partition("?")
    names = {name: name for name in model.model_fields.keys() - set(without)} | dict(short or {})
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        first, *deeper = name.split(".")
        if first not in names:
            hint = nearest(name, names) or "This URL has no parameters"
            raise ValueError(f"there is no parameter {name!r}. {hint}")
        _put(found, [names[first], *deeper], value, name)
    return rest, found


def _put(found: dict[str, Any], path: list[str], value: str, name: str) -> None:
    *groups, last = path
    for group in groups:
        inner = found.setdefault(group, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{name!r} and {name.rpartition('.')[0]!r} exclude each other")  # noqa: TRY004 - a wrong URL, not a type
        found = inner
    if last in found:
        raise ValueError(f"the parameter {name!r} is given twice")
    found[last] = value
