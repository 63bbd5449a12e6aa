"""Clusters given by a URL: `system://HOST:PORT[,HOST:PORT]?NAME=VALUE&…`, where the names are those of the configuration."""

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from pydantic import BaseModel

from mqbridge.config.problems import nearest

ADMIN = {"admin": "admin_url"}
"""Short for the address of a web interface."""


def split_url(
    url: str, model: type[BaseModel], *, without: Iterable[str], short: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """The URL without its parameters, and these by the names of the model's fields, except `without`.

    Raises ValueError for a parameter that is not known, with the nearest that is, and for one that is given twice.
    """
    rest, _, query = url.partition("?")
    names = {name: name for name in model.model_fields.keys() - set(without)} | dict(short or {})
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in names:
            hint = nearest(name, names) or "It takes none"
            raise ValueError(f"there is no parameter {name!r}. {hint}")
        if names[name] in found:
            raise ValueError(f"the parameter {name!r} is given twice")
        found[names[name]] = value
    return rest, found
